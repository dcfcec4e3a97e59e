"""silu, gelu and the error function, one pass each way; kernels/numpy/activations.py has the formulas and the other dtypes.

In gelu's loops ``below`` is cdf(x): the probability that a standard normal number is below x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.device.backend import default_dtype
from tinytensor.kernels import numpy as in_numpy
from tinytensor.kernels.numba.compiling import Later, inlined, loop, real, where
from tinytensor.kernels.numba.functions import exp
from tinytensor.kernels.numpy.activations import FAR, FLAT, atanh_erf_coefficients


@inlined
def sigmoid_of(x: Any) -> Any:
    """1 / (1 + exp(-x)) of a number."""
    e = exp(-abs(x))
    return (e if x < real(0) else real(1)) / (real(1) + e)


@loop
def from_below(x: Any) -> Any:
    """Clip x at -FAR: the product of 0 and -infinity would be NaN."""
    return -FAR if x < -FAR else x


@loop
def near(x: Any) -> Any:
    """Clip x to -FAR and FAR, for slopes, which are 0 or 1 beyond."""
    return FAR if x > FAR else from_below(x)


@loop
def _silu(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = from_below(x[i]) * sigmoid_of(x[i])


@loop
def _silu_gradient(g: Any, x: Any, d_x: Any) -> None:
    for i in range(x.size):
        s = sigmoid_of(x[i])
        d_x[i] = g[i] * (s + near(x[i]) * s * (real(1) - s))


@loop
def silu_product(x: Any, factor: Any, out: Any) -> None:
    """Write silu(x) * factor to out; all three are (n,)."""
    for i in range(x.size):
        out[i] = from_below(x[i]) * sigmoid_of(x[i]) * factor[i]


@loop
def _silu_product_gradients(g: Any, x: Any, factor: Any, d_x: Any, d_factor: Any) -> None:
    for i in range(x.size):
        s = sigmoid_of(x[i])
        d_x[i] = g[i] * factor[i] * (s + near(x[i]) * s * (real(1) - s))
        d_factor[i] = g[i] * from_below(x[i]) * s


def silu_forward(needed: Sequence[bool], x: Any, factor: Any) -> tuple[Any, Any]:
    """``silu_forward`` of kernels/numpy. Saves nothing: recomputing the sigmoid is cheaper."""
    if x.dtype != default_dtype:
        return in_numpy.silu_forward(needed, x, factor)
    out = numpy.empty(x.shape, x.dtype)
    run, inputs = (_silu, [x]) if factor is None else (silu_product, [x, factor])
    run(*[a.reshape(-1) for a in inputs], out.reshape(-1))
    return out, None


def silu_backward(g: Any, s: Any, needed: Sequence[bool], x: Any, factor: Any) -> Sequence[Any]:
    """With h = g * factor: dx = h (s + x s (1 - s)), dfactor = g x s."""
    if s is not None:
        return in_numpy.silu_backward(g, s, needed, x, factor)
    d_x = numpy.empty(x.shape, x.dtype)
    if factor is None:
        _silu_gradient(g.reshape(-1), x.reshape(-1), d_x.reshape(-1))
        return d_x, None
    d_factor = numpy.empty(x.shape, x.dtype)
    _silu_product_gradients(*[a.reshape(-1) for a in (g, x, factor, d_x, d_factor)])
    return d_x if needed[0] else None, d_factor if needed[1] else None


_LARGEST = FLAT * FLAT
_OF_ATANH = Later(lambda: atanh_erf_coefficients()[::-1])
_TAYLOR = tuple([2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in reversed(range(8))])
_NEAR = 0.5  # Taylor's series up to here; beyond it tanh(a) = 1 - 2 / (1 + e^(2a)) loses no digits


@inlined
def atanh_erf(x: Any) -> Any:
    """atanh(erf(x)) of a number in float32."""
    squared = x * x
    squared = _LARGEST if squared > _LARGEST else squared
    total = real(0)
    for coefficient in _OF_ATANH:
        total = total * squared + coefficient
    return total * x


@inlined
def erf_of(x: Any) -> Any:
    """erf of a number in float32."""
    total = real(0)
    for coefficient in _TAYLOR:
        total = total * (x * x) + coefficient
    far = real(1) - real(2) / (real(1) + exp(real(2) * atanh_erf(x)))
    return where(abs(x) < _NEAR, total * x, far)


_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_HALF_ROOT = math.sqrt(0.5)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)  # the normal density at 0


@loop
def gelu_tanh(x: Any, cdf: Any, out: Any) -> None:
    """Write the tanh approximation of gelu(x) to out and cdf(x) to cdf; all are (n,)."""
    for i in range(x.size):
        v = x[i]
        # (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))
        below = real(1) / (real(1) + exp(real(-2) * _SCALE * (v + _CUBIC * v * v * v)))
        cdf[i], out[i] = below, from_below(v) * below


@loop
def _gelu_tanh_gradient(g: Any, cdf: Any, x: Any, out: Any) -> None:
    for i in range(x.size):
        v, below = near(x[i]), cdf[i]
        slope = _SCALE * (real(1) + real(3) * _CUBIC * v * v)
        out[i] = g[i] * below * (real(1) + real(2) * ((real(1) - below) * slope) * v)


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """``gelu_tanh_forward`` of kernels/numpy."""
    cdf, out = numpy.empty(x.shape, x.dtype), numpy.empty(x.shape, x.dtype)
    gelu_tanh(x.reshape(-1), cdf.reshape(-1), out.reshape(-1))
    return out, cdf


def gelu_tanh_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """``gelu_tanh_backward`` of kernels/numpy."""
    out = numpy.empty(x.shape, x.dtype)
    _gelu_tanh_gradient(g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1))
    return (out,)


@loop
def gelu_exact32(x: Any, cdf: Any, out: Any) -> None:
    """Write gelu(x) in float32 to out and cdf(x) to cdf; all are (n,)."""
    for i in range(x.size):
        v = x[i]
        # (1 + tanh(a)) / 2 = 1 / (1 + e^(-2a)), where tanh(a) = erf(x / sqrt(2))
        below = real(1) / (real(1) + exp(real(-2) * atanh_erf(v * _HALF_ROOT)))
        cdf[i], out[i] = below, from_below(v) * below


@loop
def _gelu_exact64(x: Any, cdf: Any, out: Any) -> None:
    for i in range(x.size):
        cdf[i] = real(0.5) * math.erfc(-x[i] * _HALF_ROOT)
        out[i] = from_below(x[i]) * cdf[i]


@loop
def _gelu_exact_gradient(g: Any, cdf: Any, x: Any, out: Any) -> None:
    for i in range(x.size):
        v = near(x[i])
        out[i] = g[i] * (cdf[i] + v * (_DENSITY * exp(real(-0.5) * v * v)))


def gelu_exact_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """``gelu_exact_forward`` of kernels/numpy."""
    cdf, out = numpy.empty(x.shape, x.dtype), numpy.empty(x.shape, x.dtype)
    run = _gelu_exact64 if x.dtype == numpy.float64 else gelu_exact32
    run(x.reshape(-1), cdf.reshape(-1), out.reshape(-1))
    return out, cdf


def gelu_exact_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """``gelu_exact_backward`` of kernels/numpy."""
    out = numpy.empty(x.shape, x.dtype)
    _gelu_exact_gradient(g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1))
    return (out,)
