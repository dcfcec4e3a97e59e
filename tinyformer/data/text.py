"""A text as batches: random windows to train on, and all of its end to validate with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tinytensor as tt
from tinyformer.data.batches import Batch, check_batch_fits, check_fraction, check_ids
from tinyformer.errors import SettingError
from tinyformer.settings import check_counts
from tinytensor import Tensor
from tinytensor.backend import Array, from_numpy, host, xp


class TextBatches:
    """Random windows of a training text, and the whole of a validation text, in order.

    The last ``validation_fraction`` of the ids is the validation split. Raises UserError where a split is shorter than one
    window or a batch does not fit in memory, and for an id outside of ``vocab_size``, if that is given: a GPU does not notice.
    """

    def __init__(
        self,
        ids: Any,
        block_size: int,
        batch_size: int,
        seed: int = 0,
        validation_fraction: float = 0.1,
        vocab_size: int | None = None,
    ):
        check_counts(block_size=block_size, batch_size=batch_size)
        check_fraction(validation_fraction)
        cut = int(len(ids) * (1.0 - validation_fraction))
        if min(cut, len(ids) - cut) < block_size + 1:
            over, under = min(validation_fraction, 1.0 - validation_fraction).as_integer_ratio()
            need = (int(block_size) + 1) * under // over + 2  # in integers, as block_size may be beyond all floats
            raise SettingError(
                f"the text has {len(ids)} tokens, too few for windows of {block_size}: "
                f"use at least {need}, or a smaller block_size",
                "block_size",
            )
        check_batch_fits(batch_size, block_size + 1)
        if vocab_size is not None:
            check_ids(ids, vocab_size)
        # The corpus lives where the model does. A batch is gathered there: all that is copied for it is where windows start.
        self.training = tt.tensor(ids[:cut])
        self.validation = tt.tensor(ids[cut:])
        self._window = xp.arange(block_size + 1)
        self.block_size = block_size
        self.batch_size = batch_size
        self._rng = host.random.default_rng(seed)

    def sample(self) -> Batch:
        """The next training batch: windows at random places, each as likely as the next."""
        starts = self._rng.integers(0, len(self.training) - self.block_size, self.batch_size)
        return self._batch(self.training, from_numpy(starts))

    def largest_batch(self) -> int:
        """How many tokens the largest training batch has, at least."""
        return int(self.batch_size) * int(self.block_size)

    def validation_batches(self, batch_size: int = 64) -> Iterator[Batch]:
        """Every target of the validation split exactly once, in windows side by side; the last may be shorter."""
        full = (len(self.validation) - 1) // self.block_size
        starts = xp.arange(full) * self.block_size
        for first in range(0, full, batch_size):
            yield self._batch(self.validation, starts[first : first + batch_size])
        if full * self.block_size + 1 < len(self.validation):
            yield _inputs_and_targets(self.validation[full * self.block_size :].reshape(1, -1))

    def _batch(self, ids: Tensor, starts: Array) -> Batch:
        return _inputs_and_targets(ids[starts[:, None] + self._window])

    def get_state(self) -> dict[str, Any]:
        """Where the random choice of windows stands: values for JSON."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``get_state`` returned."""
        self._rng.bit_generator.state = state


def _inputs_and_targets(windows: Tensor) -> Batch:
    return Batch(windows[:, :-1], windows[:, 1:], windows.shape[0] * (windows.shape[1] - 1))
