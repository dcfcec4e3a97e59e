"""The error function, which NumPy lacks. In float64 it is computed by series, in float32 as the tanh of a polynomial."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy

from tinytensor.device.backend import xp

_SMALL = 1.0  # below this the Taylor series is used, above it the scaled complement
_LARGE = 6.0  # erf(6) differs from 1 by 2e-17, which float64 cannot represent
_BLOCK = 8192  # elements at a time, so that the intermediate arrays stay in the processor's cache


@functools.cache
def _taylor() -> tuple[float, ...]:
    """The coefficients of (x*x)^n in erf(x) / x. The series is erf(x) = 2/sqrt(pi) * sum of (-1)^n x^(2n+1) / (n! (2n+1))."""
    return tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(20))


@functools.cache
def _chebyshev() -> tuple[float, ...]:
    """The Chebyshev coefficients of exp(x*x) * erfc(x) between _SMALL and _LARGE, in t = 1/(2 + x), where it is smooth."""

    def scaled_complement(u: Any) -> Any:
        points = [1.0 / t - 2.0 for t in _from_unit(u)]
        return numpy.array([math.exp(x * x) * math.erfc(x) for x in points])

    return tuple(float(c) for c in numpy.polynomial.chebyshev.chebinterpolate(scaled_complement, 18))


_LOW, _HIGH = 1.0 / (2.0 + _LARGE), 1.0 / (2.0 + _SMALL)


def _from_unit(u: Any) -> Any:
    """Map Chebyshev's interval, -1 to 1, to t = 1/(2 + x)."""
    return (_HIGH + _LOW) / 2 + u * ((_HIGH - _LOW) / 2)


def erf(x: Any) -> Any:
    """erf(x), right to about 1e-15 in float64 and to about 2e-7 in the narrower dtypes."""
    flat = x.reshape(-1)
    out = xp.empty(flat.shape, dtype=x.dtype if x.dtype.kind == "f" else "float32")
    for first in range(0, flat.size, _BLOCK):
        part = flat[first : first + _BLOCK]
        out[first : first + _BLOCK] = _erf(part) if out.dtype == "float64" else xp.tanh(_atanh_erf(part))
    return out.reshape(x.shape)


def normal_distribution(x: Any) -> Any:
    """The probability that a standard normal number is below x, which is (1 + erf(x / sqrt(2))) / 2.

    In the narrower dtypes the form 1 / (1 + exp(-2a)) is used, because 1 + erf would lose all digits if x is far below 0.
    """
    if x.dtype == "float64":
        return (1.0 + erf(x * math.sqrt(0.5))) * 0.5
    out = _atanh_erf(x * math.sqrt(0.5))  # (1 + tanh(a)) / 2 = 1 / (1 + exp(-2a))
    out *= -2.0
    xp.exp(out, out=out)
    out += 1.0
    return xp.reciprocal(out, out=out)


FLAT = 4.2  # here erf differs from 1 by 3e-9, which float32 cannot represent


@functools.cache
def atanh_erf_coefficients() -> tuple[float, ...]:
    """The coefficients of atanh(erf(x)) / x as a polynomial in x*x, for x up to FLAT. It is smooth, so few terms suffice."""

    def ratio(u: Any) -> Any:
        points = numpy.sqrt((u + 1.0) * (FLAT * FLAT / 2))
        return numpy.array([math.log(2.0 / math.erfc(x) - 1.0) / (2.0 * x) for x in points])

    in_unit = numpy.polynomial.chebyshev.cheb2poly(numpy.polynomial.chebyshev.chebinterpolate(ratio, 14))
    from_squares = numpy.polynomial.Polynomial([-1.0, 2.0 / (FLAT * FLAT)])
    return tuple(float(c) for c in numpy.polynomial.Polynomial(in_unit)(from_squares).coef)


def _atanh_erf(x: Any) -> Any:
    """The number whose tanh is erf(x), in float32. This is several times faster than the series of float64.

    Beyond FLAT it is a straight line, on which tanh is 1 to the last bit.
    """
    x = xp.asarray(x, dtype="float32")
    squared = xp.clip(x * x, 0.0, FLAT * FLAT)  # several times as fast as minimum
    *others, highest = atanh_erf_coefficients()
    out = squared * highest
    for coefficient in reversed(others[1:]):
        out += coefficient
        out *= squared
    out += others[0]
    out *= x
    return out


def _erf(x: Any) -> Any:
    """erf(x) in float64."""
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
