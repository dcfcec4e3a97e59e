"""Shared code of all token batches (shards, padding, checks), and batches of labeled sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.memory import check_fits
from tinyformer.common.settings import check_counts
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host, index_dtype

# ---------------------------------------------------------------------------------------------------------- batches


Self = TypeVar("Self", bound="Rows")


@dataclass
class Rows:
    """Base class of batches: a dataclass whose tensors and NumPy arrays have one row per sequence. ``num_targets`` is the total
    number of targets."""

    def split(self: Self, parts: int) -> list[Self]:
        """Split the rows into ``parts`` shards whose sizes differ by at most one row. With fewer rows, return fewer shards.

        Each shard keeps the ``num_targets`` of the full batch as the denominator of the mean loss.
        """
        if parts == 1:
            return [self]
        columns = {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), (Tensor, host.ndarray))}
        count = len(next(iter(columns.values())))
        parts = min(parts, count)
        cuts = [count * part // parts for part in range(parts + 1)]
        return [replace(self, **{name: c[a:b] for name, c in columns.items()}) for a, b in zip(cuts, cuts[1:])]


@dataclass
class Batch(Rows):
    """Inputs: token ids (batch, length). Targets: the ids shifted by one position, or one class per row."""

    inputs: Tensor
    targets: Tensor
    num_targets: int


class Batches(Protocol):
    """Protocol for sources of training and validation batches."""

    def sample(self) -> Any:
        """Return the next training batch."""

    def validation_batches(self) -> Iterator[Any]:
        """Iterate over the batches of the validation split."""

    def get_state(self) -> dict[str, Any]:
        """Return the JSON-serializable state of ``sample``."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by ``get_state``."""


class Seeded:
    """State of batches that use a single random generator."""

    _rng: Any

    def get_state(self) -> dict[str, Any]:
        """Return the JSON-serializable state of the random generator."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by ``get_state``."""
        self._rng.bit_generator.state = state


def check_fraction(validation_fraction: float, test_fraction: float = 0.0) -> None:
    """Raise SettingError unless the fractions leave training data. ``test_fraction`` may be 0."""
    if not 0.0 < validation_fraction < 1.0:
        raise SettingError(f"validation_fraction must be above 0 and below 1, got {validation_fraction}")
    if not 0.0 <= test_fraction < 1.0 - validation_fraction:
        limit = f"{1.0 - validation_fraction:.4g} (1 - validation_fraction)"
        raise SettingError(f"test_fraction must be at least 0 and below {limit}, got {test_fraction}", "test_fraction")


def check_batch_fits(batch_size: int, tokens: int) -> None:
    """Raise SettingError if the ids of a batch, ``tokens`` per row, do not fit in memory.

    Counts only the ids and their positions in the text. A model needs far more memory; other checks cover that.
    """
    needed = 2 * index_dtype.itemsize * int(batch_size) * int(tokens)
    if int(batch_size) > 1:
        check_fits(needed, "a batch of this batch_size", "choose a smaller one", "batch_size")
    else:
        check_fits(needed, f"a batch of one row of {counted(int(tokens), 'token')}", "choose shorter rows")


def check_ids(ids: Any, vocab_size: int) -> None:
    """Raise UserError unless all ids, a NumPy array or a sequence, are integers from 0 to vocab_size - 1.

    Models check their ids only on the CPU. On a GPU, the check would force a synchronization.
    """
    ids = host.asarray(ids)
    if ids.size:
        check_integers(ids)
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise UserError(f"token id {int(wrong.flat[0])} is out of range: the vocabulary's ids are 0 to {vocab_size - 1}")


def check_integers(ids: Any) -> None:
    """Raise UserError unless an array holds integers that fit in int64. Conversion would silently change other values."""
    if ids.dtype.kind not in "iu":
        raise UserError(f"token ids must be integers, got {ids.dtype}: a tokenizer's encode returns them")
    if ids.dtype.kind == "u" and ids.size and ids.max() > host.iinfo(host.int64).max:
        raise UserError(f"token id {int(ids.max())} is out of range for any vocabulary")


def padded(rows: Sequence[Sequence[int]], pad: int) -> Any:
    """Pad rows of ids to the longest with ``pad`` and return a NumPy array (batch, length).

    >>> from tinyformer import padded
    >>> padded([[1, 2, 3], [4]], pad=0).tolist()
    [[1, 2, 3], [4, 0, 0]]
    """
    out = host.full((len(rows), max(map(len, rows))), pad, dtype=host.int64)
    for row, ids in zip(out, rows):
        row[: len(ids)] = ids
    return out


# ----------------------------------------------------------------------------------------------------------- labeled sequences


Labelled = tuple[Sequence[int], Any]  # the ids of a sequence and its class


class LabelledBatches(Seeded):
    """Padded batches of labeled sequences. Training batches are random; validation uses every sequence in order.

    Raises UserError if a split is empty or a batch does not fit in memory.
    """

    def __init__(self, training: Sequence[Labelled], validation: Sequence[Labelled], pad: int, batch_size: int, seed: int = 0):
        if not training or not validation:
            raise UserError(
                f"got {counted(len(training), 'text')} for training and {len(validation)} for validation: pass one or more"
            )
        check_counts(batch_size=batch_size)
        check_batch_fits(batch_size, min(len(ids) for ids, _ in training))
        self.training = list(training)
        self.validation = list(validation)
        self.pad = pad
        self.batch_size = batch_size
        self._rng = host.random.default_rng(seed)

    def sample(self) -> Batch:
        """Return the next training batch."""
        return self._batch([self.training[i] for i in self._rng.integers(0, len(self.training), self.batch_size)])

    def largest_batch(self) -> int:
        """Return a lower bound on the number of tokens in the largest training batch."""
        return int(self.batch_size) * min(len(ids) for ids, _ in self.training)

    def validation_batches(self, batch_size: int = 64) -> Iterator[Batch]:
        """Iterate over the validation sequences in order."""
        for first in range(0, len(self.validation), batch_size):
            yield self._batch(self.validation[first : first + batch_size])

    def _batch(self, texts: Sequence[Labelled]) -> Batch:
        ids = padded([ids for ids, _ in texts], self.pad)
        return Batch(tt.tensor(ids), tt.tensor([label for _, label in texts]), len(texts))
