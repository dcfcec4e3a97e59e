"""Elementwise ops. Each is one line of calculus: the rule above the function is its derivative, as in a textbook.

Operands broadcast as in NumPy; the engine sums a gradient back to its operand's shape, so no rule mentions shapes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.backend import xp
from tinytensor.op import op

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _divisor(g: Any, d: Any) -> Any:
    """d, but 1 where g and d are both 0: so 0/0 is 0, and a branch that ``where`` did not select stays free of NaN."""
    return d if _is_number(d) else where((g == 0) & (d == 0), 1.0, d)


# ------------------------------------------------------------------------------------------------------- arithmetic


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


@op(x=lambda g, y: g / _divisor(g, y), y=lambda g, x, y: -g * x / _divisor(g, y * y))
def divide(x: Tensor, y: Tensor | float) -> Tensor:
    """x / y. Integers give float32."""
    return x / y


def _one_less(y: Any) -> Any:
    """y - 1, but 1 where y is 0: the factor y makes the derivative of x**0 vanish, where 0 * x**-1 would be NaN at 0."""
    if _is_number(y):
        return y - 1 if y else 1
    return where(y == 0, 1.0, y - 1)


def _log_or_zero(x: Any) -> Any:
    """log(x), but 0 where x is 0: 0**y does not change with y."""
    if _is_number(x):
        return math.log(x) if x > 0 else 0.0 if x == 0 else math.nan
    return log(where(x == 0, 1.0, x))


@op(
    x=lambda g, x, y: g * y * power(x, _one_less(y)),
    y=lambda g, x, out: g * out * _log_or_zero(x),
)
def power(x: Tensor, y: Tensor | float) -> Tensor:
    """x ** y. The gradient with respect to y is NaN where x < 0, as x ** y has no real neighbours there."""
    return x**y


@op(x=lambda g: -g)
def negative(x: Tensor) -> Tensor:
    """-x."""
    return -x


@op(x=lambda g, x: g * sign(x))
def abs(x: Tensor) -> Tensor:
    """The absolute value; its gradient at 0 is 0."""
    return xp.absolute(x)


@op(x=lambda g: g * 0.0)
def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1; its gradient is 0 everywhere."""
    return xp.sign(x)


@op(x=lambda g, x: g * x * 2.0)
def square(x: Tensor) -> Tensor:
    """x * x."""
    return x * x


@op(x=lambda g, out: g * 0.5 / _divisor(g, out))
def sqrt(x: Tensor) -> Tensor:
    """The square root. Its gradient at 0 is infinite, but 0 where nothing flows back (g = 0): never NaN."""
    return xp.sqrt(x)


@op(x=lambda g, x, out: g * -0.5 * out / _divisor(g, x))
def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return 1.0 / xp.sqrt(x)


@op(x=lambda g, x: -g / _divisor(g, x * x))
def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return 1.0 / x


# ---------------------------------------------------------------------------------------------------- transcendental


@op(x=lambda g, out: g * out)
def exp(x: Tensor) -> Tensor:
    """e ** x."""
    return xp.exp(x)


@op(x=lambda g, out: g * (out + 1.0))
def expm1(x: Tensor) -> Tensor:
    """e ** x - 1, exact for small x."""
    return xp.expm1(x)


@op(x=lambda g, x: g / _divisor(g, x))
def log(x: Tensor) -> Tensor:
    """The natural logarithm: -inf at 0, NaN below."""
    return xp.log(x)


@op(x=lambda g, x: g / _divisor(g, x + 1.0))
def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact for small x."""
    return xp.log1p(x)


@op(x=lambda g, x: g * cos(x))
def sin(x: Tensor) -> Tensor:
    """The sine of x in radians."""
    return xp.sin(x)


@op(x=lambda g, x: -g * sin(x))
def cos(x: Tensor) -> Tensor:
    """The cosine of x in radians."""
    return xp.cos(x)


@op(x=lambda g, out: g * (1.0 - out * out))
def tanh(x: Tensor) -> Tensor:
    """The hyperbolic tangent."""
    return xp.tanh(x)


@op(x=lambda g, out: g * out * (1.0 - out))
def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e ** -x), without overflow at either end."""
    e = xp.exp(-xp.absolute(x))
    return xp.where(x >= 0, xp.ones_like(e), e) / (1.0 + e)


@op(x=lambda g, x: g * exp(-x * x) * (2.0 / math.sqrt(math.pi)))
def erf(x: Tensor) -> Tensor:
    """The error function, 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x."""
    return kernels.erf(x)


# ---------------------------------------------------------------------------------------------------------- choosing


@op(x=lambda g, condition: where(condition, g, 0.0), y=lambda g, condition: where(condition, 0.0, g))
def where(condition: Any, x: Tensor | float, y: Tensor | float) -> Tensor:
    """x where ``condition`` (boolean) is true, else y. A branch that is not selected gets the gradient 0."""
    return xp.where(condition, x, y)


@op(
    x=lambda g, x, y: where(x > y, g, where(x == y, 0.5 * g, 0.0)),
    y=lambda g, x, y: where(y > x, g, where(x == y, 0.5 * g, 0.0)),
)
def maximum(x: Tensor, y: Tensor | float) -> Tensor:
    """The larger of x and y; a tie shares the gradient equally."""
    return xp.maximum(x, y)


@op(
    x=lambda g, x, y: where(x < y, g, where(x == y, 0.5 * g, 0.0)),
    y=lambda g, x, y: where(y < x, g, where(x == y, 0.5 * g, 0.0)),
)
def minimum(x: Tensor, y: Tensor | float) -> Tensor:
    """The smaller of x and y; a tie shares the gradient equally."""
    return xp.minimum(x, y)


def _inside(x: Any, min: float | None, max: float | None) -> Any:
    if min is None or max is None:
        return x <= max if min is None else x >= min
    return (x >= min) & (x <= max)


@op(x=lambda g, x, min, max: where(_inside(x, min, max), g, 0.0))
def clip(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """x held between the numbers ``min`` and ``max`` (either may be None); the gradient passes inside, ends included."""
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
