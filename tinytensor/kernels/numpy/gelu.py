"""The tanh form of the Gaussian error linear unit (Hendrycks and Gimpel 2016, section 2).

Everything goes through p = (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, which is close to the probability that a standard
normal number is below x: gelu(x) = x p, and since p' = 2 p (1 - p) u' for u the argument of tanh, the slope is
p (1 + 2 x (1 - p) u').
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_BLOCK = 1 << 16  # elements at a time, so that what is in between stays in the processor's cache


def gelu_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x p, and for the backward pass p."""
    p = xp.empty(x.shape, x.dtype)
    xp.multiply(x, x, out=p)
    p *= _SCALE * _CUBIC
    p += _SCALE
    p *= x
    xp.tanh(p, out=p)
    p += 1.0
    p *= 0.5
    return x * p, p


def gelu_backward(g: Any, p: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g p (1 + 2 (1 - p) x u'), with u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)."""
    out = xp.empty(x.shape, x.dtype)
    g, p, x, flat = g.reshape(-1), p.reshape(-1), x.reshape(-1), out.reshape(-1)
    for first in range(0, flat.size, _BLOCK):
        part = slice(first, first + _BLOCK)
        slope = x[part] * x[part]
        slope *= 6.0 * _SCALE * _CUBIC
        slope += 2.0 * _SCALE
        slope *= x[part]
        slope *= 1.0 - p[part]
        slope += 1.0
        slope *= p[part]
        xp.multiply(slope, g[part], out=flat[part])
    return (out,)
