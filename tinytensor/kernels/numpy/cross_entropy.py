"""Softmax cross-entropy for class indices. It stores two numbers for each row, and never the log-probabilities.

The logarithm of a row's total and the row's largest logit are never added: where logits are large and alike, the sum would be
rounded to fewer digits than their differences have.

Fused with the output layer it does not store the logits either: they are computed and used for one chunk of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over
from tinytensor.kernels.numpy.products import matmul


def cross_entropy_forward(
    needed: Sequence[bool], logits: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Any, Any]:
    """log(sum(exp(x))) - x[target] for each row, where x is the row minus its largest logit.

    Saves of each row the largest logit and the sum, and the number of rows that count.
    """
    rows, kept, target = _flat(logits, targets, ignore_index)
    largest = rows.max(axis=1, keepdims=True)
    e = rows - largest
    right = e[xp.arange(len(target)), target]
    mean = sum_over(e, (1,)) / e.shape[1] if label_smoothing else 0.0
    xp.exp(e, out=e)
    total = sum_over(e, (1,))
    losses = xp.log(total) - right
    if label_smoothing:
        losses = (1.0 - label_smoothing) * losses + label_smoothing * (xp.log(total) - mean)
    losses = xp.where(kept, losses, 0)  # an ignored row counts for nothing, even if it holds NaN
    count = max(int(kept.sum()), 1)
    if reduction == "none":
        return losses.reshape(targets.shape), (largest, total, count)
    return losses.sum() / count if reduction == "mean" else losses.sum(), (largest, total, count)


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
    largest, total, count = residuals
    rows, kept, target = _flat(logits, targets, ignore_index)
    scale = g.reshape(-1) * kept
    if reduction == "mean":
        scale = scale / count
    out = rows - largest
    xp.exp(out, out=out)
    out *= (scale / total)[:, None]
    out[xp.arange(len(target)), target] -= (1.0 - label_smoothing) * scale
    if label_smoothing:
        out -= (label_smoothing / rows.shape[1] * scale)[:, None]
    if not kept.all():
        out[~kept] = 0
    return (out.reshape(logits.shape),)


def _flat(logits: Any, targets: Any, ignore_index: int) -> tuple[Any, Any, Any]:
    """The logits as rows; which rows count; the targets, with 0 in place of the ignored ones."""
    rows = logits.reshape(-1, logits.shape[-1])
    target = targets.reshape(-1)
    kept = target != ignore_index
    return rows, kept, xp.where(kept, target, 0)


# ------------------------------------------------------------------------------------- together with the output layer

_CHUNK = 1 << 22  # logits at a time: 16 MiB. Each chunk adds to the weight's whole gradient, so smaller ones cost more


def loss_and_gradient(logits: Any, target: Any, scale: Any, label_smoothing: float) -> tuple[Any, Any]:
    """The sum of the rows' losses times ``scale`` (rows,), and its gradient, which overwrites the logits (rows, classes)."""
    places = xp.arange(len(target))
    largest = logits.max(axis=1)
    logits -= largest[:, None]
    right = logits[places, target]
    mean = sum_over(logits, (1,)) * (1.0 / logits.shape[1]) if label_smoothing else 0.0
    xp.exp(logits, out=logits)
    total = sum_over(logits, (1,))
    losses = xp.log(total) - (1.0 - label_smoothing) * right - label_smoothing * mean
    logits *= (scale / total)[:, None]
    logits[places, target] -= (1.0 - label_smoothing) * scale
    if label_smoothing:
        logits -= (label_smoothing / logits.shape[1] * scale)[:, None]
    return sum_over(losses * scale), logits


def linear_cross_entropy_forward(
    needed: Sequence[bool],
    x: Any,
    weight: Any,
    targets: Any,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
    loss_and_gradient: Callable[..., tuple[Any, Any]] = loss_and_gradient,
    matmul: Callable[..., Any] = matmul,
) -> tuple[Any, Any]:
    """The cross-entropy of the logits x weightᵀ.

    The loss is one number, so its gradients are known up to one factor, the incoming gradient. They are computed here, while a
    chunk's logits are in memory, and saved. ``loss_and_gradient`` and ``matmul`` may be compiled ones of kernels/numba.
    """
    rows, kept, target = _flat(x, targets, ignore_index)
    count = max(int(kept.sum()), 1) if reduction == "mean" else 1
    scale = kept.astype(rows.dtype)
    scale /= count
    ignored = ~kept
    any_ignored = ignored.any()
    if any_ignored:
        rows = xp.where(kept[:, None], rows, 0)  # an ignored row counts for nothing, even if it holds NaN
    loss = xp.zeros((), rows.dtype)
    d_x = xp.empty(rows.shape, rows.dtype) if needed[0] else None
    d_weight = xp.zeros(weight.shape, weight.dtype) if needed[1] else None
    size = max(1, _CHUNK // max(1, weight.shape[0]))
    for first in range(0, len(rows), size):
        part = slice(first, first + size)
        logits = matmul(rows[part], weight.T)
        if any_ignored:
            logits[ignored[part]] = 0  # also where a weight is infinite
        chunk_loss, d_logits = loss_and_gradient(logits, target[part], scale[part], label_smoothing)
        loss += chunk_loss
        if d_x is not None:
            matmul(d_logits, weight, out=d_x[part])
        if d_weight is not None:
            matmul(d_logits.T, rows[part], out=d_weight, accumulate=True)
    return loss, (d_x, d_weight)


def linear_cross_entropy_backward(
    g: Any,
    residuals: tuple[Any, Any],
    needed: Sequence[bool],
    x: Any,
    weight: Any,
    targets: Any,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Sequence[Any]:
    """The gradients that the forward pass saved, times g."""
    d_x, d_weight = residuals
    return None if d_x is None else (d_x * g).reshape(x.shape), None if d_weight is None else d_weight * g
