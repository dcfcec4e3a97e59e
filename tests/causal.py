"""That a model sees what it may, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import tinytensor as tt
from tinytensor import Tensor


def _changes(model: Callable[[Tensor], Tensor], ids: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The logits of ids (batch, length), and those where the token of each place is another, between 1 and 10."""

    def logits(ids: np.ndarray) -> np.ndarray:
        return model(tt.tensor(ids)).numpy()

    others = []
    for place in range(ids.shape[1]):
        changed = ids.copy()
        changed[:, place] = changed[:, place] % 10 + 1
        others.append(logits(changed))
    return logits(ids), others


def check_that_the_past_is_unchanged(model: Callable[[Tensor], Tensor], ids: np.ndarray) -> None:
    """Check that a changed token leaves every earlier logit as it was, to the bit, and changes all from there on."""
    before, others = _changes(model, ids)
    for place, after in enumerate(others):
        assert after[:, :place].tobytes() == before[:, :place].tobytes(), place
        # ... while everything from there on does change, or the model would not look back at all.
        assert (np.abs(after[:, place:] - before[:, place:]).max(axis=(0, 2)) > 0).all(), place


def check_that_all_is_seen(model: Callable[[Tensor], Tensor], ids: np.ndarray) -> None:
    """Check that each token reaches every logit."""
    before, others = _changes(model, ids)
    for place, after in enumerate(others):
        assert (np.abs(after - before).max(axis=(0, 2)) > 0).all(), place
