"""Training steps that a GPU repeats by itself, where batches have the same shapes: see ``tinytensor.replay.capture``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import tinytensor as tt
from tinyformer.training.evaluation import Work
from tinyformer.training.replica import Replica
from tinytensor import Tensor
from tinytensor.device.backend import is_host_array

StepFunction = Callable[[Replica, Sequence[Work], float], tuple[Tensor, Tensor]]


class CapturedSteps:
    """Does what ``step`` does, and captures it for batches like the first: of the same shapes, with as many targets. Replicas
    must have the same model and optimizer.

    Other batches are given to ``step`` itself, as the last of an epoch may be. So is a batch of several shards. If two others
    that are alike come one after the other before anything is captured, it is captured for batches like these: a run may be
    resumed at the end of an epoch.
    """

    def __init__(self, step: StepFunction):
        self._step = step
        self._kind: Any = None  # of the batches that are captured
        self._captured: Any = None
        self._before: Any = None  # the kind of the last batches

    def __call__(self, replica: Replica, work: Sequence[Work], rate: float) -> tuple[Tensor, Tensor]:
        """One step, with the losses and norms in memory of their own."""
        kind, before = _kind(work), self._before
        self._before = kind
        if kind is not None and kind != self._kind and self._may_change(kind == before):
            self._kind, self._captured = kind, tt.capture(self._with_tensors_for(replica, work))
        if kind is None or kind != self._kind:
            return self._step(replica, work, rate)
        loss, norm = self._captured(*[tensor for batch in work for tensor in _tensors(batch).values()], rate)
        return loss.copy(), norm.copy()

    def _may_change(self, is_repeated: bool) -> bool:
        return self._captured is None or (is_repeated and not self._captured.is_captured)

    def _with_tensors_for(self, replica: Replica, work: Sequence[Work]) -> Callable[..., tuple[Tensor, Tensor]]:
        """The step as a function of the tensors of such batches, and of the rate."""

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
    """The tensors of the only shard of a batch, by their names."""
    shard = batch.shards[0]
    return {f.name: value for f in fields(shard) if isinstance(value := getattr(shard, f.name), Tensor)}


def _kind(work: Sequence[Work]) -> Any:
    """What two batches must share so that one captured step serves both: all but the values of tensors. None for batches that
    cannot be captured: of several shards, and with NumPy arrays, whose values Python looks at."""
    if any(len(batch.shards) != 1 for batch in work):
        return None
    kinds = []
    for batch in work:
        shard = batch.shards[0]
        values = {f.name: getattr(shard, f.name) for f in fields(shard)}
        if any(is_host_array(value) for value in values.values()):
            return None
        alike = {n: (v.shape, v.dtype) if isinstance(v, Tensor) else v for n, v in values.items()}
        kinds.append((type(shard), batch.num_targets, alike))
    return kinds
