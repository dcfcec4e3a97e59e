"""Training logs: the CSV log, the state in the latest checkpoint, and loggers such as TensorBoard or your own."""

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
    """Base class for loggers that receive training progress. Override the methods you need; the defaults do nothing.

    ::

        class Wandb(Logger):
            def log(self, step, values):
                wandb.log(values, step=step)

        trainer = Trainer(model, batches, config, folder, loggers=[Wandb()])

    A logger may use the model and generate random numbers without affecting the run. If it raises an error, training ends, but
    checkpoints stay. With several ranks, only rank 0 has loggers.
    """

    def begin(self, trainer: Trainer) -> None:
        """Called when training begins, or resumes after ``trainer.step``."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Called with the values measured at a step, by name: LOG_COLUMNS and tokens_per_second."""

    def evaluated(self, trainer: Trainer, text: str) -> None:
        """Called after an evaluation at ``trainer.step``. ``text`` is the result of the trainer's ``on_evaluation``, or ""."""

    def saved(self, trainer: Trainer) -> None:
        """Called after writing a checkpoint of ``trainer.step``. The run can resume from it."""

    def close(self) -> None:
        """Called when training ends, is stopped, or fails, even if ``begin`` failed."""


@contextmanager
def at_work(trainer: Trainer) -> Iterator[None]:
    """Context manager for a trainer's loggers. It always closes them."""
    with ExitStack() as ending:
        for logger in trainer.loggers:
            ending.callback(logger.close)
            with _changing_nothing(trainer):
                logger.begin(trainer)
        yield


def tell(trainer: Trainer, method: str, *arguments: Any) -> None:
    """Call this method on all loggers of a trainer."""
    with _changing_nothing(trainer):
        for logger in trainer.loggers:
            getattr(logger, method)(*arguments)


@contextmanager
def _changing_nothing(trainer: Trainer) -> Iterator[None]:
    """Context manager in which loggers may generate random numbers and use the model without affecting the run."""
    with tt.random.using(copy.deepcopy(tt.random.generator())), evaluating(trainer.model):
        yield


class CsvLog(Logger):
    """Rewrites log.csv in the run's folder with each checkpoint, so that both cover the same steps.

    If a process is killed between the two writes, the log is one checkpoint behind. A resumed run therefore writes it again.
    """

    def begin(self, trainer: Trainer) -> None:
        if trainer.rows:
            write_log(trainer.folder.log, trainer.rows)

    def saved(self, trainer: Trainer) -> None:
        write_log(trainer.folder.log, trainer.rows)


def write_log(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write log rows as CSV. Missing values become empty cells."""
    write_csv(path, [LOG_COLUMNS, *([row.get(name) for name in LOG_COLUMNS] for row in rows)])


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the measured values of a log row by name, without its step."""
    return {name: value for name, value in row.items() if name != "step" and value is not None}


@dataclass(frozen=True)
class LogRow:
    """A row of the log. None marks a value that was not measured at that step."""

    step: int
    learning_rate: float
    train_loss: float | None
    validation_loss: float | None
    gradient_norm: float | None
    seconds: float


LOG_COLUMNS = tuple(field.name for field in fields(LogRow))


@dataclass(frozen=True)
class TrainingState:
    """The training state that ``latest.safetensors`` stores with its tensors. Raises UserError for inconsistent values.

    ``unread`` holds (step, loss, gradient norm) since the last log row. Early versions lack the fields with defaults.
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
