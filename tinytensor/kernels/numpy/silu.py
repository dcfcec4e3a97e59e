"""The sigmoid, and the activation silu(x) = x sigmoid(x) (Hendrycks and Gimpel 2016), alone or times a factor as in SwiGLU."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import host, is_host_array, xp

FAR = 1e4  # beyond it a sigmoid is 0 or 1 to the last bit. With it in place of infinity no product is NaN


def limited(x: Any, highest: float, out: Any = None) -> Any:
    """x from -FAR to ``highest``. Beyond, infinity would be multiplied by 0, and powers of x may overflow."""
    if is_host_array(x):
        return x.clip(*_bounds(highest, x.dtype), out=out)
    return x.clip(-FAR, highest).astype(x.dtype, copy=False)  # on a GPU numbers next to bfloat16 make float32


@functools.lru_cache(maxsize=16)
def _bounds(highest: float, dtype: Any) -> tuple[Any, Any]:
    """The bounds as arrays. With Python numbers NumPy takes twice as long, which matters where x holds a single token."""
    return host.asarray(-FAR, dtype), host.asarray(highest, dtype)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) for floating-point x. No exponential overflows, because no exponent is positive."""
    if not is_host_array(x):  # on a GPU, where numbers next to bfloat16 make float32, so that the result is rounded once
        out = xp.exp(xp.minimum(x, 0))
        out /= 1.0 + xp.exp(-xp.absolute(x))
        return out
    out, total = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
    xp.absolute(x, out=total)
    xp.negative(total, out=total)
    xp.exp(total, out=total)
    total += 1.0
    limited(x, 0.0, out)  # for many numbers several times as fast as ``minimum``
    xp.exp(out, out=out)
    out /= total
    return out


def silu_forward(needed: Sequence[bool], x: Any, factor: Any) -> tuple[Any, Any]:
    """x sigmoid(x), times the factor if there is one. Saves the sigmoid."""
    s = sigmoid(x)
    out = limited(x, math.inf) * s
    if factor is not None:
        out *= factor
    return out, s


def silu_backward(g: Any, s: Any, needed: Sequence[bool], x: Any, factor: Any) -> Sequence[Any]:
    """With h = g * factor: dx = h s (1 + x (1 - s)), dfactor = g x s."""
    d_x = d_factor = None
    if needed[0]:
        d_x = 1.0 - s
        d_x *= limited(x, FAR)
        d_x += 1.0
        d_x *= s
        d_x *= g
        if factor is not None:
            d_x *= factor
    if needed[1]:
        d_factor = limited(x, math.inf) * s
        d_factor *= g
    return d_x, d_factor
