"""The sigmoid, and the activation silu(x) = x sigmoid(x) (Hendrycks and Gimpel 2016), alone or times a factor as in SwiGLU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp

FAR = 1e4  # beyond it a sigmoid is 0 or 1 to the last bit. With it in place of infinity no product is NaN


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) for floating-point x. No exponential overflows, because no exponent is positive."""
    out, total = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
    xp.absolute(x, out=total)
    xp.negative(total, out=total)
    xp.exp(total, out=total)
    total += 1.0
    xp.clip(x, -FAR, 0.0, out=out)  # several times as fast as minimum
    xp.exp(out, out=out)
    out /= total
    return out


def silu_forward(needed: Sequence[bool], x: Any, factor: Any) -> tuple[Any, Any]:
    """x sigmoid(x), times the factor if there is one. Saves the sigmoid."""
    s = sigmoid(x)
    out = xp.clip(x, -FAR, math.inf)
    out *= s
    if factor is not None:
        out *= factor
    return out, s


def silu_backward(g: Any, s: Any, needed: Sequence[bool], x: Any, factor: Any) -> Sequence[Any]:
    """With h = g * factor: dx = h s (1 + x (1 - s)), dfactor = g x s."""
    d_x = d_factor = None
    if needed[0]:
        d_x = 1.0 - s
        d_x *= xp.clip(x, -FAR, FAR)
        d_x += 1.0
        d_x *= s
        d_x *= g
        if factor is not None:
            d_x *= factor
    if needed[1]:
        d_factor = xp.clip(x, -FAR, math.inf)
        d_factor *= s
        d_factor *= g
    return d_x, d_factor
