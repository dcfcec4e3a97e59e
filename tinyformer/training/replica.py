"""What every rank of a training run does: its shards' part of each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, SupportsFloat

import tinytensor as tt
from tinyformer.training.captured import CapturedSteps
from tinyformer.training.evaluation import Evaluator, Work
from tinyformer.training.losses import LossFunction
from tinytensor import Tensor, parallel
from tinytensor.distributed import Communicator, check_same
from tinytensor.nn import Module
from tinytensor.optim import Optimizer, norm_and_scale
from tinytensor.replay import capture


class Replica(Evaluator):
    """The model, its optimizer and its loss function as one rank has them. Rank 0 calls the methods of all ranks at once."""

    def __init__(self, ranks: Communicator, model: Module, optimizer: Optimizer, loss_function: LossFunction, clip: float):
        super().__init__(ranks, model, loss_function)
        self.optimizer = optimizer
        self.clip = clip or math.inf
        self._captured = CapturedSteps(self._step) if capture.is_wanted and ranks.size == 1 else None

    def step(self, work: Sequence[Work], rate: float) -> tuple[Tensor, Tensor]:
        """Take one optimizer step with the gradients of all ranks. Returns the mean loss over all targets of all ranks, and the
        norm of the gradient before clipping, both of shape ().

        ``work`` holds this rank's shards of each batch whose gradients are added. ``rate`` multiplies the learning rate.
        """
        return self._step(work, rate) if self._captured is None else self._captured(work, rate)

    def _step(self, work: Sequence[Work], rate: SupportsFloat) -> tuple[Tensor, Tensor]:
        self.optimizer.zero_grad()
        count = max(sum(batch.num_targets for batch in work), 1)  # a batch may have none, as where all are ignored
        mean_loss: Tensor = tt.zeros(())
        for batch in work:
            if batch.shards:
                # Weighted by its number of targets, so that the sum is the mean over all targets, as in one large batch.
                part = partial(self._part_of_the_loss, batch.num_targets / count)
                mean_loss = mean_loss + parallel.backward(part, batch.shards, batch.seeds)
        self.ranks.sum_gradients(self.model.parameters(), [mean_loss.data])
        norm, gradient_scale = norm_and_scale(self.model.parameters(), self.clip)
        self.optimizer.step(rate, max(len(batch.shards) for batch in work) or 1, self.ranks, gradient_scale)
        return mean_loss, norm

    def _part_of_the_loss(self, fraction: float, shard: Any) -> Tensor:
        return self.loss_function(self.model, shard) * fraction

    def take_weights(self) -> None:
        """Take the weights of rank 0, which have changed there."""
        if not self.ranks.shares_memory:
            self.ranks.broadcast([tensor.data for tensor in self.model.state_dict().values()])

    def check_weights(self) -> None:
        """Raise RankError if the weights of all ranks are not the same any more."""
        if not self.ranks.shares_memory and self.ranks.size > 1:
            remedy = "Its memory or the network may be faulty, or its processor computes something else."
            check_same(self.ranks, "weights", self.model.state_dict(), remedy)
