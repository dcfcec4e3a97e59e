"""Beam search: extend several sequences at each step and keep the best."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tinyformer.common.errors import SettingError
from tinyformer.common.settings import check_counts
from tinyformer.decoding.generation import Decoder, batch_of_ids
from tinyformer.decoding.sampling import LogitsRule, TokenRules, likeliest, useless_logits
from tinytensor.device.backend import host


@dataclass(frozen=True)
class Hypothesis:
    """A sequence found by beam search: its ids (without prompt and end token) and its score; higher is better. ``end`` is the
    token that ended it, or None if it was cut off at ``max_tokens``."""

    ids: tuple[int, ...]
    score: float
    end: int | None = None


@dataclass(frozen=True)
class BeamCandidate:
    """A sequence that one beam search step kept, or finished because it ended.

    It extends sequence number ``parent`` of the previous step (0 is the best) by ``token``. The first step extends the prompt,
    sequence 0. ``log_probability`` is the sum over all generated tokens. ``kept`` is the sequence's number among those that
    this step kept. It is None if the sequence ended; only then ``score`` is set.
    """

    parent: int
    token: int
    log_probability: float
    kept: int | None = None
    score: float | None = None


@dataclass(frozen=True)
class BeamStep:
    """One step of beam search for one row of the batch: its candidates, most likely first. Steps count from 1.

    The steps of a row form a tree in which each candidate is a child of its parent.
    """

    row: int
    step: int
    candidates: tuple[BeamCandidate, ...]


def beam_search(
    decoder: Decoder,
    prompts: Any,
    end: int | Iterable[int] | None,
    beam: int = 5,
    max_tokens: int = 64,
    n_best: int = 1,
    rule: BeamRule | None = None,
    forbidden: Iterable[int] = (),
    force_end: bool = False,
    watch: Callable[[BeamStep], None] | None = None,
    rules: Iterable[LogitsRule] = (),
) -> list[list[Hypothesis]]:
    """Return up to ``n_best`` continuations of each of ``prompts`` (batch, length), best first.

    For an encoder-decoder, the prompts are start tokens, (batch, 1). For ``end``, ``forbidden``, ``force_end`` and ``rules``,
    see ``TokenRules``. Rules get log-probabilities or, if ``beam`` is 1, logits, as in sampling.

    Each step keeps the ``beam`` most likely unfinished sequences of a row, by total log-probability. A sequence that ends among
    the ``beam`` most likely is finished and scored. Its length includes the end token. A sequence at ``max_tokens`` also counts
    as finished. The ``rule`` (default: ``WuRule()``) scores sequences and decides when a row is done. If ``beam`` is 1, the
    search is greedy: the first finished sequence completes the row. After each step, ``watch`` is called with a ``BeamStep``
    for each active row.

    Raises SettingError for an invalid setting. Raises UserError if prompts are empty or of different lengths, logits are NaN or
    infinite, or no sequence is possible.

    >>> from tinyformer import GPT, GPTConfig, beam_search, language_decoder
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=1, d_model=32)).eval()
    >>> decoder = language_decoder(model)
    >>> ((best, *others),) = beam_search(decoder, [[1, 2]], end=0, beam=3, n_best=3)
    >>> len(others), best.score >= others[0].score
    (2, True)
    """
    check_counts(beam=beam, max_tokens=max_tokens)
    check_n_best(n_best, beam)
    tokens = TokenRules(end, forbidden, force_end, rules)
    if not len(prompts):
        return []
    texts = new = batch_of_ids(prompts, "prompts")
    searches = [_Search(beam, n_best, rule or WuRule(), max_tokens, tokens.ends) for _ in new]
    alive = list(range(len(new)))  # unfinished searches, in the order of the decoder's rows
    for step in range(1, max_tokens + 1):
        logits = decoder.next_logits(new)
        widths = [len(searches[i].beams) for i in alive]
        rows, written, still, first = [], [], [], 0
        for i, width, scored in zip(alive, widths, _parts(logits, widths, tokens, beam, step == max_tokens, texts, step - 1)):
            seen: list[BeamCandidate] | None = None if watch is None else []
            parents, picked = searches[i].advance(*scored, seen)
            if watch is not None and seen is not None:
                watch(BeamStep(i, step, tuple(seen)))
            if parents:
                rows += [first + parent for parent in parents]
                written += picked
                still.append(i)
            first += width
        if not still:
            break
        alive = still
        if rows != list(range(first)):
            decoder.select(host.array(rows))
        new = host.array(written, dtype=host.int64)[:, None]
        if tokens.rules:
            texts = host.concatenate([texts[rows], new], axis=1)
    return [search.best() for search in searches]


def _parts(
    logits: Any, widths: Sequence[int], tokens: TokenRules, beam: int, is_last: bool, texts: Any, written: int
) -> Iterator[tuple[Any, Any]]:
    """Yield the results of ``_scored`` in chunks of ``widths`` rows. Unless there are rules, which need the complete batch,
    each chunk is computed lazily and stays in the CPU cache."""
    ends = list(itertools.accumulate(widths))
    parts = [slice(end - width, end) for end, width in zip(ends, widths)]
    if tokens.rules:
        scores, totals = _scored(logits, tokens, beam, is_last, texts, written)
        return ((scores[part], totals[part]) for part in parts)
    return (_scored(logits[part], tokens, beam, is_last, texts, written) for part in parts)


def _scored(logits: Any, tokens: TokenRules, beam: int, is_last: bool, texts: Any, written: int) -> tuple[Any, Any]:
    """Return the scores (rows, vocab_size) of the next tokens after applying the rules. Also return what to subtract from each
    row, (rows,), to get log-probabilities. Few are needed, so subtracting from all would be slow.

    The rules get log-probabilities, or logits if the beam width is 1.
    """
    logits = logits.astype(host.promote_types(logits.dtype, host.float32), copy=False)
    totals = log_of_total(logits)
    if (tokens.rules and beam > 1) or (is_last and tokens.force_end):
        log_probabilities = logits - totals[:, None]
        return tokens.restrict(log_probabilities, is_last, texts, written), host.zeros_like(totals)
    return tokens.restrict(logits, is_last, texts, written), totals


def log_softmax(logits: Any) -> Any:
    """Return log-probabilities along the last axis of a NumPy array. Raises UserError if the highest logit is not finite."""
    return logits - log_of_total(logits)[..., None]


def log_of_total(logits: Any) -> Any:
    """Return log(sum(exp(logits))) along the last axis of a NumPy array, as float64 (...). Raises UserError if the highest
    logit is not finite."""
    best = logits.max(axis=-1, keepdims=True)
    if not host.isfinite(best).all():
        raise useless_logits(best[~host.isfinite(best)][0])
    shifted = logits - best
    total = host.exp(shifted, out=shifted).sum(axis=-1, keepdims=True)
    return (host.log(total, dtype=host.float64) + best)[..., 0]


def check_n_best(n_best: int, beam: int) -> None:
    """Raise SettingError unless ``n_best`` is from 1 to the beam width."""
    check_counts(n_best=n_best)
    if n_best > beam:
        raise SettingError(f"n_best must be at most beam, {beam}, got {n_best}", "n_best", "beam")


class _Search:
    """The search state of one row of the batch."""

    def __init__(self, beam: int, n_best: int, rule: BeamRule, max_tokens: int, ends: list[int]):
        self.width = beam
        self.n_best = n_best
        self.rule = rule
        self.max_tokens = max_tokens
        self.ends = ends
        self.beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]  # log-probabilities and ids, most likely first
        self.num_kept = rule.num_kept(beam, n_best)
        self.finished: list[tuple[float, tuple[int, ...], int | None]] = []  # a heap of scored sequences, worst first
        self.num_finished = 0

    def advance(self, scores: Any, totals: Any, seen: list[BeamCandidate] | None) -> tuple[list[int], list[int]]:
        """Extend each sequence by each token and keep the best. ``scores`` minus ``totals`` are the tokens' log-probabilities.
        For each kept sequence, return its parent's number and its new token in two lists (empty if the row is done). Kept and
        finished sequences are appended to ``seen``."""
        count = self.width * (1 + len(self.ends))  # enough that `width` of them do not end
        is_last = len(self.beams[0][1]) + 1 == self.max_tokens
        extended: list[tuple[float, tuple[int, ...]]] = []
        parents: list[int] = []
        for rank, (total, parent, token) in enumerate(self._extensions(scores, totals, count)):
            ids = self.beams[parent][1]
            if token in self.ends or is_last:
                if rank < self.width:  # only sequences among the `width` best can finish
                    score = self._finish(total, ids, token)
                    if seen is not None:
                        seen.append(BeamCandidate(parent, token, total, score=score))
            elif len(extended) < self.width:
                if seen is not None:
                    seen.append(BeamCandidate(parent, token, total, kept=len(extended)))
                extended.append((total, (*ids, token)))
                parents.append(parent)
        self.beams = extended
        return ([], []) if self._is_done() else (parents, [ids[-1] for _, ids in extended])

    def _extensions(self, scores: Any, totals: Any, count: int) -> list[tuple[float, int, int]]:
        """Return the ``count`` most likely one-token extensions, best first: log-probability, sequence number, token."""
        extensions = []
        for parent, (row, total, (log_probability, _)) in enumerate(zip(scores, totals, self.beams)):
            best = likeliest(row, count)
            sums = log_probability + (row[best].astype(host.float64) - total)
            extensions += [(x, parent, token) for x, token in zip(sums.tolist(), best.tolist())]
        return sorted(extensions, key=lambda text: -text[0])[:count]

    def _finish(self, log_probability: float, ids: tuple[int, ...], token: int) -> float:
        """Finish a sequence and return its score."""
        self.num_finished += 1
        score = self.rule.score(log_probability, len(ids) + 1)
        heapq.heappush(self.finished, (score, ids, token) if token in self.ends else (score, (*ids, token), None))
        if len(self.finished) > self.num_kept:
            heapq.heappop(self.finished)
        return score

    def _is_done(self) -> bool:
        """Return True if no sequence is left to extend, enough have ended, or none is expected to beat them."""
        if not self.beams:
            return True
        if self.num_finished >= self.width and (self.rule.stops_when_full or self.width == 1):
            return True
        likeliest, ids = self.beams[0]
        is_full = len(self.finished) == self.num_kept
        return is_full and self.finished[0][0] >= self.rule.attainable(likeliest, len(ids), self.max_tokens)

    def best(self) -> list[Hypothesis]:
        """Return the finished sequences, best first. Raises UserError if there are none because tokens are forbidden."""
        if not self.finished:
            raise useless_logits(-host.inf)
        ranked = sorted(self.finished, key=lambda item: -item[0])[: self.n_best]
        return [Hypothesis(ids, score, end) for score, ids, end in ranked]


# -------------------------------------------------------------------------------------------------------- length normalization


class BeamRule(Protocol):
    """Protocol for rules that score sequences. Lengths count generated tokens, including the end token."""

    @property
    def stops_when_full(self) -> bool:
        """True if a search is done once ``beam`` sequences have ended."""

    def num_kept(self, beam: int, n_best: int) -> int:
        """Return how many finished sequences to keep. A new sequence must beat the worst of them."""

    def score(self, log_probability: float, length: int) -> float:
        """Return the score of a finished sequence; higher is better."""

    def attainable(self, log_probability: float, length: int, max_tokens: int) -> float:
        """Return the highest expected score of an unfinished sequence of this length. The search is done unless it exceeds the
        worst kept score."""


@dataclass(frozen=True)
class WuRule:
    """log P / ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14). The search stops once ``beam`` sequences have ended, or
    if no better sequence can enter the n best."""

    alpha: float = 0.6

    stops_when_full = True

    def __post_init__(self) -> None:
        _check_exponent("alpha", self.alpha)

    def num_kept(self, beam: int, n_best: int) -> int:
        """Return ``n_best``."""
        return n_best

    def score(self, log_probability: float, length: int) -> float:
        """Return the score. Without the division, short sequences would win."""
        return log_probability / ((5 + length) / 6) ** self.alpha

    def attainable(self, log_probability: float, length: int, max_tokens: int) -> float:
        """Return an upper bound. Longer sequences are never more probable, so use the current probability at the shortest or
        longest possible length, whichever scores higher."""
        return max(self.score(log_probability, length + 1), self.score(log_probability, max_tokens))


@dataclass(frozen=True)
class HuggingFaceRule:
    """log P / length^length_penalty. Searches end as in ``generate`` of Hugging Face transformers.

    If ``early_stopping`` is True, a search is done once ``beam`` sequences have ended. If False, the best unfinished sequence,
    scored as if it ended now, must also score no better than the worst of them. "never": same, but scored at its best length.
    """

    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        _check_exponent("length_penalty", self.length_penalty)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise SettingError(f'early_stopping must be True, False or "never", got {self.early_stopping!r}')

    @property
    def stops_when_full(self) -> bool:
        """True only if ``early_stopping`` is True."""
        return self.early_stopping is True

    def num_kept(self, beam: int, n_best: int) -> int:
        """Return ``beam``."""
        return beam

    def score(self, log_probability: float, length: int) -> float:
        """Return the score. A negative penalty favors short sequences."""
        return float(log_probability / length**self.length_penalty)

    def attainable(self, log_probability: float, length: int, max_tokens: int) -> float:
        """Return an estimate. A longer sequence may score higher, unless ``early_stopping`` is "never"."""
        is_longest_best = self.early_stopping == "never" and self.length_penalty > 0
        return self.score(log_probability, max_tokens if is_longest_best else length)


def _check_exponent(name: str, value: float) -> None:
    """Raise SettingError for an exponent that could overflow."""
    if not math.isfinite(value) or abs(value) > 50:
        raise SettingError(f"{name} must be a number from -50 to 50, got {value}")
