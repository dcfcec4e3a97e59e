"""Elementwise ops. Each is one line of calculus: the rule above the function is its derivative, as in a textbook.

Operands broadcast as in NumPy; the engine sums a gradient back to its operand's shape, so no rule mentions shapes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.backend import default_dtype, index_dtype, is_floating, xp
from tinytensor.op import op

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor

__all__ = [
    "abs", "add", "allclose", "arccos", "arcsin", "arctan", "bitwise_and", "bitwise_or", "bitwise_xor", "ceil", "clip",
    "copy", "cos", "cosh", "divide", "equal", "erf", "exp", "exp2", "expm1", "floor", "floor_divide", "greater",
    "greater_equal", "invert", "isclose", "isfinite", "isinf", "isnan", "less", "less_equal", "log", "log1p", "log2",
    "log10", "logaddexp", "logical_and", "logical_not", "logical_or", "logical_xor", "masked_fill", "maximum", "minimum",
    "multiply", "negative", "not_equal", "power", "reciprocal", "remainder", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "square", "subtract", "tan", "tanh", "trunc", "where",
]  # fmt: skip


def _is_number(value: Any) -> bool:
    """Whether it is one of Python's numbers. (NumPy's float64, to which arrays without axes turn in rules, is a ``float``.)"""
    return type(value) in (bool, int, float)


def _divisor(g: Any, d: Any) -> Any:
    """d, but 1 where g and d are both 0: so 0/0 is 0, and a branch that ``where`` did not select stays free of NaN."""
    return d if _is_number(d) else where((g == 0) & (d == 0), 1.0, d)


def _none(g: Any) -> Any:
    """The gradient of a step function: 0, for an infinite g too, of which g * 0 would make NaN."""
    return where(g == g, 0.0, g)


def _counted(x: Any) -> Any:
    """Booleans as the integers 0 and 1; all else as it is."""
    return x.astype(index_dtype) if getattr(x, "dtype", None) == "bool" else x


# ------------------------------------------------------------------------------------------------------- arithmetic


@op(x=lambda g: g)
def copy(x: Tensor) -> Tensor:
    """A tensor of its own memory; gradients flow back through it."""
    return x.copy()


@op(x=lambda g: g, y=lambda g: g)
def add(x: Tensor, y: Tensor | float) -> Tensor:
    """x + y."""
    return x + y


@op(x=lambda g: g, y=lambda g: -g)
def subtract(x: Tensor, y: Tensor | float) -> Tensor:
    """x - y."""
    return x - y


@op(x=lambda g, y: g * y, y=lambda g, x: g * x)
def multiply(x: Tensor, y: Tensor | float) -> Tensor:
    """x * y."""
    return x * y


def _divide_by_divisor(g: Any, x: Any, y: Any) -> Any:
    """-g * x / (y * y), without the square, which is soon 0 or infinite."""
    d = _divisor(g, y)
    return -g * (x / d / d)


@op(floating=True, x=lambda g, y: g / _divisor(g, y), y=_divide_by_divisor)
def divide(x: Tensor, y: Tensor | float) -> Tensor:
    """x / y. Integers give float32."""
    return x / y


@op(x=_none, y=_none)
def floor_divide(x: Tensor, y: Tensor | float) -> Tensor:
    """x / y rounded down, as Python's ``//``; its gradient is 0 everywhere. Booleans count as the integers 0 and 1."""
    return _counted(x) // _counted(y)


@op(x=lambda g: g, y=lambda g, x, y: -g * floor_divide(x, y))
def remainder(x: Tensor, y: Tensor | float) -> Tensor:
    """x - (x // y) * y: what is left of x, with the sign of y, as Python's ``%``. Booleans count as the integers 0 and 1."""
    return _counted(x) % _counted(y)


def _power_by_base(g: Any, x: Any, y: Any) -> Any:
    """g * y * x**(y-1), but 0 where a factor 0 meets a power of x that is infinite or NaN: x**0 is 1 for every x."""
    if _is_number(y):
        return g * y * power(x if y >= 1 else _divisor(g, x), y - 1) if y else _none(g)
    vanishes = (y == 0) & ((x == 0) | (x != x)) | (g == 0) & (x == 0)
    return g * y * power(where(vanishes, 1.0, x), y - 1)


def _power_by_exponent(g: Any, x: Any, y: Any, out: Any) -> Any:
    """g * x**y * log(x), but 0 where x is 0 and y is not negative: 0**y does not change with y."""
    if _is_number(x) and x:
        return g * out * (math.log(x) if x > 0 else math.nan)
    return g * out * log(where((x == 0) & (y >= 0), 1.0, x))


