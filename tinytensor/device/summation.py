"""Sums that stay accurate for many elements.

A running float32 sum of ones stops at 2**24, because 16777216 + 1 rounds to 16777216. NumPy sums pairwise only along contiguous
elements. Along other axes it adds one by one, as do ``einsum`` and BLAS. This file cuts a long axis into blocks and adds up
their sums. CuPy always sums pairwise.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from tinytensor.device.backend import Array, converted, host, is_floating, is_host_array, wide, xp

_BLOCK = 1024  # the maximum number of elements added one by one
_SHORT = 1e-15  # squares of smaller numbers are not exact in float32
# Rows of ones, by item size.
_ones: dict[int, Array] = {4: host.ones((1, _BLOCK), host.float32), 8: host.ones((1, _BLOCK), host.float64)}


def widened(x: Array) -> Array:
    """Convert an array (in gradient rules, a tensor) to the dtype of its sums: half precision becomes float32."""
    dtype = wide(x.dtype)
    return x if dtype is None else converted(x, dtype)


def sum_over(x: Array, axes: Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Sum an array over ``axes`` (nonnegative; None: all). Half precision is summed in float32, integers as in NumPy."""
    if not is_host_array(x) or not is_floating(x.dtype):
        return (host if is_host_array(x) else xp).sum(
            x, axis=None if axes is None else tuple(axes), keepdims=keepdims, dtype=wide(x.dtype)
        )
    x = widened(x)
    if axes is None and not keepdims and x.size <= 16 * _BLOCK and x.flags.c_contiguous:
        return host.add.reduce(x, axis=None)  # twice as fast as x.sum
    shape, ndim = x.shape, x.ndim
    axes = tuple(range(ndim)) if axes is None else tuple(sorted(axes))
    count = len(axes)
    are_last = x.flags.c_contiguous and axes == tuple(range(ndim - count, ndim))
    if x.size <= (16 * _BLOCK if are_last and count == ndim else _BLOCK):  # BLAS is no faster for so few elements
        return x.sum(axis=axes, keepdims=keepdims)
    if are_last:
        x = _add_up(x.reshape(math.prod(shape[: ndim - count]), -1), 1)
    elif x.flags.c_contiguous and axes == tuple(range(count)):  # sum rows, as for the gradient of a bias
        x = _add_up(x.reshape(math.prod(shape[:count]), -1), 0)
    else:
        for axis in reversed(axes):
            x = _add_up(x, axis)
    return x.reshape([1 if a in axes else n for a, n in enumerate(shape) if keepdims or a not in axes])


def _add_up(x: Array, axis: int) -> Array:
    """Sum over one axis and keep it with length 1."""
    length = x.shape[axis]
    if length > _BLOCK:
        end = length - length % _BLOCK
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        lead = [slice(None)] * axis
        head, tail = (*lead, slice(end)), (*lead, slice(end, None))
        parts = _add_up(x[head].reshape(*before, -1, _BLOCK, *after), axis + 1).reshape(*before, -1, *after)
        total = _add_up(parts, axis)
        return total if end == length else total + _add_up(x[tail], axis)
    # A product with ones is three times as fast as NumPy's sum.
    if axis == x.ndim - 1 and x.size >= _BLOCK and x.strides[-1] == x.itemsize:
        ones = _ones[x.itemsize][0, :length]
        return (x.dot(ones) if x.flags.c_contiguous else x @ ones)[..., None]
    rows_follow_each_other = axis == x.ndim - 2 and x.strides[axis:] == (x.shape[-1] * x.itemsize, x.itemsize)
    if rows_follow_each_other and length * x.shape[-1] >= _BLOCK:
        return _ones[x.itemsize][:, :length] @ x
    return host.add.reduce(x, axis=axis, keepdims=True)


