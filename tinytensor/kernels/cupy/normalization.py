"""Layer norm and RMS norm over the last axis. The formulas are in ``kernels/numpy/normalization.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp
from tinytensor.kernels.cupy.loader import accumulator, contiguous, kernel

_WIDE = 2048  # columns
_MOST_GROUPS = 64  # the most groups that the rows are cut into where they are summed


def _shape(x: Any) -> tuple[int, int]:
    """The number of rows and their width. Rows without elements count as no rows."""
    width = x.shape[-1]
    return (math.prod(x.shape[:-1]) if width else 0), width


def _row_grid(rows: int, width: int) -> tuple[int, tuple[int, int]]:
    """One block for each wide row. Other rows get 4, 8, 16 or 32 lanes: as few as leave a lane no more than 16 columns."""
    if width > _WIDE:
        return rows, (512, 1)
    lanes = next((n for n in (4, 8, 16) if n * 16 >= width), 32)
    together = 128 // lanes
    return -(-rows // together), (lanes, together)


def _parameter(array: Any) -> Any:
    """A weight or bias as the kernels take it, or None."""
    return None if array is None else contiguous(array)


def layer_norm_forward(needed: Sequence[bool], x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any]:
    """(x - mean) / sqrt(var + eps) * weight + bias with the biased variance. Saves mean and rstd = 1 / sqrt(var + eps)."""
    x, weight, bias = contiguous(x), _parameter(weight), _parameter(bias)
    rows, width = _shape(x)
    out = xp.empty(x.shape, x.dtype)
    mean, rstd = [xp.empty(rows, accumulator(x.dtype)) if any(needed) else None for _ in range(2)]
    launch = kernel("normalization.cu", "layer_norm_forward", x.dtype)
    launch(*_row_grid(rows, width), x, weight, bias, out, mean, rstd, float(eps), rows, width)
    return out, (mean, rstd)


def layer_norm_backward(
    g: Any, residuals: tuple[Any, Any], needed: Sequence[bool], x: Any, weight: Any, bias: Any, eps: float
) -> Sequence[Any]:
    """With n the normalised x and h = g * weight: dx = (h - mean(h) - n mean(h n)) rstd, dweight = sum(g n), dbias = sum(g)."""
    g, x, (mean, rstd) = contiguous(g), contiguous(x), residuals
    d_x = None
    if needed[0]:
        rows, width = _shape(x)
        d_x = xp.empty(x.shape, x.dtype)
        launch = kernel("normalization.cu", "layer_norm_backward", x.dtype)
        launch(*_row_grid(rows, width), g, x, _parameter(weight), mean, rstd, d_x, rows, width)
    return d_x, *_parameter_gradients(g, x, mean, rstd, needed[1], needed[2])


def rms_norm_forward(needed: Sequence[bool], x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """x / sqrt(mean(x^2) + eps) * weight. Saves rstd = 1 / sqrt(mean(x^2) + eps)."""
    x, weight = contiguous(x), _parameter(weight)
    rows, width = _shape(x)
    out = xp.empty(x.shape, x.dtype)
    rstd = xp.empty(rows, accumulator(x.dtype)) if any(needed) else None
    launch = kernel("normalization.cu", "rms_norm_forward", x.dtype)
    launch(*_row_grid(rows, width), x, weight, out, rstd, float(eps), rows, width)
    return out, rstd


def rms_norm_backward(g: Any, rstd: Any, needed: Sequence[bool], x: Any, weight: Any, eps: float) -> Sequence[Any]:
    """With n the normalised x and h = g * weight: dx = (h - n mean(h n)) rstd, dweight = sum(g n)."""
    g, x = contiguous(g), contiguous(x)
    d_x = None
    if needed[0]:
        rows, width = _shape(x)
        d_x = xp.empty(x.shape, x.dtype)
        launch = kernel("normalization.cu", "rms_norm_backward", x.dtype)
        launch(*_row_grid(rows, width), g, x, _parameter(weight), rstd, d_x, rows, width)
    return d_x, _parameter_gradients(g, x, None, rstd, needed[1], False)[0]


def _parameter_gradients(g: Any, x: Any, mean: Any, rstd: Any, weight: bool, bias: bool) -> tuple[Any, Any]:
    """sum(g n) and sum(g) over the rows; None for what is not wanted."""
    if not weight and not bias:
        return None, None
    rows, width = _shape(x)
    groups = max(1, min(_MOST_GROUPS, rows // 32))
    columns, block = -(-width // 32), (32, 8)
    weights, biases = [xp.empty((groups, width), accumulator(x.dtype)) if wanted else None for wanted in (weight, bias)]
    launch = kernel("normalization.cu", "sum_row_groups", x.dtype)
    launch((columns, groups), block, g, x, mean, rstd, weights, biases, rows, width)
    return _added(weights, x.dtype), _added(biases, x.dtype)


def _added(parts: Any, dtype: Any) -> Any:
    """The sum over the first axis, in a given dtype."""
    if parts is None:
        return None
    count, width = parts.shape
    out = xp.empty(width, dtype)
    kernel("normalization.cu", "add_groups", dtype)(-(-width // 32), (32, 8), parts, out, count, width)
    return out
