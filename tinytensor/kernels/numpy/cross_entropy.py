"""Softmax cross-entropy for class indices: the log-probabilities are never stored, only one number a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp


def cross_entropy_forward(
    logits: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str
) -> tuple[Any, Any]:
    """logsumexp(logits) - logits[target], a row; keeps the logsumexp and how many rows count."""
    rows, kept, target = _flat(logits, targets, ignore_index)
    largest = rows.max(axis=1, keepdims=True)
    e = rows - largest
    xp.exp(e, out=e)
    total = xp.log(e.sum(axis=1)) + largest[:, 0]
    losses = total - rows[xp.arange(len(target)), target]
    if label_smoothing:
        losses = (1.0 - label_smoothing) * losses + label_smoothing * (total - rows.mean(axis=1))
    losses = losses * kept
    count = xp.maximum(kept.sum(dtype=rows.dtype), 1)
    if reduction == "none":
        return losses.reshape(targets.shape), (total, count)
    return losses.sum() / count if reduction == "mean" else losses.sum(), (total, count)


def cross_entropy_backward(
    g: Any,
    statistics: tuple[Any, Any],
    needed: Sequence[bool],
    logits: Any,
    targets: Any,
    ignore_index: int,
    label_smoothing: float,
    reduction: str,
) -> Sequence[Any]:
    """softmax(logits) - the target distribution, scaled a row."""
    total, count = statistics
    rows, kept, target = _flat(logits, targets, ignore_index)
    scale = g.reshape(-1) * kept
    if reduction == "mean":
        scale = scale / count
    out = rows - total[:, None]
    xp.exp(out, out=out)
    out[xp.arange(len(target)), target] -= 1.0 - label_smoothing
    if label_smoothing:
        out -= label_smoothing / rows.shape[1]
    out *= scale[:, None]
    return (out.reshape(logits.shape),)


def _flat(logits: Any, targets: Any, ignore_index: int) -> tuple[Any, Any, Any]:
    """The logits as rows; 1 or 0 for a row that counts or not; the target with 0 in place of ignored ones."""
    rows = logits.reshape(-1, logits.shape[-1])
    target = targets.reshape(-1)
    kept = target != ignore_index
    return rows, kept.astype(rows.dtype), xp.where(kept, target, 0)
