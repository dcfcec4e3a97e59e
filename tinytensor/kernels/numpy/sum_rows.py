"""The gradient of an embedding: rows that share an id are added up."""

from __future__ import annotations

from typing import Any

from tinytensor.backend import xp


def sum_rows(rows: Any, ids: Any, num_rows: int) -> Any:
    """For each i below num_rows, the sum of the rows (..., width) whose id is i: (num_rows, width).

    Sorting brings equal ids together, so that each sum is over one contiguous run: several times faster than adding
    row by row (``numpy.add.at``).
    """
    width = rows.shape[-1]
    out = xp.zeros((num_rows, width), dtype=rows.dtype)
    ids = ids.reshape(-1)
    if ids.size == 0 or width == 0:
        return out
    order = xp.argsort(ids, kind="stable")
    ids = ids[order]
    starts = xp.flatnonzero(xp.concatenate([xp.ones(1, dtype=bool), ids[1:] != ids[:-1]]))
    out[ids[starts]] = xp.add.reduceat(rows.reshape(-1, width)[order], starts, axis=0)
    return out
