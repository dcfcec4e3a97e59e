"""Scaled dot-product attention (Vaswani et al. 2017, equation 1), forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp

LOWEST = -1e30  # added to scores that may not be attended: so low that exp gives 0, yet finite, so nothing becomes NaN


def _transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def _masked(scores: Any, mask: Any) -> Any:
    """Add LOWEST where the mask is False. The mask is usually smaller than the scores, so it is converted, not they."""
    penalty = xp.where(mask, xp.zeros((), scores.dtype), xp.full((), LOWEST, scores.dtype))
    scores += penalty
    return scores


def attention_forward(
    query: Any, key: Any, value: Any, mask: Any, keep: Any, scale: float, keep_scale: float
) -> tuple[Any, Any]:
    """softmax(query keyᵀ scale) value over (..., T, D), (..., S, D), (..., S, D_v); keeps the weights and the output.

    ``mask`` (boolean, True = may attend) and ``keep`` (boolean, dropout's survivors, scaled by ``keep_scale``) broadcast
    to (..., T, S). A row that may attend to nothing gives zeros.
    """
    weights = (query * scale) @ _transposed(key)
    if mask is not None:
        weights = _masked(weights, mask)
    largest = weights.max(axis=-1, keepdims=True)
    weights -= largest
    xp.exp(weights, out=weights)
    total = weights.sum(axis=-1, keepdims=True)
    if mask is not None:
        total = xp.where(largest > 0.5 * LOWEST, total, xp.full_like(total, float("inf")))
    weights *= 1.0 / total
    out = _dropped(weights, keep, keep_scale) @ value
    return out, (weights, out)


def attention_backward(
    g: Any,
    statistics: tuple[Any, Any],
    needed: Sequence[bool],
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    keep: Any,
    scale: float,
    keep_scale: float,
) -> Sequence[Any]:
    """With P the weights and dP = g valueᵀ: dS = P (dP - rowsum(dP P)), and rowsum(dP P) = rowsum(g out), which is cheaper."""
    weights, out = statistics
    d_value = _transposed(_dropped(weights, keep, keep_scale)) @ g if needed[2] else None
    if not needed[0] and not needed[1]:
        return None, None, d_value
    d_scores = _dropped(g @ _transposed(value), keep, keep_scale)
    d_scores -= (g * out).sum(axis=-1, keepdims=True)
    d_scores *= weights
    d_scores *= scale
    d_query = d_scores @ key if needed[0] else None
    d_key = _transposed(d_scores) @ query if needed[1] else None
    return d_query, d_key, d_value


def _dropped(x: Any, keep: Any, keep_scale: float) -> Any:
    if keep is None:
        return x
    out = x * keep
    out *= keep_scale
    return out
