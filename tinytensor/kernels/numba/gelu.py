"""The Gaussian error linear unit, one pass each way; kernels/numpy/gelu.py has the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numba.exponential import exp

_SCALE = math.sqrt(2.0 / math.pi)
_CUBIC = 0.044715


@loop
def _forward(x: Any, p: Any, out: Any) -> None:
    for i in range(x.size):
        v = x[i]
        # (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u))
        p[i] = real(1) / (real(1) + exp(real(-2) * _SCALE * (v + _CUBIC * v * v * v)))
        out[i] = v * p[i]


@loop
def _backward(g: Any, p: Any, x: Any, out: Any) -> None:
    for i in range(x.size):
        v, below = x[i], p[i]
        slope = _SCALE * (real(1) + real(3) * _CUBIC * v * v)
        out[i] = g[i] * below * (real(1) + real(2) * ((real(1) - below) * slope) * v)


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, Any]:
    """x cdf. Saves cdf."""
    p, out = numpy.empty(x.shape, x.dtype), numpy.empty(x.shape, x.dtype)
    _forward(x.reshape(-1), p.reshape(-1), out.reshape(-1))
    return out, p


def gelu_tanh_backward(g: Any, cdf: Any, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g times the slope."""
    out = numpy.empty(x.shape, x.dtype)
    _backward(g.reshape(-1), cdf.reshape(-1), x.reshape(-1), out.reshape(-1))
    return (out,)
