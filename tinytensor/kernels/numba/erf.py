"""The error function in float32, in one pass; kernels/numpy/erf.py has the formulas, and those of float64."""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.device.backend import default_dtype
from tinytensor.kernels import numpy as in_numpy
from tinytensor.kernels.numba.compiling import Later, loop, real
from tinytensor.kernels.numba.exponential import exp
from tinytensor.kernels.numpy.erf import FLAT, atanh_erf_coefficients

_LARGEST = FLAT * FLAT
_OF_ATANH = Later(lambda: atanh_erf_coefficients()[::-1])
_TAYLOR = tuple([2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in reversed(range(8))])
_NEAR = 0.5  # up to here Taylor's series; beyond it tanh(a) = 1 - 2 / (1 + e^(2a)) loses no digits


@loop
def atanh_erf(x: Any) -> Any:
    """The number whose tanh is erf(x), in float32."""
    squared = x * x
    squared = _LARGEST if squared > _LARGEST else squared
    total = real(0)
    for coefficient in _OF_ATANH:
        total = total * squared + coefficient
    return total * x


@loop
def _erf(x: Any, out: Any) -> None:
    for i in range(x.size):
        v = x[i]
        total = real(0)
        for coefficient in _TAYLOR:
            total = total * (v * v) + coefficient
        far = real(1) - real(2) / (real(1) + exp(real(2) * atanh_erf(v)))
        out[i] = total * v if abs(v) < _NEAR else far


def erf(x: Any) -> Any:
    """erf(x), right to about 1e-15 in float64 and to about 2e-7 in the narrower dtypes."""
    if x.dtype != default_dtype:
        return in_numpy.erf(x)
    out = numpy.empty(x.shape, x.dtype)
    _erf(x.reshape(-1), out.reshape(-1))
    return out
