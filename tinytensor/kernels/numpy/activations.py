"""Activations and the functions behind them: the sigmoid, silu, the error function, gelu.

silu(x) = x sigmoid(x) (Hendrycks and Gimpel 2016), alone or times a factor as in SwiGLU.

gelu(x) = x cdf(x) (Hendrycks and Gimpel 2016), where cdf(x) is the probability that a standard normal number is below x:

* Exact: the derivative of cdf is the normal density, and the slope of gelu is cdf + x density.
* With tanh (section 2), an approximation: cdf = (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3). Since the derivative
  of cdf is 2 cdf (1 - cdf) u', the slope is cdf (1 + 2 x (1 - cdf) u').

NumPy lacks the error function. In float64 it is computed by series, in float32 as the tanh of a polynomial.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy

from tinytensor.device.backend import host, is_host_array, xp

FAR = 1e4  # beyond it a sigmoid is 0 or 1 to the last bit; replacing infinity by it avoids NaN


def limited(x: Any, highest: float, out: Any = None) -> Any:
    """Clip x to -FAR and ``highest``. Beyond, infinity would be multiplied by 0, and powers of x may overflow."""
    if is_host_array(x):
        return x.clip(*_bounds(highest, x.dtype), out=out)
    return x.clip(-FAR, highest).astype(x.dtype, copy=False)  # on a GPU, NumPy scalars with bfloat16 make float32


@functools.lru_cache(maxsize=16)
def _bounds(highest: float, dtype: Any) -> tuple[Any, Any]:
    """Return the bounds as arrays: with Python numbers NumPy takes twice as long, which matters for a single token."""
    return host.asarray(-FAR, dtype), host.asarray(highest, dtype)


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x)) for floating-point x. No exponent is positive, so no exponential overflows."""
    if not is_host_array(x):  # on a GPU, scalars make float32, so that the result is rounded once
        out = xp.exp(xp.minimum(x, 0))
        out /= 1.0 + xp.exp(-xp.absolute(x))
        return out
    out, total = xp.empty(x.shape, x.dtype), xp.empty(x.shape, x.dtype)
    xp.absolute(x, out=total)
    xp.negative(total, out=total)
    xp.exp(total, out=total)
    total += 1.0
    limited(x, 0.0, out)  # several times as fast as ``minimum`` for large x
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


_SMALL = 1.0  # up to here the Taylor series, beyond it the scaled complement
_LARGE = 6.0  # erf(6) differs from 1 by 2e-17, which float64 cannot represent
_ERF_BLOCK = 8192  # elements per block, to stay in the processor's cache


@functools.cache
def _taylor() -> tuple[float, ...]:
    """Return the coefficients of (x*x)^n in erf(x) / x. erf(x) = 2/sqrt(pi) * sum of (-1)^n x^(2n+1) / (n! (2n+1))."""
    return tuple(2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(20))


@functools.cache
def _chebyshev() -> tuple[float, ...]:
    """Return the Chebyshev coefficients of exp(x*x) * erfc(x) from _SMALL to _LARGE, in t = 1/(2 + x), where it is smooth."""

    def scaled_complement(u: Any) -> Any:
        points = [1.0 / t - 2.0 for t in _from_unit(u)]
        return numpy.array([math.exp(x * x) * math.erfc(x) for x in points])

    return tuple(float(c) for c in numpy.polynomial.chebyshev.chebinterpolate(scaled_complement, 18))


_LOW, _HIGH = 1.0 / (2.0 + _LARGE), 1.0 / (2.0 + _SMALL)


def _from_unit(u: Any) -> Any:
    """Map Chebyshev's interval, -1 to 1, to t = 1/(2 + x)."""
    return (_HIGH + _LOW) / 2 + u * ((_HIGH - _LOW) / 2)


def erf(x: Any) -> Any:
    """erf(x), accurate to about 1e-15 in float64 and about 2e-7 in float32 and float16."""
    flat = x.reshape(-1)
    out = xp.empty(flat.shape, dtype=x.dtype if x.dtype.kind == "f" else "float32")
    for first in range(0, flat.size, _ERF_BLOCK):
        part = flat[first : first + _ERF_BLOCK]
        out[first : first + _ERF_BLOCK] = _erf(part) if out.dtype == "float64" else xp.tanh(_atanh_erf(part))
    return out.reshape(x.shape)


def normal_distribution(x: Any) -> Any:
    """The probability that a standard normal number is below x: (1 + erf(x / sqrt(2))) / 2.

    Below float64 it is computed as 1 / (1 + exp(-2a)), because 1 + erf would lose all digits far below 0.
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
    """Return the coefficients of atanh(erf(x)) / x, which is smooth, as a polynomial in x*x, for x up to FLAT."""

    def ratio(u: Any) -> Any:
        points = numpy.sqrt((u + 1.0) * (FLAT * FLAT / 2))
        return numpy.array([math.log(2.0 / math.erfc(x) - 1.0) / (2.0 * x) for x in points])

    in_unit = numpy.polynomial.chebyshev.cheb2poly(numpy.polynomial.chebyshev.chebinterpolate(ratio, 14))
    from_squares = numpy.polynomial.Polynomial([-1.0, 2.0 / (FLAT * FLAT)])
    return tuple(float(c) for c in numpy.polynomial.Polynomial(in_unit)(from_squares).coef)


def _atanh_erf(x: Any) -> Any:
    """atanh(erf(x)) in float32, several times faster than the series of float64.

    Beyond FLAT it is a straight line, whose tanh is 1 to the last bit.
    """
    x = xp.asarray(x, dtype="float32")
    squared = xp.clip(x * x, 0.0, FLAT * FLAT)  # several times as fast as minimum
    *lower, highest = atanh_erf_coefficients()
    out = squared * highest
    for coefficient in reversed(lower[1:]):
        out += coefficient
        out *= squared
    out += lower[0]
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
    """Return the sum of coefficients[k] * T_k(u) by Clenshaw's recurrence."""
    later, latest = xp.zeros_like(u), xp.zeros_like(u)
    for coefficient in reversed(coefficients[1:]):
        later, latest = latest, 2.0 * u * latest - later + coefficient
    return u * latest - later + coefficients[0]


_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_FAR_SQUARED = FAR * FAR
_BLOCK = 1 << 17  # elements per block, to stay in the processor's cache


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
    """``limited``, skipped if all elements are small: the scalar product tells in half the time."""
    flat = x.reshape(-1)
    return x if flat.dot(flat) < _FAR_SQUARED else limited(x, highest)


def _parts(size: int) -> Iterator[slice]:
    return (slice(first, first + _BLOCK) for first in range(0, size, _BLOCK))


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x cdf in the tanh form. Saves cdf."""
    cubic, scale, one, half = _arrays(x.dtype)
    cdf = xp.empty(x.shape, x.dtype)
    xp.multiply(x, x, out=cdf)  # holds parts of u up to the tanh
    cdf *= cubic
    cdf += scale
    cdf *= x
    xp.tanh(cdf, out=cdf)
    cdf += one
    cdf *= half
    return _limited(x, math.inf) * cdf, cdf


@functools.lru_cache(maxsize=8)
def _arrays(dtype: Any) -> tuple[Any, ...]:
    """Return the constants as arrays, as in ``_bounds``."""
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
