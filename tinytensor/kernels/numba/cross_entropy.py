"""Softmax, its logarithm and the cross-entropy, row by row. kernels/numpy/cross_entropy.py has the formulas.

The loops of softmax take the last axis in float32; NumPy's kernels do the other axes and dtypes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy

from tinytensor.device.backend import default_dtype, index_dtype
from tinytensor.device.summation import widened
from tinytensor.kernels.numba.compiling import Loop, real, reduction
from tinytensor.kernels.numba.functions import checked_index, exp, largest
from tinytensor.kernels.numba.products import matmul
from tinytensor.kernels.numpy import cross_entropy as in_numpy

_LONGEST = 1 << 17  # NumPy's kernels add up longer rows in blocks


@reduction
def _softmax(x: Any, out: Any) -> None:
    rows, width = x.shape
    for i in range(rows):
        top, total = largest(x[i]), real(0)
        for j in range(width):
            e = exp(x[i, j] - top)
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
        top, total = largest(x[i]), real(0)
        for j in range(width):
            total += exp(x[i, j] - top)
        log_total = math.log(total)
        for j in range(width):
            out[i, j] = x[i, j] - top - log_total


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
    """``softmax`` of kernels/numpy."""
    x = widened(x)
    return _by_rows(_softmax, x) if _are_rows(axes, x) else in_numpy.softmax(x, axes)


def softmax_gradient(g: Any, out: Any, axes: Sequence[int]) -> Any:
    """``softmax_gradient`` of kernels/numpy."""
    g, out = widened(g), widened(out)
    return _by_rows(_softmax_gradient, g, out) if _are_rows(axes, g, out) else in_numpy.softmax_gradient(g, out, axes)


def log_softmax(x: Any, axes: Sequence[int]) -> Any:
    """``log_softmax`` of kernels/numpy."""
    x = widened(x)
    return _by_rows(_log_softmax, x) if _are_rows(axes, x) else in_numpy.log_softmax(x, axes)


def log_softmax_gradient(g: Any, out: Any, axes: Sequence[int]) -> Any:
    """``log_softmax_gradient`` of kernels/numpy."""
    g, out = widened(g), widened(out)
    return _by_rows(_log_softmax_gradient, g, out) if _are_rows(axes, g, out) else in_numpy.log_softmax_gradient(g, out, axes)


def _are_rows(axes: Sequence[int], *arrays: Any) -> bool:
    """Return True for the last axis of float32 arrays that are not empty, and short enough to be added up in a loop."""
    x = arrays[0]
    are_rows = x.size and tuple(axes) == (x.ndim - 1,) and x.shape[-1] <= _LONGEST
    return are_rows and all(a.dtype == default_dtype and a.shape == x.shape for a in arrays)


def _by_rows(run: Loop, *arrays: Any) -> Any:
    """Run the loop on arrays of one shape as matrices of rows, and return its output."""
    out = numpy.empty(arrays[0].shape, arrays[0].dtype)
    width = out.shape[-1]
    run(*[numpy.ascontiguousarray(a).reshape(-1, width) for a in arrays], out.reshape(-1, width))
    return out


@reduction
def _row_losses(rows: Any, targets: Any, ignore_index: int, smoothing: float, losses: Any, tops: Any, total: Any) -> int:
    """Write each row's loss, its largest logit, and log(sum(exp(logit - largest))). Returns how many rows are not ignored.

    The last two are never added: with large logits, the sum would be rounded too much.
    """
    count, classes = rows.shape
    kept = 0
    for i in range(count):
        losses[i] = tops[i] = total[i] = real(0)
        if targets[i] == ignore_index:
            continue
        kept += 1
        shift, weights = largest(rows[i]), real(0)
        for j in range(classes):
            weights += exp(rows[i, j] - shift)
        tops[i], total[i] = shift, math.log(weights)
        losses[i] = total[i] - (rows[i, checked_index(targets[i], classes)] - shift)
        if smoothing != real(0):
            sum_of_logits = real(0)
            for j in range(classes):
                sum_of_logits += rows[i, j] - shift
            losses[i] = (real(1) - smoothing) * losses[i] + smoothing * (total[i] - sum_of_logits / real(classes))
    return kept


@reduction
def _row_gradients(
    rows: Any, targets: Any, ignore_index: int, smoothing: float, scale: Any, tops: Any, total: Any, out: Any
) -> None:
    count, classes = rows.shape
    for i in range(count):
        if targets[i] == ignore_index:
            out[i] = real(0)
            continue
        for j in range(classes):
            out[i, j] = (exp((rows[i, j] - tops[i]) - total[i]) - smoothing / real(classes)) * scale[i]
        out[i, checked_index(targets[i], classes)] -= (real(1) - smoothing) * scale[i]


@reduction
def _replace_by_gradients(logits: Any, targets: Any, scale: Any, smoothing: float) -> Any:
    """Replace the logits by the gradient of the rows' losses times ``scale``. Returns the sum of these losses."""
    rows, classes = logits.shape
    loss = 0.0  # float64, for there may be many rows
    for i in range(rows):
        top = largest(logits[i])
        target = checked_index(targets[i], classes)
        right = logits[i, target] - top
        weights, sum_of_logits = real(0), real(0)
        for j in range(classes):
            sum_of_logits += logits[i, j] - top
            e = exp(logits[i, j] - top)
            logits[i, j] = e
            weights += e
        mean = sum_of_logits / real(classes) if smoothing != real(0) else real(0)
        loss += scale[i] * (math.log(weights) - (real(1) - smoothing) * right - smoothing * mean)
        for j in range(classes):
            logits[i, j] = logits[i, j] * (scale[i] / weights) - smoothing / real(classes) * scale[i]
        logits[i, target] -= (real(1) - smoothing) * scale[i]
    return loss


