"""Records of training: the log, the state in the latest checkpoint, and loggers such as TensorBoard's or a user's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.files import write_csv
from tinyformer.models.evaluating import evaluating
from tinyformer.training.config import MOST_SHARDS

if TYPE_CHECKING:
    from tinyformer.training.trainer import Trainer


class Logger:
    """Receives the progress of a training. Override the methods that your logger needs; here they do nothing.

    ::

        class Wandb(Logger):
            def log(self, step, values):
                wandb.log(values, step=step)

        trainer = Trainer(model, batches, config, folder, loggers=[Wandb()])

    A logger may use the model and draw random numbers without changing the run. An error that it raises ends training; the
    checkpoints stay. Of several ranks, only rank 0 has loggers.
    """

    def begin(self, trainer: Trainer) -> None:
        """Training begins, or resumes after ``trainer.step``."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Values were measured at this step, by name: those of LOG_COLUMNS, and tokens_per_second."""

    def evaluated(self, trainer: Trainer, text: str) -> None:
        """The model was evaluated after ``trainer.step``. ``text`` is what the trainer's ``on_evaluation`` returned, or ""."""

    def saved(self, trainer: Trainer) -> None:
        """A checkpoint of ``trainer.step`` was written, from which the run can resume."""

    def close(self) -> None:
        """Training ended, was stopped, or failed. Also called where ``begin`` failed."""


@contextmanager
def at_work(trainer: Trainer) -> Iterator[None]:
    """A context in which a trainer's loggers work; it always closes them."""
    with ExitStack() as ending:
        for logger in trainer.loggers:
            ending.callback(logger.close)
            with _changing_nothing(trainer):
                logger.begin(trainer)
        yield


def tell(trainer: Trainer, method: str, *arguments: Any) -> None:
    """Call this method of every logger of a trainer."""
    with _changing_nothing(trainer):
        for logger in trainer.loggers:
            getattr(logger, method)(*arguments)


@contextmanager
def _changing_nothing(trainer: Trainer) -> Iterator[None]:
    """A context in which loggers may draw random numbers and use the model without changing the run."""
    with tt.random.using(copy.deepcopy(tt.random.generator())), evaluating(trainer.model):
        yield


class CsvLog(Logger):
    """Rewrites log.csv in the run's folder with each checkpoint, so that both have the same steps.

    A process killed between the two leaves the previous checkpoint's log, so a resumed run writes it, too.
    """

    def begin(self, trainer: Trainer) -> None:
        if trainer.rows:
            write_log(trainer.folder.log, trainer.rows)

    def saved(self, trainer: Trainer) -> None:
        write_log(trainer.folder.log, trainer.rows)


def write_log(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of a log as CSV. A value that was not measured is an empty cell."""
    write_csv(path, [LOG_COLUMNS, *([row.get(name) for name in LOG_COLUMNS] for row in rows)])


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the measured values in a row of the log by name, without its step."""
    return {name: value for name, value in row.items() if name != "step" and value is not None}


@dataclass(frozen=True)
class LogRow:
    """A row of the log. None stands for a value that was not measured at that step."""

    step: int
    learning_rate: float
    train_loss: float | None
    validation_loss: float | None
    gradient_norm: float | None
    seconds: float


LOG_COLUMNS = tuple(field.name for field in fields(LogRow))


@dataclass(frozen=True)
class TrainingState:
    """The state that ``latest.safetensors`` stores beside its tensors. Raises UserError if its values contradict each other.

    ``unread`` are the (step, loss, gradient norm) since the log's last row. Early versions lack the fields with defaults.
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
