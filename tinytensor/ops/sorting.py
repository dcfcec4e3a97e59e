"""Sorting and top-k. The order has no gradient. Elements are gathered by index (see indexing.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor.autograd.op import op
from tinytensor.common.arguments import composite
from tinytensor.device.backend import host, index_dtype, xp
from tinytensor.ops.indexing import take_along_axis
from tinytensor.ops.shapes import normalize_axes, normalize_axis, reshape

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["argsort", "sort", "topk"]


@op()
def argsort(x: Tensor, axis: int | None = -1, descending: bool = False) -> Tensor:
    """Return the indices that sort x along ``axis`` (None: flattened), ascending by default. The sort is stable."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    if x.ndim == 0:
        normalize_axes(axis, 0)
        return xp.zeros((), index_dtype)
    if not descending:
        return xp.argsort(x, axis=axis, kind="stable")
    backwards = xp.argsort(xp.flip(x, axis), axis=axis, kind="stable")  # two flips keep the sort stable
    return x.shape[axis] - 1 - xp.flip(backwards, axis)


@composite
def sort(x: Tensor, axis: int | None = -1, descending: bool = False) -> Tensor:
    """Return x sorted along ``axis`` (None: flattened), ascending by default. The sort is stable.

    >>> tt.sort(tt.tensor([2, 3, 1]), descending=True)
    tensor([3, 2, 1])
    """
    if axis is None:
        x, axis = reshape(x, -1), 0
    order = argsort(x, axis, descending)
    return take_along_axis(x, order, axis) if x.ndim else reshape(x, ())


@composite
def topk(x: Tensor, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the k largest elements along ``axis``, largest first, and their indices.

    ``largest=False`` returns the k smallest, smallest first. Equal elements keep their order.

    >>> values, indices = tt.topk(tt.tensor([4, 9, 1, 7]), 2)
    >>> values, indices
    (tensor([9, 7]), tensor([1, 3]))
    """
    if x.ndim == 0:
        return tuple([reshape(t, ()) for t in topk(reshape(x, 1), k, axis, largest)])  # type: ignore[return-value]
    axis = normalize_axis(axis, x.ndim, "topk: axis")
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"topk of shape {x.shape}: k={k} is not between 0 and {x.shape[axis]}, the length of axis {axis}")
    best = _best(x, k, axis, largest)
    return take_along_axis(x, best, axis), best


@op()
def _best(x: Any, k: int, axis: int, largest: bool) -> Tensor:
    n = x.shape[axis]
    if xp is host and 0 < 8 * k < n and x.dtype.kind == "f" and not xp.isnan(x).any():
        rows = xp.moveaxis(x, axis, -1)
        last = n - k if largest else k - 1  # the sorted position of the k-th best
        limit = xp.partition(rows, last, -1)[..., last : last + 1]
        is_best = rows >= limit if largest else rows <= limit
        if xp.count_nonzero(is_best) == k * (x.size // n):  # the k-th best has no ties
            best = is_best.nonzero()[-1].reshape(*rows.shape[:-1], k)
            values = xp.take_along_axis(rows, best, -1)
            order = xp.argsort(-values if largest else values, axis=-1, kind="stable")
            return xp.moveaxis(xp.take_along_axis(best, order, -1), -1, axis)
    return argsort(x, axis, descending=largest)[(slice(None),) * axis + (slice(k),)]
