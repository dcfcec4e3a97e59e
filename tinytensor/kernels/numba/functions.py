"""Functions of numbers and rows that loops call. They equal NumPy's, also for NaN, infinity and zeros.

In float32 ``exp``, ``log`` and ``tanh`` are polynomials, which the compiler vectorises, unlike library calls.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import ByDtype, inlined, loop, real, where

_LN2 = math.log(2)
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4  # their sum is ln 2; integer multiples of the first are exact
_LOG2_E = 1.4426950408889634
_LOWEST, _HIGHEST = -104.0, 89.0  # exp is 0 below, infinite above
_ROUNDING = 12582912.0  # 1.5 * 2**23: adding it rounds a number to an integer
_ROOT_HALF = 0.70710678118654752
_SUBNORMAL = 1.17549435e-38  # smaller numbers are subnormal
_TINY = 8388608.0  # 2**23, which makes them normal
_PI, _HALF_PI, _QUARTER_PI = math.pi, math.pi / 2, math.pi / 4
_INFINITY = math.inf
_TAN_PI_8 = 0.4142135623730951
_SIZE_BITS = numpy.int32(0x7FFFFFFF)  # all but the sign


# --------------------------------------------------------------------------------------------------- exp, log and tanh


@inlined
def times_power_of_two(x: Any, k: Any) -> Any:
    """x * 2^k by two factors that are normal numbers, as the product may be infinite or subnormal."""
    exponent = numpy.int32(k)
    half = exponent >> numpy.int32(1)
    first = numpy.int32((half + numpy.int32(127)) << numpy.int32(23)).view(numpy.float32)
    second = numpy.int32((exponent - half + numpy.int32(127)) << numpy.int32(23)).view(numpy.float32)
    return x * first * second


@inlined
def exp32(x: Any) -> Any:
    """e^x in float32, within 1.01 units in the last place: x = k ln 2 + r, so e^x = 2^k e^r (Cody and Waite 1980)."""
    vanishes = x < _LOWEST  # False for NaN
    x = where(vanishes, real(0), x)  # underflowing products are a hundred times slower on Intel's processors
    x = where(x > _HIGHEST, _HIGHEST, x)
    k = (x * _LOG2_E + _ROUNDING) - _ROUNDING
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
    """e^x in float64, by the C library."""
    return math.exp(x)


exp = ByDtype(float32=exp32, float64=exp64)


@loop
def exp_of(x: Any, out: Any) -> None:
    """Write e^x of each element of x (n,) to out (n,)."""
    for i in range(x.size):
        out[i] = exp(x[i])


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
    """log(1 + x). The factor x / ((1 + x) - 1) corrects the rounding of 1 + x (Kahan)."""
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
    """e^x - 1, by the series near 0, where exp would lose digits."""
    near = abs(x) < real(0.5)
    return where(near, expm1_near(where(near, x, real(0))), exp(x) - real(1))


@loop
def tanh32(x: Any) -> Any:
    """tanh x in float32, by a polynomial near 0 (Moshier's Cephes library), where exp would lose digits."""
    square = x * x
    p = real(-5.70498872745e-3)
    p = p * square + real(2.06390887954e-2)
    p = p * square + real(-5.37397155531e-2)
    p = p * square + real(1.33314422036e-1)
    p = p * square + real(-3.33332819422e-1)
    near = p * square * x + x
    far = real(1) - real(2) / (exp(real(2) * abs(x)) + real(1))
    far = -far if x < real(0) else far
    return near if abs(x) < real(0.625) else far


@loop
def tanh64(x: Any) -> Any:
    """tanh x in float64, by the C library."""
    return math.tanh(x)


tanh = ByDtype(float32=tanh32, float64=tanh64)


# ------------------------------------------------------------------------------------------ other functions of numbers


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
    """2^x: a whole power, set by its bits, times 2^r for the remainder r from -1/2 to 1/2."""
    x = minimum(maximum(x, real(-160)), real(160))
    k = (x + _ROUNDING) - _ROUNDING
    return times_power_of_two(expm1_near((x - k) * _LN2) + real(1), k)


@inlined
def logaddexp(x: Any, y: Any) -> Any:
    """The larger, plus log(1 + exp) of minus the difference."""
    more = maximum(x, y)
    less = minimum(x, y)
    difference = where(more == less, real(0), less - more)  # for two infinities it would be NaN
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
    """The angle whose tangent is x: reduced by 1/x and an eighth of a turn, then a polynomial (Moshier's Cephes library)."""
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
    is_diagonal = abs(x) == abs(y)  # for two infinities the quotient would be NaN
    quotient = where(is_diagonal, real(1), abs(y) / abs(x))
    quotient = where(y == real(0), real(0), quotient)
    angle = arctan(quotient)
    angle = where(math.copysign(real(1), x) < real(0), _PI - angle, angle)
    return where((x == x) & (y == y), math.copysign(angle, y), x + y)


# -------------------------------------------------------------------------------------------------- functions of a row


@loop
def largest32(row: Any) -> Any:
    """The largest element, by comparing integers, which the compiler vectorises.

    Read as integers, floats keep their order once all bits but the sign of negative ones are inverted. NaN then comes after
    infinity, or with its sign set, before -infinity. Either will do: exp of the NaN is NaN in any case.
    """
    largest = numpy.int32(-0x80000000)
    for j in range(row.size):
        bits = real(row[j]).view(numpy.int32)
        ordered = bits ^ ((bits >> numpy.int32(31)) & _SIZE_BITS)
        largest = ordered if ordered > largest else largest
    return numpy.int32(largest ^ ((largest >> numpy.int32(31)) & _SIZE_BITS)).view(real)


@loop
def largest64(row: Any) -> Any:
    """The largest element, by comparing numbers. NaN is never larger: it is the result only if it comes first."""
    largest = row[0]
    for j in range(row.size):
        largest = row[j] if row[j] > largest else largest
    return largest


largest = ByDtype(float32=largest32, float64=largest64)


@loop
def checked_index(index: Any, length: Any) -> Any:
    """Return the position from 0 to length - 1 of an index, as in NumPy. Raises IndexError if out of range."""
    position = index + length if index < 0 else index
    if position < 0 or position >= length:
        raise IndexError("an index is out of bounds: it must be less than the number of rows or classes")
    return position


@loop
def copy_row(x: Any, out: Any) -> None:
    """Copy x (n,) to out (n,). ``out[:] = x`` takes a second longer to compile: Numba would also compile an error's message."""
    for j in range(x.size):
        out[j] = x[j]
