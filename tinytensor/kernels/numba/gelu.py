"""The Gaussian error linear unit, one pass each way; kernels/numpy/gelu.py has the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numba.exponential import exp
from tinytensor.kernels.numpy.erf import FLAT, atanh_erf_coefficients

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_HALF_ROOT = math.sqrt(0.5)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)
_LARGEST = FLAT * FLAT
_BLOCK = 512  # elements whose polynomials are computed together, in the fastest cache


@loop
def _tanh_forward(x: Any, cdf: Any, out: Any) -> None:
    for i in range(x.size):
        v = x[i]
        # (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))
        cdf[i] = real(1) / (real(1) + exp(real(-2) * _SCALE * (v + _CUBIC * v * v * v)))
        out[i] = v * cdf[i]


@loop
def _tanh_backward(g: Any, cdf: Any, x: Any, out: Any) -> None:
    for i in range(x.size):
        v, below = x[i], cdf[i]
        slope = _SCALE * (real(1) + real(3) * _CUBIC * v * v)
        out[i] = g[i] * below * (real(1) + real(2) * ((real(1) - below) * slope) * v)


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x cdf. Saves cdf."""
    cdf, out = numpy.empty(x.shape, x.dtype), numpy.empty(x.shape, x.dtype)
    _tanh_forward(x.reshape(-1), cdf.reshape(-1), out.reshape(-1))
    return out, cdf


def gelu_tanh_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g times the slope."""
    out = numpy.empty(x.shape, x.dtype)
    _tanh_backward(g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1))
    return (out,)


@loop
def _exact_forward32(x: Any, coefficients: Any, y: Any, total: Any, cdf: Any, out: Any) -> None:
    """cdf = (1 + tanh(a)) / 2 = 1 / (1 + e^(-2a)) with tanh(a) = erf(x / sqrt(2)); a / y is a polynomial in y^2."""
    for start in range(0, x.size, y.size):
        count = min(y.size, x.size - start)
        for i in range(count):
            y[i] = x[start + i] * _HALF_ROOT
            total[i] = real(0)
        for k in range(0, coefficients.size, 5):  # five at a time stay in registers
            a, b, c, d, e = coefficients[k], coefficients[k + 1], coefficients[k + 2], coefficients[k + 3], coefficients[k + 4]
            for i in range(count):
                s = y[i] * y[i]
                s = _LARGEST if s > _LARGEST else s
                total[i] = ((((total[i] * s + a) * s + b) * s + c) * s + d) * s + e
        for i in range(count):
            cdf[start + i] = real(1) / (real(1) + exp(real(-2) * (total[i] * y[i])))
            out[start + i] = x[start + i] * cdf[start + i]


@loop
def _exact_forward64(x: Any, cdf: Any, out: Any) -> None:
    for i in range(x.size):
        cdf[i] = real(0.5) * math.erfc(-x[i] * _HALF_ROOT)
        out[i] = x[i] * cdf[i]


@loop
def _exact_backward(g: Any, cdf: Any, x: Any, out: Any) -> None:
    for i in range(x.size):
        v = x[i]
        out[i] = g[i] * (cdf[i] + v * (_DENSITY * exp(real(-0.5) * v * v)))


def gelu_exact_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x cdf. Saves cdf."""
    cdf, out = numpy.empty(x.shape, x.dtype), numpy.empty(x.shape, x.dtype)
    if x.dtype == numpy.float64:
        _exact_forward64(x.reshape(-1), cdf.reshape(-1), out.reshape(-1))
    else:
        coefficients = numpy.array(atanh_erf_coefficients()[::-1], x.dtype)
        scratch = numpy.empty((2, _BLOCK), x.dtype)
        _exact_forward32(x.reshape(-1), coefficients, *scratch, cdf.reshape(-1), out.reshape(-1))
    return out, cdf


def gelu_exact_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g (cdf + x density)."""
    out = numpy.empty(x.shape, x.dtype)
    _exact_backward(g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1))
    return (out,)
