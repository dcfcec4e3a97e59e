"""The gradient of an embedding: the sum of all rows that have the same id."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over, widened

_RARE = 16  # the rows of an id that occurs more often than this are summed by themselves


def sum_rows(rows: Any, ids: Any, out: Any) -> Any:
    """Add to row i of ``out`` (num_rows, width) the sum of the ``rows`` (..., width) whose id is i. Returns ``out``.

    Sorting brings equal ids together. Each frequent id then takes one sum. For the rare ids, the first rows of all of them are
    added in one step, then all second rows, and so on. So there are a few large steps. ``numpy.add.at`` takes one for each row.
    """
    rows = widened(rows)
    if out.dtype != rows.dtype:
        out += sum_rows(rows, ids, xp.zeros(out.shape, rows.dtype))
        return out
    ids, rows = ids.reshape(-1), rows.reshape(ids.size, out.shape[1])
    order = xp.argsort(ids, kind="stable")
    ids = ids[order]
    starts = xp.flatnonzero(xp.concatenate([xp.ones(min(1, ids.size), dtype=bool), ids[1:] != ids[:-1]]))
    counts = xp.diff(starts, append=ids.size)
    frequent = counts > _RARE
    for start, count in zip(starts[frequent].tolist(), counts[frequent].tolist()):
        out[int(ids[start])] += sum_over(rows[order[start : start + count]], (0,))
    starts, counts = starts[~frequent], counts[~frequent]
    taken = 0
    while starts.size:
        out[ids[starts]] += rows[order[starts + taken]]
        taken += 1
        starts, counts = starts[counts > taken], counts[counts > taken]
    return out
