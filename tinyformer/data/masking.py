"""Masked language modeling (Devlin et al. 2019): hide some tokens and train the model to predict them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.settings import check_counts
from tinyformer.data.batches import Batch, Seeded, check_batch_fits, check_fraction, check_ids
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

IGNORED = -100  # target of unmasked tokens; cross_entropy ignores it


@dataclass
class MaskedBatch(Batch):
    """Inputs with masked tokens, and targets: the ids of the masked tokens, IGNORED elsewhere.

    ``hidden`` (batch, length) marks the masked tokens. It is a NumPy array on the host, because finding them on a GPU would
    force a synchronization.
    """

    hidden: Any


class Masking:
    """Mask a ``fraction`` of the tokens in each row. 80 % of these become the mask token, 10 % a random ordinary token, and 10
    % stay unchanged. ``special`` ids are never masked and never used as replacements.

    Raises UserError for a fraction outside (0, 1], or if the vocabulary has no ordinary tokens.
    """

    def __init__(self, vocab_size: int, mask: int, special: Iterable[int], fraction: float = 0.15):
        if not 0.0 < fraction <= 1.0:
            raise UserError(f"the fraction of masked tokens must be above 0 and at most 1, got {fraction}")
        self.vocab_size = vocab_size
        self.mask = mask
        self.fraction = fraction
        self.special = host.array(sorted({mask, *special}))
        self.ordinary = host.setdiff1d(host.arange(vocab_size), self.special)
        if not len(self.ordinary):
            raise UserError("the vocabulary has only special tokens, so there is nothing to mask")

    def __call__(self, ids: Any, rng: Any) -> tuple[Any, Any]:
        """Return the inputs and targets of a ``MaskedBatch`` for ids (batch, length), a NumPy array. Masks the same fraction of
        each row, but at least one token if the row has an ordinary token."""
        order = host.where(host.isin(ids, self.special), 2.0, rng.random(ids.shape))
        ordinary = (order < 1.0).sum(axis=1, keepdims=True)
        count = host.minimum(host.maximum(host.rint(self.fraction * ordinary), 1), ordinary)
        chosen = order.argsort(axis=1).argsort(axis=1) < count
        fate = rng.random(ids.shape)
        inputs = host.where(chosen & (fate < 0.8), self.mask, ids)
        inputs = host.where(chosen & (fate >= 0.9), self.ordinary[rng.integers(0, len(self.ordinary), ids.shape)], inputs)
        return inputs, host.where(chosen, ids, IGNORED)


class MaskedBatches(Seeded):
    """Windows of a text with masked tokens, between a ``start`` and an ``end`` token.

    Training uses random windows, masked differently each time. Validation uses every window of the last ``validation_fraction``
    of the ids and always masks the same tokens, so losses are comparable. Incomplete windows at the end and windows without
    ordinary tokens are dropped. Raises UserError if a split has no window, an id is outside the vocabulary, or a batch does not
    fit in memory.
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
        if len(ids) and host.isin(ids, masking.special).all():  # neither a longer text nor smaller windows would help
            raise _nothing_to_hide(len(ids), "of the text")
        cut = int(len(ids) * (1.0 - validation_fraction))
        if min(cut, len(ids) - cut) < window:
            smaller = ", or a smaller window" if min(cut, len(ids) - cut) else ""
            raise SettingError(
                f"the text has only {counted(len(ids), 'token')} for windows of {window}: use a longer one{smaller}", "window"
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
        self._starts = self._starts_of(self.training, 1, "to train on")
        filled = len(self.validation) // window * window
        self._validation_starts = self._starts_of(self.validation[:filled], window, "to validate with, at its end,")

    def _starts_of(self, ids: Any, every: int, label: str) -> Any:
        """Return the starts, at multiples of ``every``, of windows with an ordinary token. Raises UserError if there are none,
        with ``label`` as the name of the ids."""
        small = host.min_scalar_type(len(ids))  # a corpus may have a hundred million tokens
        starts = host.arange(0, len(ids) - self.window + 1, every, dtype=small)
        ordinary = host.zeros(len(ids) + 1, small)
        host.cumsum(~host.isin(ids, self.masking.special), out=ordinary[1:])
        usable = starts[ordinary[self.window :][starts] > ordinary[starts]]
        if not len(usable):
            raise _nothing_to_hide(len(ids), label)
        return usable

    def sample(self) -> MaskedBatch:
        """Return the next training batch."""
        starts = self._starts[self._rng.integers(0, len(self._starts), self.batch_size)]
        return self._batch(self.training[starts[:, None] + host.arange(self.window)], self._rng)

    def largest_batch(self) -> int:
        """Return a lower bound on the number of tokens in the largest training batch."""
        return int(self.batch_size) * (int(self.window) + 2)

    def validation_batches(self, batch_size: int = 64) -> Iterator[MaskedBatch]:
        """Iterate over the validation windows in order."""
        rng = host.random.default_rng(self.seed)
        for first in range(0, len(self._validation_starts), batch_size):
            starts = self._validation_starts[first : first + batch_size]
            yield self._batch(self.validation[starts[:, None] + host.arange(self.window)], rng)

    def _batch(self, windows: Any, rng: Any) -> MaskedBatch:
        ends = [host.full((len(windows), 1), i) for i in self.around]
        inputs, targets = self.masking(host.concatenate([ends[0], windows, ends[1]], axis=1), rng)
        hidden = targets != IGNORED
        return MaskedBatch(tt.tensor(inputs), tt.tensor(targets), int(hidden.sum()), hidden)


def _nothing_to_hide(tokens: int, label: str) -> UserError:
    return UserError(
        f"all {counted(tokens, 'token')} {label} are special and cannot be hidden, such as [UNK] for a word that is too long "
        "or has unknown characters: use another text"
    )
