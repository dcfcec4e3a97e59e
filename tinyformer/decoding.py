"""From logits to tokens: greedy, sampled (temperature, top-k, top-p), and beam search; one text or a batch, with a cache.

A ``Decoder`` is what is decoded with: it takes the newest tokens of each row and returns the logits for the next. Everything
else here works on any of them, on NumPy arrays on the CPU, where picking tokens is cheap.
"""

from __future__ import annotations

import codecs
import functools
import heapq
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import tinytensor as tt
from tinyformer.blocks import Cache
from tinyformer.command_line import setting
from tinyformer.data import check_counts, check_ids
from tinyformer.errors import SettingError, UserError
from tinyformer.gpt import GPT
from tinyformer.schema import check_fields
from tinyformer.transformer import Transformer
from tinytensor import Tensor
from tinytensor.backend import host
from tinytensor.engine import quietly


class evaluating:
    """A context in which the model is in evaluation mode; the mode that each of its modules was in comes back afterwards, when
    the last of several threads has left it. It can be entered again and again: so it looks for the modules only once."""

    _lock = threading.Lock()
    _inside: ClassVar[WeakKeyDictionary[tt.nn.Module, tuple[int, list[tt.nn.Module]]]] = WeakKeyDictionary()

    def __init__(self, model: tt.nn.Module):
        self.model = model
        self.modules = list(model.modules())

    def __enter__(self) -> None:
        with self._lock:
            times, trained = self._inside.get(self.model, (0, []))
            found = [module for module in self.modules if module.training]
            _set_training(found, False)
            self._inside[self.model] = times + 1, trained + found

    def __exit__(self, *error: object) -> None:
        with self._lock:
            times, trained = self._inside.pop(self.model)
            if times > 1:
                self._inside[self.model] = times - 1, trained
                return
            _set_training(trained, True)


def _set_training(modules: list[tt.nn.Module], mode: bool) -> None:
    for module in modules:
        vars(module)["training"] = mode  # a text sets it hundreds of times, and a module looks at what it is to hold


# ---------------------------------------------------------------------------------------------------- the decoders


class Decoder(Protocol):
    """The state of a batch of texts that are being written: another batch needs a decoder of its own."""

    def next_logits(self, new: Any) -> Any:
        """Take the newest ids (batch, count), return the logits (batch, vocab_size) for what comes next."""

    def select(self, rows: Any) -> None:
        """Go on with these rows of the batch, in this order, some perhaps several times."""


class GPTDecoder:
    """Writes with a GPT. While all tokens fit its context they are cached; after that, each step sees the last block_size
    tokens anew, as their positions shift."""

    def __init__(self, model: GPT, use_cache: bool = True):
        self.model = model
        self.evaluating = evaluating(model)
        self.ids: Any = None  # those that count: at most block_size
        self.cache: Cache | None = model.new_cache() if use_cache else None
        self._logits = functools.partial(_last_logits, model, self.evaluating)
        self._logits_of_one_token: Any = tt.trace(functools.partial(self._logits, self.cache))

    def next_logits(self, new: Any) -> Any:
        """The logits (batch, vocab_size) after the new ids (batch, count). Raises UserError for a first one that is none, and
        for another number of rows than before."""
        block_size = self.model.config.block_size
        ids, new = _joined(self.ids, new, self.model.config.vocab_size)
        if self.cache is not None and ids.shape[1] > block_size:
            self.cache = self._logits_of_one_token = None  # what was traced holds the cache, too
        if self.cache is None:
            ids = ids[:, -block_size:]
            logits = self._logits(None, tt.tensor(ids))
        elif new.shape[1] == 1:
            logits = self._logits_of_one_token(tt.tensor(new))
        else:
            logits = self._logits(self.cache, tt.tensor(new))
        self.ids = ids  # not before, as the model may refuse them
        return logits.numpy()

    def select(self, rows: Any) -> None:
        """Go on with these rows of the batch."""
        self.ids = None if self.ids is None else self.ids[rows]
        if self.cache is not None:
            self.cache.select(rows)


