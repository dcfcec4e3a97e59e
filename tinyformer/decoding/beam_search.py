"""Beam search: it extends several texts at once and keeps the best of them."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

from tinyformer.decoding.decoders import Decoder
from tinyformer.decoding.sampling import useless_logits
from tinyformer.errors import SettingError
from tinyformer.settings import check_counts
from tinytensor.backend import host


@dataclass(frozen=True)
class Hypothesis:
    """A text that beam search found: its ids, without the start and end tokens, and its score. A higher score is better."""

    ids: tuple[int, ...]
    score: float


def length_normalised(log_probability: float, length: int, alpha: float) -> float:
    """log P / ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14). Without it, short texts would have an advantage."""
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
    """For each row of the decoder's batch the best texts, at most ``n_best``, best first.

    Each step keeps the ``beam`` likeliest unfinished texts of a row, by the sum of their log-probabilities. A text that ends
    is put aside with its length-normalised score; the end token counts in its length. A row is done when ``beam`` texts have
    ended, or when no unfinished text can still beat its n-th best. Texts that reach ``max_tokens`` without an end count as
    finished. Raises SettingError for a setting that is not allowed, and UserError if the logits are NaN or infinite.
    """
    check_counts(beam=beam, max_tokens=max_tokens, n_best=n_best)
    if n_best > beam:
        raise SettingError(f"n_best must be at most beam, {beam}, not {n_best}", "n_best", "beam")
    if batch_size < 0:
        raise SettingError(f"batch_size must be at least 0, not {batch_size}")
    if not math.isfinite(alpha):
        raise SettingError(f"alpha must be a finite number, not {alpha}")
    searches = [_Search(beam, n_best, alpha, max_tokens, end) for _ in range(batch_size)]
    new = host.full((batch_size, 1), start, dtype=host.int64)
    alive = list(range(batch_size))  # the searches that are not done, in the order of the decoder's rows
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
    """The log-probabilities along the last axis of a NumPy array. Raises UserError if the highest logit is NaN or infinite."""
    best = logits.max(axis=-1, keepdims=True)
    if not host.isfinite(best).all():
        raise useless_logits(best[~host.isfinite(best)][0])
    shifted = logits - best
    return shifted - host.log(host.exp(shifted).sum(axis=-1, keepdims=True))


class _Search:
    """The search for one row of the batch."""

    def __init__(self, beam: int, n_best: int, alpha: float, max_tokens: int, end: int):
        self.width = beam
        self.n_best = n_best
        self.alpha = alpha
        self.max_tokens = max_tokens
        self.end = end
        self.beams: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        self.finished: list[tuple[float, tuple[int, ...]]] = []  # a heap of the n best, the worst of them first
        self.num_finished = 0

    def advance(self, log_probabilities: Any) -> tuple[list[int], list[int]]:
        """Extend each text by each token, and keep the best. Returns two lists: for each kept text, the number of the text that
        it extends, and its new token. Both are empty when the row is done."""
        totals = host.array([score for score, _ in self.beams])[:, None] + log_probabilities
        vocab_size = totals.shape[1]
        flat = totals.reshape(-1)
        count = min(self.width * 2, len(flat))  # at most `width` of these are ends, so enough remain
        order = host.argsort(-flat, kind="stable")[:count]
        extended: list[tuple[float, tuple[int, ...]]] = []
        parents: list[int] = []
        for place, candidate in enumerate(int(c) for c in order):
            if flat[candidate] == -host.inf:  # it has probability 0, and so have the rest
                break
            parent, token = divmod(candidate, vocab_size)
            ids = self.beams[parent][1]
            if token == self.end:
                if place < self.width:  # an end counts only among the `width` best
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
        """Whether the row is done: as many texts have ended as the beam is wide (so a beam of 1 is greedy), or no unfinished
        text can still enter the n best.

        A text that grows cannot become more probable. So its score can reach at most what its present probability gives at the
        shortest or at the longest possible length, whichever is higher.
        """
        if not self.beams or self.num_finished >= self.width:
            return True
        lengths = (len(self.beams[0][1]) + 1, self.max_tokens)
        reachable = max(length_normalised(self.beams[0][0], length, self.alpha) for length in lengths)
        return len(self.finished) == self.n_best and self.finished[0][0] >= reachable

    def best(self) -> list[Hypothesis]:
        """The finished texts, best first."""
        return [Hypothesis(ids, score) for score, ids in sorted(self.finished, key=lambda item: -item[0])]
