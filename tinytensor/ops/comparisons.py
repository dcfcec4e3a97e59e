"""Comparisons, logical ops and bitwise ops. They have no gradients."""

# Annotations describe what users pass. The function bodies receive arrays.
# mypy: disable-error-code="return-value, union-attr"

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor.autograd.inputs import check_not_negative
from tinytensor.autograd.op import op
from tinytensor.common.arguments import composite
from tinytensor.device.backend import is_array, is_floating, xp
from tinytensor.ops.elementwise import is_number

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "allclose", "bitwise_and", "bitwise_or", "bitwise_xor", "equal", "greater", "greater_equal", "invert", "isclose",
    "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor",
    "not_equal",
]  # fmt: skip


_OF_64_BITS = range(-(2**63), 2**63)


# -------------------------------------------------------------------------------------------------------- comparisons


@op()
def equal(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x == y."""
    return x == y


@op()
def not_equal(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x != y."""
    return x != y


@op()
def less(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x < y."""
    return x < y


@op()
def less_equal(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x <= y."""
    return x <= y


@op()
def greater(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x > y."""
    return x > y


@op()
def greater_equal(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x >= y."""
    return x >= y


def _truth(x: Any) -> Any:
    return bool(x) if is_number(x) else x  # also for an integer too large for any dtype


@op()
def logical_and(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return True where both x and y are nonzero."""
    return xp.logical_and(_truth(x), _truth(y))


@op()
def logical_or(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return True where x or y is nonzero."""
    return xp.logical_or(_truth(x), _truth(y))


@op()
def logical_xor(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return True where exactly one of x and y is nonzero."""
    return xp.logical_xor(_truth(x), _truth(y))


@op()
def logical_not(x: Tensor) -> Tensor:
    """Return True where x is 0 or False."""
    return xp.logical_not(x)


@op()
def isnan(x: Tensor) -> Tensor:
    """Return True where x is NaN."""
    return xp.isnan(x)


@op()
def isfinite(x: Tensor) -> Tensor:
    """Return True where x is neither NaN nor infinite."""
    return xp.isfinite(x)


@op()
def isinf(x: Tensor) -> Tensor:
    """Return True where x is positive or negative infinity."""
    return xp.isinf(x)


@op()
def isclose(x: Tensor | float, y: Tensor | float, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Tensor:
    """Return True where |x - y| <= atol + rtol * |y|. Equal infinities are close; so are two NaNs if ``equal_nan`` is set.

    >>> tt.isclose(tt.tensor([1.0, 2.0]), tt.tensor([1.0, 2.1]))
    tensor([ True, False])
    """
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        check_not_negative(name, tolerance)
    dtype = next((a.dtype for a in (x, y) if is_array(a) and is_floating(a.dtype)), None)
    x, y = [float(a) if type(a) is int and a not in _OF_64_BITS else a for a in (x, y)]  # NumPy would convert them to objects
    x, y = [a if is_array(a) else xp.full((), a, dtype) for a in (x, y)]
    return xp.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan)


@composite
def allclose(x: Tensor | float, y: Tensor | float, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Return True if ``isclose`` is True for all elements."""
    return bool(isclose(x, y, rtol, atol, equal_nan).all())


# ---------------------------------------------------------------------------------------------------------- bitwise


def _bits(x: Any) -> Any:
    if isinstance(x, float) or (not is_number(x) and is_floating(x.dtype)):
        raise TypeError("bitwise ops need integers or booleans: compare floating-point numbers first, as in (x > 0) & (y > 0)")
    return x


@op()
def bitwise_and(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x & y: bitwise for integers, logical for booleans. Raises TypeError for floats."""
    return _bits(x) & _bits(y)


@op()
def bitwise_or(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x | y: bitwise for integers, logical for booleans. Raises TypeError for floats."""
    return _bits(x) | _bits(y)


@op()
def bitwise_xor(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return x ^ y: bitwise for integers, logical for booleans. Raises TypeError for floats."""
    return _bits(x) ^ _bits(y)


@op()
def invert(x: Tensor) -> Tensor:
    """Return ~x: bitwise for integers, logical for booleans. Raises TypeError for floats."""
    return ~_bits(x)