def _joined(ids: Any, new: Any, vocab_size: int) -> tuple[Any, Any]:
    """The ids so far, None at first, with the new ones after them; and the new ones alone."""
    if ids is None:
        first = _batch_of_ids(new, "prompts")
        check_ids(first, vocab_size)
        return first, first
    if len(new) != len(ids):
        raise UserError(f"a decoder that writes {len(ids)} texts got ids for {len(new)}: make a new one for other texts")
    return host.concatenate([ids, new], axis=1), new


def _last_logits(model: GPT, evaluating: evaluating, cache: Cache | None, ids: Tensor) -> Tensor:
    with tt.no_grad(), quietly(), evaluating:
        return model(ids, cache)[:, -1]


class TransformerDecoder:
    """Translates with an encoder-decoder: encodes ``source`` (batch, length) once, then writes. ``max_tokens`` is how many
    tokens it can take in all. Raises UserError for a source without tokens, and where an id is none."""

    def __init__(self, model: Transformer, source: Any, max_tokens: int, use_cache: bool = True):
        check_counts(max_tokens=max_tokens)
        self.model = model
        self.evaluating = evaluating(model)
        self.max_tokens = max_tokens
        source = _batch_of_ids(source, "sources")
        check_ids(source, model.config.source_vocab_size)
        with tt.no_grad(), self.evaluating:
            self.memory, self.memory_mask = model.encode(tt.tensor(source))
        self.ids: Any = None
        self.cache = model.new_cache(max_tokens, self.memory.shape[1]) if use_cache else None
        self._logits = functools.partial(_last_target_logits, model, self.evaluating)
        self._logits_of_one_token = tt.trace(functools.partial(self._logits, self.cache, self.memory))

    def next_logits(self, new: Any) -> Any:
        """The logits (batch, vocab_size) after the new ids (batch, count). Raises UserError for a first one that is none, for
        another number of rows than the source has, and past ``max_tokens``."""
        if len(new) != len(self.memory):
            raise UserError(f"a decoder of {len(self.memory)} sources got ids for {len(new)}: it needs a row for each")
        ids, new = _joined(self.ids, new, self.model.config.target_vocab_size)
        if ids.shape[1] > self.max_tokens:
            raise UserError(f"this decoder takes {self.max_tokens} tokens, not {ids.shape[1]}: raise its max_tokens")
        seen = tt.tensor(ids if self.cache is None else new)
        if self.cache is not None and self.cache.length and seen.shape[1] == 1:  # the cache holds what the memory is read for
            logits = self._logits_of_one_token(seen, self.memory_mask)
        else:
            logits = self._logits(self.cache, self.memory, seen, self.memory_mask)
        self.ids = ids  # not before, as the model may refuse them
        return logits.numpy()

    def select(self, rows: Any) -> None:
        """Go on with these rows of the batch."""
        self.ids = None if self.ids is None else self.ids[rows]
        index = tt.tensor(rows)
        self.memory, self.memory_mask = self.memory[index], self.memory_mask[index]
        if self.cache is not None:
            self.cache.select(rows)


def _last_target_logits(
    model: Transformer, evaluating: evaluating, cache: Cache | None, memory: Tensor, ids: Tensor, memory_mask: Tensor
) -> Tensor:
    with tt.no_grad(), quietly(), evaluating:
        return model.decode(ids, memory, memory_mask, cache)[:, -1]


