"""Elementwise arithmetic. The derivative stands above each function, usually as one line that reads like a textbook.

Operands broadcast as in NumPy. The engine sums each gradient to the shape of its operand, so no rule mentions shapes.

See also comparisons.py, activations.py and angles.py. ``tanh`` and ``sigmoid`` are here because other rules use them.
"""

# Annotations describe what users pass. The function bodies receive arrays.
# mypy: disable-error-code="return-value, union-attr"

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from tinytensor import kernels
from tinytensor.autograd.inputs import check_divisor, check_fits
from tinytensor.autograd.op import op  # compiled.py compiles the functions and rules of these ops without changing their values
from tinytensor.common.arguments import composite
from tinytensor.device.backend import DType, default_dtype, host, index_dtype, is_floating, xp

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

Mask = Any  # a tensor, array or list of booleans, or a single one

__all__ = [
    "abs", "add", "astype", "ceil", "clip", "copy", "divide", "erf", "exp", "exp2",
    "expm1", "floor", "floor_divide", "log", "log1p", "log2", "log10", "logaddexp", "masked_fill", "maximum", "minimum",
    "multiply", "negative", "power", "reciprocal", "remainder", "round", "rsqrt", "sigmoid", "sign", "sqrt",
    "square", "subtract", "tanh", "trunc", "where",
]  # fmt: skip


def is_number(value: Any) -> bool:
    """Return True for a Python number. (isinstance would also accept np.float64, the type of 0-d NumPy results.)"""
    return type(value) in (bool, int, float)


def _safe_divisor(g: Any, d: Any) -> Any:
    """Return d, or 1 where g and d are both 0, to avoid NaN from 0/0 in branches that ``where`` did not select."""
    return d if is_number(d) else where((g == 0) & (d == 0), 1.0, d)


def _zero_gradient(g: Any) -> Any:
    """Return the gradient of a step function: 0, or NaN where g is NaN. (g * 0 would be NaN for an infinite g.)"""
    return where(g == g, 0.0, g)


def _booleans_as_integers(x: Any) -> Any:
    return x.astype(index_dtype) if getattr(x, "dtype", None) == "bool" else x


# ------------------------------------------------------------------------------------------------------- arithmetic


@op(x=lambda g: g)
def copy(x: Tensor) -> Tensor:
    """Return a copy with its own memory. Gradients flow through it."""
    return x.copy()


