"""exp for the loops, as ``numpy.exp``: in float32 by a polynomial, which a compiler vectorises, unlike a call of a library."""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import ByDtype, inlined, loop, real, where

_LOWEST, _HIGHEST = -104.0, 89.0  # exp is 0 below, infinite above
_LOG2_E = 1.4426950408889634
ROUNDING = 12582912.0  # 1.5 * 2**23: a number that is added to it is rounded to an integer
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; a multiple of the first by an integer is exact


@inlined
def times_power_of_two(x: Any, k: Any) -> Any:
    """x * 2^k in two factors, each of which is a normal number: the product may be infinite or subnormal."""
    whole = numpy.int32(k)
    half = whole >> numpy.int32(1)
    first = numpy.int32((half + numpy.int32(127)) << numpy.int32(23)).view(numpy.float32)
    second = numpy.int32((whole - half + numpy.int32(127)) << numpy.int32(23)).view(numpy.float32)
    return x * first * second


@inlined
def exp32(x: Any) -> Any:
    """e^x in float32, within 1.01 units in the last place: x = k ln 2 + r, and so e^x = 2^k e^r (Cody and Waite 1980)."""
    vanishes = x < _LOWEST  # not so for NaN
    x = where(vanishes, real(0), x)  # a product that underflows takes Intel's processors a hundred times as long
    x = where(x > _HIGHEST, _HIGHEST, x)
    k = (x * _LOG2_E + ROUNDING) - ROUNDING
    r = x - k * _LN2_HIGH
    r = r - k * _LN2_LOW
    p = real(1.9875691500e-4)
    p = p * r + real(1.3981999507e-3)
    p = p * r + real(8.3334519073e-3)
    p = p * r + real(4.1665795894e-2)
    p = p * r + real(1.6666665459e-1)
    p = p * r + real(5.0000001201e-1)
    p = p * (r * r) + r + real(1.0)
    return where(vanishes, real(0), times_power_of_two(p, k))


@loop
def exp64(x: Any) -> Any:
    """e^x in float64: the library's."""
    return math.exp(x)


exp = ByDtype(float32=exp32, float64=exp64)


@loop
def exp_of(x: Any, out: Any) -> None:
    """e^x of each element of x (n,), written to out (n,)."""
    for i in range(x.size):
        out[i] = exp(x[i])