# -------------------------------------------------------------------------------------------------- picking a token


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked. Raises SettingError for settings that make no sense.

    ``temperature`` divides the logits: below 1 is more careful, 0 is greedy (the likeliest token, of equals the first).
    ``top_k`` keeps only the k likeliest tokens (0, or more than there are: all); ``top_p`` then the fewest whose probabilities
    reach p together (Holtzman et al. 2020; 1 keeps all). Of tokens that are equally likely both keep those with the smaller
    ids, so that never more than k remain, and ``top_k=1`` is greedy. (Hugging Face keeps all that are as likely as the k-th.)
    The same ``seed`` picks the same tokens.
    """

    temperature: float = setting(1.0, "below 1 is more careful, 0 is greedy")
    top_k: int = setting(0, "choose among the k likeliest tokens only; 0: among all")
    top_p: float = setting(1.0, "choose among the fewest tokens whose probabilities reach p together")
    seed: int = setting(1337, "the same seed picks the same tokens")

    def __post_init__(self) -> None:
        check_fields(self)
        if self.temperature < 0:
            raise SettingError(f"temperature must be 0 (greedy) or more, not {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise SettingError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        for name in ("top_k", "seed"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} must be at least 0, not {getattr(self, name)}")

    def pick(self, logits: Any, rng: Any) -> int:
        """One token id from logits (vocab_size,), a NumPy array. Raises UserError where they say nothing: NaN, or infinite."""
        likeliest = int(logits.argmax())  # a NaN counts as the highest
        if not math.isfinite(logits[likeliest]):
            raise _impossible(logits[likeliest])
        if self.temperature == 0:
            return likeliest
        weights = self._weights(logits.astype(host.float64))
        # Where the cumulative weight passes a uniform number: as choice() does, but exact for weights that do not sum to 1.
        cumulative = host.cumsum(weights)
        return int(host.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))

    def _weights(self, logits: Any) -> Any:
        """Unnormalised probabilities, 0 for the tokens that top_k and top_p leave out."""
        with host.errstate(over="ignore"):
            weights = host.exp((logits - logits.max()) / self.temperature)
        kept = min(self.top_k, len(logits)) if self.top_k else len(logits)
        if kept == len(logits) and self.top_p == 1:
            return weights
        order = host.argsort(-logits, kind="stable")
        if self.top_p < 1:  # a sum may seem to reach 1 before its end
            reached = host.cumsum(weights[order[:kept]])
            kept = min(kept, 1 + int(host.searchsorted(reached, self.top_p * reached[-1], side="left")))
        weights[order[kept:]] = 0.0
        return weights


def _impossible(best: float) -> UserError:
    """What to say where the highest of a token's logits is no finite number."""
    problem = "-inf for every token, so that none is possible"
    if math.isnan(best):
        problem = "NaN: its training diverged (try a lower learning rate), or its weights are damaged"
    elif best > 0:
        problem = "infinite: numbers grew too large for their dtype"
    return UserError(f"the model's outputs are {problem}; tt.detect_anomaly() names the op where such a value first comes up")


def sample(decoder: Decoder, prompts: Any, num_tokens: int, sampling: Sampling, end: int | None = None) -> Iterator[Any]:
    """Continue ``prompts`` (batch, length) by up to ``num_tokens`` tokens: yields the ids of each step, (batch,).

    A row that has written ``end`` goes on with it, and once all have, the iteration stops. Raises UserError for prompts that
    are empty, or of different lengths, and for a negative number of tokens.
    """
    if num_tokens < 0:
        raise UserError(f"the length must not be negative, not {num_tokens}")
    return _sample(decoder, _batch_of_ids(prompts, "prompts"), num_tokens, sampling, end) if len(prompts) else iter(())


def _sample(decoder: Decoder, prompts: Any, num_tokens: int, sampling: Sampling, end: int | None) -> Iterator[Any]:
    rng = host.random.default_rng(sampling.seed)
    new, finished = prompts, host.zeros(len(prompts), dtype=bool)
    for _ in range(num_tokens):
        logits = decoder.next_logits(new)
        picked = [end if over else sampling.pick(row, rng) for row, over in zip(logits, finished)]
        ids = host.array(picked, dtype=host.int64)
        yield ids
        finished |= ids == end if end is not None else False
        if finished.all():
            return
        new = ids[:, None]


