"""Running sums, products and extremes along an axis, and helpers for products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor.autograd.op import op
from tinytensor.common.arguments import composite
from tinytensor.device.backend import default_dtype, host, wide, xp
from tinytensor.device.summation import running_sum
from tinytensor.ops.elementwise import astype, power
from tinytensor.ops.indexing import take_along_axis
from tinytensor.ops.shapes import concatenate, flip, normalize_axis, reshape, split

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["cummax", "cummin", "cumprod", "cumsum"]


@op(x=lambda g, axis: flip(_cumsum(flip(g, axis), axis), axis))
def _cumsum(x: Any, axis: int) -> Tensor:
    return running_sum(x, axis)


def _with_axis(x: Tensor, axis: int | None, name: str) -> tuple[Tensor, int]:
    """Return x and a nonnegative axis. If the axis is None or x is 0-d, x is flattened."""
    if axis is None or x.ndim == 0:
        return reshape(x, -1), 0 if axis is None else normalize_axis(axis, 1, name)
    return x, normalize_axis(axis, x.ndim, name)


@composite
def cumsum(x: Tensor, axis: int | None = None) -> Tensor:
    """Return the running sum along ``axis`` (None: flattened).

    >>> tt.cumsum(tt.tensor([1, 2, 3]))
    tensor([1, 3, 6])
    """
    return _cumsum(*_with_axis(x, axis, "cumsum: axis"))


def in_dtype_of_products(x: Tensor) -> tuple[Tensor, Any]:
    """Convert x to the dtype in which products are computed. Also return the dtype of the result.

    Half-precision products are computed in float32, and integer products in 64 bits.
    """
    if x.dtype.kind in "biu":
        dtype: Any = "uint64" if x.dtype.kind == "u" else "int64"
        return astype(x, dtype), dtype
    return (astype(x, default_dtype) if wide(x.dtype) is not None else x), x.dtype


def products_before(x: Any, axis: int) -> Any:
    """Return, for each element, the product of all earlier elements (1 for the first)."""
    first = split(x, [1], axis)[0]
    return _cumprod(concatenate([power(first, 0), split(x, [-1], axis)[0]], axis), axis)


def _cumprod_gradient(g: Any, x: Any, axis: int) -> Any:
    """Return the product before each element times s, where s = g + next x * next s. No element is a divisor.

    Each step doubles the number of later elements that s includes. ``factor`` is the product of as many next x.
    """
    s, length, step = g, x.shape[axis], 1
    factor = split(x, [1], axis)[1]
    while step < length:
        head, tail = split(s, [length - step], axis)
        s = concatenate([head + factor * split(s, [step], axis)[1], tail], axis)
        if 2 * step < length:
            factor = split(factor, [-step], axis)[0] * split(factor, [step], axis)[1]
        step *= 2
    return products_before(x, axis) * s


@op(x=_cumprod_gradient)
def _cumprod(x: Any, axis: int) -> Any:
    return xp.cumprod(x, axis=axis)


@composite
def cumprod(x: Tensor, axis: int | None = None) -> Tensor:
    """Return the running product along ``axis`` (None: flattened). The gradient is exact even where elements are 0."""
    x, axis = _with_axis(x, axis, "cumprod: axis")
    out, dtype = in_dtype_of_products(x)
    out = _cumprod(out, axis)
    return out if out.dtype == dtype else astype(out, dtype)


@op()
def _running_best(x: Any, axis: int, smallest: bool) -> Tensor:
    """Return the index of the largest (or smallest) element so far along ``axis``, the last in a tie. NaN counts as both."""
    if xp is host:
        best = (xp.minimum if smallest else xp.maximum).accumulate(x, axis=axis)
        indices = xp.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        return xp.maximum.accumulate(xp.where((x == best) | (x != x), indices, 0), axis=axis)
    x = xp.moveaxis(x, axis, -1)
    indices = xp.broadcast_to(xp.arange(x.shape[-1]), x.shape)
    step = 1
    while step < x.shape[-1]:
        earlier, later = x[..., :-step], x[..., step:]
        better = earlier < later if smallest else earlier > later
        better = (better | (earlier != earlier)) & (later == later)
        best = xp.where(better, indices[..., :-step], indices[..., step:])
        x = xp.concatenate([x[..., :step], xp.where(better, earlier, later)], -1)
        indices = xp.concatenate([indices[..., :step], best], -1)
        step *= 2
    return xp.moveaxis(indices, -1, axis)


@composite
def cummax(x: Tensor, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the running maximum along ``axis`` (None: flattened) and its index (the last one in a tie).

    >>> values, indices = tt.cummax(tt.tensor([1, 3, 2, 5]))
    >>> values, indices
    (tensor([1, 3, 3, 5]), tensor([0, 1, 1, 3]))
    """
    x, axis = _with_axis(x, axis, "cummax: axis")
    indices = _running_best(x, axis, False)
    return take_along_axis(x, indices, axis), indices


@composite
def cummin(x: Tensor, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the running minimum along ``axis`` (None: flattened) and its index (the last one in a tie)."""
    x, axis = _with_axis(x, axis, "cummin: axis")
    indices = _running_best(x, axis, True)
    return take_along_axis(x, indices, axis), indices