@op(x=_power_by_base, y=_power_by_exponent)
def power(x: Tensor, y: Tensor | float) -> Tensor:
    """x ** y. Integers to an integer power stay integers, booleans count as 0 and 1, and a power of floats is one of floats.

    The gradient with respect to y is NaN where x < 0, as x ** y has no real neighbours there.
    """
    return _counted(x) ** _counted(y)


@op(x=lambda g: -g)
def negative(x: Tensor) -> Tensor:
    """-x. Booleans count as the integers 0 and 1."""
    return -_counted(x)


@op(x=lambda g, x: where(x == 0, 0.0, g * sign(x)))
def abs(x: Tensor) -> Tensor:
    """The absolute value; its gradient at 0 is 0."""
    return xp.absolute(x)


@op(x=_none)
def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; its gradient is 0 everywhere. Booleans count as the integers 0 and 1."""
    return xp.sign(_counted(x))


@op(x=lambda g, x: g * x * 2.0)
def square(x: Tensor) -> Tensor:
    """x * x. Booleans count as the integers 0 and 1."""
    return _counted(x) * x


@op(floating=True, x=lambda g, out: g * 0.5 / _divisor(g, out))
def sqrt(x: Tensor) -> Tensor:
    """The square root. Its gradient at 0 is infinite, but 0 where nothing flows back (g = 0): never NaN."""
    return xp.sqrt(x)


def _rsqrt_rule(g: Any, x: Any) -> Any:
    d = _divisor(g, x)
    return g * -0.5 * rsqrt(d) / d


@op(floating=True, x=_rsqrt_rule)
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return 1.0 / xp.sqrt(x)


@op(floating=True, x=lambda g, x: _divide_by_divisor(g, 1.0, x))
def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return 1.0 / x


# ---------------------------------------------------------------------------------------- rounding: gradients of 0


def _rounded(how: Any, x: Any) -> Any:
    """x rounded by a function of the array package; integers, which not every one of these takes, are round already."""
    return how(x) if is_floating(x.dtype) else x.copy()


@op(x=_none)
def floor(x: Tensor) -> Tensor:
    """The largest whole number that is not above x; its gradient is 0 everywhere."""
    return _rounded(xp.floor, x)


@op(x=_none)
def ceil(x: Tensor) -> Tensor:
    """The smallest whole number that is not below x; its gradient is 0 everywhere."""
    return _rounded(xp.ceil, x)


@op(x=_none)
def trunc(x: Tensor) -> Tensor:
    """x without what stands behind the point; its gradient is 0 everywhere."""
    return _rounded(xp.trunc, x)


@op(x=_none)
def round(x: Tensor, decimals: int = 0) -> Tensor:
    """x rounded to ``decimals`` places (negative: to tens, hundreds, ...), halves to the even neighbour; its gradient is 0."""
    return xp.round(x, decimals) if is_floating(x.dtype) or decimals < 0 else x.copy()


# ---------------------------------------------------------------------------------------------------- transcendental


@op(floating=True, x=lambda g, out: g * out)
def exp(x: Tensor) -> Tensor:
    """e ** x."""
    return xp.exp(x)


@op(floating=True, x=lambda g, out: g * (out + 1.0))
def expm1(x: Tensor) -> Tensor:
    """e ** x - 1, exact for small x."""
    return xp.expm1(x)


@op(floating=True, x=lambda g, out: g * out * math.log(2.0))
def exp2(x: Tensor) -> Tensor:
    """2 ** x."""
    return xp.exp2(x)


@op(floating=True, x=lambda g, x: g / _divisor(g, x))
def log(x: Tensor) -> Tensor:
    """The natural logarithm: -inf at 0, NaN below."""
    return xp.log(x)


@op(floating=True, x=lambda g, x: g / _divisor(g, x) * (1.0 / math.log(2.0)))
def log2(x: Tensor) -> Tensor:
    """The logarithm to base 2."""
    return xp.log2(x)


@op(floating=True, x=lambda g, x: g / _divisor(g, x) * (1.0 / math.log(10.0)))
def log10(x: Tensor) -> Tensor:
    """The logarithm to base 10."""
    return xp.log10(x)


@op(floating=True, x=lambda g, x: g / _divisor(g, x + 1.0))
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact for small x."""
    return xp.log1p(x)


