"""The film of a run: the snapshots of its weights, each of which is a model, and its losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinyformer.common.errors import UserError
from tinyformer.explore.views.checkpoints import as_loss, as_step, stamp_of
from tinyformer.explore.views.passages import Answer, Named
from tinyformer.explore.views.subjects import Subjects
from tinyformer.training.safety import is_taken

MOST_ROWS = 400  # of the log; a longer one is told in parts


def film(subjects: Subjects, asked: Named) -> Answer:
    """The film of the run that a model is of.

    ``snapshots``, by step: of each its ``step``; its ``name``, which other questions take as a model; and its ``stamp``, which
    is another one once it was replaced, or an ``error`` if it cannot be read. None for a pretrained model. ``losses``: rows of
    a step, the training loss up to it, the validation loss at it, and the first step of those of which the training loss is the
    mean; null where there was no such loss. ``training``: whether a process holds the run's folder, as one that trains does.
    """
    run = subjects.folder(asked.model)
    found = [_described(subjects, step, name) for step, name in subjects.snapshots(asked.model).items()]
    losses = _losses(subjects, asked.model) if found else []
    return {"snapshots": found, "losses": losses, "training": run is not None and is_taken(run.path / ".lock")}


def _described(subjects: Subjects, step: int, name: str) -> Answer:
    try:
        subjects.state(name)
        return {"step": step, "name": name, "stamp": stamp_of(subjects, name)}
    except UserError as error:
        return {"step": step, "name": name, "error": str(error)}


def _losses(subjects: Subjects, model: str) -> list[list[float | int | None]]:
    rows, has_means = subjects.log(model)
    told = [_told(row) for row in rows if isinstance(row, Mapping)]
    told = [row for row in told if row[0] is not None and (row[1] is not None or row[2] is not None)]
    for before, row in zip([[0], *told], told):
        first = before[0] + 1 if has_means else row[0]
        row.append(None if row[1] is None else first)
    every = -(-len(told) // MOST_ROWS)
    return [row for i, row in enumerate(told) if i % every == 0 or row[2] is not None or i == len(told) - 1]


def _told(row: Mapping[str, Any]) -> list[Any]:
    return [as_step(row.get("step")), as_loss(row.get("train_loss")), as_loss(row.get("validation_loss"))]
