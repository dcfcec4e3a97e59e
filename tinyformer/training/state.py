"""How far a run is: what a checkpoint says beside its tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tinyformer.errors import UserError
from tinyformer.training.config import MOST_SHARDS


@dataclass(frozen=True)
class LogRow:
    """A row of the log; None where there is no such number."""

    step: int
    learning_rate: float
    train_loss: float | None
    validation_loss: float | None
    gradient_norm: float | None
    seconds: float


@dataclass(frozen=True)
class TrainingState:
    """How far a run is: what ``latest.safetensors`` says beside its tensors. Raises UserError for what cannot be."""

    kind: str
    step: int
    best_loss: float | None
    best_step: int
    seconds: float
    random: dict[str, Any]
    batches: dict[str, Any]
    rows: list[LogRow]
    unread: list[tuple[int, float, float]]
    shards: int = 1  # once there was but one
    total_seconds: float = 0.0
    settings: dict[str, Any] | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        steps = [row.step for row in self.rows]
        if not 0 <= self.best_step <= self.step:
            raise UserError(f"best_step is {self.best_step}, and step {self.step}")
        if any(a >= b for a, b in zip([-1, *steps], [*steps, self.step + 1])):
            raise UserError("the steps of its rows do not rise from 0 to its own")
        if any(not 0 < step <= self.step for step, _, _ in self.unread):
            raise UserError("unread has steps that were not yet taken")
        if not 1 <= self.shards <= MOST_SHARDS:
            raise UserError(f"shards is {self.shards}")
        if min(self.seconds, self.total_seconds) < 0:
            raise UserError("its seconds are negative")
