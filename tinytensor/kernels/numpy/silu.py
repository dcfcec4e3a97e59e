"""The sigmoid, and the activation silu(x) = x sigmoid(x) (Hendrycks and Gimpel 2016), alone or times a factor as in SwiGLU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) for floating-point x. No exponential overflows, because no exponent is positive."""
    out = xp.exp(xp.minimum(x, 0))
    out /= 1.0 + xp.exp(-xp.absolute(x))
    return out


def silu_forward(needed: Sequence[bool], x: Any, factor: Any) -> tuple[Any, Any]:
    """x sigmoid(x), times the factor if there is one. Saves the sigmoid."""
    s = sigmoid(x)
    out = x * s
    if factor is not None:
        out *= factor
    return out, s


def silu_backward(g: Any, s: Any, needed: Sequence[bool], x: Any, factor: Any) -> Sequence[Any]:
    """With h = g * factor: dx = h (s + x s (1 - s)), dfactor = g x s."""
    d_x = d_factor = None
    if needed[0]:
        h = g if factor is None else g * factor
        d_x = h * x
        d_x *= s
        d_x *= 1.0 - s
        d_x += h * s
    if needed[1]:
        d_factor = x * s
        d_factor *= g
    return d_x, d_factor