def _batch_of_ids(given: Any, what: str) -> Any:
    """An int64 array (batch, length) of token ids, at least one a row. Raises UserError for anything else."""
    given = given.numpy() if isinstance(given, Tensor) else given
    lengths = sorted({len(row) for row in given if hasattr(row, "__len__")})
    if len(lengths) > 1:
        raise UserError(
            f"the {what} have from {lengths[0]} to {lengths[-1]} tokens: a batch needs equal lengths, so take together only "
            "those that have one length"
        )
    ids = host.asarray(given)
    if ids.ndim != 2:
        raise UserError(f"the {what} must be (batch, length), not of shape {ids.shape}")
    if lengths == [0]:
        raise UserError(f"the {what[:-1]} is empty: give at least one token")
    if ids.dtype.kind not in "iu":
        raise UserError(f"token ids are integers, not {ids.dtype}: a tokenizer encodes a text as such")
    return ids.astype(host.int64)


def generate(
    model: GPT,
    prompt: Sequence[int],
    num_tokens: int,
    sampling: Sampling | None = None,
    end: int | None = None,
    use_cache: bool = True,
) -> Iterator[int]:
    """Continue ``prompt`` (token ids, at least one) with a GPT by up to ``num_tokens`` ids, yielded one by one; it stops
    after ``end``. Raises UserError for an empty prompt or a negative length."""
    sampling = Sampling() if sampling is None else sampling
    ids = _batch_of_ids([prompt.numpy() if isinstance(prompt, Tensor) else prompt], "prompts")
    steps = sample(GPTDecoder(model, use_cache), ids, num_tokens, sampling, end)
    return (int(ids[0]) for ids in steps)


class Tokenizer(Protocol):
    """What turns ids into text."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids."""


