"""Tables of token transitions by context, and lookups as matrix products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host


class TransitionTable:
    """Transition frequencies from each context of ``order`` tokens to the next token.

    ``matrix`` (vocab_size ** order, vocab_size), float32, has one row per context. A row sums to 1, or is 0 if the context
    never occurred. The row of the context (a, b) is a * vocab_size + b.

    >>> from tinyformer import TransitionTable
    >>> table = TransitionTable([[0, 1, 0, 1, 0, 2]], vocab_size=3)
    >>> table.predict([1])
    tensor([1., 0., 0.])
    """

    def __init__(self, sentences: Iterable[Sequence[int]], vocab_size: int, order: int = 1):
        """Count transitions in sentences of ids below ``vocab_size``. Contexts do not cross sentence boundaries. Raises
        UserError if ``order`` is below 1."""
        if order < 1:
            raise UserError(f"order must be at least 1, got {order}")
        self.order = order
        self.vocab_size = vocab_size
        counts = host.zeros((vocab_size**order, vocab_size))
        for sentence in sentences:
            for i in range(order, len(sentence)):
                counts[self.row(sentence[i - order : i]), sentence[i]] += 1
        self.matrix = tt.tensor(fractions(counts), dtype="float32")

    def row(self, context: Sequence[int]) -> int:
        """Return the row index for the last ``order`` tokens of a context. Raises UserError for a shorter context."""
        if len(context) < self.order:
            raise UserError(f"a context of {counted(len(context), 'token')} is too short for order {self.order}")
        row = 0
        for token in context[-self.order :]:
            row = row * self.vocab_size + token
        return row

    def predict(self, context: Sequence[int]) -> Tensor:
        """Return the distribution (vocab_size,) of the token after a context.

        A one-hot vector times a matrix is a row of the matrix. The lookup is therefore a product, which a network can learn.
        Attention is a soft version of it.
        """
        return tt.one_hot(tt.tensor(self.row(context)), len(self.matrix)) @ self.matrix


def fractions(counts: host.ndarray) -> host.ndarray:
    """Divide counts (..., tokens) by their sum. Return 0 where there are none."""
    return counts / host.maximum(counts.sum(axis=-1, keepdims=True), 1)


class SkipVotes:
    """Second-order model with skips: each earlier word, paired with the last word, votes for the next word.

    A table for contexts of eight words would need vocab_size**8 rows, almost all empty. Pairs suffice if a single earlier word
    is decisive. Each pair of the last word and an earlier one votes for what followed it before, and the votes add up. Most
    pairs know no more than the last word alone and only add noise, so a mask silences them.

    The last word's mask is a matrix row, found by a product with its one-hot vector: the query. Products with the one-hot
    vectors of the earlier words, the keys, read their entries of that row. The votes are the values:

        weights = Q M K^T      prediction = weights V

    This is attention with count-based matrices (after B. Rohrer, "Transformers from Scratch", 2021).

    ``votes`` (last word, earlier word, next word), float32, is how often the next word followed the last word with the earlier
    word anywhere before, as a fraction. ``mask`` (last word, earlier word) is 1 if the earlier word is informative, else 0.
    """

    def __init__(self, sentences: Sequence[Sequence[int]], vocab_size: int, threshold: float = 0.25):
        """Count pairs in sentences of ids below ``vocab_size``.

        A pair is informative if its votes differ by at least ``threshold`` from those of the last word alone (total variation
        distance). Raises UserError for a threshold outside (0, 1].
        """
        if not 0 < threshold <= 1:
            raise UserError(f"threshold must be above 0 and at most 1, got {threshold}")
        self.vocab_size = vocab_size
        self.first_order = TransitionTable(sentences, vocab_size)
        counts = host.zeros((vocab_size, vocab_size, vocab_size))
        for sentence in sentences:
            for i in range(1, len(sentence)):
                for earlier in sentence[: i - 1]:
                    counts[sentence[i - 1], earlier, sentence[i]] += 1
        self.votes = tt.tensor(fractions(counts), dtype="float32")
        moved = (self.votes - self.first_order.matrix.reshape(vocab_size, 1, vocab_size)).abs().sum(axis=-1) / 2
        occurs = counts.any(axis=-1)
        self.mask = ((moved >= threshold - 1e-6) & tt.tensor(occurs)).astype("float32")

    def weights(self, context: Sequence[int], masked: bool = True) -> Tensor:
        """Return the weights of a context's earlier words (len(context) - 1,), which sum to 1. Weights are equal if ``masked``
        is False or the mask would silence every word. In the latter case, the words agree with the last word."""
        query = self._one_hot(context[-1])
        keys = self._one_hot(context[:-1])
        weights = query @ self.mask @ keys.T if masked else tt.ones(len(keys))
        if not weights.any():
            weights = tt.ones(len(keys))
        return weights / weights.sum()

    def predict(self, context: Sequence[int], masked: bool = True) -> Tensor:
        """Return the distribution (vocab_size,) of the word after a context, by the votes of its pairs. For a context of one
        word, use a first-order table."""
        if len(context) < 2:
            return self.first_order.predict(context)
        values = self._one_hot(context[:-1]) @ self.votes[context[-1]]
        return self.weights(context, masked) @ values

    def _one_hot(self, ids: int | Sequence[int]) -> Tensor:
        return tt.one_hot(tt.tensor(ids), self.vocab_size)
