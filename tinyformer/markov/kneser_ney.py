"""Markov models of any order with interpolated Kneser-Ney smoothing (Kneser and Ney 1995; Chen and Goodman 1998, section 3).

A model of order n predicts the next token from its context, the previous n tokens. Most long contexts of a new text are unseen,
so raw counts would give many tokens a probability of 0. Smoothing subtracts a discount D from each count. It distributes the
freed probability over all tokens in proportion to the next shorter context:

    p(token | context) = max(count(context token) - D, 0) / count(context) + freed(context) * p(token | shorter context)

For the longest contexts, count how often a token followed. Shorter contexts matter only where the longer one has too little
data. For them, count the distinct longer contexts that a token followed. "Francisco" may be frequent, but it follows almost
only "San" and is a bad guess after any other word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.data.batches import check_ids
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

UNSEEN = -1  # number of an n-gram missing from the training text


@dataclass(frozen=True)
class Level:
    """All n-grams of one length, numbered in key order. The last token of an n-gram is the prediction target.

    A key combines the last token with the number of the first n - 1 tokens, one level below.
    """

    keys: Any  # (n-grams,), sorted
    discounted: Any  # (n-grams,): max(count - D, 0) / count(context)
    freed: Any  # (contexts,): fraction taken from each context's counts; 1 if it has none

    def numbers(self, contexts: Any, tokens: Any, vocab_size: int) -> Any:
        """Return the numbers of the n-grams with these contexts (numbers or UNSEEN) and last tokens, or UNSEEN."""
        keys = contexts * vocab_size + tokens
        numbers = host.minimum(host.searchsorted(self.keys, keys), len(self.keys) - 1)
        return host.where((contexts != UNSEEN) & (self.keys[numbers] == keys), numbers, UNSEEN)


class KneserNey:
    """A Markov model. The next token depends on the last ``order`` tokens (order 0: on frequencies alone)."""

    def __init__(self, ids: Any, order: int, vocab_size: int):
        """Count the n-grams in ``ids`` (length,), integers below ``vocab_size``, without sentence boundaries.

        Raises UserError for a negative order, for ids that are not a 1D array of vocabulary ids, and for a text no longer than
        the order.
        """
        if order < 0:
            raise UserError(f"order must be at least 0, got {order}")
        self.order = order
        self.vocab_size = vocab_size
        ids = self._checked(ids)
        if len(ids) <= order:
            raise UserError(
                f"a text of {counted(len(ids), 'token')} is too short for a model of order {order}: pass a longer text"
                + (", or a lower order" if order and len(ids) else "")
            )
        self.levels = _levels(ids, order, vocab_size)

    def probabilities(self, context: Any) -> Any:
        """Return the distribution (vocab_size,), float64, of the token after the last ``order`` tokens of ``context``."""
        context = self._checked(context)
        context = context[max(len(context) - self.order, 0) :]
        rows = host.concatenate([host.tile(context, (self.vocab_size, 1)), host.arange(self.vocab_size)[:, None]], axis=1)
        return self._probabilities(rows)

    def log_probabilities(self, ids: Any) -> Any:
        """Return each token's log-probability given the tokens before it, (length,) float64."""
        ids = self._checked(ids)
        beginning = [self._probabilities(ids[None, : i + 1]) for i in range(min(self.order, len(ids)))]
        return host.log(host.concatenate([*beginning, self._probabilities(self._windows(ids))]))

    def loss(self, ids: Any) -> float:
        """Return the mean loss in nats per token over all tokens except the first, like a GPT's loss."""
        if len(ids) < 2:
            raise UserError(f"a text of {counted(len(ids), 'token')} has no token to predict: pass a longer one")
        return float(-self.log_probabilities(ids)[1:].mean())

    def unseen(self, ids: Any) -> float:
        """Return the fraction of tokens after the first ``order`` to which raw counts would give a probability of 0."""
        if len(ids) <= self.order:
            raise UserError(f"a text of {counted(len(ids), 'token')} is too short for order {self.order}: pass a longer one")
        return float((self._numbers(self._windows(self._checked(ids))) == UNSEEN).mean())

    def generate(self, ids: Sequence[int], length: int, rng: Any) -> list[int]:
        """Sample ``length`` tokens after ``ids``, each given the tokens before it."""
        written = list(ids)
        for _ in range(length):
            written.append(int(rng.choice(self.vocab_size, p=self.probabilities(written))))
        return written[len(ids) :]

    def _checked(self, ids: Any) -> Any:
        """Return the ids (length,) as an array. Raises UserError unless they are a 1D array of vocabulary ids."""
        ids = host.asarray(ids)
        if ids.ndim != 1:
            raise UserError(f"token ids must be one row, got shape {ids.shape}: pass one text")
        check_ids(ids, self.vocab_size)
        return ids.astype(host.int64)

    def _windows(self, ids: Any) -> Any:
        """Return each token with the ``order`` tokens before it, (count, order + 1)."""
        ends = host.arange(self.order, len(ids))[:, None]
        return ids[ends + host.arange(-self.order, 1)]

    def _probabilities(self, rows: Any) -> Any:
        """Return the probability (count,) of the last token in each row (count, 1 to order + 1) given the earlier ones."""
        length = rows.shape[1]
        result = host.full(len(rows), 1 / self.vocab_size)
        for n in range(1, length + 1):
            tokens = rows[:, length - n :]
            contexts = self._numbers(tokens[:, :-1])
            level = self.levels[n - 1]
            numbers = level.numbers(contexts, tokens[:, -1], self.vocab_size)
            result *= host.where(contexts == UNSEEN, 1.0, level.freed[contexts])
            result += host.where(numbers == UNSEEN, 0.0, level.discounted[numbers])
        return result

    def _numbers(self, rows: Any) -> Any:
        """Return the n-gram number of each row (count, n), or UNSEEN."""
        numbers = host.zeros(len(rows), host.int64)
        for level, tokens in zip(self.levels, rows.T):
            numbers = level.numbers(numbers, tokens, self.vocab_size)
        return numbers