def stream_text(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text of ids as they come, in pieces: as soon as a piece is sure, also where a character spans several tokens.

    For tokenizers whose pieces make the text as they are (characters, byte pairs), without spaces to guess between them.
    """
    decode_bytes = getattr(tokenizer, "decode_bytes", None)
    if decode_bytes is None:
        for i in ids:
            yield tokenizer.decode([i])
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for i in ids:
        yield decoder.decode(decode_bytes(i))
    yield decoder.decode(b"", final=True)


# ------------------------------------------------------------------------------------------------------ beam search


@dataclass(frozen=True)
class Hypothesis:
    """A text that beam search found: its ids, without the start and the end, and its score, higher being better."""

    ids: tuple[int, ...]
    score: float


def length_normalised(log_probability: float, length: int, alpha: float) -> float:
    """log P / ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14): without it, short texts would always win."""
    return log_probability / ((5 + length) / 6) ** alpha


def beam_search(
    decoder: Decoder,
    start: int,
    end: int,
    batch_size: int,
    beam: int = 5,
    max_tokens: int = 64,
    alpha: float = 0.6,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """The best texts for each row of the decoder's batch, best first, at most ``n_best``.

    Keeps the ``beam`` likeliest unfinished texts a row, by the sum of their log-probabilities. A text that ends is kept
    aside with its length-normalised score (the end token counts in its length). A row is done when ``beam`` texts have
    ended, or no unfinished one can still beat its n-th best; texts that reach ``max_tokens`` without an end count as
    finished. Raises UserError for settings that make no sense, and where the logits are NaN or infinite.
    """
    check_counts(beam=beam, max_tokens=max_tokens, n_best=n_best)
    if n_best > beam:
        raise SettingError(f"n_best must be at most beam, {beam}, not {n_best}", "n_best", "beam")
    if batch_size < 0:
        raise SettingError(f"batch_size must be at least 0, not {batch_size}")
    if not math.isfinite(alpha):
        raise SettingError(f"alpha must be a finite number, not {alpha}")
    searches = [_Row(beam, n_best, alpha, max_tokens, end) for _ in range(batch_size)]
    new = host.full((batch_size, 1), start, dtype=host.int64)
    alive = list(range(batch_size))  # the searches that still go on, in the order of the decoder's rows
    for _ in range(max_tokens if batch_size else 0):
        log_probabilities = log_softmax(decoder.next_logits(new).astype(host.float64))
        rows, tokens, still, first = [], [], [], 0
        for i in alive:
            width = len(searches[i].beams)
            parents, picked = searches[i].advance(log_probabilities[first : first + width])
            if parents:
                rows += [first + parent for parent in parents]
                tokens += picked
                still.append(i)
            first += width
        if not still:
            break
        alive = still
        if rows != list(range(first)):
            decoder.select(host.array(rows))
        new = host.array(tokens, dtype=host.int64)[:, None]
    return [search.best() for search in searches]


def log_softmax(logits: Any) -> Any:
    """The logarithms of the probabilities, along the last axis of a NumPy array. Raises UserError where they are NaN."""
    best = logits.max(axis=-1, keepdims=True)
    if not host.isfinite(best).all():
        raise _impossible(best[~host.isfinite(best)][0])
    shifted = logits - best
    return shifted - host.log(host.exp(shifted).sum(axis=-1, keepdims=True))


class _Row:
    """The beam of one row."""

    def __init__(self, beam: int, n_best: int, alpha: float, max_tokens: int, end: int):
        self.width = beam
        self.n_best = n_best
        self.alpha = alpha
        self.max_tokens = max_tokens
        self.end = end
        self.beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        self.finished: list[tuple[float, tuple[int, ...]]] = []  # a heap: the worst of the n best first
        self.num_finished = 0

    def advance(self, log_probabilities: Any) -> tuple[list[int], list[int]]:
        """Extend each text by each token and keep the best: which texts they came from, and their new tokens; none when
        the row is done."""
        totals = host.array([score for score, _ in self.beams])[:, None] + log_probabilities
        vocab_size = totals.shape[1]
        flat = totals.reshape(-1)
        count = min(self.width * 2, len(flat))  # at most `width` of them are ends, so `width` unfinished ones remain
        order = host.argsort(-flat, kind="stable")[:count]
        extended: list[tuple[float, tuple[int, ...]]] = []
        parents: list[int] = []
        for place, candidate in enumerate(int(c) for c in order):
            if flat[candidate] == -host.inf:  # impossible, and so are the rest
                break
            parent, token = divmod(candidate, vocab_size)
            ids = self.beams[parent][1]
            if token == self.end:
                if place < self.width:  # an end outside the beam would not have been taken
                    self._finish(float(flat[candidate]), ids, len(ids) + 1)
            elif len(extended) < self.width:
                extended.append((float(flat[candidate]), (*ids, token)))
                parents.append(parent)
        self.beams = extended
        if extended and len(extended[0][1]) == self.max_tokens:
            for score, ids in extended:
                self._finish(score, ids, len(ids))
            return [], []
        return ([], []) if self._done() else (parents, [ids[-1] for _, ids in extended])

    def _finish(self, log_probability: float, ids: tuple[int, ...], length: int) -> None:
        self.num_finished += 1
        heapq.heappush(self.finished, (length_normalised(log_probability, length, self.alpha), ids))
        if len(self.finished) > self.n_best:
            heapq.heappop(self.finished)

    def _done(self) -> bool:
        """As many texts have ended as the beam is wide (so a beam of 1 is greedy), or no unfinished one can still enter the
        n best: log-probabilities only fall, and the score is highest at the shortest or the longest length."""
        if not self.beams or self.num_finished >= self.width:
            return True
        lengths = (len(self.beams[0][1]) + 1, self.max_tokens)
        reachable = max(length_normalised(self.beams[0][0], length, self.alpha) for length in lengths)
        return len(self.finished) == self.n_best and self.finished[0][0] >= reachable

    def best(self) -> list[Hypothesis]:
        """The finished texts, best first."""
        return [Hypothesis(ids, score) for score, ids in sorted(self.finished, key=lambda item: -item[0])]
