"""The state of each training rank, and steps captured for replay on a GPU (see ``tinytensor.replay.capture``)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import tinytensor as tt
from tinyformer.training.evaluation import Evaluator, Work
from tinyformer.training.losses import LossFunction
from tinytensor import Tensor
from tinytensor.device.backend import is_host_array
from tinytensor.distributed import Communicator, check_same
from tinytensor.nn import Module
from tinytensor.optim import Optimizer


class Replica(Evaluator):
    """One rank's model, optimizer and loss function."""

    def __init__(self, ranks: Communicator, model: Module, optimizer: Optimizer, loss_function: LossFunction, clip: float):
        super().__init__(ranks, model, loss_function)
        self.optimizer = optimizer
        self.clip = clip or math.inf

    def take_weights(self) -> None:
        """Copy the changed weights from rank 0."""
        if not self.ranks.shares_memory:
            self.ranks.broadcast([tensor.data for tensor in self.model.state_dict().values()])

    def check_weights(self) -> None:
        """Raise RankError if the weights differ between ranks."""
        if not self.ranks.shares_memory and self.ranks.size > 1:
            remedy = "Its memory or the network may be faulty, or its processor computes something else."
            check_same(self.ranks, "weights", self.model.state_dict(), remedy)


StepFunction = Callable[[Replica, Sequence[Work], float], tuple[Tensor, Tensor]]


class CapturedSteps:
    """Calls ``step`` and captures it for batches like the first: same shapes and number of targets. All replicas must have the
    same model and optimizer.

    Other batches, such as the last of an epoch, and batches of several shards call ``step`` directly. If two similar batches of
    this sort come in a row before anything is captured, the step is captured for them. A run may resume at the end of an epoch.
    """

    def __init__(self, step: StepFunction):
        self._step = step
        self._layout: Any = None  # layout of the captured batches
        self._captured: Any = None
        self._before: Any = None  # layout of the previous batches

    def __call__(self, replica: Replica, work: Sequence[Work], rate: float) -> tuple[Tensor, Tensor]:
        """Take one step. The returned loss and norm are copies."""
        layout, before = _layout(work), self._before
        self._before = layout
        if layout is not None and layout != self._layout and self._may_change(layout == before):
            self._layout, self._captured = layout, tt.capture(self._with_tensors_for(replica, work))
        if layout is None or layout != self._layout:
            return self._step(replica, work, rate)
        loss, norm = self._captured(*[tensor for batch in work for tensor in _tensors(batch).values()], rate)
        return loss.copy(), norm.copy()

    def _may_change(self, is_repeated: bool) -> bool:
        return self._captured is None or (is_repeated and not self._captured.is_captured)

    def _with_tensors_for(self, replica: Replica, work: Sequence[Work]) -> Callable[..., tuple[Tensor, Tensor]]:
        """Return the step as a function of the batches' tensors and the learning rate factor."""

        def step(*inputs: Any) -> tuple[Tensor, Tensor]:
            *tensors, rate = inputs
            left = iter(tensors)
            same = [
                replace(batch, shards=[replace(batch.shards[0], **{name: next(left) for name in _tensors(batch)})])
                for batch in work
            ]
            return self._step(replica, same, rate)

        return step


def _tensors(batch: Work) -> dict[str, Tensor]:
    """Return the tensors of a batch's only shard by name."""
    shard = batch.shards[0]
    return {f.name: value for f in fields(shard) if isinstance(value := getattr(shard, f.name), Tensor)}


def _layout(work: Sequence[Work]) -> Any:
    """Return what two batches must share to use one captured step: everything except tensor values. Return None for batches
    that cannot be captured: several shards, or NumPy arrays, whose values Python reads."""
    if any(len(batch.shards) != 1 for batch in work):
        return None
    layouts = []
    for batch in work:
        shard = batch.shards[0]
        values = {f.name: getattr(shard, f.name) for f in fields(shard)}
        if any(is_host_array(value) for value in values.values()):
            return None
        alike = {n: (v.shape, v.dtype) if isinstance(v, Tensor) else v for n, v in values.items()}
        layouts.append((type(shard), batch.num_targets, alike))
    return layouts
