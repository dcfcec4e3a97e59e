"""Batches of texts with labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.settings import check_counts
from tinyformer.data.batches import Batch, check_batch_fits, padded
from tinytensor.device.backend import host

Labelled = tuple[Sequence[int], Any]  # the ids of a text, and its class


class LabelledBatches:
    """Padded batches of labelled texts. Training batches are drawn at random; validation takes every text in order.

    Raises UserError if there are no texts to train on or to validate with, and if a batch does not fit in memory.
    """

    def __init__(self, training: Sequence[Labelled], validation: Sequence[Labelled], pad: int, batch_size: int, seed: int = 0):
        if not training or not validation:
            raise UserError("there are no texts to train on, or none to validate with")
        check_counts(batch_size=batch_size)
        check_batch_fits(batch_size, min(len(ids) for ids, _ in training))
        self.training = list(training)
        self.validation = list(validation)
        self.pad = pad
        self.batch_size = batch_size
        self._rng = host.random.default_rng(seed)

    def sample(self) -> Batch:
        """The next training batch."""
        return self._batch([self.training[i] for i in self._rng.integers(0, len(self.training), self.batch_size)])

    def largest_batch(self) -> int:
        """A lower bound for the number of tokens in the largest training batch."""
        return int(self.batch_size) * min(len(ids) for ids, _ in self.training)

    def validation_batches(self, batch_size: int = 64) -> Iterator[Batch]:
        """Every validation text once, in order."""
        for first in range(0, len(self.validation), batch_size):
            yield self._batch(self.validation[first : first + batch_size])

    def _batch(self, texts: Sequence[Labelled]) -> Batch:
        ids = padded([ids for ids, _ in texts], self.pad)
        return Batch(tt.tensor(ids), tt.tensor([label for _, label in texts]), len(texts))

    def get_state(self) -> dict[str, Any]:
        """The state of the random choice of texts, as values for JSON."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``get_state`` returned."""
        self._rng.bit_generator.state = state
