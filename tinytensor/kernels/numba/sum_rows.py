"""The gradient of an embedding: rows that share an id are added up, one after the other."""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop
from tinytensor.summation import widened


@loop
def _add_rows(rows: Any, ids: Any, out: Any) -> None:
    for i in range(ids.size):
        place = ids[i]
        for j in range(rows.shape[1]):
            out[place, j] += rows[i, j]


def sum_rows(rows: Any, ids: Any, num_rows: int) -> Any:
    """For each i below num_rows, the sum of the ``rows`` (..., width) whose id is i: (num_rows, width)."""
    rows, width = widened(rows), rows.shape[-1]
    out = numpy.zeros((num_rows, width), dtype=rows.dtype)
    _add_rows(numpy.ascontiguousarray(rows).reshape(ids.size, width), numpy.ascontiguousarray(ids).reshape(-1), out)
    return out