def root_of_squares(x: Array, axes: Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """Return the square root of the sum of squares over ``axes`` in float64. No square overflows or underflows."""
    x = widened(x)
    if is_host_array(x) and axes is None and not keepdims:
        root = host.float64(math.sqrt(_sum_of_squares(x.reshape(-1))))
        if _SHORT < root < math.inf:
            return root
    elif is_host_array(x):
        root = host.sqrt(sum_over(x * x, axes, keepdims), dtype=host.float64)
        if ((root > _SHORT) & (root < math.inf)).all():
            return root
    if x.itemsize < 8 or not x.size:
        return xp.sqrt(sum_over(xp.square(x, dtype="float64"), axes, keepdims))
    largest = xp.max(abs(x), axis=None if axes is None else tuple(axes), keepdims=True)
    largest = xp.where((largest > 0) & (largest < math.inf), largest, xp.ones_like(largest))
    root = xp.sqrt(sum_over(xp.square(x / largest), axes, keepdims))
    return root * largest.reshape(root.shape)


def _sum_of_squares(x: Array) -> Array:
    """Return the sum of squares of a vector."""
    if x.size <= _BLOCK:
        return x.dot(x)
    rows = x[: x.size - x.size % _BLOCK].reshape(-1, _BLOCK)
    return host.vecdot(rows, rows).sum(dtype=host.float64) + _sum_of_squares(x[rows.size :])


def sum_of_products(terms: Sequence[str], output: str, *arrays: Array) -> Array:
    """Evaluate ``xp.einsum`` of the terms. Long floating-point sums are added in blocks."""
    axes = [{k: n for k, n in zip(term, x.shape) if n > 1} for term, x in zip(terms, arrays)]
    summed = {k: n for lengths in axes for k, n in lengths.items() if k not in output}
    subscripts, is_pair = f"{','.join(terms)}->{output}", len(arrays) == 2
    is_matrix_product = is_pair and bool(axes[0].keys() - axes[1] and axes[1].keys() - axes[0])
    on_cpu = all(map(is_host_array, arrays))
    if not on_cpu or math.prod(summed.values()) <= _BLOCK or not all(is_floating(x.dtype) for x in arrays):
        # BLAS is slower for products of vectors
        of_vectors = is_pair and not is_matrix_product and any(k in output for k in axes[0] if k in axes[1])
        return (host if on_cpu else xp).einsum(subscripts, *arrays, optimize=not of_vectors)
    if len(arrays) > 2:
        return _by_pairs(
            list(terms), output, list(arrays), host.einsum_path(subscripts, *arrays, optimize=("greedy", 2**62))[0]
        )
    shared = sorted([k for k in summed if is_pair and k in axes[0] and k in axes[1]], key=lambda k: summed[k])
    alone = [[a for a, k in enumerate(term) if k not in output and k not in shared] for term in terms]
    if any(alone):  # a letter that only one term has is summed before the product
        terms = ["".join([k for k in term if k in output or k in shared]) for term in terms]
        return sum_of_products(terms, output, *[sum_over(x, a) for x, a in zip(arrays, alone)])
    if not shared or is_matrix_product:  # BLAS uses its own blocks
        return host.einsum(subscripts, *arrays, optimize=True)
    if terms[0] == terms[1] and not output and arrays[0].shape == arrays[1].shape:
        terms, arrays, shared = ("a", "a"), (arrays[0].reshape(-1), arrays[1].reshape(-1)), ["a"]
    return _in_blocks(terms, output, arrays, shared)


def _in_blocks(terms: Sequence[str], output: str, arrays: Sequence[Array], shared: list[str]) -> Array:
    """Sum products over letters that both terms share. einsum sums only the last letter, split into blocks."""
    cut, kept = shared[-1], "".join(shared[:-1])
    block = next(k for k in string.ascii_letters if k not in "".join(terms))
    subscripts = f"{','.join([term.replace(cut, block + cut) for term in terms])}->{block}{kept}{output}"
    before = [term.index(cut) for term in terms]
    length, longest = arrays[0].shape[before[0]], max(_BLOCK // 4, 1)  # within a block, einsum adds one by one
    total, start = 0, 0
    while start < length:
        size = min(longest, length - start)
        part = slice(start, length - (length - start) % size)
        cuts = [x[(slice(None),) * a + (part,)] for a, x in zip(before, arrays)]
        blocks = [x.reshape(*x.shape[:a], -1, size, *x.shape[a + 1 :]) for a, x in zip(before, cuts)]
        total, start = total + sum_over(host.einsum(subscripts, *blocks), range(len(shared))), part.stop
    return total


def _by_pairs(terms: list[str], output: str, arrays: list[Array], path: Array) -> Array:
    """Sum products of many arrays, two at a time, in the order given by ``einsum_path``."""
    for positions in path[1:]:
        pair = [(terms.pop(i), arrays.pop(i)) for i in sorted(positions, reverse=True)]
        letters = dict.fromkeys(pair[0][0] + pair[-1][0])
        term = "".join([k for k in letters if k in output or k in "".join(terms)]) if terms else output
        arrays.append(sum_of_products([of_one for of_one, _ in pair], term, *[x for _, x in pair]))
        terms.append(term)
    return arrays[0]


def running_sum(x: Array, axis: int) -> Array:
    """Return the running sum along an axis. The CPU computes it in float64, because errors of all earlier additions
    accumulate."""
    if xp is not host or not is_floating(x.dtype):
        return xp.cumsum(x, axis=axis, dtype=wide(x.dtype))
    return xp.cumsum(x, axis=axis, dtype=host.float64).astype(x.dtype)
