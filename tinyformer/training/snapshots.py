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
    """Return the steps of ``count`` snapshots of a run of ``steps`` steps: evenly spaced in the logarithm of 1 + step, from 0
    (before training) to the last. Each step comes once. A single snapshot is of the last step.

    >>> from tinyformer.training.snapshots import snapshot_steps
    >>> snapshot_steps(1000, 4)
    [0, 9, 99, 1000]
    """
    count = min(count, steps + 1)
    chosen: list[int] = []
    for i in range(count):
        even = round((steps + 1) ** (i / (count - 1))) - 1 if count > 1 else steps
        least = chosen[-1] + 1 if chosen else 0
        chosen.append(min(max(even, least), steps - (count - 1 - i)))
    return chosen


def automatic_count(num_bytes: int) -> int:
    """Return the default number of snapshots of so many bytes: at most MOST, with at most MOST_BYTES in all; 0 if fewer than
    two fit, as one alone is no film."""
    count = min(MOST, MOST_BYTES // max(num_bytes, 1))
    return count if count > 1 else 0


class Snapshots:
    """Weights of a ``model`` along the ``steps`` of its training, in float16, in memory; by default as many as are small.
    ``save_run`` writes them.

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
        """Copy the weights if this step is one of ``steps``."""
        if step in self.steps:
            self.kept[step] = self.weights()

    def weights(self) -> dict[str, Tensor]:
        """Return the current weights by name, in float16."""
        return {name: _narrow(tensor) for name, tensor in learned_state(self.model).items()}


class SnapshotFiles:
    """The snapshots in the ``folder`` of a run: each is written as soon as it is taken."""

    def __init__(self, folder: RunFolder, snapshots: Snapshots):
        self._folder = folder
        self._snapshots = snapshots

    def told(self) -> str:
        """Return a line that says how many snapshots are kept; "" for none."""
        count = len(self._snapshots.steps)
        size = in_bytes(self._snapshots.num_bytes * count)
        return f"Keeps {counted(count, 'snapshot')} of the weights along the run, {size} in all" if count else ""

    def forget_after(self, step: int) -> None:
        """Remove the snapshots of later steps, which a run takes again if it was killed after its last checkpoint."""
        for taken, path in self._folder.snapshots().items():
            if taken > step:
                remove(path)

    def keep(self, step: int) -> Iterator[str]:
        """Write the weights if this step has a snapshot. If that fails, yield a line that says so; training continues."""
        if step not in self._snapshots.steps:
            return
        try:
            save_snapshot(self._folder, step, self._snapshots.weights(), self._snapshots.model)
        except UserError as error:
            yield str(error)


def save_snapshot(folder: RunFolder, step: int, weights: dict[str, Tensor], model: Module) -> None:
    """Write the weights of a ``model`` at a step to a run's folder. Raises UserError if that fails."""
    state = {"kind": "snapshot", "step": step, **class_of(model), **folder.identity(lasting=True)}
    save_checkpoint(folder.snapshot(step), {"model": weights}, state)


def _narrow(tensor: Tensor) -> Tensor:
    """Return the tensor in float16, or as it is if it is not floating or has a value beyond float16 (65,504)."""
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
    """Write a finished run to a folder: its settings, tokenizer, weights, log, and ``snapshots`` if there are any.

    ``kind`` is what was trained, such as "language model". ``parts`` are the settings that rebuild it, by their names in
    config.json: ``model=model.config``, for a translator also its ``task``. ``rows`` is the log: for each measured step the
    "step", "train_loss" and "validation_loss". The last row has the run's result.

    ::

        save_run("runs/char_gpt", "language model", model, tokenizer, rows, model=model.config)

    Raises ValueError for an unknown kind; UserError if the folder holds a run already, and if a weight is NaN.
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
    """Return the step and the losses of a row for JSON, which has no NaN."""
    losses: dict[str, Any] = {"step": int(row["step"])}
    for name in ("train_loss", "validation_loss"):
        loss = row.get(name)
        losses[name] = None if loss is None or not math.isfinite(loss) else float(loss)
    return losses
