"""Runs that are saved when they are finished, by a script with a training loop of its own.

Such a run has all that the explorer, the export and the commands that use a trained model need. It has no latest checkpoint,
and so cannot be resumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyformer.common import commands
from tinyformer.common.files import write_csv
from tinyformer.common.makers import RECORD, Maker
from tinyformer.training.checkpoints import class_of, save_checkpoint
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.snapshots import Snapshots, save_snapshot
from tinytensor.nn import Module


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
    if kind not in commands.OF_KINDS:
        raise ValueError(f"there is no kind of runs {kind!r}: choose among {', '.join(commands.OF_KINDS)}")
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
