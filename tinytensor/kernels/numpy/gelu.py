"""The Gaussian error linear unit (Hendrycks and Gimpel 2016): gelu(x) = x p, with p the probability that a standard normal
number is below x.

Exactly, p' is the normal density, and the slope of gelu is p + x p'. The tanh form (section 2) has
p = (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, and since p' = 2 p (1 - p) u' for u the argument of tanh, the slope is
p (1 + 2 x (1 - p) u').
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tinytensor.backend import xp
from tinytensor.kernels.numpy.erf import normal_distribution

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_BLOCK = 1 << 17  # elements at a time, so that what is in between stays in the processor's cache


def gelu_exact_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x p, and for the backward pass p."""
    p = xp.empty(x.shape, x.dtype)
    flat, into = x.reshape(-1), p.reshape(-1)
    for part in _parts(flat.size):
        into[part] = normal_distribution(flat[part])
    return x * p, p


def gelu_exact_backward(g: Any, p: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g (p + x exp(-x^2 / 2) / sqrt(2 pi))."""
    out = xp.empty(x.shape, x.dtype)
    g, p, x, flat = g.reshape(-1), p.reshape(-1), x.reshape(-1), out.reshape(-1)
    for part in _parts(flat.size):
        slope = x[part] * x[part]
        slope *= -0.5
        xp.exp(slope, out=slope)
        slope *= x[part]
        slope *= 1.0 / math.sqrt(2.0 * math.pi)
        slope += p[part]
        xp.multiply(slope, g[part], out=flat[part])
    return (out,)


def _parts(size: int) -> Iterator[slice]:
    return (slice(first, first + _BLOCK) for first in range(0, size, _BLOCK))


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x p, and for the backward pass p."""
    cubic, scale, one, half = _arrays(x.dtype)
    p = xp.empty(x.shape, x.dtype)
    xp.multiply(x, x, out=p)
    p *= cubic
    p += scale
    p *= x
    xp.tanh(p, out=p)
    p += one
    p *= half
    return x * p, p


@functools.lru_cache(maxsize=8)
def _arrays(dtype: Any) -> tuple[Any, ...]:
    """The constants as arrays: NumPy takes twice as long for a Python number, which counts where x is one token's."""
    return tuple([xp.asarray(c, dtype) for c in (_SCALE * _CUBIC, _SCALE, 1.0, 0.5)])


def gelu_tanh_backward(g: Any, p: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g p (1 + 2 (1 - p) x u'), with u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)."""
    out = xp.empty(x.shape, x.dtype)
    g, p, x, flat = g.reshape(-1), p.reshape(-1), x.reshape(-1), out.reshape(-1)
    for part in _parts(flat.size):
        slope = x[part] * x[part]
        slope *= 6.0 * _SCALE * _CUBIC
        slope += 2.0 * _SCALE
        slope *= 1.0 - p[part]  # 0 where x is large, before the cube would overflow
        slope *= x[part]
        slope += 1.0
        slope *= p[part]
        xp.multiply(slope, g[part], out=flat[part])
    return (out,)
