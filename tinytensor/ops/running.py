"""Running sums, products and extremes along an axis, and what products of many elements need."""

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
    """x, and the axis of a running sum as a non-negative number. Without an axis, and for a 0-d x, x is flattened."""
    if axis is None or x.ndim == 0:
        return reshape(x, -1), 0 if axis is None else normalize_axis(axis, 1, name)
    return x, normalize_axis(axis, x.ndim, name)


@composite
def cumsum(x: Tensor, axis: int | None = None) -> Tensor:
    """The running sum along ``axis`` (None: of the flattened x).

    >>> tt.cumsum(tt.tensor([1, 2, 3]))
    tensor([1, 3, 6])
    """
    return _cumsum(*_with_axis(x, axis, "cumsum: axis"))


def in_dtype_of_products(x: Tensor) -> tuple[Tensor, Any]:
    """x in the dtype in which its products are computed, and the dtype of the result.

    Half precision is computed in float32. Integers are computed in 64 bits, as in sums, because products grow fast.
    """
    if x.dtype.kind in "biu":
        dtype: Any = "uint64" if x.dtype.kind == "u" else "int64"
        return astype(x, dtype), dtype
    return (astype(x, default_dtype) if wide(x.dtype) is not None else x), x.dtype


def products_before(x: Any, axis: int) -> Any:
    """For each element the product of those before it; 1 for the first."""
    first = split(x, [1], axis)[0]
    return _cumprod(concatenate([power(first, 0), split(x, [-1], axis)[0]], axis), axis)


def _cumprod_gradient(g: Any, x: Any, axis: int) -> Any:
    """The products before an element times s, where s = g + next x * next s. Nothing is divided by an element.

    Step by step, s contains what comes from the next 1, 2, 4, ... places, and ``factor`` is the product of so many next x.
    """
    s, length, step = g, x.shape[axis], 1
    factor = split(x, [1], axis)[1]
    while step < length:
        near, rest = split(s, [length - step], axis)
        s = concatenate([near + factor * split(s, [step], axis)[1], rest], axis)
        if 2 * step < length:
            factor = split(factor, [-step], axis)[0] * split(factor, [step], axis)[1]
        step *= 2
    return products_before(x, axis) * s


@op(x=_cumprod_gradient)
def _cumprod(x: Any, axis: int) -> Any:
    return xp.cumprod(x, axis=axis)


@composite
def cumprod(x: Tensor, axis: int | None = None) -> Tensor:
    """The running product along ``axis`` (None: of the flattened x). The gradient is right even where elements are 0."""
    x, axis = _with_axis(x, axis, "cumprod: axis")
    out, dtype = in_dtype_of_products(x)
    out = _cumprod(out, axis)
    return out if out.dtype == dtype else astype(out, dtype)


@op()
def _running_best(x: Any, axis: int, smallest: bool) -> Tensor:
    """The index along ``axis`` of the largest (or smallest) element so far, the last of equal ones. NaN counts as both."""
    if xp is host:
        best = (xp.minimum if smallest else xp.maximum).accumulate(x, axis=axis)
        places = xp.arange(x.shape[axis]).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
        return xp.maximum.accumulate(xp.where((x == best) | (x != x), places, 0), axis=axis)
    x = xp.moveaxis(x, axis, -1)
    places = xp.broadcast_to(xp.arange(x.shape[-1]), x.shape)
    step = 1
    while step < x.shape[-1]:
        earlier, later = x[..., :-step], x[..., step:]
        better = earlier < later if smallest else earlier > later
        better = (better | (earlier != earlier)) & (later == later)
        best = xp.where(better, places[..., :-step], places[..., step:])
        x = xp.concatenate([x[..., :step], xp.where(better, earlier, later)], -1)
        places = xp.concatenate([places[..., :step], best], -1)
        step *= 2
    return xp.moveaxis(places, -1, axis)


@composite
def cummax(x: Tensor, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """The largest element so far along ``axis`` (None: in the flattened x), and its index: the last of equal elements.

    >>> values, places = tt.cummax(tt.tensor([1, 3, 2, 5]))
    >>> values, places
    (tensor([1, 3, 3, 5]), tensor([0, 1, 1, 3]))
    """
    x, axis = _with_axis(x, axis, "cummax: axis")
    places = _running_best(x, axis, False)
    return take_along_axis(x, places, axis), places


@composite
def cummin(x: Tensor, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """The smallest element so far along ``axis`` (None: in the flattened x), and its index: the last of equal elements."""
    x, axis = _with_axis(x, axis, "cummin: axis")
    places = _running_best(x, axis, True)
    return take_along_axis(x, places, axis), places
