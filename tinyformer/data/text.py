"""Batches of text for language models."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.settings import check_counts
from tinyformer.data.batches import Batch, Seeded, check_batch_fits, check_fraction, check_ids
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import Array, from_numpy, host, xp


class TextBatches(Seeded):
    """Random windows of a text for training, and adjacent windows of the validation split, in order.

    Each window predicts ``block_size`` tokens. The inputs start ``context`` tokens earlier, for models that read the preceding
    text first.

    The last ``validation_fraction`` of the ids is the validation split, and the first ``test_fraction`` the test split. They
    are far apart because neighboring passages are alike. The first ``context`` tokens of the test split are only read. Raises
    UserError if a split is shorter than one window, or a batch does not fit in memory. If ``vocab_size`` is passed, larger ids
    raise UserError too (a GPU would not notice).
    """

    unit = "token"

    def __init__(
        self,
        ids: Any,
        block_size: int,
        batch_size: int,
        seed: int = 0,
        validation_fraction: float = 0.1,
        vocab_size: int | None = None,
        context: int = 0,
        test_fraction: float = 0.0,
    ):
        check_counts(block_size=block_size, batch_size=batch_size)
        if context < 0:
            raise SettingError(f"context must be at least 0, got {context}")
        check_fraction(validation_fraction, test_fraction)
        cut = int(len(ids) * (1.0 - validation_fraction))
        start = int(len(ids) * test_fraction)  # of the training split
        window = int(context) + int(block_size)
        splits = [cut - start, len(ids) - cut, *([start] if test_fraction else [])]
        if min(splits) < window + 1:
            fractions = [1.0 - validation_fraction - test_fraction, validation_fraction, test_fraction]
            over, under = min(filter(None, fractions)).as_integer_ratio()
            need = (window + 1) * under // over + 2  # in integers: block_size may be too large for a float
            smaller = {
                "block_size": min(splits) >= context + 2 and block_size > 1,
                "context": min(splits) >= block_size + 1 and context > 0,
                "test_fraction": test_fraction > 0 and min(splits[:2]) >= window + 1,  # 0 disables that split
            }
            helpful = [name for name, helps in smaller.items() if helps]
            remedy = f", or a smaller {' or '.join(helpful)}" if helpful else ""
            raise SettingError(
                f"the text has only {counted(len(ids), 'token')} for windows of {window}: use at least {need:,}{remedy}",
                *(helpful or ["block_size"]),
            )
        check_batch_fits(batch_size, window + 1)
        if vocab_size is not None:
            check_ids(ids, vocab_size)
        # The text is on the model's device. Each batch copies only window starts.
        self.test = tt.tensor(ids[:start])
        self.training = tt.tensor(ids[start:cut])
        self.validation = tt.tensor(ids[cut:])
        self._before = tt.tensor(ids[cut - context :]) if context else self.validation  # with the first window's context
        self._window = xp.arange(window + 1)
        self.block_size = block_size
        self.context = context
        self.batch_size = batch_size
        self._rng = host.random.default_rng(seed)

    def sample(self) -> Batch:
        """Return the next training batch: windows at uniformly random positions."""
        starts = self._rng.integers(0, len(self.training) - self.context - self.block_size, self.batch_size)
        return self._batch(self.training, from_numpy(starts))

    def largest_batch(self) -> int:
        """Return a lower bound on the number of tokens in the largest training batch."""
        return int(self.batch_size) * int(self.block_size)  # training saves nothing for the context

    def validation_batches(self, batch_size: int = 64) -> Iterator[Batch]:
        """Iterate over adjacent windows that cover every validation target once. The last window may be shorter."""
        full = (len(self.validation) - 1) // self.block_size
        starts = xp.arange(full) * self.block_size
        for first in range(0, full, batch_size):
            yield self._batch(self._before, starts[first : first + batch_size])
        if full * self.block_size + 1 < len(self.validation):
            yield self._inputs_and_targets(self._before[full * self.block_size :].reshape(1, -1))

    def with_test_split(self) -> TextBatches:
        """Return the same batches with the test split used for validation, so that ``evaluate`` returns the test loss.

        Do not choose settings or weights by this loss. It would no longer measure performance on unseen text.
        """
        testing = copy.copy(self)
        testing.validation, testing._before = self.test[self.context :], self.test
        return testing

    def _batch(self, ids: Tensor, starts: Array) -> Batch:
        return self._inputs_and_targets(ids[starts[:, None] + self._window])

    def _inputs_and_targets(self, windows: Tensor) -> Batch:
        targets = windows[:, self.context + 1 :]
        return Batch(windows[:, :-1], targets, targets.shape[0] * targets.shape[1])
