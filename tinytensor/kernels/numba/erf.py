"""The error function in float32, for loops; kernels/numpy/erf.py has the formulas."""

from __future__ import annotations

import math
from typing import Any

from tinytensor.kernels.numba.compiling import Later, inlined, real, where
from tinytensor.kernels.numba.functions import exp
from tinytensor.kernels.numpy.erf import FLAT, atanh_erf_coefficients

_LARGEST = FLAT * FLAT
_OF_ATANH = Later(lambda: atanh_erf_coefficients()[::-1])
_TAYLOR = tuple([2 / math.sqrt(math.pi) * (-1) ** n / (math.factorial(n) * (2 * n + 1)) for n in reversed(range(8))])
_NEAR = 0.5  # up to here Taylor's series; beyond it tanh(a) = 1 - 2 / (1 + e^(2a)) loses no digits


@inlined
def atanh_erf(x: Any) -> Any:
    """The number whose tanh is erf(x), in float32."""
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
