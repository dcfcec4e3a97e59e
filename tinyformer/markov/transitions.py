"""A table of what follows each context, and the lookup in it as a product of matrices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import host


class TransitionTable:
    """How often each token followed each context of ``order`` tokens.

    ``matrix`` (vocab_size ** order, vocab_size), float32, has a row for each context, which sums to 1, or is 0 where the
    context never occurred. The row of the context (a, b) is a * vocab_size + b.

    >>> from tinyformer import TransitionTable
    >>> table = TransitionTable([[0, 1, 0, 1, 0, 2]], vocab_size=3)
    >>> table.predict([1])
    tensor([1., 0., 0.])
    """

    def __init__(self, sentences: Iterable[Sequence[int]], vocab_size: int, order: int = 1):
        """Count in sentences of ids below ``vocab_size``; no context reaches across the end of a sentence.

        Raises UserError for an order below 1.
        """
        if order < 1:
            raise UserError(f"order={order} is not a number of tokens: choose 1 or more")
        self.order = order
        self.vocab_size = vocab_size
        counts = host.zeros((vocab_size**order, vocab_size))
        for sentence in sentences:
            for i in range(order, len(sentence)):
                counts[self.row(sentence[i - order : i]), sentence[i]] += 1
        self.matrix = tt.tensor(fractions(counts), dtype="float32")

    def row(self, context: Sequence[int]) -> int:
        """The row of the last ``order`` tokens of a context. Raises UserError where it has fewer."""
        if len(context) < self.order:
            raise UserError(f"a context of {counted(len(context), 'token')} is too short for order {self.order}")
        row = 0
        for token in context[-self.order :]:
            row = row * self.vocab_size + token
        return row

    def predict(self, context: Sequence[int]) -> Tensor:
        """The distribution (vocab_size,) of the token after a context.

        A one-hot vector is 0 but for a single 1. Times a matrix it is a row of this matrix: the lookup is a product, which a
        network can learn, and which attention makes soft.
        """
        return tt.one_hot(tt.tensor(self.row(context)), len(self.matrix)) @ self.matrix


def fractions(counts: host.ndarray) -> host.ndarray:
    """Counts (..., tokens) as fractions of their sum; 0 where there are none."""
    return counts / host.maximum(counts.sum(axis=-1, keepdims=True), 1)
