"""Which weights the models have, and the film of a run: snapshots and losses."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.explore.views.passages import About, Answer, Named
from tinyformer.explore.views.subjects import Subjects
from tinyformer.training.safety import is_taken


def checkpoints(subjects: Subjects, asked: About) -> Answer:
    """For each of the ``models``, in name order, return the ``step`` of its weights, their ``validation_loss`` and the (perhaps
    earlier) step where it was ``measured``; when they were ``written``, in seconds since 1970; a ``stamp`` that changes with
    the files; and the models with the ``same`` weights. Unknown values are null. Unreadable models have only an ``error``.
    known is null, and a model whose files cannot be read has only an ``error``."""
    found = {name: _described(subjects, name) for name in subjects.names}
    for name, one in found.items():
        if "error" not in one:
            one["same"] = [other for other in found if other != name and _are_same(one, found[other])]
    return {"models": [{"name": name, **one} for name, one in found.items()]}


def _described(subjects: Subjects, name: str) -> dict[str, Any]:
    try:
        return {**_measured(subjects.state(name)), "written": subjects.written(name), "stamp": stamp_of(subjects, name)}
    except UserError as error:
        return {"error": str(error)}


def stamp_of(subjects: Subjects, name: str) -> str:
    """Return a value that changes when a model's files are replaced. Raises UserError for a missing file."""
    return hashlib.sha256(repr(subjects.stamp(name)).encode()).hexdigest()[:16]


def _measured(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step and validation loss of a checkpoint's state. The latest checkpoint's log holds the newest loss."""
    step, loss = as_step(state.get("step")), as_loss(state.get("validation_loss"))
    measured = step if loss is not None else None
    rows = state.get("rows")
    for row in reversed(rows if isinstance(rows, list) else []):
        if isinstance(row, Mapping) and (found := as_loss(row.get("validation_loss"))) is not None:
            measured, loss = as_step(row.get("step")), found
            break
    return {"step": step, "validation_loss": loss, "measured": measured}


def _are_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two models have the same weights, judging by steps and losses: equal losses to the last digit are no
    coincidence. This avoids reading weights. The best weights may be a mean of several, with a different loss."""
    known = ("step", "validation_loss", "measured")
    measured_now = one.get("step") is not None and one.get("step") == one.get("measured")
    return measured_now and all(one.get(key) == other.get(key) for key in known)


def as_step(value: Any) -> int | None:
    """Return a step from a file, or None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def as_loss(value: Any) -> float | None:
    """Return a loss from a file, or None for anything else."""
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


MOST_ROWS = 400  # of the log; a longer log is subsampled


def film(subjects: Subjects, asked: Named) -> Answer:
    """Return the film of a model's run.

    ``snapshots``, by step: the ``step``, the ``name`` of the snapshot as a model, and a ``stamp`` that changes with the file,
    or an ``error``; empty for a pretrained model. ``losses``: rows of a step, the mean training loss up to it, its validation
    loss, and the mean's first step; null for no loss. ``training``: True if a process has locked the run's folder.
    """
    run = subjects.folder(asked.model)
    found = [_snapshot(subjects, step, name) for step, name in subjects.snapshots(asked.model).items()]
    losses = _losses(subjects, asked.model) if found else []
    return {"snapshots": found, "losses": losses, "training": run is not None and is_taken(run.path / ".lock")}


def _snapshot(subjects: Subjects, step: int, name: str) -> Answer:
    try:
        subjects.state(name)
        return {"step": step, "name": name, "stamp": stamp_of(subjects, name)}
    except UserError as error:
        return {"step": step, "name": name, "error": str(error)}


def _losses(subjects: Subjects, model: str) -> list[list[float | int | None]]:
    rows, has_means = subjects.log(model)
    told = [_losses_in(row) for row in rows if isinstance(row, Mapping)]
    told = [row for row in told if row[0] is not None and (row[1] is not None or row[2] is not None)]
    for before, row in zip([[0], *told], told):
        first = before[0] + 1 if has_means else row[0]
        row.append(None if row[1] is None else first)
    every = -(-len(told) // MOST_ROWS)
    return [row for i, row in enumerate(told) if i % every == 0 or row[2] is not None or i == len(told) - 1]


def _losses_in(row: Mapping[str, Any]) -> list[Any]:
    return [as_step(row.get("step")), as_loss(row.get("train_loss")), as_loss(row.get("validation_loss"))]
