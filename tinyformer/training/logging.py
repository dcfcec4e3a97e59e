"""Who is told how training goes: the run's log, TensorBoard (see ``tensorboard.py``), and loggers of a user's own."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tinytensor as tt
from tinyformer.common.files import write_csv
from tinyformer.models.evaluating import evaluating

if TYPE_CHECKING:
    from tinyformer.training.trainer import Trainer

LOG_COLUMNS = ("step", "learning_rate", "train_loss", "validation_loss", "gradient_norm", "seconds")


class Logger:
    """What a trainer tells how training goes. A logger of your own has those of these methods that it needs; here they do
    nothing.

    ::

        class Wandb(Logger):
            def log(self, step, values):
                wandb.log(values, step=step)

        trainer = Trainer(model, batches, config, folder, loggers=[Wandb()])

    A logger may use the model and draw random numbers: that does not change the run. An error that it raises ends training; the
    checkpoints stay as they are. Where several ranks train, only rank 0 has loggers.
    """

    def begin(self, trainer: Trainer) -> None:
        """Training begins, or goes on after ``trainer.step``."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Numbers that were measured up to this step, by name: those of LOG_COLUMNS, and tokens_per_second."""

    def evaluated(self, trainer: Trainer, text: str) -> None:
        """The model was evaluated after ``trainer.step``. ``text`` is what the trainer's ``on_evaluation`` returned, or ""."""

    def saved(self, trainer: Trainer) -> None:
        """A checkpoint of ``trainer.step`` was written, from which the run can go on."""

    def close(self) -> None:
        """Training ended, was stopped, or failed. Also called where ``begin`` failed."""


@contextmanager
def at_work(trainer: Trainer) -> Iterator[None]:
    """A context in which the loggers of a trainer work. At its end they are closed, whatever happened."""
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
    """A context for loggers: whatever they draw and compute in it, the run goes on as without them."""
    with tt.random.using(copy.deepcopy(tt.random.generator())), evaluating(trainer.model):
        yield


class CsvLog(Logger):
    """Writes log.csv in the run's folder, whole, with each checkpoint: so both tell of the same steps.

    A process that is killed between the two leaves the log of the checkpoint before. So a run that goes on writes it, too.
    """

    def begin(self, trainer: Trainer) -> None:
        if trainer.rows:
            write_log(trainer.folder.log, trainer.rows)

    def saved(self, trainer: Trainer) -> None:
        write_log(trainer.folder.log, trainer.rows)


def write_log(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows of a log as CSV. A cell is empty if its row has no such number."""
    write_csv(path, [LOG_COLUMNS, *([row.get(name) for name in LOG_COLUMNS] for row in rows)])


def measured(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a row of the log, by name: without its step, and without those that were not measured."""
    return {name: value for name, value in row.items() if name != "step" and value is not None}
