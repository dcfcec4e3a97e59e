"""Softmax cross-entropy, one row after the other; kernels/numpy/cross_entropy.py has the contracts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy

from tinytensor.device.backend import index_dtype
from tinytensor.kernels.numba.compiling import real, reduction
from tinytensor.kernels.numba.functions import exp, largest, place
from tinytensor.kernels.numba.products import matmul
from tinytensor.kernels.numpy import cross_entropy as in_numpy


@reduction
def _row_losses(rows: Any, targets: Any, ignore_index: int, smoothing: float, losses: Any, most: Any, total: Any) -> int:
    """Writes each row's loss, its largest logit, and log(sum(exp(logit - largest))). Returns how many rows count.

    The last two are never added: where logits are large, the sum would be rounded too much.
    """
    count, classes = rows.shape
    kept = 0
    for i in range(count):
        losses[i] = most[i] = total[i] = real(0)
        if targets[i] == ignore_index:
            continue
        kept += 1
        shift, weights = largest(rows[i]), real(0)
        for j in range(classes):
            weights += exp(rows[i, j] - shift)
        most[i], total[i] = shift, math.log(weights)
        losses[i] = total[i] - (rows[i, place(targets[i], classes)] - shift)
        if smoothing != real(0):
            sum_of_logits = real(0)
            for j in range(classes):
                sum_of_logits += rows[i, j] - shift
            losses[i] = (real(1) - smoothing) * losses[i] + smoothing * (total[i] - sum_of_logits / real(classes))
    return kept


@reduction
def _row_gradients(
    rows: Any, targets: Any, ignore_index: int, smoothing: float, scale: Any, most: Any, total: Any, out: Any
) -> None:
    count, classes = rows.shape
    for i in range(count):
        if targets[i] == ignore_index:
            out[i] = real(0)
            continue
        for j in range(classes):
            out[i, j] = (exp((rows[i, j] - most[i]) - total[i]) - smoothing / real(classes)) * scale[i]
        out[i, place(targets[i], classes)] -= (real(1) - smoothing) * scale[i]


@reduction
def _replace_by_gradients(logits: Any, targets: Any, scale: Any, smoothing: float) -> Any:
    """Replaces the logits by the gradient of the loss, the sum of the rows' losses times ``scale``. Returns the loss."""
    rows, classes = logits.shape
    loss = 0.0  # in float64, for there may be many rows
    for i in range(rows):
        most = largest(logits[i])
        target = place(targets[i], classes)
        right = logits[i, target] - most
        weights, sum_of_logits = real(0), real(0)
        for j in range(classes):
            sum_of_logits += logits[i, j] - most
            e = exp(logits[i, j] - most)
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
    """The loss of each row. Saves what ``_row_losses`` finds of each, and how many rows count."""
    rows, target = _rows(logits), _integers(targets)
    losses, most, total = [numpy.empty(len(rows), rows.dtype) for _ in range(3)]
    count = max(_row_losses(rows, target, int(ignore_index), float(label_smoothing), losses, most, total), 1)
    if reduction == "none":
        return losses.reshape(targets.shape), (most, total, count)
    return losses.sum() / count if reduction == "mean" else losses.sum(), (most, total, count)


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
    """softmax(logits) minus the target distribution, times the scale of each row."""
    most, total, count = residuals
    rows, target = _rows(logits), _integers(targets)
    scale = numpy.empty(target.shape, rows.dtype)
    scale[...] = g.reshape(-1) / rows.dtype.type(count if reduction == "mean" else 1)
    out = numpy.empty_like(rows)
    _row_gradients(rows, target, int(ignore_index), float(label_smoothing), scale, most, total, out)
    return (out.reshape(logits.shape),)


def _rows(logits: Any) -> Any:
    return numpy.ascontiguousarray(logits).reshape(-1, logits.shape[-1])


def _integers(targets: Any) -> Any:
    return numpy.ascontiguousarray(targets, index_dtype).reshape(-1)


def loss_and_gradient(logits: Any, target: Any, scale: Any, label_smoothing: float) -> tuple[Any, Any]:
    """The sum of the rows' losses times ``scale``, and its gradient, which overwrites the logits (rows, classes)."""
    if not logits.size:
        return in_numpy.loss_and_gradient(logits, target, scale, label_smoothing)
    return _replace_by_gradients(logits, _integers(target), scale, float(label_smoothing)), logits


linear_cross_entropy_forward = partial(
    in_numpy.linear_cross_entropy_forward, loss_and_gradient=loss_and_gradient, matmul=matmul
)
