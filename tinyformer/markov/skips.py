"""Second order with skips: each earlier word votes for the next one, together with the last word.

A table for contexts of eight words would need a row for each of vocab_size**8 contexts, and hardly any would ever occur. Pairs
are enough where one earlier word decides. Every pair of the last word and an earlier one votes for what followed it before, and
the votes are added. Most pairs know no more than the last word alone does, and only drown the others. A mask silences them.

The mask of the last word is a row of a matrix, so it is found by a product with a one-hot vector, the query; and which of its
places the earlier words take, by a product with theirs, the keys. The votes are the values:

    weights = Q M K^T      prediction = weights V

That is attention, with all its matrices made by counting (the road is that of B. Rohrer, "Transformers from Scratch", 2021).
"""

from __future__ import annotations

from collections.abc import Sequence

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.markov.transitions import TransitionTable, fractions
from tinytensor import Tensor
from tinytensor.device.backend import host


class SkipVotes:
    """A model in which pairs of words vote for the next one.

    ``votes`` (last word, earlier word, next word), float32: how often the next word followed where the earlier word came
    anywhere before the last one, as a fraction. ``mask`` (last word, earlier word) is 1 where the earlier word makes a
    difference, else 0.
    """

    def __init__(self, sentences: Sequence[Sequence[int]], vocab_size: int, threshold: float = 0.25):
        """Count in sentences of ids below ``vocab_size``.

        A pair makes a difference if its votes move at least ``threshold`` of the probability away from where the last word
        alone puts it (the total variation distance). Raises UserError for a threshold that is not between 0 and 1.
        """
        if not 0 < threshold <= 1:
            raise UserError(f"threshold={threshold} is not a part of the probability: choose one above 0, up to 1")
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
        """How much each earlier word of a context counts (len(context) - 1,); their sum is 1.

        Without the mask all count the same. Also where the mask would silence all of them: then they agree with the last word.
        """
        query = self._one_hot(context[-1])
        keys = self._one_hot(context[:-1])
        weights = query @ self.mask @ keys.T if masked else tt.ones(len(keys))
        if not weights.any():
            weights = tt.ones(len(keys))
        return weights / weights.sum()

    def predict(self, context: Sequence[int], masked: bool = True) -> Tensor:
        """The distribution (vocab_size,) of the word after a context, by the votes of its pairs.

        A context of one word has no pairs: there the first order answers.
        """
        if len(context) < 2:
            return self.first_order.predict(context)
        values = self._one_hot(context[:-1]) @ self.votes[context[-1]]
        return self.weights(context, masked) @ values

    def _one_hot(self, ids: int | Sequence[int]) -> Tensor:
        return tt.one_hot(tt.tensor(ids), self.vocab_size)