@op(x=lambda g: g, y=lambda g: g)
def add(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Add x and y."""
    return x + y


@op(x=lambda g: g, y=lambda g: -g)
def subtract(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Subtract y from x."""
    return x - y


@op(x=lambda g, y: g * y, y=lambda g, x: g * x)
def multiply(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Multiply x by y."""
    return x * y


def _divide_gradient_of_divisor(g: Any, x: Any, y: Any) -> Any:
    """Return -g * x / (y * y) without computing y * y, which easily underflows or overflows."""
    d = _safe_divisor(g, y)
    return -g * (x / d / d)


@op(floating=True, x=lambda g, y: g / _safe_divisor(g, y), y=_divide_gradient_of_divisor)
def divide(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Divide x by y. Integers give float32."""
    return x / y


@op(x=_zero_gradient, y=_zero_gradient)
def floor_divide(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Divide x by y and round down, like Python's ``//``. The gradient is 0. Booleans are treated as 0 and 1.

    Raises ZeroDivisionError if an integer is divided by 0. On a GPU this is not checked, and the result is 0.
    """
    check_divisor(x, y)
    return _booleans_as_integers(x) // _booleans_as_integers(y)


@op(x=lambda g: g, y=lambda g, x, y: -g * floor_divide(x, y))
def remainder(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return the remainder x - (x // y) * y, with the sign of y, like Python's ``%``. Raises the errors of ``floor_divide``."""
    check_divisor(x, y)
    return _booleans_as_integers(x) % _booleans_as_integers(y)


def _power_gradient_of_base(g: Any, x: Any, y: Any) -> Any:
    """Return g * y * x**(y-1), but 0 where a factor is 0 and the power of x is infinite or NaN (x**0 is 1 for every x)."""
    if is_number(y):
        return g * y * power(x if y >= 1 else _safe_divisor(g, x), y - 1) if y else _zero_gradient(g)
    vanishes = (y == 0) & ((x == 0) | (x != x)) | (g == 0) & (x == 0)
    return g * y * power(where(vanishes, 1.0, x), y - 1)


def _power_gradient_of_exponent(g: Any, x: Any, y: Any, out: Any) -> Any:
    """Return g * x**y * log(x), but 0 where x is 0 and y is not negative, since 0**y does not depend on y there."""
    if is_number(x) and x:
        return g * out * (math.log(x) if x > 0 else math.nan)
    return g * out * log(where((x == 0) & (y >= 0), 1.0, x))


@op(x=_power_gradient_of_base, y=_power_gradient_of_exponent)
def power(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x ** y. Integers to integer powers stay integers. Other results are floating-point. Booleans count as 0 and 1.

    The gradient with respect to y is NaN where x < 0, because x ** y is real only for some y there.
    """
    x, y = _booleans_as_integers(x), _booleans_as_integers(y)
    if is_number(y) and xp is host and is_floating(x.dtype) and y not in (-1, 0, 0.5, 1, 2):
        return x * x * x if y == 3 else x ** xp.full_like(x, y)  # NumPy is faster with an array
    return x**y


@op(x=lambda g: -g)
def negative(x: Tensor) -> Tensor:
    """Return -x. Booleans are treated as 0 and 1."""
    return -_booleans_as_integers(x)


@op(x=lambda g, x: where(x == 0, 0.0, g * sign(x)))
def abs(x: Tensor) -> Tensor:
    """Return the absolute value of x. The gradient at 0 is 0."""
    return xp.absolute(x)


@op(x=_zero_gradient)
def sign(x: Tensor) -> Tensor:
    """Return the sign of x: -1, 0 or 1. The gradient is 0. Booleans are treated as 0 and 1."""
    return xp.sign(_booleans_as_integers(x))


@op(x=lambda g, x: g * x * 2.0)
def square(x: Tensor) -> Tensor:
    """Return x * x. Booleans are treated as 0 and 1."""
    return _booleans_as_integers(x) * x


@op(floating=True, x=lambda g, out: g * 0.5 / _safe_divisor(g, out))
def sqrt(x: Tensor) -> Tensor:
    """Return the square root of x. The gradient at 0 is infinite, or 0 if the incoming gradient is 0."""
    return xp.sqrt(x)


def _rsqrt_gradient(g: Any, x: Any) -> Any:
    d = _safe_divisor(g, x)
    return g * -0.5 * rsqrt(d) / d


@op(floating=True, x=_rsqrt_gradient)
def rsqrt(x: Tensor) -> Tensor:
    """Return 1 / sqrt(x)."""
    return 1.0 / xp.sqrt(x)


@op(floating=True, x=lambda g, x: _divide_gradient_of_divisor(g, 1.0, x))
def reciprocal(x: Tensor) -> Tensor:
    """Return 1 / x."""
    return 1.0 / x


# ---------------------------------------------------------------------------------------- rounding: gradients of 0


def _rounded(function: Any, x: Any) -> Any:
    """Round x with a function of the array package. Integers are copied, because not every such function accepts them."""
    return function(x) if is_floating(x.dtype) else x.copy()


@op(x=_zero_gradient)
def floor(x: Tensor) -> Tensor:
    """Round down to an integer. The gradient is 0."""
    return _rounded(xp.floor, x)


@op(x=_zero_gradient)
def ceil(x: Tensor) -> Tensor:
    """Round up to an integer. The gradient is 0."""
    return _rounded(xp.ceil, x)


@op(x=_zero_gradient)
def trunc(x: Tensor) -> Tensor:
    """Remove the fractional part. The gradient is 0."""
    return _rounded(xp.trunc, x)


@op(x=_zero_gradient)
def round(x: Tensor, decimals: int = 0) -> Tensor:
    """Round to ``decimals`` decimals (negative: to tens, hundreds, ...), halves to the even neighbor. The gradient is 0.

    >>> tt.round(tt.tensor([0.5, 1.5, 2.5]))
    tensor([0., 2., 2.])
    """
    return xp.round(x, decimals) if is_floating(x.dtype) or decimals < 0 else x.copy()


# ---------------------------------------------------------------------------------------------------- transcendental


@op(floating=True, x=lambda g, out: g * out)
def exp(x: Tensor) -> Tensor:
    """Return e ** x."""
    return xp.exp(x)


@op(floating=True, x=lambda g, out: g * (out + 1.0))
def expm1(x: Tensor) -> Tensor:
    """Return e ** x - 1, accurate even for small x."""
    return xp.expm1(x)


@op(floating=True, x=lambda g, out: g * out * math.log(2.0))
def exp2(x: Tensor) -> Tensor:
    """Return 2 ** x."""
    return xp.exp2(x)


@op(floating=True, x=lambda g, x: g / _safe_divisor(g, x))
def log(x: Tensor) -> Tensor:
    """Return the natural logarithm of x: -inf at 0, NaN for negative x."""
    return xp.log(x)


@op(floating=True, x=lambda g, x: g / _safe_divisor(g, x) * (1.0 / math.log(2.0)))
def log2(x: Tensor) -> Tensor:
    """Return the base-2 logarithm of x."""
    return xp.log2(x)


@op(floating=True, x=lambda g, x: g / _safe_divisor(g, x) * (1.0 / math.log(10.0)))
def log10(x: Tensor) -> Tensor:
    """Return the base-10 logarithm of x."""
    return xp.log10(x)


@op(floating=True, x=lambda g, x: g / _safe_divisor(g, x + 1.0))
def log1p(x: Tensor) -> Tensor:
    """Return log(1 + x), accurate even for small x."""
    return xp.log1p(x)


@op(floating=True, x=lambda g, out: g * (1.0 - out * out))
def tanh(x: Tensor) -> Tensor:
    """Return the hyperbolic tangent of x."""
    return xp.tanh(x)


@op(floating=True, x=lambda g, out: g * out * (1.0 - out))
def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + e ** -x), without overflow."""
    return kernels.sigmoid(x)


@op(floating=True, x=lambda g, x: g * exp(-x * x) * (2.0 / math.sqrt(math.pi)))
def erf(x: Tensor) -> Tensor:
    """Return the error function of x: 2/sqrt(pi) times the integral of exp(-t*t) from 0 to x."""
    return kernels.erf(x)


def _difference(x: Any, y: Any) -> Any:
    """Return x - y, or 0 for two equal infinities."""
    difference = x - y
    return where((x == y) & (difference != difference), 0.0, difference)


@op(floating=True, x=lambda g, x, y: g * sigmoid(_difference(x, y)), y=lambda g, x, y: g * sigmoid(_difference(y, x)))
def logaddexp(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return log(exp(x) + exp(y)), without overflow."""
    return xp.logaddexp(x, y)


# ---------------------------------------------------------------------------------------------------------- choosing


@op(x=lambda g, condition: where(condition, g, 0.0), y=lambda g, condition: where(condition, 0.0, g))
def where(condition: Mask, x: Tensor | float | None, y: Tensor | float | None) -> Tensor:
    """Return x where the boolean ``condition`` is true, else y. All three broadcast. Unselected elements have gradient 0.

    >>> x = tt.tensor([-1.0, 2.0, -3.0])
    >>> tt.where(x > 0, x, 0.0)
    tensor([0., 2., 0.])
    """
    if x is None or y is None:
        raise TypeError(
            "x and y are missing: x[condition] gives the elements where it is true, numpy.nonzero(c.numpy()) their indices"
        )
    if is_number(x) and is_number(y):
        if float in (type(x), type(y)):  # NumPy would convert two Python numbers to float64
            x = xp.full((), x, default_dtype)
        elif int in (type(x), type(y)):
            x = xp.full((), x, index_dtype)
    if type(x) is int or type(y) is int:
        number, dtype = (x, getattr(y, "dtype", None)) if type(x) is int else (y, getattr(x, "dtype", None))
        if dtype is not None:
            check_fits(cast(int, number), dtype)
    return kernels.where(condition, x, y)


def _choice_gradient(g: Any, loses: Any, ties: Any) -> Any:
    """Return 0 for the operand that loses, g / 2 for a tie, else g. If one operand is NaN, both get g, as in PyTorch."""
    return where(loses, 0.0, where(ties, 0.5 * g, g))


@op(x=lambda g, x, y: _choice_gradient(g, x < y, x == y), y=lambda g, x, y: _choice_gradient(g, y < x, x == y))
def maximum(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return the larger of x and y. Ties split the gradient equally. NaN wins, and both operands get the full gradient.

    >>> tt.maximum(tt.tensor([1.0, 5.0]), 3.0)
    tensor([3., 5.])
    """
    return xp.maximum(x, y)


@op(x=lambda g, x, y: _choice_gradient(g, x > y, x == y), y=lambda g, x, y: _choice_gradient(g, y > x, x == y))
def minimum(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return the smaller of x and y. Ties split the gradient equally. NaN wins, and both operands get the full gradient."""
    return xp.minimum(x, y)


def _is_inside(x: Any, min: Any, max: Any) -> Any:
    if min is None or max is None:
        return x <= max if min is None else x >= min
    return (x >= min) & (x <= max)


def _is_below(x: Any, min: Any, max: Any) -> Any:
    return x < min if max is None else (x < min) & (min < max)


def _is_above(x: Any, min: Any, max: Any) -> Any:
    return x > max if min is None else (x > max) | (max < min)


@op(
    x=lambda g, x, min, max: where(_is_inside(x, min, max), g, 0.0),
    min=lambda g, x, min, max: where(_is_below(x, min, max), g, 0.0),
    max=lambda g, x, min, max: where(_is_above(x, min, max), g, 0.0),
)
def clip(x: Tensor, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
    """Clip x to the range from ``min`` to ``max``. Bounds are numbers or tensors that broadcast to x; one may be None.

    The gradient goes to x inside the range (ends included), and to the bound outside. Where max < min, the result is max.

    >>> tt.clip(tt.tensor([-2.0, 0.5, 3.0]), 0.0, 1.0)
    tensor([0. , 0.5, 1. ])
    """
    if min is None and max is None:
        raise ValueError("give min, max or both")
    return xp.clip(x, min, max)


@composite
def masked_fill(x: Tensor, mask: Mask, value: Tensor | float) -> Tensor:
    """Replace the elements of x where the boolean ``mask`` is True with ``value``.

    >>> x = tt.tensor([1.0, 2.0, 3.0])
    >>> tt.masked_fill(x, x == 2, -1.0)
    tensor([ 1., -1.,  3.])
    """
    return where(mask, value, x)


# --------------------------------------------------------------------------------------------------------- conversion


@op(x=lambda g: g)
def astype(x: Tensor, dtype: DType) -> Tensor:
    """Convert x to ``dtype``. The gradient has the dtype of x. No gradient flows through integers or booleans."""
    return x.astype(dtype)
