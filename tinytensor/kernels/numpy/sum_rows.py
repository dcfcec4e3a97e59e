"""The gradient of an embedding: rows that share an id are added up."""

from __future__ import annotations

from typing import Any

from tinytensor.backend import wide, xp

_RARE = 16  # an id that occurs more often than this has its rows summed by itself


def sum_rows(rows: Any, ids: Any, num_rows: int) -> Any:
    """For each i below num_rows, the sum of the ``rows`` (..., width) whose id is i: (num_rows, width).

    Sorting brings equal ids together. The rows of a frequent id are then one sum. Of the rare ids all first rows are placed
    together, then all second rows added, and so on: a few large steps, where ``numpy.add.at`` takes one for each row.
    Half precision, which soon loses what is added, is added up in float32.
    """
    width = rows.shape[-1]
    out = xp.zeros((num_rows, width), dtype=wide(rows.dtype) or rows.dtype)
    ids, rows = ids.reshape(-1), rows.reshape(ids.size, width)
    order = xp.argsort(ids, kind="stable")
    ids = ids[order]
    starts = xp.flatnonzero(xp.concatenate([xp.ones(min(1, ids.size), dtype=bool), ids[1:] != ids[:-1]]))
    counts = xp.diff(starts, append=ids.size)
    frequent = counts > _RARE
    for start, count in zip(starts[frequent].tolist(), counts[frequent].tolist()):
        xp.add.reduce(rows[order[start : start + count]], axis=0, dtype=out.dtype, out=out[int(ids[start])])
    starts, counts = starts[~frequent], counts[~frequent]
    taken = 0
    while starts.size:
        out[ids[starts]] += rows[order[starts + taken]]
        taken += 1
        starts, counts = starts[counts > taken], counts[counts > taken]
    return out.astype(rows.dtype, copy=False)
