"""log, log1p and expm1 in float32 for the loops, by polynomials, which a compiler vectorises."""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import inlined, real, where
from tinytensor.kernels.numba.exponential import exp

_ROOT_HALF = 0.70710678118654752
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2
_SUBNORMAL = 1.17549435e-38  # smaller numbers are
_TINY = 8388608.0  # 2**23, which makes them normal


@inlined
def log(x: Any) -> Any:
    """log x: log(2^k m) = k ln 2 + log m, for m from sqrt(1/2) to sqrt(2) (Moshier's Cephes library)."""
    is_small = x < _SUBNORMAL
    bits = numpy.float32(where(is_small, x * _TINY, x)).view(numpy.int32)
    k = real((bits >> numpy.int32(23)) - numpy.int32(126)) - where(is_small, real(23), real(0))
    m = numpy.int32((bits & numpy.int32(0x7FFFFF)) | numpy.int32(0x3F000000)).view(numpy.float32)  # from 1/2 to 1
    is_low = m < _ROOT_HALF
    k = where(is_low, k - real(1), k)
    f = where(is_low, m + m, m) - real(1)
    p = real(7.0376836292e-2)
    p = p * f + real(-1.1514610310e-1)
    p = p * f + real(1.1676998740e-1)
    p = p * f + real(-1.2420140846e-1)
    p = p * f + real(1.4249322787e-1)
    p = p * f + real(-1.6668057665e-1)
    p = p * f + real(2.0000714765e-1)
    p = p * f + real(-2.4999993993e-1)
    p = p * f + real(3.3333331174e-1)
    square = f * f
    out = (p * f * square + k * _LN2_LOW) - real(0.5) * square + f + k * _LN2_HIGH
    out = where(x == real(math.inf), x, out)
    out = where(x == real(0), real(-math.inf), out)
    return where(x >= real(0), out, real(math.nan))


@inlined
def log1p(x: Any) -> Any:
    """log(1 + x). What 1 + x loses to rounding is put right by the factor x / ((1 + x) - 1) (Kahan)."""
    total = real(1) + x
    part = total - real(1)
    out = log(total) * (x / part)
    return where((part == real(0)) | (x == real(math.inf)), x, out)


@inlined
def expm1_near(r: Any) -> Any:
    """e^r - 1 for r from -1/2 to 1/2, by Taylor's series."""
    p = real(1 / 40320)
    p = p * r + real(1 / 5040)
    p = p * r + real(1 / 720)
    p = p * r + real(1 / 120)
    p = p * r + real(1 / 24)
    p = p * r + real(1 / 6)
    p = p * r + real(1 / 2)
    return p * r * r + r


@inlined
def expm1(x: Any) -> Any:
    """e^x - 1: near 0, where exp would lose digits, by the series."""
    near = abs(x) < real(0.5)
    return where(near, expm1_near(where(near, x, real(0))), exp(x) - real(1))
