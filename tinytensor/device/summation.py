"""Sums that are accurate even for many elements.

A running float32 sum of ones stops at 2**24, because 16777216 + 1 rounds to 16777216. NumPy sums pairwise along elements that
are next to each other in memory, but one after the other along every other axis, as ``einsum`` and BLAS do. Here a long axis is
cut into blocks, and then the blocks' sums are summed. CuPy's sums are pairwise anyway.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence

from tinytensor.device.backend import Array, host, is_floating, wide, xp

_BLOCK = 1024  # at most this many elements are added one after the other
# Rows of ones, by the bytes of a number.
_ones = {4: xp.ones((1, _BLOCK), host.float32), 8: xp.ones((1, _BLOCK), host.float64)}


def widened(x: Array) -> Array:
    """x in the dtype in which it is summed: half precision becomes float32. x is an array, or in a gradient rule a tensor."""
    dtype = wide(x.dtype)
    return x if dtype is None else x.astype(dtype)


def sum_over(x: Array, axes: Sequence[int] | None = None, keepdims: bool = False) -> Array:
    """The sum of an array over ``axes`` (not negative; None: all): half precision in float32, integers as in NumPy."""
    if xp is not host or not is_floating(x.dtype):
        return xp.sum(x, axis=None if axes is None else tuple(axes), keepdims=keepdims, dtype=wide(x.dtype))
    x = widened(x)
    shape, ndim = x.shape, x.ndim
    axes = tuple(range(ndim)) if axes is None else tuple(sorted(axes))
    count = len(axes)
    are_last = x.flags.c_contiguous and axes == tuple(range(ndim - count, ndim))
    if x.size <= (16 * _BLOCK if are_last and count == ndim else _BLOCK):  # BLAS is no faster for so few
        return xp.add.reduce(x, axis=axes, keepdims=keepdims)
    if are_last:
        x = _add_up(x.reshape(math.prod(shape[: ndim - count]), -1), 1)
    elif x.flags.c_contiguous and axes == tuple(range(count)):  # a sum of the rows of one matrix, like a bias's gradient
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
    # A product with ones takes a third of the time of NumPy's sum.
    if axis == x.ndim - 1 and x.size >= _BLOCK and x.strides[-1] == x.itemsize:
        ones = _ones[x.itemsize][0, :length]
        return (x.dot(ones) if x.flags.c_contiguous else x @ ones)[..., None]
    rows_follow_each_other = axis == x.ndim - 2 and x.strides[axis:] == (x.shape[-1] * x.itemsize, x.itemsize)
    if rows_follow_each_other and length * x.shape[-1] >= _BLOCK:
        return _ones[x.itemsize][:, :length] @ x
    return xp.add.reduce(x, axis=axis, keepdims=True)


def sum_of_products(terms: Sequence[str], output: str, *arrays: Array) -> Array:
    """``xp.einsum`` of the terms. In long sums floating-point numbers are added in blocks."""
    lengths = {letter: n for term, x in zip(terms, arrays) for letter, n in zip(term, x.shape) if n > 1}
    count = math.prod([n for letter, n in lengths.items() if letter not in output])
    if xp is not host or count <= _BLOCK or not all([is_floating(x.dtype) for x in arrays]):
        return _einsum(terms, output, arrays)
    if len(arrays) > 2:
        return _by_pairs(list(terms), output, list(arrays))
    if not output and terms[0] == terms[-1] and arrays[0].shape == arrays[-1].shape:
        terms, arrays = ("a",) * len(terms), tuple([x.reshape(-1) for x in arrays])
        lengths = {"a": arrays[0].size}
    long = [{k for k, n in zip(term, x.shape) if n > 1} for term, x in zip(terms, arrays)]
    shared = set.intersection(*long) - set(output) if len(arrays) == 2 else set()
    gone = [[a for a, k in enumerate(term) if k not in output and k not in shared] for term in terms]
    if any(gone) or len(arrays) == 1:  # a letter of one term only is summed at once
        terms = ["".join([k for a, k in enumerate(term) if a not in axes]) for term, axes in zip(terms, gone)]
        arrays = tuple([sum_over(x, axes) for x, axes in zip(arrays, gone)])
    if len(arrays) == 1 or not shared or _are_matrices(terms, arrays):  # BLAS multiplies matrices in blocks of its own
        return _einsum(terms, output, arrays)
    return _in_blocks(terms, output, arrays, sorted(shared, key=lambda k: lengths[k]))


def _einsum(terms: Sequence[str], output: str, arrays: Sequence[Array]) -> Array:
    """``xp.einsum``, by BLAS where it is faster: not for two arrays of vectors whose products are summed pair by pair."""
    of_vectors = len(terms) == 2 and not _are_matrices(terms, arrays) and any([k in terms[1] and k in output for k in terms[0]])
    return xp.einsum(f"{','.join(terms)}->{output}", *arrays, optimize=not of_vectors)


def _are_matrices(terms: Sequence[str], arrays: Sequence[Array]) -> bool:
    """Whether each of two arrays has an axis, longer than 1, that the other does not have."""
    left, right = [{k for k, n in zip(term, x.shape) if n > 1} for term, x in zip(terms, arrays)]
    return bool(left - right and right - left)


def _in_blocks(terms: Sequence[str], output: str, arrays: Sequence[Array], shared: list[str]) -> Array:
    """The sum of products over letters that both terms share. Only the last letter, cut into blocks, is summed by einsum."""
    *outer, cut = shared
    places = [(slice(None),) * term.index(cut) for term in terms]
    length = arrays[0].shape[len(places[0])]
    block = next(k for k in string.ascii_letters if k not in "".join(terms))
    kept = "".join([block, *outer])
    subscripts = f"{','.join([term.replace(cut, block + cut) for term in terms])}->{kept}{output}"
    most = max(_BLOCK // 4, 1)  # einsum adds up one after the other even within a block
    total = 0
    for part, size in ((slice(length - length % most), most), (slice(length - length % most, None), length % most)):
        if size and length >= size:
            cuts = [x[(*lead, part)] for x, lead in zip(arrays, places)]
            cuts = [x.reshape(*x.shape[: len(a)], -1, size, *x.shape[len(a) + 1 :]) for x, a in zip(cuts, places)]
            total = total + sum_over(xp.einsum(subscripts, *cuts), range(len(kept)))
    return total


def _by_pairs(terms: list[str], output: str, arrays: list[Array]) -> Array:
    """The sum of products of many arrays, two at a time in the order that is best."""
    for places in xp.einsum_path(f"{','.join(terms)}->{output}", *arrays, optimize=("greedy", 2**62))[0][1:]:
        pair = [(terms.pop(i), arrays.pop(i)) for i in sorted(places, reverse=True)]
        letters = dict.fromkeys("".join([term for term, _ in pair]))
        term = "".join([k for k in letters if k in output or k in "".join(terms)]) if terms else output
        arrays.append(sum_of_products([term for term, _ in pair], term, *[x for _, x in pair]))
        terms.append(term)
    return arrays[0]


def running_sum(x: Array, axis: int) -> Array:
    """The running sum along an axis. On the CPU it is computed in float64, because every number contains all additions before
    it."""
    if xp is not host or not is_floating(x.dtype):
        return xp.cumsum(x, axis=axis, dtype=wide(x.dtype))
    return xp.cumsum(x, axis=axis, dtype=host.float64).astype(x.dtype)
