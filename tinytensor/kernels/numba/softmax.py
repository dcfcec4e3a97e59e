"""Softmax and its logarithm over the last axis in float32, row by row. kernels/numpy/softmax.py has the formulas, and the other
axes and dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.device.backend import default_dtype
from tinytensor.device.summation import widened
from tinytensor.kernels import numpy as in_numpy
from tinytensor.kernels.numba.compiling import Loop, real, reduction
from tinytensor.kernels.numba.functions import exp, largest

_LONGEST = 1 << 17  # NumPy's kernels add up longer rows in blocks


@reduction
def _softmax(x: Any, out: Any) -> None:
    rows, width = x.shape
    for i in range(rows):
        most, total = largest(x[i]), real(0)
        for j in range(width):
            e = exp(x[i, j] - most)
            out[i, j] = e
            total += e
        for j in range(width):
            out[i, j] = out[i, j] / total


@reduction
def _softmax_gradient(g: Any, out: Any, d_x: Any) -> None:
    rows, width = g.shape
    for i in range(rows):
        total = real(0)
        for j in range(width):
            total += g[i, j] * out[i, j]
        for j in range(width):
            d_x[i, j] = (g[i, j] - total) * out[i, j]


@reduction
def _log_softmax(x: Any, out: Any) -> None:
    rows, width = x.shape
    for i in range(rows):
        most, total = largest(x[i]), real(0)
        for j in range(width):
            total += exp(x[i, j] - most)
        log_total = math.log(total)
        for j in range(width):
            out[i, j] = x[i, j] - most - log_total


@reduction
def _log_softmax_gradient(g: Any, out: Any, d_x: Any) -> None:
    rows, width = g.shape
    for i in range(rows):
        total = real(0)
        for j in range(width):
            total += g[i, j]
        for j in range(width):
            d_x[i, j] = g[i, j] - exp(out[i, j]) * total


def softmax(x: Any, axes: Sequence[int]) -> Any:
    """exp(x) scaled to sum to 1."""
    x = widened(x)
    return _by_rows(_softmax, x) if _are_rows(axes, x) else in_numpy.softmax(x, axes)


def softmax_gradient(g: Any, out: Any, axes: Sequence[int]) -> Any:
    """The gradient of x, where g is that of out = softmax(x)."""
    g, out = widened(g), widened(out)
    return _by_rows(_softmax_gradient, g, out) if _are_rows(axes, g, out) else in_numpy.softmax_gradient(g, out, axes)


def log_softmax(x: Any, axes: Sequence[int]) -> Any:
    """log(softmax(x)), accurate even where the softmax would round to 0."""
    x = widened(x)
    return _by_rows(_log_softmax, x) if _are_rows(axes, x) else in_numpy.log_softmax(x, axes)


def log_softmax_gradient(g: Any, out: Any, axes: Sequence[int]) -> Any:
    """The gradient of x, where g is that of out = log_softmax(x)."""
    g, out = widened(g), widened(out)
    return _by_rows(_log_softmax_gradient, g, out) if _are_rows(axes, g, out) else in_numpy.log_softmax_gradient(g, out, axes)


def _are_rows(axes: Sequence[int], *arrays: Any) -> bool:
    """Whether the axis is the last of float32 arrays that are not empty, and not too long to be added up in a loop."""
    x = arrays[0]
    are_rows = x.size and tuple(axes) == (x.ndim - 1,) and x.shape[-1] <= _LONGEST
    return are_rows and all(a.dtype == default_dtype and a.shape == x.shape for a in arrays)


def _by_rows(run: Loop, *arrays: Any) -> Any:
    """What the loop makes of arrays of one shape, seen as matrices of rows."""
    out = numpy.empty(arrays[0].shape, arrays[0].dtype)
    width = out.shape[-1]
    run(*[numpy.ascontiguousarray(a).reshape(-1, width) for a in arrays], out.reshape(-1, width))
    return out
