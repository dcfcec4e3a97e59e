"""Ops that take many elements together. ``axis`` is None (all), one axis or several; ``keepdims`` keeps them as length 1."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor.backend import wide, xp
from tinytensor.op import op
from tinytensor.ops.elementwise import abs, exp, square, where
from tinytensor.ops.shapes import (
    Axes,
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    normalize_axes,
    reshape,
    size_along,
    transpose,
)

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor


def _spread(reduced: Any, ndim: int, axis: Axes, keepdims: bool) -> Any:
    """A reduced value with its reduced axes back as length 1, so that it broadcasts against what was reduced."""
    return reduced if keepdims else expand_dims(reduced, normalize_axes(axis, ndim))


def _tuple(axis: Axes) -> Any:
    return tuple(axis) if isinstance(axis, list) else axis


@op(x=lambda g, x_shape, axis, keepdims: broadcast_to(_spread(g, len(x_shape), axis, keepdims), x_shape))
def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The sum over ``axis``."""
    return xp.sum(x, axis=_tuple(axis), keepdims=keepdims, dtype=wide(x.dtype))


def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean over ``axis``; NaN of nothing, as in NumPy."""
    count = size_along(x.shape, axis, "mean")
    return sum(x, axis, keepdims) * (1.0 / count if count else math.nan)


def var(x: Tensor, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The variance over ``axis``: squared distances from the mean, summed, over n - ddof (NumPy's ddof=0: biased)."""
    freedom = size_along(x.shape, axis, "var") - ddof
    return sum(square(x - mean(x, axis, keepdims=True)), axis, keepdims) * _over(freedom)


def std(x: Tensor, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """The standard deviation over ``axis``; its gradient is 0 where all elements are equal."""
    freedom = size_along(x.shape, axis, "std") - ddof
    return norm(x - mean(x, axis, keepdims=True), axis=axis, keepdims=keepdims) * math.sqrt(_over(freedom))


def _over(count: int) -> float:
    return 1.0 / count if count > 0 else math.nan


def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The product over ``axis``. Multiplies halves pairwise, so the gradient is right where elements are 0, too."""
    x = astype(x, "int64") if x.dtype.kind in "biu" else x  # as sum does: a product soon outgrows a short integer
    axes = normalize_axes(axis, x.ndim, "prod: axis")
    kept = [a for a in range(x.ndim) if a not in axes]
    out = reshape(transpose(x, [*kept, *axes]), (*[x.shape[a] for a in kept], math.prod(x.shape[a] for a in axes)))
    if out.shape[-1] == 0:
        out = sum(out, -1, keepdims=True) + 1
    while (length := out.shape[-1]) > 1:
        half = length // 2
        product = out[..., :half] * out[..., half : 2 * half]
        out = concatenate([product, out[..., 2 * half :]], -1) if length % 2 else product
    return reshape(out, [1 if a in axes else n for a, n in enumerate(x.shape)] if keepdims else [x.shape[a] for a in kept])


def _share(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool) -> Any:
    """The gradient of max and min: shared equally among all elements that attain it."""
    best = x == _spread(out, x.ndim, axis, keepdims)
    return where(best, _spread(g, x.ndim, axis, keepdims), 0.0) / best.sum(axis=normalize_axes(axis, x.ndim), keepdims=True)


@op(x=_share)
def max(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest element over ``axis``; ties share the gradient equally."""
    return xp.max(x, axis=_tuple(axis), keepdims=keepdims)


@op(x=_share)
def min(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest element over ``axis``; ties share the gradient equally."""
    return xp.min(x, axis=_tuple(axis), keepdims=keepdims)


@op(x=lambda g, x, out, axis, keepdims: _spread(g, x.ndim, axis, keepdims) * exp(x - _spread(out, x.ndim, axis, keepdims)))
def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over ``axis``, without overflow."""
    axis = _tuple(axis)
    largest = xp.max(x, axis=axis, keepdims=True)
    largest = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
    out = xp.log(xp.sum(xp.exp(x - largest), axis=axis, keepdims=True, dtype=wide(x.dtype))) + largest
    return out if keepdims else xp.squeeze(out, axis=axis)


def norm(x: Tensor, ord: float = 2, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The vector norm over ``axis`` (None: of all elements): ord 2 (Euclidean), 1 or math.inf."""
    if ord == 2:
        return _norm(x, axis, keepdims)
    if ord == 1:
        return sum(abs(x), axis, keepdims)
    if ord == math.inf:
        return max(abs(x), axis, keepdims)
    raise ValueError(f"norm of order {ord} is not offered: use 1, 2 or math.inf")


def _direction(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool) -> Any:
    length = _spread(out, x.ndim, axis, keepdims)
    return _spread(g, x.ndim, axis, keepdims) * x / where(length == 0, 1.0, length)


@op(x=_direction)
def _norm(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The Euclidean norm; its gradient at 0 is 0, the smallest of the subgradients."""
    return xp.sqrt(xp.sum(x * x, axis=_tuple(axis), keepdims=keepdims, dtype=wide(x.dtype)))


def _reversed_cumsum(g: Any, x_shape: tuple[int, ...], axis: int | None) -> Any:
    if axis is None:
        return reshape(flip(cumsum(flip(g))), x_shape)
    return flip(cumsum(flip(g, axis), axis), axis)


@op(x=_reversed_cumsum)
def cumsum(x: Tensor, axis: int | None = None) -> Tensor:
    """The running sum along ``axis``, or of the flattened x."""
    return xp.cumsum(x, axis=axis, dtype=wide(x.dtype))


# ------------------------------------------------------------------------------------------------------- no gradient


@op()
def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index (int64) of the largest element, the first of equals, of the flattened x or along ``axis``."""
    return xp.argmax(x, axis=axis, keepdims=keepdims)


@op()
def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index (int64) of the smallest element, the first of equals, of the flattened x or along ``axis``."""
    return xp.argmin(x, axis=axis, keepdims=keepdims)


@op()
def any(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """True where some element over ``axis`` is true (not 0)."""
    return xp.any(x, axis=_tuple(axis), keepdims=keepdims)


@op()
def all(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """True where every element over ``axis`` is true (not 0)."""
    return xp.all(x, axis=_tuple(axis), keepdims=keepdims)


@op(x=lambda g: g)
def astype(x: Tensor, dtype: Any) -> Tensor:
    """x converted to ``dtype``. A gradient comes back in x's own dtype; through integers and booleans none does."""
    if (out := x.astype(dtype)).dtype.kind not in "biuf" and out.dtype.name != "bfloat16":
        raise TypeError(f"a tensor holds numbers or booleans, not {out.dtype}")
    return out
