"""Weights saved along a run in float16, which the explorer shows as a film; and runs saved when they are finished.

A script with its own training loop saves a finished run. The explorer, the export and the commands that use a trained model can
open it. It has no latest checkpoint, and so cannot be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.common.files import write_csv
from tinyformer.common.makers import KINDS, RECORD, Maker
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


def save_run(
    folder: str | Path,
    kind: str,
    model: Module,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Any]],
    snapshots: Snapshots | None = None,
    /,
    **parts: Any,
) -> None:
    """Write a finished run to a folder: its settings, its tokenizer, its weights and its log, and the ``snapshots`` if
    there are any.

    ``kind`` is what was trained, such as "language model", and ``parts`` are the settings from which that is built again, by
    their names in config.json: ``model=model.config``, for a translator also its ``task``. ``rows`` is the log: a row for each
    measured step, with the "step", its "train_loss" and the "validation_loss". That of the last row is the run's result.

    ::

        save_run("runs/char_gpt", "language model", model, tokenizer, rows, model=model.config)

    Raises ValueError for a kind that is not known; UserError if the folder holds a run already, and if a weight is NaN.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no kind of runs {kind!r}: choose among {', '.join(KINDS)}")
    run = RunFolder(folder)
    run.create({RECORD: Maker.of_kind(kind), **parts})
    tokenizer.save(run.tokenizer)
    result = {name: rows[-1][name] for name in ("step", "validation_loss")}
    state = {"kind": "best", **result, "rows": [_losses(row) for row in rows], **class_of(model), **run.identity(lasting=True)}
    save_checkpoint(run.best, {"model": model.state_dict()}, state)
    for step, weights in (snapshots.kept if snapshots else {}).items():
        save_snapshot(run, step, weights, model)
    write_csv(run.log, [rows[0], *(row.values() for row in rows)])
    run.move_into_place()


def _losses(row: Mapping[str, Any]) -> dict[str, Any]:
    """The step of a row and its losses as JSON has them, which knows no NaN."""
    told: dict[str, Any] = {"step": int(row["step"])}
    for name in ("train_loss", "validation_loss"):
        loss = row.get(name)
        told[name] = None if loss is None or not math.isfinite(loss) else float(loss)
    return told