def _levels(ids: Any, order: int, vocab_size: int) -> list[Level]:
    """Return the levels for n-grams of 1 to order + 1 tokens."""
    numbers = [host.zeros(len(ids) + 1, host.int64)]  # n-gram number at each position; there is one n-gram of no tokens
    keys = []
    for n in range(1, order + 2):
        unique, inverse = host.unique(numbers[-1][: len(ids) - n + 1] * vocab_size + ids[n - 1 :], return_inverse=True)
        keys.append(unique)
        numbers.append(inverse)
    levels = []
    for n in range(1, order + 2):
        counts = host.bincount(numbers[n]) if n == order + 1 else _continuations(numbers[n], numbers[n + 1], len(keys[n - 1]))
        contexts = keys[n - 1] // vocab_size
        levels.append(_smoothed(keys[n - 1], counts, contexts, 1 if n == 1 else len(keys[n - 2])))
    return levels


def _continuations(numbers: Any, longer: Any, size: int) -> Any:
    """For each n-gram, count the distinct preceding tokens: the n-grams, one token longer, that end in it."""
    _, starts = host.unique(longer, return_index=True)
    return host.bincount(numbers[starts + 1], minlength=size)


def _smoothed(keys: Any, counts: Any, contexts: Any, num_contexts: int) -> Level:
    """Return the level for n-grams with these counts and context numbers."""
    taken = discounts(counts)[host.minimum(counts, 3)]
    totals = host.bincount(contexts, counts, num_contexts)
    freed = host.bincount(contexts, taken, num_contexts)
    known = totals > 0
    return Level(
        keys,
        (counts - taken) / host.where(known, totals, 1)[contexts],
        host.divide(freed, totals, where=known, out=host.ones(num_contexts)),
    )


def discounts(counts: Any) -> Any:
    """Estimate the discounts (4,) for n-grams with counts 0, 1, 2, and 3 or more.

    These are the discounts of modified Kneser-Ney smoothing (Chen and Goodman 1998, equation 26). If an estimate needs a count
    that no n-gram has, or is not between 0 and the count, use half the count, or 1.5.
    """
    have = host.bincount(host.minimum(counts, 5), minlength=6).astype(host.float64)
    estimates = host.array([0.0, 0.5, 1.0, 1.5])
    if have[1] > 0 and have[2] > 0:
        share = have[1] / (have[1] + 2 * have[2])
        for count in (1, 2, 3):
            estimate = count - (count + 1) * share * have[count + 1] / have[count] if have[count] else -1.0
            if 0 < estimate < count and have[count + 1]:
                estimates[count] = estimate
    return estimates