@op(floating=True, x=lambda g, x: g * cos(x))
def sin(x: Tensor) -> Tensor:
    """The sine of x in radians."""
    return xp.sin(x)


@op(floating=True, x=lambda g, x: -g * sin(x))
def cos(x: Tensor) -> Tensor:
    """The cosine of x in radians."""
    return xp.cos(x)


@op(floating=True, x=lambda g, out: g * (out * out + 1.0))
def tan(x: Tensor) -> Tensor:
    """The tangent of x in radians."""
    return xp.tan(x)


@op(floating=True, x=lambda g, x: g / _divisor(g, sqrt(1.0 - x * x)))
def arcsin(x: Tensor) -> Tensor:
    """The angle, from -pi/2 to pi/2, whose sine is x; NaN beyond -1 and 1."""
    return xp.arcsin(x)


@op(floating=True, x=lambda g, x: -g / _divisor(g, sqrt(1.0 - x * x)))
def arccos(x: Tensor) -> Tensor:
    """The angle, from 0 to pi, whose cosine is x; NaN beyond -1 and 1."""
    return xp.arccos(x)


@op(floating=True, x=lambda g, x: g / (x * x + 1.0))
def arctan(x: Tensor) -> Tensor:
    """The angle, from -pi/2 to pi/2, whose tangent is x."""
    return xp.arctan(x)


@op(floating=True, x=lambda g, x: g * cosh(x))
def sinh(x: Tensor) -> Tensor:
    """The hyperbolic sine."""
    return xp.sinh(x)


@op(floating=True, x=lambda g, x: g * sinh(x))
def cosh(x: Tensor) -> Tensor:
    """The hyperbolic cosine."""
    return xp.cosh(x)


@op(floating=True, x=lambda g, out: g * (1.0 - out * out))
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return xp.tanh(x)


