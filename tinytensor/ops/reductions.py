"""Reductions over axes.

``axis`` is None (all axes), one axis, or several. An empty tuple reduces each element on its own. If ``keepdims`` is set, the
reduced axes stay with length 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor.autograd.op import op
from tinytensor.common.arguments import composite
from tinytensor.device.backend import default_dtype, is_floating, xp
from tinytensor.device.summation import root_of_squares, sum_over, widened
from tinytensor.ops.elementwise import abs, astype, exp, power, sign, where
from tinytensor.ops.running import in_dtype_of_products, products_before
from tinytensor.ops.shapes import Axes, broadcast_to, expand_dims, flip, normalize_axes, reshape, size_along, transpose

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "all", "any", "argmax", "argmin", "logsumexp", "max", "mean", "min", "norm", "prod", "std", "sum", "var",
]  # fmt: skip


def _with_reduced_axes(reduced: Any, ndim: int, axis: Axes, keepdims: bool) -> Any:
    """Restore the reduced axes with length 1, so that the result broadcasts against the input."""
    return reduced if keepdims or not reduced.ndim else expand_dims(reduced, normalize_axes(axis, ndim))


def _one_axis(axis: int | None, x: Any) -> Any:
    return None if axis is None or not normalize_axes(axis, x.ndim) else axis


def _axes(axis: Axes, x: Any) -> Any:
    return None if axis is None else normalize_axes(axis, x.ndim)


@op(x=lambda g, x_shape, axis, keepdims: broadcast_to(_with_reduced_axes(g, len(x_shape), axis, keepdims), x_shape))
def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Sum the elements over ``axis``. Integers and booleans are summed in 64 bits, as in NumPy.

    >>> x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> tt.sum(x), tt.sum(x, axis=0)
    (tensor(10.), tensor([4., 6.]))
    >>> tt.sum(x, axis=1, keepdims=True).shape
    (2, 1)
    """
    return sum_over(x, _axes(axis, x), keepdims)


def _mean_gradient(g: Any, x_shape: tuple[int, ...], axis: Axes, keepdims: bool) -> Any:
    g = widened(g) / size_along(x_shape, axis, "mean")  # float16 may not hold the number of elements
    return broadcast_to(_with_reduced_axes(g, len(x_shape), axis, keepdims), x_shape)


