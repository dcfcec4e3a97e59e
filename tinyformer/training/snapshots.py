"""Float16 weights saved along a run, which the explorer plays as a film; and saving finished runs.

A script with a custom training loop can save a finished run. The explorer, ONNX export and commands that use a trained model
can open it. It has no latest checkpoint, so it cannot be resumed.
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

AUTOMATIC = -1  # snapshot count that means "as many as are small"
MOST, MOST_BYTES = 8, 5_000_000  # of these, and of all of them together


def snapshot_steps(steps: int, count: int) -> list[int]:
    """Return the steps for ``count`` snapshots in a run of ``steps`` steps. They are evenly spaced in log(1 + step), from 0
    (before training) to the last step, without repeats. A single snapshot is taken at the last step.

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
    """Return the default number of snapshots of this size: at most MOST snapshots and MOST_BYTES in total. Return 0 if fewer
    than two fit, since one is not a film."""
    count = min(MOST, MOST_BYTES // max(num_bytes, 1))
    return count if count > 1 else 0


class Snapshots:
    """Float16 weights of a ``model`` along its training ``steps``, in memory. By default, as many as are small. ``save_run``
    writes them.

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
        self.num_bytes = sum(2 * tensor.size for tensor in learned_state(model).values())  # per snapshot
        self.steps = snapshot_steps(steps, automatic_count(self.num_bytes) if count == AUTOMATIC else count)
        self.kept: dict[int, dict[str, Tensor]] = {}  # by step

    def keep(self, step: int) -> None:
        """Copy the weights if this is a snapshot step."""
        if step in self.steps:
            self.kept[step] = self.weights()

    def weights(self) -> dict[str, Tensor]:
        """Return the current weights by name, in float16."""
        return {name: _narrow(tensor) for name, tensor in learned_state(self.model).items()}


class SnapshotFiles:
    """The snapshots in a run's ``folder``. Each is written immediately."""

    def __init__(self, folder: RunFolder, snapshots: Snapshots):
        self._folder = folder
        self._snapshots = snapshots

    def told(self) -> str:
        """Return a line with the number of snapshots, or "" if there are none."""
        count = len(self._snapshots.steps)
        size = in_bytes(self._snapshots.num_bytes * count)
        return f"Keeps {counted(count, 'snapshot')} of the weights along the run, {size} in all" if count else ""

    def forget_after(self, step: int) -> None:
        """Remove snapshots of later steps. A run killed after its last checkpoint takes them again."""
        for taken, path in self._folder.snapshots().items():
            if taken > step:
                remove(path)

    def keep(self, step: int) -> Iterator[str]:
        """Write the weights if this is a snapshot step. If that fails, yield a message; training continues."""
        if step not in self._snapshots.steps:
            return
        try:
            save_snapshot(self._folder, step, self._snapshots.weights(), self._snapshots.model)
        except UserError as error:
            yield str(error)


def save_snapshot(folder: RunFolder, step: int, weights: dict[str, Tensor], model: Module) -> None:
    """Write a ``model``'s weights at a step to a run's folder. Raises UserError if that fails."""
    state = {"kind": "snapshot", "step": step, **class_of(model), **folder.identity(lasting=True)}
    save_checkpoint(folder.snapshot(step), {"model": weights}, state)


def _narrow(tensor: Tensor) -> Tensor:
    """Return the tensor in float16, or unchanged if it is not floating-point or exceeds the float16 range (65,504)."""
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
    """Save a finished run to a folder: settings, tokenizer, weights, log, and optional ``snapshots``.

    ``kind`` is the type of model, such as "language model". ``parts`` are the settings that rebuild it, by their names in
    config.json: ``model=model.config``, and for a translator also its ``task``. ``rows`` is the log: "step", "train_loss" and
    "validation_loss" for each measured step. The last row holds the final result.

    ::

        save_run("runs/char_gpt", "language model", model, tokenizer, rows, model=model.config)

    Raises ValueError for an unknown kind. Raises UserError if the folder already holds a run or a weight is NaN.
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
    """Return the step and losses of a row for JSON, which does not support NaN."""
    losses: dict[str, Any] = {"step": int(row["step"])}
    for name in ("train_loss", "validation_loss"):
        loss = row.get(name)
        losses[name] = None if loss is None or not math.isfinite(loss) else float(loss)
    return losses
