"""The gradient of an embedding: rows that share an id are added up, one after the other. kernels/numpy/sum_rows.py does it
without a loop over rows."""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.device.backend import index_dtype, is_floating
from tinytensor.device.summation import widened
from tinytensor.kernels.numba.compiling import loop
from tinytensor.kernels.numba.functions import place
from tinytensor.kernels.numpy.sum_rows import sum_rows as in_numpy

_MANY = 1024  # rows of one id: more are added up in float64


@loop
def _count(rows: Any, ids: Any, counts: Any) -> None:
    for i in range(ids.size):
        counts[place(ids[i], counts.size)] += 1


@loop
def _add_rows(rows: Any, ids: Any, out: Any) -> None:
    for i in range(ids.size):
        at = place(ids[i], out.shape[0])
        for j in range(rows.shape[1]):
            out[at, j] += rows[i, j]


def sum_rows(rows: Any, ids: Any, out: Any) -> Any:
    """Add to row i of ``out`` (num_rows, width) the sum of the ``rows`` (..., width) whose id is i. Returns ``out``."""
    if ids.dtype.kind not in "iu" or not is_floating(rows.dtype):
        return in_numpy(rows, ids, out)
    rows = widened(rows)
    rows = numpy.ascontiguousarray(rows, rows.dtype.newbyteorder("=")).reshape(ids.size, out.shape[1])
    if out.dtype != rows.dtype or not out.flags.c_contiguous:
        out += sum_rows(rows, ids, numpy.zeros(out.shape, rows.dtype))
        return out
    ids = numpy.ascontiguousarray(ids, index_dtype).reshape(-1)
    counts = numpy.zeros(len(out), index_dtype)
    if ids.size > _MANY:
        _count(rows, ids, counts)
    sums = numpy.zeros(out.shape) if counts.max(initial=0) > _MANY else out
    _add_rows(rows, ids, sums)
    if sums is not out:
        out += sums.astype(out.dtype)
    return out
