"""Trigonometric and hyperbolic functions (except ``tanh``), and functions of a point's coordinates.

The gradient rules divide twice by ``hypot`` instead of once by x * x + y * y, which easily overflows or underflows.
"""

# Annotations describe what users pass. The function bodies receive arrays.
# mypy: disable-error-code="return-value"

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.op import op  # compiled.py compiles the functions and rules of these ops without changing their values
from tinytensor.device.backend import xp
from tinytensor.ops.elementwise import _safe_divisor, sqrt, where

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh", "cos", "cosh", "degrees", "hypot", "radians",
    "sin", "sinh", "tan",
]  # fmt: skip

_DEGREES = 180.0 / math.pi  # in one radian


@op(floating=True, x=lambda g, x: g * cos(x))
def sin(x: Tensor) -> Tensor:
    """Return the sine of x in radians."""
    return xp.sin(x)


@op(floating=True, x=lambda g, x: -g * sin(x))
def cos(x: Tensor) -> Tensor:
    """Return the cosine of x in radians."""
    return xp.cos(x)


@op(floating=True, x=lambda g, out: g * (out * out + 1.0))
def tan(x: Tensor) -> Tensor:
    """Return the tangent of x in radians."""
    return xp.tan(x)


@op(floating=True, x=lambda g, x: g / _safe_divisor(g, sqrt(1.0 - x * x)))
def arcsin(x: Tensor) -> Tensor:
    """Return the angle in [-pi/2, pi/2] whose sine is x, or NaN unless -1 <= x <= 1."""
    return xp.arcsin(x)


@op(floating=True, x=lambda g, x: -g / _safe_divisor(g, sqrt(1.0 - x * x)))
def arccos(x: Tensor) -> Tensor:
    """Return the angle in [0, pi] whose cosine is x, or NaN unless -1 <= x <= 1."""
    return xp.arccos(x)


@op(floating=True, x=lambda g, x: g / (x * x + 1.0))
def arctan(x: Tensor) -> Tensor:
    """Return the angle in [-pi/2, pi/2] whose tangent is x."""
    return xp.arctan(x)


@op(floating=True, x=lambda g, x: g * cosh(x))
def sinh(x: Tensor) -> Tensor:
    """Return the hyperbolic sine of x."""
    return xp.sinh(x)


@op(floating=True, x=lambda g, x: g * sinh(x))
def cosh(x: Tensor) -> Tensor:
    """Return the hyperbolic cosine of x."""
    return xp.cosh(x)


def _nonzero(distance: Any) -> Any:
    """Replace 0 by 1, so that gradients at the origin are 0."""
    return where(distance == 0, 1.0, distance)


@op(floating=True, x=lambda g, x, out: g * (x / _nonzero(out)), y=lambda g, y, out: g * (y / _nonzero(out)))
def hypot(x: Tensor | float, y: Tensor | float) -> Tensor:
    """Return sqrt(x*x + y*y), the length of the vector (x, y), without overflow. The gradient at the origin is 0.

    >>> tt.hypot(tt.tensor([3.0, 5.0]), tt.tensor([4.0, 12.0]))
    tensor([ 5., 13.])
    """
    return xp.hypot(x, y)


def _angle_gradient(g: Any, across: Any, y: Any, x: Any) -> Any:
    """Return g * across / (x*x + y*y)."""
    distance = _nonzero(hypot(x, y))
    return g * (across / distance / distance)


@op(floating=True, y=lambda g, y, x: _angle_gradient(g, x, y, x), x=lambda g, y, x: -_angle_gradient(g, y, y, x))
def arctan2(y: Tensor | float, x: Tensor | float) -> Tensor:
    """Return the angle of the point (x, y) in [-pi, pi]: arctan(y / x) in the correct quadrant. y is the first argument.

    The gradients at the origin are 0.

    >>> tt.arctan2(tt.tensor([0.0, 1.0]), tt.tensor([1.0, 0.0]))
    tensor([0.    , 1.5708])
    """
    return xp.arctan2(y, x)


@op(floating=True, x=lambda g: g * _DEGREES)
def degrees(x: Tensor) -> Tensor:
    """Convert x from radians to degrees."""
    return x * _DEGREES


@op(floating=True, x=lambda g: g / _DEGREES)
def radians(x: Tensor) -> Tensor:
    """Convert x from degrees to radians."""
    return x * (1.0 / _DEGREES)


@op(floating=True, x=lambda g, x: g / hypot(x, 1.0))
def arcsinh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine of x."""
    return xp.arcsinh(x)


@op(floating=True, x=lambda g, x: g / _safe_divisor(g, sqrt(x - 1.0) * sqrt(x + 1.0)))
def arccosh(x: Tensor) -> Tensor:
    """Return the nonnegative inverse hyperbolic cosine of x, or NaN unless x >= 1."""
    return xp.arccosh(x)


@op(floating=True, x=lambda g, x: g / _safe_divisor(g, (1.0 - x) * (1.0 + x)))
def arctanh(x: Tensor) -> Tensor:
    """Return the inverse hyperbolic tangent of x: infinite at 1 and -1, NaN beyond."""
    return xp.arctanh(x)