@op(floating=True, x=_mean_gradient)
def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the mean over ``axis``. The mean of no elements is NaN, as in NumPy.

    >>> tt.mean(tt.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=1)
    tensor([1.5, 3.5])
    """
    return sum_over(widened(x), _axes(axis, x), keepdims) / size_along(x.shape, axis, "mean")


def _degrees_of_freedom(shape: Any, axis: Axes, ddof: float) -> float:
    """Return max(n - ddof, 0). At 0, var and std are infinite, or NaN if all elements are equal."""
    count = size_along(shape, axis, "var") - ddof
    return count if count > 0 else 0


@op()
def _starting_point(x: Any, axis: Axes) -> Any:
    """Return a value near the mean over ``axis``: the first element if it is very near the mean, else the rounded mean.

    If all elements are equal, their distances from the first are exactly 0. Distances from an outlier would lose digits.
    """
    axes = normalize_axes(axis, x.ndim)
    first = x[tuple([slice(1) if a in axes else slice(None) for a in range(x.ndim)])]
    rounded_mean = sum_over(x, axes, keepdims=True) / size_along(x.shape, axis, "mean")
    return xp.where(abs(first - rounded_mean) < 1e-3 * abs(rounded_mean), first, rounded_mean) if x.size else rounded_mean


def centred(x: Any, axis: Axes) -> Any:
    """Subtract the mean over ``axis`` from an array or tensor.

    First subtract a value near the mean: the mean of large, similar values is less precise than their distances from it.
    """
    shifted = x - _starting_point(x, axis)
    return shifted - mean(shifted, axis, True)


def _var_gradient(g: Any, x: Any, axis: Axes, keepdims: bool, ddof: float) -> Any:
    x = widened(x)
    distance = centred(x, axis)
    return _with_reduced_axes(g, x.ndim, axis, keepdims) * distance * 2.0 / _degrees_of_freedom(x.shape, axis, ddof)


@op(floating=True, x=_var_gradient)
def var(x: Tensor, axis: Axes = None, keepdims: bool = False, ddof: float = 0) -> Tensor:
    """Return the variance over ``axis``: the sum of squared deviations from the mean, divided by n - ddof.

    The default ddof=0 gives the biased variance, as in NumPy.
    """
    distance = centred(widened(x), axis)
    distance *= distance
    return sum_over(distance, _axes(axis, x), keepdims) / _degrees_of_freedom(x.shape, axis, ddof)


def _std_gradient(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool, ddof: float) -> Any:
    x = widened(x)
    deviation = _with_reduced_axes(where(out == 0, 1.0, out), x.ndim, axis, keepdims)
    distance = centred(x, axis) / deviation
    return _with_reduced_axes(g, x.ndim, axis, keepdims) * distance / _degrees_of_freedom(x.shape, axis, ddof)


@op(floating=True, x=_std_gradient)
def std(x: Tensor, axis: Axes = None, keepdims: bool = False, ddof: float = 0) -> Tensor:
    """Return the standard deviation over ``axis``. The gradient is 0 where all elements are equal."""
    x = widened(x)
    root = root_of_squares(centred(x, axis), _axes(axis, x), keepdims)
    return (root / math.sqrt(_degrees_of_freedom(x.shape, axis, ddof))).astype(x.dtype)


@op(x=lambda g, x: expand_dims(g, -1) * products_before(x, -1) * flip(products_before(flip(x, -1), -1), -1))
def _prod(x: Any) -> Any:
    return xp.prod(x, axis=-1)


@composite
def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the product over ``axis``. The gradient is exact even where elements are 0."""
    x, dtype = in_dtype_of_products(x)
    axes = normalize_axes(axis, x.ndim, "prod: axis")
    kept = [a for a in range(x.ndim) if a not in axes]
    out = _prod(reshape(transpose(x, [*kept, *axes]), (*[x.shape[a] for a in kept], math.prod(x.shape[a] for a in axes))))
    out = out if out.dtype == dtype else astype(out, dtype)
    return reshape(out, [1 if a in axes else n for a, n in enumerate(x.shape)]) if keepdims else out


def _gradient_of_extremum(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool) -> Any:
    """Divide g equally among the tied extremes of max or min. NaN is both the largest and the smallest value."""
    best = (x == _with_reduced_axes(out, x.ndim, axis, keepdims)) | (x != x)
    return where(best, _with_reduced_axes(widened(g), x.ndim, axis, keepdims), 0.0) / best.sum(
        axis=normalize_axes(axis, x.ndim), keepdims=True
    )


