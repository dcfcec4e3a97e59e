"""Layer norm and RMS norm, row by row, so that a row is still in the processor's cache when it is read again.

kernels/numpy/normalization.py has the same in NumPy's operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.device.summation import sum_over
from tinytensor.kernels.numba.compiling import real, reduction
from tinytensor.kernels.numpy import normalization as in_numpy
from tinytensor.kernels.numpy.normalization import ALIKE, TINY
from tinytensor.kernels.numpy.products import as_rows

_WIDE = 1 << 14  # longer rows would be added up inaccurately
_BLOCK = 256  # rows that are added up one after the other; the sums of such blocks are then summed


def contiguous_rows(x: Any) -> Any:
    """Return x as contiguous rows: (..., width) -> (rows, width)."""
    return as_rows(numpy.ascontiguousarray(x))


def _vector(vector: Any, missing: float, x: Any) -> Any:
    """Return a weight or bias (width,); for None, a vector of ``missing``, which has no effect."""
    return numpy.full(x.shape[-1], missing, x.dtype) if vector is None else numpy.ascontiguousarray(vector)


def _sums_of_blocks(rows: Any) -> Any:
    """Return zeros, a row for each block of rows, to which the loops add."""
    return numpy.zeros((-(-len(rows) // _BLOCK), rows.shape[1]), rows.dtype)


def _total(sums: Any) -> Any:
    return sums[0] if len(sums) == 1 else sum_over(sums, (0,))


@reduction
def _correction(x: Any, i: int, middle: float) -> float:
    """Return the correction of ``middle``, the rounded mean of row i."""
    first, width = x[i, 0] - middle, x.shape[1]
    total = real(0)
    for j in range(width):
        total += x[i, j] - middle - first
    return first + total / real(width)


@reduction
def row_scale(x: Any, i: int, middle: float, correction: float, eps: float) -> float:
    """1 / sqrt(var + eps) of row i. Dividing by the largest element keeps the squares from being 0 or infinite."""
    squares, largest, width = real(0), max(real(TINY), real(math.sqrt(abs(eps)))), x.shape[1]
    for j in range(width):
        largest = max(largest, abs(x[i, j] - middle - correction))
    largest = largest if largest < real(math.inf) else real(1)
    for j in range(width):
        squares += ((x[i, j] - middle - correction) / largest) ** 2
    return real(1) / math.sqrt(squares / real(width) + eps / largest / largest) / largest


@reduction
def layer_norm_rows(x: Any, weight: Any, bias: Any, eps: float, out: Any, mean: Any, corrections: Any, rstd: Any) -> None:
    """Write layer norm of x (rows, width) to out, and the residuals to mean, corrections and rstd, each (rows,)."""
    rows, width = x.shape
    share = real(1) / real(width)
    for i in range(rows):
        total = real(0)
        for j in range(width):
            total += x[i, j]
        middle, correction = total * share, real(0)
        squares = real(0)
        for j in range(width):
            squares += (x[i, j] - middle) * (x[i, j] - middle)
        scale = real(1) / math.sqrt(squares * share + eps)
        if abs(middle) * scale > ALIKE:
            correction = _correction(x, i, middle)
        if abs(middle) * scale > ALIKE or eps < TINY or not scale > real(0):
            scale = row_scale(x, i, middle, correction, eps)
        mean[i], corrections[i], rstd[i] = middle, correction, scale
        for j in range(width):
            out[i, j] = (x[i, j] - middle - correction) * scale * weight[j] + bias[j]


@reduction
def _layer_norm_gradients(
    g: Any, x: Any, weight: Any, mean: Any, corrections: Any, rstd: Any, d_x: Any, d_weight: Any, d_bias: Any
) -> None:
    rows, width = x.shape
    share = real(1) / real(width)
    for i in range(rows):
        middle, correction, scale, block = mean[i], corrections[i], rstd[i], i // _BLOCK
        of_h, of_hn = real(0), real(0)
        for j in range(width):
            normalized = (x[i, j] - middle - correction) * scale
            h = g[i, j] * weight[j]
            of_h += h
            of_hn += h * normalized
            d_weight[block, j] += g[i, j] * normalized
            d_bias[block, j] += g[i, j]
        of_h, of_hn = of_h * share, of_hn * share
        for j in range(width):
            normalized = (x[i, j] - middle - correction) * scale
            d_x[i, j] = (g[i, j] * weight[j] - of_h - normalized * of_hn) * scale


def layer_norm_forward(needed: Sequence[bool], x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any]:
    """``layer_norm_forward`` of kernels/numpy. A correction that is not needed is 0."""
    if x.shape[-1] > _WIDE:
        return in_numpy.layer_norm_forward(needed, x, weight, bias, eps)
    rows = contiguous_rows(x)
    out, mean = numpy.empty_like(rows), numpy.empty(len(rows), x.dtype)
    correction, rstd = numpy.empty_like(mean), numpy.empty_like(mean)
    layer_norm_rows(rows, _vector(weight, 1.0, x), _vector(bias, 0.0, x), float(eps), out, mean, correction, rstd)
    return out.reshape(x.shape), (mean, correction, rstd)


def layer_norm_backward(
    g: Any, residuals: tuple[Any, ...], needed: Sequence[bool], x: Any, weight: Any, before: Any = None
) -> Sequence[Any]:
    """``layer_norm_backward`` of kernels/numpy."""
    if x.shape[-1] > _WIDE:
        return in_numpy.layer_norm_backward(g, residuals, needed, x, weight, before)
    rows = contiguous_rows(x)
    d_x = numpy.empty_like(rows)
    d_weight, d_bias = _sums_of_blocks(rows), _sums_of_blocks(rows)
    _layer_norm_gradients(contiguous_rows(g), rows, _vector(weight, 1.0, x), *residuals, d_x, d_weight, d_bias)
    d_x = d_x.reshape(x.shape)
    if before is not None:
        d_x += before
    return d_x if needed[0] else None, _total(d_weight) if needed[1] else None, _total(d_bias) if needed[2] else None


@reduction
def rms_norm_rows(x: Any, weight: Any, eps: float, out: Any, rstd: Any) -> None:
    """Write RMS norm of x (rows, width) to out, and the residuals to rstd (rows,)."""
    rows, width = x.shape
    for i in range(rows):
        squares = real(0)
        for j in range(width):
            squares += x[i, j] * x[i, j]
        rstd[i] = real(1) / math.sqrt(squares / real(width) + eps)
        if eps < TINY or not rstd[i] > real(0):
            rstd[i] = row_scale(x, i, real(0), real(0), eps)
        for j in range(width):
            out[i, j] = x[i, j] * rstd[i] * weight[j]


@reduction
def _rms_norm_gradients(g: Any, x: Any, weight: Any, rstd: Any, d_x: Any, d_weight: Any) -> None:
    rows, width = x.shape
    for i in range(rows):
        scale, block = rstd[i], i // _BLOCK
        of_hn = real(0)
        for j in range(width):
            normalized = x[i, j] * scale
            of_hn += g[i, j] * weight[j] * normalized
            d_weight[block, j] += g[i, j] * normalized
        of_hn = of_hn / real(width)
        for j in range(width):
            d_x[i, j] = (g[i, j] * weight[j] - x[i, j] * scale * of_hn) * scale


def rms_norm_forward(needed: Sequence[bool], x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """``rms_norm_forward`` of kernels/numpy."""
    if x.shape[-1] > _WIDE:
        return in_numpy.rms_norm_forward(needed, x, weight, eps)
    rows = contiguous_rows(x)
    out, rstd = numpy.empty_like(rows), numpy.empty(len(rows), x.dtype)
    rms_norm_rows(rows, _vector(weight, 1.0, x), float(eps), out, rstd)
    return out.reshape(x.shape), rstd


def rms_norm_backward(g: Any, rstd: Any, needed: Sequence[bool], x: Any, weight: Any, before: Any = None) -> Sequence[Any]:
    """``rms_norm_backward`` of kernels/numpy."""
    if x.shape[-1] > _WIDE:
        return in_numpy.rms_norm_backward(g, rstd, needed, x, weight, before)
    rows = contiguous_rows(x)
    d_x, d_weight = numpy.empty_like(rows), _sums_of_blocks(rows)
    _rms_norm_gradients(contiguous_rows(g), rows, _vector(weight, 1.0, x), rstd, d_x, d_weight)
    d_x = d_x.reshape(x.shape)
    if before is not None:
        d_x += before
    return d_x if needed[0] else None, _total(d_weight) if needed[1] else None
