"""The Gaussian error linear unit, one pass each way; kernels/numpy/gelu.py has the formulas.

In the loops ``below`` is cdf(x): the probability that a standard normal number is below x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numba.erf import atanh_erf
from tinytensor.kernels.numba.functions import exp
from tinytensor.kernels.numba.silu import from_below, near

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715
_HALF_ROOT = math.sqrt(0.5)
_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)  # the normal density at 0


@loop
def gelu_tanh(x: Any, cdf: Any, out: Any) -> None:
    """The approximation of x (n,) with tanh, written to out (n,), and cdf(x), written to cdf (n,)."""
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
    """x cdf. Saves cdf."""
    cdf, out = numpy.empty(x.shape, x.dtype), numpy.empty(x.shape, x.dtype)
    gelu_tanh(x.reshape(-1), cdf.reshape(-1), out.reshape(-1))
    return out, cdf


def gelu_tanh_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g times the slope."""
    out = numpy.empty(x.shape, x.dtype)
    _gelu_tanh_gradient(g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1))
    return (out,)


@loop
def gelu_exact32(x: Any, cdf: Any, out: Any) -> None:
    """gelu of x (n,) in float32, written to out (n,), and cdf(x), written to cdf (n,)."""
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
    """x cdf. Saves cdf."""
    cdf, out = numpy.empty(x.shape, x.dtype), numpy.empty(x.shape, x.dtype)
    run = _gelu_exact64 if x.dtype == numpy.float64 else gelu_exact32
    run(x.reshape(-1), cdf.reshape(-1), out.reshape(-1))
    return out, cdf


def gelu_exact_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g (cdf + x density)."""
    out = numpy.empty(x.shape, x.dtype)
    _gelu_exact_gradient(g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1))
    return (out,)