@op(x=_gradient_of_extremum)
def max(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the maximum over ``axis``. Tied elements share the gradient equally.

    >>> tt.max(tt.tensor([[1, 5], [7, 2]]), axis=1)
    tensor([5, 7])
    """
    return x.max(axis=_axes(axis, x), keepdims=keepdims)


@op(x=_gradient_of_extremum)
def min(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the minimum over ``axis``. Tied elements share the gradient equally."""
    return x.min(axis=_axes(axis, x), keepdims=keepdims)


def _logsumexp_gradient(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool) -> Any:
    """Return g times the softmax, or 0 where every element is -inf.

    A large ``out`` was rounded, so exp(x - out) does not sum to exactly 1. Divide it by its sum.
    """
    out = _with_reduced_axes(out, x.ndim, axis, keepdims)
    weights = exp(x - where(out == -math.inf, 0.0, out))
    total = where(abs(out) == math.inf, 1.0, sum(weights, axis, keepdims=True))
    return _with_reduced_axes(g, x.ndim, axis, keepdims) * (weights / total)


@op(floating=True, x=_logsumexp_gradient)
def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over ``axis``, without overflow. The result for no elements is -inf."""
    axes, wide_x = normalize_axes(axis, x.ndim), widened(x)
    largest = xp.max(wide_x, axis=axes, keepdims=True) if x.size else sum_over(wide_x, axes, keepdims=True)
    largest = xp.where(xp.isfinite(largest), largest, xp.zeros_like(largest))
    out = xp.log(sum_over(xp.exp(wide_x - largest), axes, keepdims=True)) + largest
    return out if keepdims else xp.squeeze(out, axis=axes)


@composite
def norm(x: Tensor, ord: float | str = 2, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the vector norm of order ``ord`` over ``axis`` (None: over all elements).

    The norm of order p is sum(abs(x)**p) ** (1/p). Order 2 is the Euclidean norm. math.inf gives the largest absolute value,
    -math.inf the smallest, and 0 the number of nonzero elements.

    >>> tt.norm(tt.tensor([3.0, 4.0]))
    tensor(5.)
    """
    if isinstance(ord, str):
        raise ValueError(f"norm: ord must be a number, got {ord!r}: 2 over two axes is the Frobenius norm")
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


def _norm_gradient(g: Any, x: Any, out: Any, axis: Axes, keepdims: bool) -> Any:
    length = _with_reduced_axes(where(out == 0, 1.0, out), x.ndim, axis, keepdims)
    return _with_reduced_axes(g, x.ndim, axis, keepdims) * (x / length)


@op(floating=True, x=_norm_gradient)
def _norm(x: Any, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the Euclidean norm. Its gradient at 0 is 0, the smallest subgradient."""
    x = widened(x)
    return root_of_squares(x, _axes(axis, x), keepdims).astype(x.dtype)


def _norm_of_order_gradient(g: Any, x: Any, out: Any, ord: float, axis: Axes, keepdims: bool) -> Any:
    """Return g sign(x) (abs(x) / norm)**(p - 1), or 0 where an element or the norm is 0."""
    length = _with_reduced_axes(out, x.ndim, axis, keepdims)
    flat = (x == 0) | (length == 0)
    fraction = where(flat, 1.0, abs(x) / where(length == 0, 1.0, length))
    return _with_reduced_axes(g, x.ndim, axis, keepdims) * where(flat, 0.0, sign(x) * power(fraction, ord - 1.0))


@op(floating=True, x=_norm_of_order_gradient)
def _norm_of_order(x: Any, ord: float, axis: Axes = None, keepdims: bool = False) -> Tensor:
    sizes, axes = xp.absolute(widened(x)), normalize_axes(axis, x.ndim)
    if x.size:  # scaled by the dominant element, no power overflows or vanishes
        scale = (xp.max if ord > 0 else xp.min)(sizes, axis=axes, keepdims=True)
        scale = xp.where((scale == 0) | xp.isinf(scale), xp.ones_like(scale), scale)
    else:
        scale = sum_over(sizes, axes, keepdims=True) + 1
    out = sum_over((sizes / scale) ** ord, axes, keepdims=True) ** (1.0 / ord) * scale
    return out if keepdims else xp.squeeze(out, axis=axes)


# ------------------------------------------------------------------------------------------------------- no gradient


@op()
def argmax(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the index (int64) of the maximum along ``axis`` (None: flattened). A tie gives the first index.

    >>> tt.argmax(tt.tensor([[1, 5], [7, 2]]), axis=1)
    tensor([1, 0])
    """
    return xp.argmax(x, axis=_one_axis(axis, x), keepdims=keepdims)


@op()
def argmin(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Return the index (int64) of the minimum along ``axis`` (None: flattened). A tie gives the first index."""
    return xp.argmin(x, axis=_one_axis(axis, x), keepdims=keepdims)


@op()
def any(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return True where any element along ``axis`` is nonzero."""
    return xp.any(x, axis=_axes(axis, x), keepdims=keepdims)


@op()
def all(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return True where every element along ``axis`` is nonzero."""
    return xp.all(x, axis=_axes(axis, x), keepdims=keepdims)
