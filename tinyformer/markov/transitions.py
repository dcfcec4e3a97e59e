"""Tables of which token follows which context, and lookups in them as matrix products."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host


class TransitionTable:
    """How often each token followed each context of ``order`` tokens.

    ``matrix`` (vocab_size ** order, vocab_size), float32, has a row for each context that sums to 1, or is 0 if the context
    never occurred. The row of the context (a, b) is a * vocab_size + b.

    >>> from tinyformer import TransitionTable
    >>> table = TransitionTable([[0, 1, 0, 1, 0, 2]], vocab_size=3)
    >>> table.predict([1])
    tensor([1., 0., 0.])
    """

    def __init__(self, sentences: Iterable[Sequence[int]], vocab_size: int, order: int = 1):
        """Count in sentences of ids below ``vocab_size``. Contexts do not cross sentence boundaries. Raises UserError for an
        order below 1."""
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
        """Return the row of the last ``order`` tokens of a context. Raises UserError if it has fewer."""
        if len(context) < self.order:
            raise UserError(f"a context of {counted(len(context), 'token')} is too short for order {self.order}")
        row = 0
        for token in context[-self.order :]:
            row = row * self.vocab_size + token
        return row

    def predict(self, context: Sequence[int]) -> Tensor:
        """Return the distribution (vocab_size,) of the token after a context.

        A one-hot vector times a matrix is a row of the matrix. So the lookup is a product, which a network can learn and which
        attention makes soft.
        """
        return tt.one_hot(tt.tensor(self.row(context)), len(self.matrix)) @ self.matrix


def fractions(counts: host.ndarray) -> host.ndarray:
    """Return counts (..., tokens) as fractions of their sum; 0 where there are none."""
    return counts / host.maximum(counts.sum(axis=-1, keepdims=True), 1)


class SkipVotes:
    """Second order with skips: each earlier word, paired with the last one, votes for the next word.

    A table for contexts of eight words would need vocab_size**8 rows, nearly all of them empty. Pairs are enough where one
    earlier word decides: each pair of the last word and an earlier one votes for what followed it before, and the votes add up.
    Most pairs know no more than the last word alone and only drown out the others, so a mask silences them.

    The last word's mask is a row of a matrix, which a product with its one-hot vector finds: the query. Products with the
    one-hot vectors of the earlier words, the keys, read their entries of that row. The votes are the values:

        weights = Q M K^T      prediction = weights V

    This is attention with all matrices made by counting (after B. Rohrer, "Transformers from Scratch", 2021).

    ``votes`` (last word, earlier word, next word), float32: the fraction of times that the next word followed the last one with
    the earlier word anywhere before. ``mask`` (last word, earlier word) is 1 if the earlier word makes a difference, else 0.
    """

    def __init__(self, sentences: Sequence[Sequence[int]], vocab_size: int, threshold: float = 0.25):
        """Count in sentences of ids below ``vocab_size``.

        A pair makes a difference if its votes are at least ``threshold`` away from those of the last word alone (in total
        variation distance). Raises UserError for a threshold outside of (0, 1].
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
        """Return the weights of a context's earlier words (len(context) - 1,), which sum to 1. They are equal without the mask,
        and if the mask would silence all: then they agree with the last word."""
        query = self._one_hot(context[-1])
        keys = self._one_hot(context[:-1])
        weights = query @ self.mask @ keys.T if masked else tt.ones(len(keys))
        if not weights.any():
            weights = tt.ones(len(keys))
        return weights / weights.sum()

    def predict(self, context: Sequence[int], masked: bool = True) -> Tensor:
        """Return the distribution (vocab_size,) of the word after a context by the votes of its pairs, or by first order for a
        context of one word."""
        if len(context) < 2:
            return self.first_order.predict(context)
        values = self._one_hot(context[:-1]) @ self.votes[context[-1]]
        return self.weights(context, masked) @ values

    def _one_hot(self, ids: int | Sequence[int]) -> Tensor:
        return tt.one_hot(tt.tensor(ids), self.vocab_size)
