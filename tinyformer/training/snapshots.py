"""Snapshots: weights that are kept along a run, in float16. The explorer shows them as a film."""

from __future__ import annotations

from collections.abc import Iterator

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.memory import in_bytes
from tinyformer.training.checkpoints import class_of, learned_state, save_checkpoint
from tinyformer.training.run_folder import RunFolder
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.device.backend import is_floating
from tinytensor.device.disk import remove
from tinytensor.nn import Module

AUTOMATIC = -1  # the number of snapshots that stands for as many as are small
MOST, MOST_BYTES = 8, 5_000_000  # of these, and of all of them together


def snapshot_steps(steps: int, count: int) -> list[int]:
    """The steps of ``count`` snapshots of a run of so many ``steps``: evenly in the logarithm of 1 + step, from 0 (before
    training) to the last. No step comes twice: where there are no more steps than that, it is all of them. One snapshot is that
    of the last step.

    >>> from tinyformer.training.snapshots import snapshot_steps
    >>> snapshot_steps(1000, 4)
    [0, 9, 99, 1000]
    """
    count = min(count, steps + 1)
    found: list[int] = []
    for i in range(count):
        even = round((steps + 1) ** (i / (count - 1))) - 1 if count > 1 else steps
        least = found[-1] + 1 if found else 0
        found.append(min(max(even, least), steps - (count - 1 - i)))
    return found


def automatic_count(num_bytes: int) -> int:
    """How many snapshots of so many bytes are kept where nobody says how many: at most MOST, of at most MOST_BYTES in all. None
    where that is less than two, as one alone is no film."""
    count = min(MOST, MOST_BYTES // max(num_bytes, 1))
    return count if count > 1 else 0


class Snapshots:
    """Weights of a ``model`` along the ``steps`` of its training, in float16, in memory: ``count`` of them, or as many as are
    small. ``save_run`` writes them.

    ::

        snapshots = Snapshots(model, steps=1500)
        snapshots.keep(0)  # before training
        for step in range(1, 1501):
            ...
            snapshots.keep(step)
        save_run("runs/char_gpt", "language model", model, tokenizer, rows, snapshots, model=model.config)
    """

    def __init__(self, model: Module, steps: int, count: int = AUTOMATIC):
        self.model = model
        self.num_bytes = sum(2 * tensor.size for tensor in learned_state(model).values())  # of each
        self.steps = snapshot_steps(steps, automatic_count(self.num_bytes) if count == AUTOMATIC else count)
        self.kept: dict[int, dict[str, Tensor]] = {}  # by step

    def keep(self, step: int) -> None:
        """Keep the weights if this step is one of ``steps``."""
        if step in self.steps:
            self.kept[step] = self.weights()

    def weights(self) -> dict[str, Tensor]:
        """The weights now, by name, in float16."""
        return {name: _narrow(tensor) for name, tensor in learned_state(self.model).items()}


class SnapshotFiles:
    """The snapshots of a run in its ``folder``: each is written as soon as it is taken."""

    def __init__(self, folder: RunFolder, snapshots: Snapshots):
        self._folder = folder
        self._snapshots = snapshots

    def told(self) -> str:
        """What is kept, in a line; "" if that is nothing."""
        count = len(self._snapshots.steps)
        size = in_bytes(self._snapshots.num_bytes * count)
        return f"Keeps {counted(count, 'snapshot')} of the weights along the run, {size} in all" if count else ""

    def forget_after(self, step: int) -> None:
        """Remove those of later steps, such as steps that a run takes again because it was killed after its last checkpoint."""
        for taken, path in self._folder.snapshots().items():
            if taken > step:
                remove(path)

    def keep(self, step: int) -> Iterator[str]:
        """Write the weights if a snapshot of this step is to be kept. Yields a line where it could not be written: training
        goes on without it."""
        if step not in self._snapshots.steps:
            return
        try:
            save_snapshot(self._folder, step, self._snapshots.weights(), self._snapshots.model)
        except UserError as error:
            yield str(error)


def save_snapshot(folder: RunFolder, step: int, weights: dict[str, Tensor], model: Module) -> None:
    """Write the weights of a ``model`` at a step to the folder of a run. Raises UserError if that fails."""
    state = {"kind": "snapshot", "step": step, **class_of(model), **folder.identity(lasting=True)}
    save_checkpoint(folder.snapshot(step), {"model": weights}, state)


def _narrow(tensor: Tensor) -> Tensor:
    """The tensor in float16; as it is if it has no fractions, or a number that float16 cannot hold (beyond 65,504)."""
    if not is_floating(tensor.dtype):
        return tensor
    with tt.no_grad():
        narrow = tensor.astype("float16")
        return narrow if bool(narrow.isfinite().all().item()) else tensor
