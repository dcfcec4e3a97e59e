"""Parallel corpora: read sentence pairs, split them without leaks, and make batches."""

from __future__ import annotations

import copy
import gzip
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.files import open_file, read_file
from tinyformer.common.memory import check_fits, enough_memory
from tinyformer.common.settings import check_counts
from tinyformer.common.vectors import Vectors, padded_vectors
from tinyformer.data.batches import Rows, padded
from tinyformer.data.files import READING, check_file, decoded
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

Pair = tuple[str, str]

_MOST_UNPACKED = 30  # maximum gzip ratio: text has 3 to 10, zeros a thousand
_SURELY_TEXT = 1 << 26  # bytes that are always decompressed


# ---------------------------------------------------------------------------------------------------------- reading


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a UTF-8 file, optionally gzipped (.gz). Raises UserError if the file cannot be read."""
    size = check_file(path, "pass a file of sentences", "*.tsv", "*.txt", "*.gz")
    with enough_memory(f"the text in {path}", "pass a shorter one"):
        try:
            content = _unpacked(path) if Path(path).suffix == ".gz" else _read(path, size)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is not a complete gzip file: {error}") from None
        text = decoded(path, content)
        _check_size(path, READING * len(content) + 8 * content.count(b"\n"))  # a list takes 8 bytes per line
        return text.removesuffix("\n").split("\n") if text else []


def _check_size(path: str | Path, needed: int) -> None:
    check_fits(needed, f"the text in {path}", "pass a shorter one", on_host=True)


def _read(path: str | Path, size: int) -> bytes:
    _check_size(path, READING * size)
    return read_file(path, None)


def _unpacked(path: str | Path) -> bytearray:
    """Decompress a gzip file. The file does not store a reliable size, so check the available memory each time the content
    doubles."""
    content = bytearray()
    checked = 1 << 24
    limit = max(_SURELY_TEXT, _MOST_UNPACKED * os.path.getsize(path))
    with open_file(path) as packed, gzip.open(packed, "rb") as file:
        while piece := file.read(1 << 20):
            content += piece
            if len(content) > limit:
                raise UserError(
                    f"{path} unpacks to more than {_MOST_UNPACKED} times its size, unlike text: if you trust it, gunzip it"
                )
            if len(content) >= checked:
                _check_size(path, READING * len(content))
                checked = 2 * len(content)
    return content


def read_two_files(source: str | Path, target: str | Path) -> list[Pair]:
    """Read pairs from two files, line by line. Raises UserError if the numbers of lines differ."""
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise UserError(
            f"{source} has {counted(len(sources), 'line')} and {target} has {len(targets):,}: each line must be the "
            "translation of the other file's"
        )
    return [(s.strip(), t.strip()) for s, t in zip(sources, targets)]


def without_empty(pairs: Sequence[Pair]) -> tuple[list[Pair], int]:
    """Drop pairs with an empty side. Return the rest, and the number dropped."""
    kept = [pair for pair in pairs if pair[0] and pair[1]]
    return kept, len(pairs) - len(kept)


def split_pairs(pairs: Sequence[Pair], held_out: Sequence[int], seed: int = 0) -> list[list[Pair]]:
    """Shuffle and split the pairs. Return the training pairs, then one split per count in ``held_out``, at least that large.

    All translations of a source sentence go to the same split, so that training never sees held-out answers. Duplicate pairs
    count once. Raises UserError if there are too few pairs.
    """
    groups: dict[str, list[Pair]] = {}
    for pair in dict.fromkeys(pairs):
        groups.setdefault(pair[0], []).append(pair)
    sources = list(groups)
    order = iter([sources[int(i)] for i in host.random.default_rng(seed).permutation(len(sources))])
    parts: list[list[Pair]] = []
    for wanted in held_out:
        part: list[Pair] = []
        while len(part) < wanted:
            source = next(order, None)
            if source is None:
                raise _too_few(pairs, sources, held_out)
            part += groups[source]
        parts.append(part)
    training = [pair for source in order for pair in groups[source]]
    if not training:
        raise _too_few(pairs, sources, held_out)
    return [training, *parts]


def _too_few(pairs: Sequence[Pair], sources: Sequence[str], held_out: Sequence[int]) -> UserError:
    """Return the error for too few pairs. If sources repeat, it counts distinct sources, since a split has all pairs of a
    source."""
    same = f" with {counted(len(sources), 'different source sentence')}" if len(sources) < len(pairs) else ""
    return UserError(f"cannot hold out {sum(held_out):,} of {counted(len(pairs), 'pair')}{same} and train on the others")


# ---------------------------------------------------------------------------------------------------------- batches


@dataclass
class PairBatch(Rows):
    """Padded ids: the encoder inputs, the decoder inputs (beginning with a start token), and the decoder targets."""

    source: Tensor
    target_inputs: Tensor
    target_outputs: Tensor
    num_targets: int


@dataclass(frozen=True)
class Specials:
    """The special-token ids, the same in both languages."""

    pad: int
    start: int
    end: int


EncodedPair = tuple[list[int], list[int]]


def encode_pairs(
    pairs: Sequence[Pair], encode_source: Callable[[str], Any], encode_target: Callable[[str], Any], max_tokens: int
) -> tuple[list[Pair], list[EncodedPair]]:
    """Encode the pairs. Drop those with more than ``max_tokens`` tokens on a side. Return the rest as text and as ids."""
    kept, encoded = [], []
    for pair in pairs:
        ids = [int(i) for i in encode_source(pair[0])], [int(i) for i in encode_target(pair[1])]
        if max(map(len, ids)) <= max_tokens:
            kept.append(pair)
            encoded.append(ids)
    return kept, encoded


class PairBatches:
    """Batches of ``batch_size`` pairs of similar length. Each epoch uses every training pair once, in a new order.

    Raises UserError if a split is empty.
    """

    def __init__(
        self,
        training: Sequence[EncodedPair],
        validation: Sequence[EncodedPair],
        specials: Specials,
        batch_size: int,
        seed: int = 0,
    ):
        if not training or not validation:
            raise UserError(
                f"got {counted(len(training), 'pair')} for training and {len(validation)} for validation: each "
                "needs at least one that is not too long"
            )
        check_counts(batch_size=batch_size)
        self.training = list(training)
        self.validation = sorted(validation, key=_lengths)
        self.specials = specials
        self.batch_size = batch_size
        self._rng = host.random.default_rng(seed)
        self._epoch_state = dict(self._rng.bit_generator.state)
        self._epoch: list[list[EncodedPair]] = []
        self._position = 0

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return -(-len(self.training) // self.batch_size)

    def sample(self) -> PairBatch:
        """Return the next training batch."""
        if self._position == len(self._epoch):
            self._start_epoch()
        self._position += 1
        return self._batch(self._epoch[self._position - 1])

    def largest_batch(self) -> int:
        """Return a lower bound on the tokens in the largest training batch, in both languages: the mean over all batches."""
        return sum(len(source) + len(target) + 2 for source, target in self.training) // len(self)

    def _start_epoch(self) -> None:
        """Shuffle the pairs, sort them by length within spans of 100 batches, then shuffle the batches. This reduces padding
        but still varies the batches between epochs."""
        self._epoch_state = dict(self._rng.bit_generator.state)
        pairs = [self.training[int(i)] for i in self._rng.permutation(len(self.training))]
        stretch = 100 * self.batch_size
        pairs = [pair for i in range(0, len(pairs), stretch) for pair in sorted(pairs[i : i + stretch], key=_lengths)]
        batches = [pairs[i : i + self.batch_size] for i in range(0, len(pairs), self.batch_size)]
        self._epoch = [batches[int(i)] for i in self._rng.permutation(len(batches))]
        self._position = 0

    def _batch(self, pairs: Sequence[EncodedPair]) -> PairBatch:
        pad, start, end = self.specials.pad, self.specials.start, self.specials.end
        return PairBatch(
            tt.tensor(padded([[*source, end] for source, _ in pairs], pad)),
            tt.tensor(padded([[start, *target] for _, target in pairs], pad)),
            tt.tensor(padded([[*target, end] for _, target in pairs], pad)),
            sum(len(target) + 1 for _, target in pairs),
        )

    def validation_batches(self) -> Iterator[PairBatch]:
        """Iterate over the validation pairs in batches of similar length."""
        for i in range(0, len(self.validation), self.batch_size):
            yield self._batch(self.validation[i : i + self.batch_size])

    def get_state(self) -> dict[str, Any]:
        """Return the state of ``sample``: the random state at the start of the epoch, and the number of batches already
        used."""
        return {
            "epoch": copy.deepcopy(self._epoch_state),
            "place": self._position,
            "started": bool(self._epoch),
            "batch_size": self.batch_size,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by ``get_state``. If its batch size differs, continue with the next epoch. Raises KeyError,
        TypeError or ValueError for an invalid state."""
        self._rng.bit_generator.state = self._epoch_state = copy.deepcopy(state["epoch"])
        self._epoch, self._position = [], 0
        started, position = state["started"], state["place"]
        if not isinstance(started, bool) or type(position) is not int or position < 0:
            raise ValueError(f"batch {position!r} of an epoch is not a valid position")
        if started:
            self._start_epoch()
            if state.get("batch_size", self.batch_size) != self.batch_size:  # states of early versions lack it
                self._epoch_state = dict(self._rng.bit_generator.state)
                self._epoch, position = [], 0
        if position > len(self._epoch):
            raise ValueError(f"batch {position} of an epoch of {len(self._epoch)} is not a valid position")
        self._position = position