@op(floating=True, x=lambda g, out: g * out * (1.0 - out))
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e ** -x), without overflow at either end."""
    e = xp.exp(-xp.absolute(x))
    return xp.where(x >= 0, xp.ones_like(e), e) / (1.0 + e)


@op(floating=True, x=lambda g, x: g * exp(-x * x) * (2.0 / math.sqrt(math.pi)))
def erf(x: Tensor) -> Tensor:
    """The error function, 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x."""
    return kernels.erf(x)


def _distance(x: Any, y: Any) -> Any:
    """x - y, but 0 of equal infinities."""
    difference = x - y
    return where((x == y) & (difference != difference), 0.0, difference)


@op(floating=True, x=lambda g, x, y: g * sigmoid(_distance(x, y)), y=lambda g, x, y: g * sigmoid(_distance(y, x)))
def logaddexp(x: Tensor, y: Tensor | float) -> Tensor:
    """log(exp(x) + exp(y)), without overflow."""
    return xp.logaddexp(x, y)


# ---------------------------------------------------------------------------------------------------------- choosing


@op(x=lambda g, condition: where(condition, g, 0.0), y=lambda g, condition: where(condition, 0.0, g))
def where(condition: Any, x: Tensor | float, y: Tensor | float) -> Tensor:
    """x where ``condition`` (boolean) is true, else y. A branch that is not selected gets the gradient 0."""
    if x is None or y is None:
        raise TypeError(
            "x and y are missing: x[condition] has the elements where it holds, numpy.nonzero(c.numpy()) their places"
        )
    if _is_number(x) and _is_number(y) and float in (type(x), type(y)):  # of Python numbers alone NumPy would make float64
        x = xp.asarray(x, default_dtype)
    return kernels.where(condition, x, y)


def _chosen(g: Any, loses: Any, ties: Any) -> Any:
    """The gradient of a choice: g, half of it for a tie, 0 for what loses. NaN does neither, as in PyTorch."""
    return where(loses, 0.0, where(ties, 0.5 * g, g))


@op(x=lambda g, x, y: _chosen(g, x < y, x == y), y=lambda g, x, y: _chosen(g, y < x, x == y))
def maximum(x: Tensor, y: Tensor | float) -> Tensor:
    """The larger of x and y; a tie shares the gradient equally. Where one is NaN the result is, and both get the gradient."""
    return xp.maximum(x, y)


@op(x=lambda g, x, y: _chosen(g, x > y, x == y), y=lambda g, x, y: _chosen(g, y > x, x == y))
def minimum(x: Tensor, y: Tensor | float) -> Tensor:
    """The smaller of x and y; a tie shares the gradient equally. Where one is NaN the result is, and both get the gradient."""
    return xp.minimum(x, y)


def _inside(x: Any, min: Any, max: Any) -> Any:
    if min is None or max is None:
        return x <= max if min is None else x >= min
    return (x >= min) & (x <= max)


def _below(x: Any, min: Any, max: Any) -> Any:
    return x < min if max is None else (x < min) & (min < max)


def _above(x: Any, min: Any, max: Any) -> Any:
    return x > max if min is None else (x > max) | (max < min)


@op(
    x=lambda g, x, min, max: where(_inside(x, min, max), g, 0.0),
    min=lambda g, x, min, max: where(_below(x, min, max), g, 0.0),
    max=lambda g, x, min, max: where(_above(x, min, max), g, 0.0),
)
def clip(x: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """x held between ``min`` and ``max``: numbers or tensors that broadcast to x, either may be None.

    The gradient passes to x inside, ends included, and outside to the bound, if that is a tensor. Where max < min the result
    is max.
    """
    if min is None and max is None:
        raise ValueError("give min, max or both")
    return xp.clip(x, min, max)


def masked_fill(x: Tensor, mask: Any, value: float) -> Tensor:
    """x with ``value`` where the boolean ``mask`` is true."""
    return where(mask, value, x)


# ------------------------------------------------------------------------------------- comparisons: boolean, no gradient


@op()
def equal(x: Any, y: Any) -> Tensor:
    """x == y, elementwise."""
    return x == y


@op()
def not_equal(x: Any, y: Any) -> Tensor:
    """x != y, elementwise."""
    return x != y


@op()
def less(x: Any, y: Any) -> Tensor:
    """x < y, elementwise."""
    return x < y


@op()
def less_equal(x: Any, y: Any) -> Tensor:
    """x <= y, elementwise."""
    return x <= y


@op()
def greater(x: Any, y: Any) -> Tensor:
    """x > y, elementwise."""
    return x > y


@op()
def greater_equal(x: Any, y: Any) -> Tensor:
    """x >= y, elementwise."""
    return x >= y


@op()
def logical_and(x: Any, y: Any) -> Tensor:
    """True where both are true (not 0)."""
    return xp.logical_and(x, y)


@op()
def logical_or(x: Any, y: Any) -> Tensor:
    """True where either is true (not 0)."""
    return xp.logical_or(x, y)


@op()
def logical_xor(x: Any, y: Any) -> Tensor:
    """True where exactly one is true (not 0)."""
    return xp.logical_xor(x, y)


@op()
def logical_not(x: Any) -> Tensor:
    """True where x is false (0)."""
    return xp.logical_not(x)


@op()
def isnan(x: Any) -> Tensor:
    """True where x is NaN."""
    return xp.isnan(x)


@op()
def isfinite(x: Any) -> Tensor:
    """True where x is neither NaN nor infinite."""
    return xp.isfinite(x)


@op()
def isinf(x: Any) -> Tensor:
    """True where x is infinite, of either sign."""
    return xp.isinf(x)


@op()
def isclose(x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """True where |x - y| <= atol + rtol * |y|, or both are the same infinity, or with ``equal_nan`` both are NaN."""
    return xp.isclose(xp.asarray(x), xp.asarray(y), rtol=rtol, atol=atol, equal_nan=equal_nan)


def allclose(x: Any, y: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether ``isclose`` is true of all elements."""
    return bool(isclose(x, y, rtol, atol, equal_nan).all())


# ---------------------------------------------------------------------- bits: of integers, and for booleans the logic of each


def _bits(x: Any) -> Any:
    if isinstance(x, float) or (not _is_number(x) and is_floating(x.dtype)):
        raise TypeError("floating-point numbers have no bits to combine: compare first, as in (x > 0) & (y > 0)")
    return x


@op()
def bitwise_and(x: Any, y: Any) -> Tensor:
    """x & y: bit by bit of integers, logical of booleans. Raises TypeError for floating-point numbers."""
    return _bits(x) & _bits(y)


@op()
def bitwise_or(x: Any, y: Any) -> Tensor:
    """x | y: bit by bit of integers, logical of booleans. Raises TypeError for floating-point numbers."""
    return _bits(x) | _bits(y)


@op()
def bitwise_xor(x: Any, y: Any) -> Tensor:
    """x ^ y: bit by bit of integers, logical of booleans. Raises TypeError for floating-point numbers."""
    return _bits(x) ^ _bits(y)


@op()
def invert(x: Any) -> Tensor:
    """~x: every bit of integers turned over, logical not of booleans. Raises TypeError for floating-point numbers."""
    return ~_bits(x)
