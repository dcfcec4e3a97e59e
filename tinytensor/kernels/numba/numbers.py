"""Functions of numbers in float32 that the formulas of ops call, under the names that they have there.

They do what NumPy's do, also with NaN, infinity and zeros.
"""

from __future__ import annotations

import math
from typing import Any

from tinytensor.kernels.numba.compiling import inlined, real, where
from tinytensor.kernels.numba.exponential import ROUNDING, exp, times_power_of_two
from tinytensor.kernels.numba.logarithm import expm1_near, log1p

_LN2 = math.log(2)
_PI, _HALF_PI, _QUARTER_PI = math.pi, math.pi / 2, math.pi / 4
_INFINITY = math.inf
_TAN_PI_8 = 0.4142135623730951


@inlined
def maximum(x: Any, y: Any) -> Any:
    return where((x >= y) | (x != x), x, y)


@inlined
def minimum(x: Any, y: Any) -> Any:
    return where((x <= y) | (x != x), x, y)


@inlined
def clip(x: Any, low: Any, high: Any) -> Any:
    return minimum(maximum(x, low), high)


@inlined
def sign(x: Any) -> Any:
    return where(x > real(0), real(1), where(x < real(0), real(-1), x * real(0)))


@inlined
def absolute(x: Any) -> Any:
    return abs(x)


@inlined
def square(x: Any) -> Any:
    return x * x


@inlined
def sqrt(x: Any) -> Any:
    return real(math.sqrt(x))


@inlined
def is_infinite(x: Any) -> Any:
    return abs(x) == _INFINITY


@inlined
def exp2(x: Any) -> Any:
    """2^x: a whole power, by its bits, times that of what is left, from -1/2 to 1/2."""
    x = minimum(maximum(x, real(-160)), real(160))
    k = (x + ROUNDING) - ROUNDING
    return times_power_of_two(expm1_near((x - k) * _LN2) + real(1), k)


@inlined
def logaddexp(x: Any, y: Any) -> Any:
    """The larger, plus log(1 + exp) of what it is larger by."""
    more = maximum(x, y)
    less = minimum(x, y)
    difference = where(more == less, real(0), less - more)  # of two infinities it would be NaN
    return more + log1p(exp(difference))


@inlined
def hypot(x: Any, y: Any) -> Any:
    """sqrt(x*x + y*y), relative to the larger of both, so that no square overflows or vanishes."""
    more, less = maximum(abs(x), abs(y)), minimum(abs(x), abs(y))
    part = where(more > real(0), less / more, real(0))
    length = more * sqrt(real(1) + part * part)
    return where((abs(x) == _INFINITY) | (abs(y) == _INFINITY), _INFINITY, length)


@inlined
def arctan(x: Any) -> Any:
    """The angle whose tangent is x: of 1/x, or turned by an eighth, near 0 by a polynomial (Moshier's Cephes library)."""
    size = abs(x)
    is_far = size > real(1)
    t = where(is_far, real(1) / size, size)
    is_turned = t > _TAN_PI_8
    t = where(is_turned, (t - real(1)) / (t + real(1)), t)
    square = t * t
    p = real(8.05374449538e-2)
    p = p * square + real(-1.38776856032e-1)
    p = p * square + real(1.99777106478e-1)
    p = p * square + real(-3.33329491539e-1)
    angle = p * square * t + t
    angle = where(is_turned, angle + _QUARTER_PI, angle)
    angle = where(is_far, _HALF_PI - angle, angle)
    return math.copysign(angle, x)


@inlined
def arctan2(y: Any, x: Any) -> Any:
    is_diagonal = abs(x) == abs(y)  # of two infinities the quotient would be NaN
    quotient = where(is_diagonal, real(1), abs(y) / abs(x))
    quotient = where(y == real(0), real(0), quotient)
    angle = arctan(quotient)
    angle = where(math.copysign(real(1), x) < real(0), _PI - angle, angle)
    return where((x == x) & (y == y), math.copysign(angle, y), x + y)
