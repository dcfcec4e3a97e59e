"""From logits to tokens: greedy, sampled (temperature, top-k, top-p), and beam search; one text or a batch, with a cache.

A ``Decoder`` is what is decoded with: it takes the newest tokens of each row and returns the logits for the next. Everything
else here works on any of them, on NumPy arrays on the CPU, where picking tokens is cheap.
"""

from __future__ import annotations

import codecs
import functools
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tinytensor as tt
from tinyformer.blocks import Cache
from tinyformer.command_line import setting
from tinyformer.data import check_ids
from tinyformer.errors import UserError
from tinyformer.gpt import GPT
from tinyformer.transformer import Transformer
from tinytensor import Tensor
from tinytensor.backend import host
from tinytensor.engine import quietly


class evaluating:
    """A context in which the model is in evaluation mode; the mode that each of its modules was in comes back afterwards.
    It can be entered again and again, which a decoder does at each token: so it looks for the modules only once."""

    def __init__(self, model: tt.nn.Module):
        self.modules = list(model.modules())

    def __enter__(self) -> None:
        self.trained = [module for module in self.modules if module.training]
        for module in self.trained:
            module.training = False

    def __exit__(self, *error: object) -> None:
        for module in self.trained:
            module.training = True


# ---------------------------------------------------------------------------------------------------- the decoders


class Decoder(Protocol):
    """The state of a batch of texts that are being written."""

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
        self.ids: Any = None
        self.cache: Cache | None = model.new_cache() if use_cache else None
        self._logits = functools.partial(_last_logits, model, self.evaluating)
        self._logits_of_one_token = tt.trace(functools.partial(self._logits, self.cache))

    def next_logits(self, new: Any) -> Any:
        """The logits (batch, vocab_size) after the new ids (batch, count). Raises UserError for a first one that is none."""
        if self.ids is None:
            check_ids(new, self.model.config.vocab_size)
        self.ids = new if self.ids is None else host.concatenate([self.ids, new], axis=1)
        if self.cache is not None and self.ids.shape[1] > self.cache.capacity:
            self.cache = None
        seen = self.ids[:, -self.model.config.block_size :] if self.cache is None else new
        if self.cache is not None and seen.shape[1] == 1:
            return self._logits_of_one_token(tt.tensor(seen)).numpy()
        return self._logits(self.cache, tt.tensor(seen)).numpy()

    def select(self, rows: Any) -> None:
        """Go on with these rows of the batch."""
        self.ids = self.ids[rows]
        if self.cache is not None:
            self.cache.select(rows)


def _last_logits(model: GPT, evaluating: evaluating, cache: Cache | None, ids: Tensor) -> Tensor:
    with tt.no_grad(), quietly(), evaluating:
        return model(ids, cache)[:, -1]


