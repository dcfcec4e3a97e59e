"""Sums that are accurate even for many elements.

A running float32 sum of ones stops at 2**24, because 16777216 + 1 rounds to 16777216. NumPy sums pairwise along elements that
are next to each other in memory, but one after the other along every other axis. Here such an axis is cut into blocks, and
then the blocks' sums are summed. CuPy's sums are pairwise anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinytensor.device.backend import Array, converted, host, is_floating, wide, xp

_BLOCK = 1024  # at most this many elements are added one after the other
# Rows of ones, by the bytes of a number.
_ones = {4: xp.ones((1, _BLOCK), host.float32), 8: xp.ones((1, _BLOCK), host.float64)}


def widened(x: Array) -> Array:
    """x in the dtype in which it is summed: half precision becomes float32. x is an array, or in a gradient rule a tensor."""
    dtype = wide(x.dtype)
    return x if dtype is None else converted(x, dtype)


def sum_over(x: Array, axes: Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """The sum of an array over ``axes`` (not negative; None: all): half precision in float32, integers as in NumPy."""
    if xp is not host or not is_floating(x.dtype):
        return xp.sum(x, axis=None if axes is None else tuple(axes), keepdims=keepdims, dtype=wide(x.dtype))
    x = widened(x)
    shape, ndim = x.shape, x.ndim
    axes = tuple(range(ndim)) if axes is None else tuple(sorted(axes))
    count = len(axes)
    if x.size <= _BLOCK or (x.flags.c_contiguous and axes == tuple(range(ndim - count, ndim))):
        return xp.add.reduce(x, axis=axes, keepdims=keepdims)
    if x.flags.c_contiguous and axes == tuple(range(count)):  # a sum of the rows of one matrix, like a bias's gradient
        x = _add_up(x.reshape(math.prod(shape[:count]), -1), 0)
    else:
        for axis in reversed(axes):
            x = _add_up(x, axis)
    return x.reshape([1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes])


def _add_up(x: Array, axis: int) -> Array:
    """The sum over one axis, which stays, with length 1."""
    length = x.shape[axis]
    if length > _BLOCK:
        whole = length - length % _BLOCK
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        lead = [slice(None)] * axis
        head, tail = (*lead, slice(whole)), (*lead, slice(whole, None))
        parts = _add_up(x[head].reshape(*before, -1, _BLOCK, *after), axis + 1).reshape(*before, -1, *after)
        total = _add_up(parts, axis)
        return total if whole == length else total + _add_up(x[tail], axis)
    rows_follow_each_other = axis == x.ndim - 2 and x.strides[axis:] == (x.shape[-1] * x.itemsize, x.itemsize)
    if rows_follow_each_other and length * x.shape[-1] >= _BLOCK:  # a product with ones takes half as long as NumPy's sum
        return _ones[x.itemsize][:, :length] @ x
    return xp.add.reduce(x, axis=axis, keepdims=True)


def running_sum(x: Array, axis: int) -> Array:
    """The running sum along an axis. On the CPU it is computed in float64, because every number contains all additions before
    it."""
    if xp is not host or not is_floating(x.dtype):
        return xp.cumsum(x, axis=axis, dtype=wide(x.dtype))
    return xp.cumsum(x, axis=axis, dtype=host.float64).astype(x.dtype)
