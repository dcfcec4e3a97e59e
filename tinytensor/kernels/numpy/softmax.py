"""Softmax and its logarithm along ``axes``, a tuple of axes that are not negative, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over


def softmax(x: Any, axes: Sequence[int]) -> Any:
    """exp(x) scaled to sum to 1."""
    e = xp.exp(_shifted(x, axes))
    e /= sum_over(e, axes, keepdims=True)
    return e


def softmax_gradient(g: Any, out: Any, axes: Sequence[int]) -> Any:
    """The gradient of x, where g is that of out = softmax(x)."""
    return out * (g - sum_over(g * out, axes, keepdims=True))


def log_softmax(x: Any, axes: Sequence[int]) -> Any:
    """log(softmax(x)), accurate even where the softmax would round to 0."""
    shifted = _shifted(x, axes)
    return shifted - xp.log(sum_over(xp.exp(shifted), axes, keepdims=True))


def log_softmax_gradient(g: Any, out: Any, axes: Sequence[int]) -> Any:
    """The gradient of x, where g is that of out = log_softmax(x)."""
    return g - xp.exp(out) * sum_over(g, axes, keepdims=True)


def _shifted(x: Any, axes: Sequence[int]) -> Any:
    """x minus its largest element along ``axes``, so that exp does not overflow. x is floating-point and may be empty."""
    return x - (x.max(axis=axes, keepdims=True) if x.size else x.sum(axis=axes, keepdims=True))
