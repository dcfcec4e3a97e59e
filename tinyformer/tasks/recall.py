"""Delayed recall: a row of tokens, whose first one has to be told at the row's end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.schema import check_fields
from tinyformer.common.settings import at_least, check_counts, setting
from tinyformer.data.batches import Batch, check_batch_fits
from tinytensor.device.backend import host

KIND = "recall network"
VALIDATED = 20  # distances to validate with, from 1 to the longest
VALIDATION_ROWS = 50  # for each of them


@dataclass(frozen=True)
class RecallTask:
    """The settings of the task. Raises SettingError for a value that is not allowed."""

    distance: int = setting(100, "the longest distance from the first token to the end, in steps")
    symbols: int = setting(8, "kinds of symbols: a guess is right once in so many times")
    noise: int = setting(0, "kinds of tokens after the first; 0: they are symbols, too, and only their place makes them noise")

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, distance=1, symbols=2, noise=0)

    @property
    def vocab_size(self) -> int:
        """The number of kinds of tokens. The symbols are the first of them."""
        return int(self.symbols) + int(self.noise)


def recall_batch(task: RecallTask, distance: int, rows: int, rng: Any) -> Batch:
    """Rows of distance + 1 random tokens, (rows, distance + 1), of which the first one is a symbol and the target."""
    first_noise = task.symbols if task.noise else 0
    symbols = rng.integers(0, task.symbols, (rows, 1))
    noise = rng.integers(first_noise, task.vocab_size, (rows, distance))
    return Batch(tt.tensor(host.concatenate([symbols, noise], axis=1)), tt.tensor(symbols[:, 0]), rows)


class RecallBatches:
    """Batches of new rows. All rows of a batch have the same distance, which is drawn anew for each batch, from 1 to the
    longest. The rows to validate with are always the same.

    Raises SettingError if a batch does not fit in memory.
    """

    def __init__(self, task: RecallTask, batch_size: int, seed: int = 0):
        check_counts(batch_size=batch_size)
        check_batch_fits(max(int(batch_size), VALIDATION_ROWS), int(task.distance) + 1)
        self.task = task
        self.batch_size = batch_size
        self.seed = seed
        self._rng = host.random.default_rng(seed)

    def sample(self) -> Batch:
        """The next training batch."""
        distance = int(self._rng.integers(1, self.task.distance + 1))
        return recall_batch(self.task, distance, self.batch_size, self._rng)

    def largest_batch(self) -> int:
        """The number of tokens in the largest training batch."""
        return int(self.batch_size) * (int(self.task.distance) + 1)

    def validation_batches(self) -> Iterator[Batch]:
        """A batch for each of VALIDATED distances, or for all where there are fewer."""
        rng = host.random.default_rng([self.seed, 1])  # other numbers than those of training
        for distance in host.unique(host.linspace(1, self.task.distance, VALIDATED).astype(int)).tolist():
            yield recall_batch(self.task, distance, VALIDATION_ROWS, rng)

    def get_state(self) -> dict[str, Any]:
        """The state of the random numbers of ``sample``, as values for JSON."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``get_state`` returned. Raises KeyError, TypeError or ValueError for any other state."""
        self._rng.bit_generator.state = state
