"""Layer norm and RMS norm over the last axis. ``kernels/numpy/normalization.py`` has the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.cupy.loader import accumulator, contiguous, kernel
from tinytensor.kernels.numpy.rotation import norm_and_rotate

_WIDE = 2048  # columns
_MOST_GROUPS = 64  # maximum groups into which the rows are cut where they are summed


def _shape(x: Any) -> tuple[int, int]:
    """Return the number of rows and their width. Empty rows count as no rows."""
    width = x.shape[-1]
    return (math.prod(x.shape[:-1]) if width else 0), width


def _row_grid(rows: int, width: int, threads: int = 128) -> tuple[int, tuple[int, int]]:
    """Return one block for each wide row. Narrower rows share a block of ``threads`` threads: each gets 4, 8, 16 or 32 lanes,
    the fewest that leave a lane at most 16 columns."""
    if width > _WIDE:
        return rows, (512, 1)
    lanes = next((n for n in (4, 8, 16) if n * 16 >= width), 32)
    together = threads // lanes
    return -(-rows // together), (lanes, together)


def _parameter(array: Any) -> Any:
    """Return a weight or bias as the kernels take it, or None."""
    return None if array is None else contiguous(array)


def layer_norm_forward(needed: Sequence[bool], x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any]:
    """``layer_norm_forward`` of kernels/numpy. Saves the mean of x minus the row's first element, and rstd."""
    x, weight, bias = contiguous(x), _parameter(weight), _parameter(bias)
    rows, width = _shape(x)
    out = xp.empty(x.shape, x.dtype)
    mean, rstd = [xp.empty(rows, accumulator(x.dtype)) if any(needed) else None for _ in range(2)]
    launch = kernel("normalization.cu", "layer_norm_forward", x.dtype)
    launch(*_row_grid(rows, width), x, weight, bias, out, mean, rstd, float(eps), rows, width)
    return out, (mean, rstd)


def layer_norm_backward(
    g: Any, residuals: tuple[Any, ...], needed: Sequence[bool], x: Any, weight: Any, before: Any = None
) -> Sequence[Any]:
    """``layer_norm_backward`` of kernels/numpy."""
    return _backward("layer_norm_backward", g, x, weight, residuals, needed, before)


def rms_norm_forward(needed: Sequence[bool], x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """``rms_norm_forward`` of kernels/numpy."""
    x, weight = contiguous(x), _parameter(weight)
    rows, width = _shape(x)
    out = xp.empty(x.shape, x.dtype)
    rstd = xp.empty(rows, accumulator(x.dtype)) if any(needed) else None
    launch = kernel("normalization.cu", "rms_norm_forward", x.dtype)
    launch(*_row_grid(rows, width), x, weight, out, rstd, float(eps), rows, width)
    return out, rstd


def rms_norm_backward(g: Any, rstd: Any, needed: Sequence[bool], x: Any, weight: Any, before: Any = None) -> Sequence[Any]:
    """``rms_norm_backward`` of kernels/numpy."""
    return _backward("rms_norm_backward", g, x, weight, (rstd,), needed[:2], before)


def _backward(
    name: str, g: Any, x: Any, weight: Any, residuals: Sequence[Any], needed: Sequence[bool], before: Any
) -> Sequence[Any]:
    """Return the gradients of x, of the weight and, for layer norm, of the bias: one launch, and a second one for the sums."""
    g, x, (rows, width) = contiguous(g), contiguous(x), _shape(x)
    groups = max(1, min(_MOST_GROUPS, rows // 32), rows // 2048)  # large groups would be added up inaccurately
    strips = -(-width // 32)
    d_x = xp.empty(x.shape, x.dtype) if needed[0] else None
    before = None if before is None else contiguous(before.astype(x.dtype, copy=False))
    sums = xp.empty((sum(needed[1:]), groups, width), accumulator(x.dtype))
    parts = iter(sums)
    of_groups = [next(parts) if wanted else None for wanted in needed[1:]]
    blocks, block = _row_grid(rows, width, threads=256)
    row_blocks = blocks if needed[0] else 0
    sum_blocks = strips * groups if any(needed[1:]) else 0
    arrays, sizes = (g, x, _parameter(weight), *residuals, before, d_x, *of_groups), (row_blocks, groups, rows, width)
    kernel("normalization.cu", name, x.dtype)(row_blocks + sum_blocks, block, *arrays, *sizes)
    outs = [xp.empty(width, x.dtype) for _ in range(len(sums))]
    if outs:
        grid = (strips, len(outs))
        kernel("normalization.cu", "add_groups", x.dtype)(grid, (32, 8), sums, outs[0], outs[-1], groups, width)
    results = iter(outs)
    return d_x, *[next(results) if wanted else None for wanted in needed[1:]]


norm_and_rotate_forward, norm_and_rotate_backward = norm_and_rotate(rms_norm_forward, rms_norm_backward)
