"""Masked language modelling (Devlin et al. 2019): some tokens are hidden, and the model is to say what they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.data.batches import Batch, check_batch_fits, check_fraction, check_ids
from tinyformer.errors import SettingError, UserError
from tinyformer.settings import check_counts
from tinytensor.backend import host

IGNORED = -100  # the target where nothing is asked: cross_entropy leaves it out


@dataclass
class MaskedBatch(Batch):
    """What the model reads, what was hidden from it, IGNORED elsewhere, and where that is: ``hidden``, booleans (batch,
    length) on the host, as to look for them on a GPU would mean to wait for it."""

    hidden: Any


class Masking:
    """How tokens are hidden: ``fraction`` of each row's, of which 80 % become the mask token, 10 % any ordinary token, and 10 %
    stay as they are. ``special`` ids are never hidden, and never stand in for another."""

    def __init__(self, vocab_size: int, mask: int, special: Iterable[int], fraction: float = 0.15):
        if not 0.0 < fraction <= 1.0:
            raise UserError(f"the fraction of masked tokens must be above 0 and at most 1, not {fraction}")
        self.vocab_size = vocab_size
        self.mask = mask
        self.fraction = fraction
        self.special = host.array(sorted({mask, *special}))
        self.ordinary = host.setdiff1d(host.arange(vocab_size), self.special)
        if not len(self.ordinary):
            raise UserError("a vocabulary of special tokens only leaves nothing to mask")

    def __call__(self, ids: Any, rng: Any) -> tuple[Any, Any]:
        """Ids (batch, length), a NumPy array -> what the model reads, and the targets: the ids that were hidden, IGNORED
        elsewhere. Of each row the same fraction is chosen, but at least one token, if it has any that is not special."""
        order = host.where(host.isin(ids, self.special), 2.0, rng.random(ids.shape))
        ordinary = (order < 1.0).sum(axis=1, keepdims=True)
        count = host.minimum(host.maximum(host.rint(self.fraction * ordinary), 1), ordinary)
        chosen = order.argsort(axis=1).argsort(axis=1) < count
        fate = rng.random(ids.shape)
        inputs = host.where(chosen & (fate < 0.8), self.mask, ids)
        inputs = host.where(chosen & (fate >= 0.9), self.ordinary[rng.integers(0, len(self.ordinary), ids.shape)], inputs)
        return inputs, host.where(chosen, ids, IGNORED)


class MaskedBatches:
    """Windows of a text between a ``start`` and an ``end`` token, with hidden tokens: random windows to train on, hidden
    anew each time; and the whole of a validation text, always hidden in the same way, so that losses can be compared.

    The last ``validation_fraction`` of the ids is the validation split; what does not fill a window at its end is left out.
    Raises UserError where a split has no window, and for an id outside of the vocabulary.
    """

    def __init__(
        self,
        ids: Any,
        masking: Masking,
        start: int,
        end: int,
        window: int,
        batch_size: int,
        seed: int = 0,
        validation_fraction: float = 0.1,
    ):
        check_counts(window=window, batch_size=batch_size)
        check_fraction(validation_fraction)
        cut = int(len(ids) * (1.0 - validation_fraction))
        if min(cut, len(ids) - cut) < window:
            raise SettingError(
                f"the text has {len(ids)} tokens, too few for windows of {window}: use a longer one, or a smaller window",
                "window",
            )
        check_batch_fits(batch_size, window + 2)
        check_ids(ids, masking.vocab_size)
        self.training = host.asarray(ids[:cut])
        self.validation = host.asarray(ids[cut:])
        self.masking = masking
        self.around = (start, end)
        self.window = window
        self.batch_size = batch_size
        self.seed = seed
        self._rng = host.random.default_rng(seed)

    def sample(self) -> MaskedBatch:
        """The next training batch."""
        starts = self._rng.integers(0, len(self.training) - self.window + 1, self.batch_size)
        return self._batch(self.training[starts[:, None] + host.arange(self.window)], self._rng)

    def largest_batch(self) -> int:
        """How many tokens the largest training batch has, at least."""
        return int(self.batch_size) * (int(self.window) + 2)

    def validation_batches(self, batch_size: int = 64) -> Iterator[MaskedBatch]:
        """Every window of the validation split, side by side."""
        rng = host.random.default_rng(self.seed)
        full = len(self.validation) // self.window
        windows = self.validation[: full * self.window].reshape(full, self.window)
        for first in range(0, full, batch_size):
            yield self._batch(windows[first : first + batch_size], rng)

    def _batch(self, windows: Any, rng: Any) -> MaskedBatch:
        ends = [host.full((len(windows), 1), i) for i in self.around]
        inputs, targets = self.masking(host.concatenate([ends[0], windows, ends[1]], axis=1), rng)
        hidden = targets != IGNORED
        return MaskedBatch(tt.tensor(inputs), tt.tensor(targets), int(hidden.sum()), hidden)

    def get_state(self) -> dict[str, Any]:
        """Where the random choices stand: values for JSON."""
        return dict(self._rng.bit_generator.state)

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from what ``get_state`` returned."""
        self._rng.bit_generator.state = state
