"""The state of a run: what its latest checkpoint stores beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.training.config import MOST_SHARDS


@dataclass(frozen=True)
class LogRow:
    """A row of the log. None stands for a number that was not measured at that step."""

    step: int
    learning_rate: float
    train_loss: float | None
    validation_loss: float | None
    gradient_norm: float | None
    seconds: float


@dataclass(frozen=True)
class TrainingState:
    """The state that ``latest.safetensors`` stores beside its tensors. Raises UserError if its values contradict each other.

    ``unread`` are the (step, loss, gradient norm) since the last row of the log. Fields with defaults are missing in files of
    early versions.
    """

    kind: str
    step: int
    best_loss: float | None
    best_step: int
    seconds: float
    random: dict[str, Any]
    batches: dict[str, Any]
    rows: list[LogRow]
    unread: list[tuple[int, float, float]]
    shards: int = 1
    kernels: str = "numpy"
    total_seconds: float = 0.0
    settings: dict[str, Any] | None = None
    tokenizer: str | None = None
    model_class: str | None = None

    def __post_init__(self) -> None:
        steps = [row.step for row in self.rows]
        if not 0 <= self.best_step <= self.step:
            raise UserError(f"best_step is {self.best_step}, and step {self.step}")
        if any(a >= b for a, b in zip([-1, *steps], [*steps, self.step + 1])):
            raise UserError("the steps of its rows do not rise from 0 to its own step")
        if any(not 0 < step <= self.step for step, _, _ in self.unread):
            raise UserError("unread has steps that were not taken yet")
        if not 1 <= self.shards <= MOST_SHARDS:
            raise UserError(f"shards is {self.shards}")
        if min(self.seconds, self.total_seconds) < 0:
            raise UserError("its seconds are negative")
