"""Ops that take many elements together. ``axis`` is None (all), one axis or several; ``keepdims`` keeps them as length 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor.backend import default_dtype, is_floating, wide, xp
from tinytensor.op import op
from tinytensor.ops.elementwise import abs, exp, power, sign, where
from tinytensor.ops.indexing import take_along_axis
from tinytensor.ops.shapes import (
    Axes,
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    normalize_axes,
    normalize_axis,
    reshape,
    size_along,
    split,
    transpose,
)
from tinytensor.summation import running_sum, sum_over, widened

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor

__all__ = [
    "all", "any", "argmax", "argmin", "astype", "cummax", "cummin", "cumprod", "cumsum", "logsumexp", "max", "mean", "min",
    "norm", "prod", "std", "sum", "var",
]  # fmt: skip


def _spread(reduced: Any, ndim: int, axis: Axes, keepdims: bool) -> Any:
    """A reduced value with its reduced axes back as length 1, so that it broadcasts against what was reduced."""
    return reduced if keepdims else expand_dims(reduced, normalize_axes(axis, ndim))


def _axes(axis: Axes, x: Any) -> Any:
    return None if axis is None else normalize_axes(axis, x.ndim)


@op(x=lambda g, x_shape, axis, keepdims: broadcast_to(_spread(g, len(x_shape), axis, keepdims), x_shape))
def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum over ``axis``; of integers and booleans in int64, as in NumPy."""
    return sum_over(x, _axes(axis, x), keepdims)


def _mean_gradient(g: Any, x_shape: tuple[int, ...], axis: Axes, keepdims: bool) -> Any:
    g = widened(g) / size_along(x_shape, axis, "mean")  # a count of elements may be too large for half precision
    return broadcast_to(_spread(g, len(x_shape), axis, keepdims), x_shape)


@op(floating=True, x=_mean_gradient)
def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean over ``axis``; NaN of nothing, as in NumPy."""
    return sum_over(widened(x), _axes(axis, x), keepdims) / size_along(x.shape, axis, "mean")


def _freedom(shape: Any, axis: Axes, ddof: int) -> int:
    """n - ddof, but 0 if that is negative: with so few elements var and std are infinite, or NaN where all are equal."""
    count = size_along(shape, axis, "var") - ddof
    return count if count > 0 else 0


def _squared_distances(x: Any, axis: Axes, keepdims: bool) -> Any:
    """The sum of the squared distances from the mean."""
    axes = _axes(axis, x)
    distance = x - sum_over(x, axes, keepdims=True) / size_along(x.shape, axis, "var")
    return sum_over(distance * distance, axes, keepdims)


def _var_gradient(g: Any, x: Any, axis: Axes, keepdims: bool, ddof: int) -> Any:
    x = widened(x)
    return _spread(g, x.ndim, axis, keepdims) * (x - mean(x, axis, True)) * 2.0 / _freedom(x.shape, axis, ddof)


@op(floating=True, x=_var_gradient)
def var(x: Tensor, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The variance over ``axis``: squared distances from the mean, summed, over n - ddof (NumPy's ddof=0: biased)."""
    return _squared_distances(widened(x), axis, keepdims) / _freedom(x.shape, axis, ddof)


def _std_gradient(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool, ddof: int) -> Any:
    x = widened(x)
    deviation = _spread(where(out == 0, 1.0, out), x.ndim, axis, keepdims)
    distance = (x - mean(x, axis, True)) / deviation
    return _spread(g, x.ndim, axis, keepdims) * distance / _freedom(x.shape, axis, ddof)


