"""Batches of pairs whose sources are sequences of vectors, such as sounds, and whose targets are ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.vectors import Vectors, padded_vectors
from tinyformer.data.batches import Rows, padded
from tinyformer.data.pairs import Specials
from tinytensor import Tensor

VectorPair = tuple[Any, Sequence[int]]  # a NumPy array (frames, features), and the ids of its target


@dataclass
class VectorPairBatch(Rows):
    """What a ``PairBatch`` is for two texts: padded vectors (batch, frames, features) with their lengths, and padded ids."""

    values: Tensor
    lengths: Tensor
    target_inputs: Tensor
    target_outputs: Tensor
    num_targets: int

    @property
    def source(self) -> Vectors:
        """What the encoder reads."""
        return Vectors(self.values, self.lengths)


def vector_pair_batch(pairs: Sequence[VectorPair], specials: Specials) -> VectorPairBatch:
    """A batch of these pairs. The decoder reads a start token first, and should predict an end token last."""
    vectors = padded_vectors([values for values, _ in pairs])
    return VectorPairBatch(
        *vectors,
        tt.tensor(padded([[specials.start, *ids] for _, ids in pairs], specials.pad)),
        tt.tensor(padded([[*ids, specials.end] for _, ids in pairs], specials.pad)),
        sum(len(ids) + 1 for _, ids in pairs),
    )
