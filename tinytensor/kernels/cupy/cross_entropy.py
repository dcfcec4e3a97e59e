"""The cross-entropy for class indices. ``kernels/numpy/cross_entropy.py`` has the formulas.

Losses have the accumulator's dtype, so bfloat16 logits give float32 losses. The number of rows that are not ignored, by which
the mean divides, stays on the GPU. Checking targets would wait for the GPU, so a target that is no class gives the loss NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import index_dtype, xp
from tinytensor.kernels.cupy.loader import accumulator, contiguous, elementwise_grid, kernel
from tinytensor.kernels.cupy.products import matmul

_FILE = "cross_entropy.cu"
_MANY = 2048  # rows of more classes get a block of threads, others a warp

# Logits at a time: 1 GiB of float32. Each chunk reads and writes the sums of the weight's gradient, and reads the weight twice.
# For GPT-2's weight (50,304 by 768, in float32) that moves 0.6 GB. A chunk of this size has 5,336 rows and moves its logits
# five times, 5 GB, so the sums cost little.
_CHUNK = 1 << 28


def _row_grid(rows: int, classes: int) -> tuple[int, tuple[int, int]]:
    return (rows, (512, 1)) if classes > _MANY else (-(-rows // 4), (32, 4))


def _flat(targets: Any, classes: int) -> Any:
    """Return the targets as the kernels take them: one axis, contiguous, int64. Raises ValueError if there are no classes."""
    if not classes:
        raise ValueError("cross-entropy needs at least one class, got 0")
    return contiguous(targets.reshape(-1).astype(index_dtype, copy=False))


def _reduced(losses: Any, target: Any, ignore_index: int, reduction: str, dtype: Any) -> tuple[Any, Any]:
    """Return the sum or mean of the rows' losses, and for the mean how many rows are not ignored, else None."""
    loss = xp.empty((), losses.dtype)
    count = xp.empty((), losses.dtype) if reduction == "mean" else None
    kernel(_FILE, "reduce", dtype)(1, 1024, losses, target, loss, count, ignore_index, target.size)
    return loss, count


def cross_entropy_forward(
    needed: Sequence[bool], logits: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Any, Any]:
    """The loss of each row. Saves each row's largest logit and sum of exp(logit - largest), and the number of counted rows."""
    logits, rows, classes = contiguous(logits), targets.size, logits.shape[-1]
    target = _flat(targets, classes)
    losses = xp.empty(targets.shape, accumulator(logits.dtype))
    largest, totals = [xp.empty(rows, losses.dtype) if any(needed) else None for _ in range(2)]
    settings = (ignore_index, float(label_smoothing), rows, classes, classes)
    kernel(_FILE, "forward", logits.dtype)(*_row_grid(rows, classes), logits, target, losses, largest, totals, *settings)
    if reduction == "none":
        return losses, (largest, totals, None)
    loss, count = _reduced(losses, target, ignore_index, reduction, logits.dtype)
    return loss, (largest, totals, count)


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
    g, logits, rows, classes = contiguous(g), contiguous(logits), targets.size, logits.shape[-1]
    d_logits = xp.empty(logits.shape, logits.dtype)
    arrays = (g, logits, _flat(targets, classes), *residuals, d_logits)
    settings = (int(reduction == "none"), ignore_index, float(label_smoothing), rows, classes)
    kernel(_FILE, "backward", logits.dtype)(*_row_grid(rows, classes), *arrays, *settings)
    return (d_logits,)


# ------------------------------------------------------------------------------------- together with the output layer


def linear_cross_entropy_forward(
    needed: Sequence[bool], x: Any, weight: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Any, Any]:
    """The cross-entropy of the logits x weightᵀ.

    Saves the gradients of the sum of the losses, computed while a chunk's logits are in memory, and how many rows are not
    ignored. The gradient of a bfloat16 weight is saved in float32 if it is the sum of several chunks.
    """
    dtype, count, classes = x.dtype, targets.size, weight.shape[0]
    rows, target = x.reshape(count, x.shape[-1]), _flat(targets, classes)
    chunks = max(1, -(-count * classes // _CHUNK))
    size = max(1, -(-count // chunks))
    # Rows begin at multiples of 16 bytes for any number of classes, which is fastest for cuBLAS and the kernels.
    logits = xp.empty((size, -(-classes // 8) * 8), dtype)
    losses = xp.empty(count, accumulator(dtype))
    d_x = xp.empty(rows.shape, dtype) if needed[0] else None
    d_weight = xp.empty(weight.shape, losses.dtype if chunks > 1 else dtype) if needed[1] else None
    if d_weight is not None:
        rows = _without_ignored(rows, target, ignore_index)
        if not count:
            d_weight.fill(0)
    for first in range(0, count, size):
        part = slice(first, first + size)
        chunk = matmul(rows[part], weight.T, out=logits[: count - first, :classes])
        _losses(logits, target[part], losses[part], ignore_index, float(label_smoothing), classes, any(needed))
        if d_x is not None:
            matmul(chunk, weight, out=d_x[part])
        if d_weight is not None:
            matmul(chunk.T, rows[part], out=d_weight, accumulate=first > 0)
    loss, kept = _reduced(losses, target, ignore_index, reduction, dtype)
    return loss, ((d_x, d_weight), kept)


def _without_ignored(rows: Any, target: Any, ignore_index: int) -> Any:
    """Return the rows with 0 in ignored ones, which then add nothing to the weight's gradient, even if they hold NaN."""
    rows = contiguous(rows)
    out = xp.empty(rows.shape, rows.dtype)
    launch = kernel(_FILE, "without_ignored", rows.dtype)
    launch(*elementwise_grid(out.size), rows, target, out, ignore_index, rows.shape[1], out.size)
    return out


def _losses(
    logits: Any, target: Any, losses: Any, ignore_index: int, label_smoothing: float, classes: int, gradient: bool
) -> None:
    """Write the rows' losses. With ``gradient``, overwrite the logits by the gradient of the losses' sum."""
    rows, stride = len(target), logits.shape[1]
    settings = (ignore_index, label_smoothing, rows, classes, stride)
    if gradient:
        launch = kernel(_FILE, "replace_by_gradient", logits.dtype)
        launch(*_row_grid(rows, classes), logits, target, losses, *settings)
    else:
        launch = kernel(_FILE, "forward", logits.dtype)
        launch(*_row_grid(rows, classes), logits, target, losses, None, None, *settings)


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
    """The saved gradients times g, for the mean divided by how many rows are not ignored."""
    (d_x, d_weight), count = residuals
    return _scaled(d_x, g, count, x), _scaled(d_weight, g, count, weight)


def _scaled(sums: Any, g: Any, count: Any, like: Any) -> Any:
    """Return sums * g / count in the shape and dtype of the input ``like``; None for None."""
    if sums is None:
        return None
    out = xp.empty(like.shape, like.dtype)
    name = "scale" if sums.dtype == like.dtype else "scale_sums"
    kernel(_FILE, name, like.dtype)(*elementwise_grid(out.size), sums, g, count, out, out.size)
    return out
