"""Which weights the models have, and the film of a run: its snapshots and losses."""

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
    """Of each of the ``models``, in the order of their names: the ``step`` that its weights are from; their ``validation_loss``
    and the step at which that was ``measured``, which may be an earlier one; when they were ``written``, in seconds since 1970;
    a ``stamp``, which is another one once they were replaced; and the names of those with the ``same`` weights. What is not
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
    """What is another one once a model's files were replaced. Raises UserError for a file that is gone."""
    return hashlib.sha256(repr(subjects.stamp(name)).encode()).hexdigest()[:16]


def _measured(state: Mapping[str, Any]) -> dict[str, Any]:
    """The step and the validation loss of a checkpoint's state. The latest one has a log, in which the newest loss stands."""
    step, loss = as_step(state.get("step")), as_loss(state.get("validation_loss"))
    measured = step if loss is not None else None
    rows = state.get("rows")
    for row in reversed(rows if isinstance(rows, list) else []):
        if isinstance(row, Mapping) and (found := as_loss(row.get("validation_loss"))) is not None:
            measured, loss = as_step(row.get("step")), found
            break
    return {"step": step, "validation_loss": loss, "measured": measured}


def _are_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two models have the same weights, as far as their steps and losses tell: no two have the same loss to its last
    digit by chance. So no weights are read. The best weights may be the mean of several, whose loss is another."""
    known = ("step", "validation_loss", "measured")
    measured_now = one.get("step") is not None and one.get("step") == one.get("measured")
    return measured_now and all(one.get(key) == other.get(key) for key in known)


def as_step(value: Any) -> int | None:
    """A step from a file; None for anything else."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None


def as_loss(value: Any) -> float | None:
    """A loss from a file; None for anything else."""
    return float(value) if type(value) in (int, float) and math.isfinite(value) else None


MOST_ROWS = 400  # of the log; a longer one is told in parts


def film(subjects: Subjects, asked: Named) -> Answer:
    """Return the film of a model's run.

    ``snapshots``, by step: the ``step``, the ``name`` of the snapshot as a model, and a ``stamp`` that changes with the file,
    or an ``error``; none for a pretrained model. ``losses``: rows of a step, the training loss (a mean) up to it, validation
    loss at it, and the first step of that mean; null without a loss. ``training``: whether a process holds the run's folder.
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