def _lengths(pair: EncodedPair) -> tuple[int, int]:
    return len(pair[1]), len(pair[0])


# ---------------------------------------------------------------------------------------------------- pairs of vectors and ids


VectorPair = tuple[Any, Sequence[int]]  # a NumPy array (frames, features), and the target ids


@dataclass
class VectorPairBatch(Rows):
    """A ``PairBatch`` whose source consists of vectors: padded vectors (batch, frames, features), lengths, and padded ids."""

    values: Tensor
    lengths: Tensor
    target_inputs: Tensor
    target_outputs: Tensor
    num_targets: int

    @property
    def source(self) -> Vectors:
        """The encoder inputs."""
        return Vectors(self.values, self.lengths)


def vector_pair_batch(pairs: Sequence[VectorPair], specials: Specials) -> VectorPairBatch:
    """Make a batch of these pairs. Decoder inputs begin with a start token, and targets end with an end token."""
    vectors = padded_vectors([values for values, _ in pairs])
    return VectorPairBatch(
        *vectors,
        tt.tensor(padded([[specials.start, *ids] for _, ids in pairs], specials.pad)),
        tt.tensor(padded([[*ids, specials.end] for _, ids in pairs], specials.pad)),
        sum(len(ids) + 1 for _, ids in pairs),
    )
