"""Softmax, its logarithm, and the cross-entropy for class indices.

The functions of softmax take ``axes``, a tuple of axes that are not negative. The cross-entropy stores two numbers for each
row, never the log-probabilities. It does not add the logarithm of a row's total to the row's largest logit: with large logits,
the sum would lose digits of their differences.

Fused with the output layer, it does not store the logits either: it computes and uses them for one chunk of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over
from tinytensor.kernels.numpy.products import matmul


def softmax(x: Any, axes: Sequence[int]) -> Any:
    """exp(x) scaled to sum to 1."""
    e = xp.exp(_shifted(x, axes))
    e /= sum_over(e, axes, keepdims=True)
    return e


def softmax_gradient(g: Any, out: Any, axes: Sequence[int]) -> Any:
    """The gradient of x, given the gradient g of out = softmax(x)."""
    return out * (g - sum_over(g * out, axes, keepdims=True))


def log_softmax(x: Any, axes: Sequence[int]) -> Any:
    """log(softmax(x)), accurate even if the softmax would round to 0."""
    shifted = _shifted(x, axes)
    return shifted - xp.log(sum_over(xp.exp(shifted), axes, keepdims=True))


def log_softmax_gradient(g: Any, out: Any, axes: Sequence[int]) -> Any:
    """The gradient of x, given the gradient g of out = log_softmax(x)."""
    return g - xp.exp(out) * sum_over(g, axes, keepdims=True)


def _shifted(x: Any, axes: Sequence[int]) -> Any:
    """x minus its largest element along ``axes``, so that exp does not overflow. x may be empty."""
    return x - (x.max(axis=axes, keepdims=True) if x.size else x.sum(axis=axes, keepdims=True))


def cross_entropy_forward(
    needed: Sequence[bool], logits: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Any, Any]:
    """log(sum(exp(x))) - x[target] for each row, where x is the row minus its largest logit.

    Saves each row's largest logit and sum, and the number of rows that are not ignored.
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
    losses = xp.where(kept, losses, 0)  # an ignored row counts as 0, even if it holds NaN
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
    """Return the logits as rows, which rows are not ignored, and the targets with 0 for ignored ones."""
    rows = logits.reshape(-1, logits.shape[-1])
    target = targets.reshape(-1)
    kept = target != ignore_index
    return rows, kept, xp.where(kept, target, 0)


# ------------------------------------------------------------------------------------- together with the output layer

_CHUNK = 1 << 22  # logits at a time: 16 MiB. Smaller chunks cost more: each adds to the weight's whole gradient


def loss_and_gradient(logits: Any, target: Any, scale: Any, label_smoothing: float) -> tuple[Any, Any]:
    """Return the sum of the rows' losses times ``scale`` (rows,), and its gradient, which overwrites the logits."""
    rows = xp.arange(len(target))
    largest = logits.max(axis=1)
    logits -= largest[:, None]
    right = logits[rows, target]
    mean = sum_over(logits, (1,)) * (1.0 / logits.shape[1]) if label_smoothing else 0.0
    xp.exp(logits, out=logits)
    total = sum_over(logits, (1,))
    losses = xp.log(total) - (1.0 - label_smoothing) * right - label_smoothing * mean
    logits *= (scale / total)[:, None]
    logits[rows, target] -= (1.0 - label_smoothing) * scale
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

    The loss is a scalar, so its gradients are known up to the incoming gradient. They are computed while a chunk's logits are
    in memory, and saved. kernels/numba passes compiled ``loss_and_gradient`` and ``matmul``.
    """
    rows, kept, target = _flat(x, targets, ignore_index)
    count = max(int(kept.sum()), 1) if reduction == "mean" else 1
    scale = kept.astype(rows.dtype)
    scale /= count
    ignored = ~kept
    any_ignored = ignored.any()
    if any_ignored:
        rows = xp.where(kept[:, None], rows, 0)  # an ignored row counts as 0, even if it holds NaN
    loss = xp.zeros((), rows.dtype)
    d_x = xp.empty(rows.shape, rows.dtype) if needed[0] else None
    d_weight = xp.zeros(weight.shape, weight.dtype) if needed[1] else None
    size = max(1, _CHUNK // max(1, weight.shape[0]))
    for first in range(0, len(rows), size):
        part = slice(first, first + size)
        logits = matmul(rows[part], weight.T)
        if any_ignored:
            logits[ignored[part]] = 0  # even if a weight is infinite
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
    """The saved gradients times g."""
    d_x, d_weight = residuals
    return None if d_x is None else (d_x * g).reshape(x.shape), None if d_weight is None else d_weight * g