@op(floating=True, x=_std_gradient)
def std(x: Tensor, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The standard deviation over ``axis``; its gradient is 0 where all elements are equal."""
    return xp.sqrt(_squared_distances(widened(x), axis, keepdims) / _freedom(x.shape, axis, ddof))


def _roomy(x: Tensor) -> tuple[Tensor, Any]:
    """x as its products are computed, half precision in float32, and the dtype that they come out in. As in sums, integers
    give 64 bits: a product soon outgrows a short one."""
    if x.dtype.kind in "biu":
        dtype: Any = "uint64" if x.dtype.kind == "u" else "int64"
        return astype(x, dtype), dtype
    return (astype(x, default_dtype) if wide(x.dtype) is not None else x), x.dtype


def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The product over ``axis``. Multiplies halves pairwise, so the gradient is right where elements are 0, too."""
    x, dtype = _roomy(x)
    axes = normalize_axes(axis, x.ndim, "prod: axis")
    kept = [a for a in range(x.ndim) if a not in axes]
    out = reshape(transpose(x, [*kept, *axes]), (*[x.shape[a] for a in kept], math.prod(x.shape[a] for a in axes)))
    if out.shape[-1] == 0:
        out = sum(out, -1, keepdims=True) + 1
    while (length := out.shape[-1]) > 1:
        half = length // 2
        product = out[..., :half] * out[..., half : 2 * half]
        out = concatenate([product, out[..., 2 * half :]], -1) if length % 2 else product
    out = out if out.dtype == dtype else astype(out, dtype)
    return reshape(out, [1 if a in axes else n for a, n in enumerate(x.shape)] if keepdims else [x.shape[a] for a in kept])


def _share(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool) -> Any:
    """The gradient of max and min: shared equally among all elements that attain it. NaN is the largest and the smallest."""
    best = (x == _spread(out, x.ndim, axis, keepdims)) | (x != x)
    return where(best, _spread(widened(g), x.ndim, axis, keepdims), 0.0) / best.sum(
        axis=normalize_axes(axis, x.ndim), keepdims=True
    )


@op(x=_share)
def max(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest element over ``axis``; ties share the gradient equally."""
    return xp.max(x, axis=_axes(axis, x), keepdims=keepdims)


@op(x=_share)
def min(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest element over ``axis``; ties share the gradient equally."""
    return xp.min(x, axis=_axes(axis, x), keepdims=keepdims)


def _shares(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool) -> Any:
    """The gradient of logsumexp is the softmax; 0 where every element is -inf."""
    total = _spread(where(out == -math.inf, 0.0, out), x.ndim, axis, keepdims)
    return _spread(g, x.ndim, axis, keepdims) * exp(x - total)


@op(floating=True, x=_shares)
def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over ``axis``, without overflow; -inf of nothing."""
    axes, wide_x = normalize_axes(axis, x.ndim), widened(x)
    largest = xp.max(wide_x, axis=axes, keepdims=True) if x.size else sum_over(wide_x, axes, keepdims=True)
    largest = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
    out = xp.log(sum_over(xp.exp(wide_x - largest), axes, keepdims=True)) + largest
    return out if keepdims else xp.squeeze(out, axis=axes)


def norm(x: Tensor, ord: float = 2, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The vector norm over ``axis`` (None: of all elements) of any order: 2 (Euclidean), 1, math.inf (the largest absolute
    value), -math.inf (the smallest), 0 (how many elements are not 0) or p, the sum of abs(x)**p to the power of 1/p."""
    if isinstance(ord, str):
        raise ValueError(f"norm: the order is a number, not {ord!r}; 2 over two axes is the Frobenius norm")
    if ord == 2:
        return _norm(x, axis, keepdims)
    if ord == math.inf:
        return max(abs(_floating(x)), axis, keepdims)
    if ord == -math.inf:
        return min(abs(_floating(x)), axis, keepdims)
    if ord == 1:
        return sum(abs(_floating(x)), axis, keepdims)
    if ord == 0:
        return sum(abs(sign(_floating(x))), axis, keepdims)
    return _norm_of_order(x, float(ord), axis, keepdims)


def _floating(x: Tensor) -> Tensor:
    return x if is_floating(x.dtype) else astype(x, default_dtype)


def _direction(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool) -> Any:
    length = _spread(where(out == 0, 1.0, out), x.ndim, axis, keepdims)
    return _spread(g, x.ndim, axis, keepdims) * (x / length)


@op(floating=True, x=_direction)
def _norm(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The Euclidean norm; its gradient at 0 is 0, the smallest of the subgradients."""
    wide_x = widened(x)
    return xp.sqrt(sum_over(wide_x * wide_x, _axes(axis, x), keepdims))


def _direction_of_order(g: Any, x: Any, out: Any, ord: float, axis: Axes, keepdims: bool) -> Any:
    """sign(x) (abs(x) / norm)**(p - 1), and 0 where an element or the norm is 0."""
    length = _spread(out, x.ndim, axis, keepdims)
    flat = (x == 0) | (length == 0)
    share = where(flat, 1.0, abs(x) / where(length == 0, 1.0, length))
    return _spread(g, x.ndim, axis, keepdims) * where(flat, 0.0, sign(x) * power(share, ord - 1.0))


@op(floating=True, x=_direction_of_order)
def _norm_of_order(x: Any, ord: float, axis: Axes = None, keepdims: bool = False) -> Tensor:
    return sum_over(xp.absolute(widened(x)) ** ord, _axes(axis, x), keepdims) ** (1.0 / ord)


# ------------------------------------------------------------------------------------------------------------ running


@op(x=lambda g, axis: flip(_cumsum(flip(g, axis), axis), axis))
def _cumsum(x: Any, axis: int) -> Tensor:
    return running_sum(x, axis)


def _line(x: Tensor, axis: int | None, name: str) -> tuple[Tensor, int]:
    """x and an axis of it to run along: the flattened x where none is given, and for a tensor of no dimensions."""
    if axis is None or x.ndim == 0:
        return reshape(x, -1), 0 if axis is None else normalize_axis(axis, 1, name)
    return x, normalize_axis(axis, x.ndim, name)


def cumsum(x: Tensor, axis: int | None = None) -> Tensor:
    """The running sum along ``axis``, or of the flattened x."""
    return _cumsum(*_line(x, axis, "cumsum: axis"))


def cumprod(x: Tensor, axis: int | None = None) -> Tensor:
    """The running product along ``axis``, or of the flattened x. Each step multiplies by what is 1, 2, 4, ... places before,
    so the gradient is right where elements are 0, too."""
    x, axis = _line(x, axis, "cumprod: axis")
    out, dtype = _roomy(x)
    length, step = x.shape[axis], 1
    while step < length:
        first, rest = split(out, [step], axis)
        out = concatenate([first, rest * split(out, [length - step], axis)[0]], axis)
        step *= 2
    return out if out.dtype == dtype else astype(out, dtype)


@op()
def _running_best(x: Any, axis: int, smallest: bool) -> Tensor:
    """Where along ``axis`` the largest (or smallest) element so far stands, the last of equals; NaN is before all."""
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


def cummax(x: Tensor, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """The largest element so far along ``axis`` (or of the flattened x), and its index, the last of equals."""
    x, axis = _line(x, axis, "cummax: axis")
    places = _running_best(x, axis, False)
    return take_along_axis(x, places, axis), places


def cummin(x: Tensor, axis: int | None = None) -> tuple[Tensor, Tensor]:
    """The smallest element so far along ``axis`` (or of the flattened x), and its index, the last of equals."""
    x, axis = _line(x, axis, "cummin: axis")
    places = _running_best(x, axis, True)
    return take_along_axis(x, places, axis), places


# ------------------------------------------------------------------------------------------------------- no gradient


@op()
def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index (int64) of the largest element, the first of equals, of the flattened x or along ``axis``."""
    return xp.argmax(x, axis=(_axes(axis, x) or (None,))[0], keepdims=keepdims)


@op()
def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index (int64) of the smallest element, the first of equals, of the flattened x or along ``axis``."""
    return xp.argmin(x, axis=(_axes(axis, x) or (None,))[0], keepdims=keepdims)


@op()
def any(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """True where some element over ``axis`` is true (not 0)."""
    return xp.any(x, axis=_axes(axis, x), keepdims=keepdims)


@op()
def all(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """True where every element over ``axis`` is true (not 0)."""
    return xp.all(x, axis=_axes(axis, x), keepdims=keepdims)


@op(x=lambda g: g)
def astype(x: Tensor, dtype: Any) -> Tensor:
    """x converted to ``dtype``. A gradient comes back in x's own dtype; through integers and booleans none does."""
    if (out := x.astype(dtype)).dtype.kind not in "biuf" and out.dtype.name != "bfloat16":
        raise TypeError(f"a tensor holds numbers or booleans, not {out.dtype}")
    return out