def cross_entropy_forward(
    needed: Sequence[bool], logits: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Any, Any]:
    """The loss of each row. Saves each row's values from ``_row_losses``, and how many rows are not ignored."""
    rows, target = _rows(logits), _integers(targets)
    losses, tops, total = [numpy.empty(len(rows), rows.dtype) for _ in range(3)]
    count = max(_row_losses(rows, target, int(ignore_index), float(label_smoothing), losses, tops, total), 1)
    if reduction == "none":
        return losses.reshape(targets.shape), (tops, total, count)
    return losses.sum() / count if reduction == "mean" else losses.sum(), (tops, total, count)


def cross_entropy_backward(
    g: Any,
    residuals: tuple[Any, Any, Any],
    needed: Sequence[bool],
    logits: Any,
    targets: Any,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Sequence[Any]:
    """``cross_entropy_backward`` of kernels/numpy."""
    tops, total, count = residuals
    rows, target = _rows(logits), _integers(targets)
    scale = numpy.empty(target.shape, rows.dtype)
    scale[...] = g.reshape(-1) / rows.dtype.type(count if reduction == "mean" else 1)
    out = numpy.empty_like(rows)
    _row_gradients(rows, target, int(ignore_index), float(label_smoothing), scale, tops, total, out)
    return (out.reshape(logits.shape),)


def _rows(logits: Any) -> Any:
    return numpy.ascontiguousarray(logits).reshape(-1, logits.shape[-1])


def _integers(targets: Any) -> Any:
    return numpy.ascontiguousarray(targets, index_dtype).reshape(-1)


def loss_and_gradient(logits: Any, target: Any, scale: Any, label_smoothing: float) -> tuple[Any, Any]:
    """``loss_and_gradient`` of kernels/numpy."""
    if not logits.size:
        return in_numpy.loss_and_gradient(logits, target, scale, label_smoothing)
    return _replace_by_gradients(logits, _integers(target), scale, float(label_smoothing)), logits


linear_cross_entropy_forward = partial(
    in_numpy.linear_cross_entropy_forward, loss_and_gradient=loss_and_gradient, matmul=matmul
)