class TransformerDecoder:
    """Translates with an encoder-decoder: encodes ``source`` (batch, length) once, then writes. ``max_tokens`` is how many
    tokens it can take in all."""

    def __init__(self, model: Transformer, source: Any, max_tokens: int, use_cache: bool = True):
        self.model = model
        self.evaluating = evaluating(model)
        check_ids(source, model.config.source_vocab_size)
        with tt.no_grad(), self.evaluating:
            self.memory, self.memory_mask = model.encode(tt.tensor(source))
        self.ids: Any = None
        self.cache = model.new_cache(max_tokens, self.memory.shape[1]) if use_cache else None
        self._logits = functools.partial(_last_target_logits, model, self.evaluating)
        self._logits_of_one_token = tt.trace(functools.partial(self._logits, self.cache, self.memory))

    def next_logits(self, new: Any) -> Any:
        """The logits (batch, vocab_size) after the new ids (batch, count)."""
        self.ids = new if self.ids is None else host.concatenate([self.ids, new], axis=1)
        seen = tt.tensor(self.ids if self.cache is None else new)
        if self.cache is not None and self.cache.length and seen.shape[1] == 1:  # the cache holds what the memory is read for
            return self._logits_of_one_token(seen, self.memory_mask).numpy()
        return self._logits(self.cache, self.memory, seen, self.memory_mask).numpy()

    def select(self, rows: Any) -> None:
        """Go on with these rows of the batch."""
        self.ids = self.ids[rows]
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
    """How the next token is picked. Raises UserError for settings that make no sense.

    ``temperature`` divides the logits: below 1 is more careful, 0 is greedy (the likeliest token, of equals the first).
    ``top_k`` keeps only the k likeliest tokens (0: all); ``top_p`` then the fewest whose probabilities reach p together
    (Holtzman et al. 2020). The same ``seed`` picks the same tokens.
    """

    temperature: float = setting(1.0, "below 1 is more careful, 0 is greedy")
    top_k: int = setting(0, "choose among the k likeliest tokens only; 0: among all")
    top_p: float = setting(1.0, "choose among the fewest tokens whose probabilities reach p together")
    seed: int = setting(1337, "the same seed picks the same tokens")

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise UserError(f"the temperature must be 0 (greedy) or more, not {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top_k must not be negative, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, not {self.top_p}")
        if self.seed < 0:
            raise UserError(f"the seed must not be negative, not {self.seed}")

    def pick(self, logits: Any, rng: Any) -> int:
        """One token id from logits (vocab_size,), a NumPy array."""
        if self.temperature == 0:
            return int(logits.argmax())
        weights = self._weights(logits.astype(host.float64))
        # Where the cumulative weight passes a uniform number: as choice() does, but exact for weights that do not sum to 1.
        cumulative = host.cumsum(weights)
        return int(host.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))

    def _weights(self, logits: Any) -> Any:
        """Unnormalised probabilities, 0 for the tokens that top_k and top_p leave out."""
        with host.errstate(over="ignore"):
            weights = host.exp((logits - logits.max()) / self.temperature)
        if self.top_k == 0 and self.top_p == 1:
            return weights
        order = host.argsort(-logits, kind="stable")
        kept = min(self.top_k, len(order)) if self.top_k else len(order)
        reached = host.cumsum(weights[order[:kept]])
        kept = min(kept, 1 + int(host.searchsorted(reached, self.top_p * reached[-1], side="left")))
        weights[order[kept:]] = 0.0
        return weights


def sample(decoder: Decoder, prompts: Any, num_tokens: int, sampling: Sampling, end: int | None = None) -> Iterator[Any]:
    """Continue ``prompts`` (batch, length) by up to ``num_tokens`` tokens: yields the ids of each step, (batch,).

    A row that has written ``end`` goes on with it, and once all have, the iteration stops.
    """
    rng = host.random.default_rng(sampling.seed)
    new = host.asarray(prompts, dtype=host.int64)
    finished = host.zeros(len(new), dtype=bool)
    for _ in range(num_tokens):
        logits = decoder.next_logits(new)
        picked = [end if over else sampling.pick(row, rng) for row, over in zip(logits, finished)]
        ids = host.array(picked, dtype=host.int64)
        yield ids
        finished |= ids == end if end is not None else False
        if finished.all():
            return
        new = ids[:, None]


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
    if len(prompt) == 0:
        raise UserError("the prompt is empty: give at least one token to continue")
    if num_tokens < 0:
        raise UserError(f"the length must not be negative, not {num_tokens}")
    sampling = Sampling() if sampling is None else sampling
    steps = sample(GPTDecoder(model, use_cache), [[int(i) for i in prompt]], num_tokens, sampling, end)
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
    finished. Raises UserError for settings that make no sense.
    """
    if min(beam, max_tokens, n_best) < 1 or n_best > beam:
        raise UserError(f"beam search needs 1 <= n_best <= beam and max_tokens >= 1, not {n_best}, {beam}, {max_tokens}")
    searches = [_Row(beam, n_best, alpha, max_tokens, end) for _ in range(batch_size)]
    new = host.full((batch_size, 1), start, dtype=host.int64)
    alive = list(range(batch_size))  # the searches that still go on, in the order of the decoder's rows
    for _ in range(max_tokens):
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
    """The logarithms of the probabilities, along the last axis of a NumPy array."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
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
