"""The Gaussian error linear unit (Hendrycks and Gimpel 2016): gelu(x) = x cdf(x).

cdf(x) is the probability that a standard normal number is below x. There are two forms:

* Exact. The derivative of cdf is the normal density, and the slope of gelu is cdf + x density.
* With tanh (section 2), an approximation: cdf = (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3). Since the derivative
  of cdf is 2 cdf (1 - cdf) u', the slope is cdf (1 + 2 x (1 - cdf) u').
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.erf import normal_distribution
from tinytensor.kernels.numpy.silu import FAR, limited

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_FAR_SQUARED = FAR * FAR
_BLOCK = 1 << 17  # elements at a time, so that intermediate results stay in the processor's cache


def gelu_exact_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x cdf. Saves cdf."""
    cdf, out = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
    flat, into, into_out = x.reshape(-1), cdf.reshape(-1), out.reshape(-1)
    for part in _parts(flat.size):
        into[part] = normal_distribution(flat[part])
        xp.multiply(_limited(flat[part], math.inf), into[part], out=into_out[part])
    return out, cdf


def gelu_exact_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g (cdf + x exp(-x^2 / 2) / sqrt(2 pi))."""
    out = xp.empty(x.shape, x.dtype)
    g, cdf, x, flat = g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1)
    for part in _parts(flat.size):
        near = _limited(x[part], FAR)
        slope = near * near
        slope *= -0.5
        xp.exp(slope, out=slope)
        slope *= near
        slope *= 1.0 / math.sqrt(2.0 * math.pi)
        slope += cdf[part]
        xp.multiply(slope, g[part], out=flat[part])
    return (out,)


def _limited(x: Any, highest: float) -> Any:
    """``limited``. Mostly nothing is beyond, which the scalar product tells in half the time."""
    flat = x.reshape(-1)
    return x if flat.dot(flat) < _FAR_SQUARED else limited(x, highest)


def _parts(size: int) -> Iterator[slice]:
    return (slice(first, first + _BLOCK) for first in range(0, size, _BLOCK))


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x cdf in the tanh form. Saves cdf."""
    cubic, scale, one, half = _arrays(x.dtype)
    cdf = xp.empty(x.shape, x.dtype)
    xp.multiply(x, x, out=cdf)  # from here to the tanh this array holds parts of u
    cdf *= cubic
    cdf += scale
    cdf *= x
    xp.tanh(cdf, out=cdf)
    cdf += one
    cdf *= half
    return _limited(x, math.inf) * cdf, cdf


@functools.lru_cache(maxsize=8)
def _arrays(dtype: Any) -> tuple[Any, ...]:
    """The constants as arrays. With Python numbers NumPy takes twice as long, which matters where x holds a single token."""
    return tuple([xp.asarray(c, dtype) for c in (_SCALE * _CUBIC, _SCALE, 1.0, 0.5)])


def gelu_tanh_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g cdf (1 + 2 x (1 - cdf) u'), with u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)."""
    out = xp.empty(x.shape, x.dtype)
    g, cdf, x, flat = g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1)
    for part in _parts(flat.size):
        near = _limited(x[part], FAR)
        slope = near * near
        slope *= 6.0 * _SCALE * _CUBIC
        slope += 2.0 * _SCALE
        slope *= 1.0 - cdf[part]
        slope *= near
        slope += 1.0
        slope *= cdf[part]
        xp.multiply(slope, g[part], out=flat[part])
    return (out,)
