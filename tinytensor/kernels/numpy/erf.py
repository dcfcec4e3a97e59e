"""The error function, which NumPy lacks."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from tinytensor.backend import xp

_SMALL = 1.0  # below it the Taylor series, above it the scaled complement
_LARGE = 6.0  # erf(6) differs from 1 by 2e-17: less than float64 can tell
_BLOCK = 8192  # so many elements at a time: the intermediate arrays then stay in the processor's cache


@functools.cache
def _taylor() -> tuple[float, ...]:
    """erf(x) = 2/sqrt(pi) * sum of (-1)^n x^(2n+1) / (n! (2n+1)): the coefficients of (x*x)^n, after the factor x."""
    return tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(20))


@functools.cache
def _chebyshev() -> tuple[float, ...]:
    """exp(x*x) * erfc(x), which is smooth in 1/(2 + x), interpolated between _SMALL and _LARGE."""

    def scaled_complement(u: Any) -> Any:
        points = [1.0 / t - 2.0 for t in _from_unit(u)]
        return numpy.array([math.exp(x * x) * math.erfc(x) for x in points])

    return tuple(float(c) for c in numpy.polynomial.chebyshev.chebinterpolate(scaled_complement, 18))


_LOW, _HIGH = 1.0 / (2.0 + _LARGE), 1.0 / (2.0 + _SMALL)


def _from_unit(u: Any) -> Any:
    """From Chebyshev's interval, -1 to 1, to t = 1/(2 + x)."""
    return (_HIGH + _LOW) / 2 + u * ((_HIGH - _LOW) / 2)


def erf(x: Any) -> Any:
    """erf(x), to about 1e-15, computed in float64 and returned in x's dtype."""
    flat = x.reshape(-1)
    out = xp.empty(flat.shape, dtype=x.dtype if x.dtype.kind == "f" else "float32")
    for first in range(0, flat.size, _BLOCK):
        out[first : first + _BLOCK] = _erf(flat[first : first + _BLOCK])
    return out.reshape(x.shape)


def _erf(x: Any) -> Any:
    z = xp.asarray(x, dtype="float64")
    small = xp.clip(z, -_SMALL, _SMALL)
    squared = small * small
    inner = xp.zeros_like(z)
    for coefficient in reversed(_taylor()):
        inner = inner * squared + coefficient
    inner = inner * small
    size = xp.clip(xp.absolute(z), _SMALL, _LARGE)
    u = (1.0 / (2.0 + size) - (_HIGH + _LOW) / 2) * (2 / (_HIGH - _LOW))
    outer = xp.sign(z) * (1.0 - xp.exp(-size * size) * _clenshaw(_chebyshev(), u))
    out = xp.where(xp.absolute(z) <= _SMALL, inner, outer)
    return xp.where(xp.isnan(z), z, out)


def _clenshaw(coefficients: tuple[float, ...], u: Any) -> Any:
    """The sum of coefficients[k] * T_k(u) by Clenshaw's recurrence."""
    later, latest = xp.zeros_like(u), xp.zeros_like(u)
    for coefficient in reversed(coefficients[1:]):
        later, latest = latest, 2.0 * u * latest - later + coefficient
    return u * latest - later + coefficients[0]
