"""Scaled dot-product attention (Vaswani et al. 2017, equation 1), forward and backward.

What makes it fast:

* Scores stand transposed, (..., S, T): a maximum and a sum over the keys then run over whole rows of queries, which
  vectorises, where those over a short last axis do not.
* The work is cut into blocks of a few sequences, and over long ones into blocks of queries too, each of which, where
  attention is causal, needs only the keys before its end. A block's scores stay in the processor's cache.
* Softmax's division is left to the outputs, of which there are fewer than weights.
* Where there are many keys the weights are not kept but computed again, so that memory grows with the length, not its square.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tinytensor import kernels
from tinytensor.backend import host, xp
from tinytensor.kernels.numpy.dropout import RandomKey, keep_mask, survivors_scale

_HIDDEN = -math.inf  # added to scores that may not be attended
_BLOCK = 1 << 17  # scores in a block: 512 KiB, about half a core's cache
_QUERIES = 64  # a block has at least so many queries: fewer make small products
_KEPT = 512 * 512  # with more scores than this in a head, they are computed again
_SQUARE = 128  # the most queries whose causal penalty is kept


class Block(NamedTuple):
    """A part of the work: some of the first axis, of the queries, and the keys that these may see."""

    batch: slice
    queries: slice
    keys: slice


def blocks(query: Any, key: Any, is_causal: bool, scores: int, fewest: int, kept: int) -> Iterator[Block]:
    """All blocks; of each sequence that with the last queries first, as it alone sees all keys. A block has about so many
    scores, and no fewer queries than that; what is not causal is cut if a head has more scores than are kept."""
    heads, queries, keys = math.prod(query.shape[1:-2]), query.shape[-2], key.shape[-2]
    several = queries >= 4 * fewest and (is_causal or queries * keys > kept)
    length = max(fewest, queries // 8) if several else max(queries, 1)
    group = max(1, scores // max(1, heads * length * keys))
    for first in range(0, query.shape[0], group):
        for start in reversed(range(0, queries, length)):
            stop = min(start + length, queries)
            seen = stop + keys - queries if is_causal else keys
            yield Block(slice(first, first + group), slice(start, stop), slice(0, seen))


def transposed(x: Any) -> Any:
    return x.swapaxes(-1, -2)


def same_lead(*arrays: Any) -> Iterator[Any]:
    """The arrays with the same leading axes, at least one."""
    leads = [a.shape[:-2] for a in arrays]
    if leads[0] and leads.count(leads[0]) == len(leads):
        return iter(arrays)
    lead = host.broadcast_shapes(*leads) or (1,)
    return iter([xp.broadcast_to(a, (*lead, *a.shape[-2:])) for a in arrays])


def joinable(shape: Sequence[int], dtype: Any) -> Any:
    """An empty array (batch, heads, T, D) whose memory is in the order (batch, T, heads, D): joining the heads is then free."""
    if len(shape) != 4:
        return xp.empty(shape, dtype)
    batch, heads, length, width = shape
    return xp.empty((batch, length, heads, width), dtype).transpose(0, 2, 1, 3)


def _hide_later_keys(scores: Any, first: int) -> None:
    """Make scores (..., S, T) causal whose first query sees the keys before ``first``, and each query one more than that before
    it. Along the diagonal this goes by squares of limited size, so that what is kept to be added is small at any length."""
    queries = scores.shape[-1]
    for start in range(0, queries, _SQUARE):
        stop = min(start + _SQUARE, queries)
        scores[..., first + start : first + stop - 1, start:stop] += _triangle(stop - start, scores.dtype)
        if stop < queries:
            scores[..., first + stop - 1 :, start:stop] = _HIDDEN


@functools.lru_cache(maxsize=64)  # of 64 KiB each at the most, or 128 of float64
def _triangle(queries: int, dtype: Any) -> Any:
    """What hides key i (counted from the first that not all of these queries see) from the queries up to i."""
    return _penalty(xp.arange(queries - 1)[:, None] < xp.arange(queries), dtype)


def _penalty(mask: Any, dtype: Any) -> Any:
    return xp.where(mask, xp.zeros((), dtype), xp.full((), _HIDDEN, dtype))


def without_empty_blocks(mask: Any, is_causal: bool, queries: int, keys: int) -> tuple[Any, bool]:
    """The mask and whether to add the causal one. With more queries than keys the first queries see nothing at all, which
    blocks of queries cannot have: then causality is part of the mask."""
    if not is_causal or queries <= keys:
        return mask, is_causal
    causal = xp.arange(keys) <= xp.arange(queries)[:, None] + (keys - queries)
    return causal if mask is None else mask & causal, False


def check_mask(mask: Any, scores: tuple[int, ...]) -> None:
    """Raises ValueError unless a mask, or None, broadcasts to the scores, (..., T, S)."""
    if mask is not None and host.broadcast_shapes(mask.shape, scores) != scores:
        raise ValueError(f"a mask of shape {mask.shape} does not broadcast to the scores, {scores}")


def cut(mask: Any, batch: slice, second_last: slice, last: slice, ndim: int) -> Any:
    """A block's part of an array that broadcasts to the scores, which have so many axes."""
    mask = mask.reshape((1,) * (ndim - mask.ndim) + mask.shape)
    parts = [batch, *[slice(None)] * (ndim - 3), second_last, last]
    return mask[tuple([slice(None) if n == 1 else part for n, part in zip(mask.shape, parts)])]


def _scores(query: Any, key: Any, bias: Any, mask: Any, is_causal: bool, block: Block) -> Any:
    """A block's scores, (..., S, T), with the bias added, and -inf where the query may not see the key."""
    scores = kernels.matmul(key[block.batch, ..., block.keys, :], transposed(query[block.batch, ..., block.queries, :]))
    if bias is not None:
        scores += transposed(cut(bias, block.batch, block.queries, block.keys, query.ndim))
    if mask is not None:
        seen = cut(mask, block.batch, block.queries, block.keys, query.ndim)
        scores += transposed(_penalty(seen, scores.dtype))
    if is_causal:
        _hide_later_keys(scores, block.queries.start + key.shape[-2] - query.shape[-2] + 1)
    return scores


def attention_forward(
    needed: Sequence[bool],
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    is_causal: bool,
    scale: float,
    random_key: RandomKey | None,
    keep_probability: float,
) -> tuple[Any, Any]:
    """softmax(query keyᵀ scale + bias) value over (..., T, D), (..., S, D), (..., S, D_v).

    ``bias`` (or None) broadcasts to (..., T, S), and -inf in it hides a key from a query; so does ``mask`` (boolean, True =
    may attend, or None). ``is_causal`` lets a query see the keys up to its own place, counted from the end. A row that may
    attend to nothing gives zeros. ``random_key`` is that of the dropout mask of the weights, in the order (..., S, T), or
    None: then ``keep_probability`` is 1.
    """
    if query.shape[-2] == 1 and mask is None and bias is None and random_key is None and not any(needed):
        return _one_query(query, key, value, scale), None
    has_lead = max(query.ndim, key.ndim, value.ndim) > 2
    keep, keep_scale = _survivors(query, key, random_key, keep_probability), survivors_scale(keep_probability)
    mask, is_causal = without_empty_blocks(mask, is_causal, query.shape[-2], key.shape[-2])
    query, key, value = same_lead(query * scale, key, value)
    for broadcast in (bias, mask):
        check_mask(broadcast, (*query.shape[: -2 if has_lead else 0], query.shape[-2], key.shape[-2]))
    may_see_nothing = mask is not None or bias is not None
    lowest = float(host.finfo(query.dtype).min) if may_see_nothing else 0.0
    out = joinable((*query.shape[:-1], value.shape[-1]), query.dtype)
    largest = xp.empty((*query.shape[:-2], 1, query.shape[-2]), query.dtype)
    inverse = xp.empty_like(largest)  # 1 / the sum of each query's weights before they are normalised
    kept: list[Any] | None = [] if any(needed) and query.shape[-2] * key.shape[-2] <= _KEPT else None
    for block in blocks(query, key, is_causal, _BLOCK, _QUERIES, _KEPT):
        weights = _scores(query, key, bias, mask, is_causal, block)
        rows = (block.batch, ..., slice(None), block.queries)
        largest[rows] = weights.max(axis=-2, keepdims=True)
        if may_see_nothing:  # exp(-inf - lowest) is 0, where exp(-inf - -inf) would be NaN
            largest[rows] = xp.maximum(largest[rows], lowest)
        _exp(weights, largest[rows])
        total = weights.sum(axis=-2, keepdims=True)
        inverse[rows] = 1.0 / (xp.where(total == 0, math.inf, total) if may_see_nothing else total)
        mixed = kernels.matmul(transposed(_dropped(weights, keep, block)), value[block.batch, ..., block.keys, :])
        mixed *= transposed(inverse[rows]) * keep_scale
        out[block.batch, ..., block.queries, :] = mixed
        if kept is not None:
            kept.append(weights)
    return out if has_lead else out[0], (kept, largest, inverse, out, keep)


def _one_query(query: Any, key: Any, value: Any, scale: float) -> Any:
    """Attention of a single query to all keys, as when a text is written token by token: blocks would only cost time."""
    weights = kernels.matmul(query * scale, transposed(key))
    _exp(weights, weights.max(axis=-1, keepdims=True))
    out = kernels.matmul(weights, value)
    out /= weights.sum(axis=-1, keepdims=True)
    return out


def attention_backward(
    g: Any,
    residuals: tuple[Any, ...],
    needed: Sequence[bool],
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    is_causal: bool,
    scale: float,
    random_key: RandomKey | None,
    keep_probability: float,
    into: Sequence[Any] = (None, None, None),
) -> Sequence[Any]:
    """With P the weights and dP = g valueᵀ: dS = P (dP - rowsum(dP P)), and rowsum(dP P) = rowsum(g out), which is cheaper.

    The weights W here are not normalised, P = W / total: so g is, in their place. The gradients of query, key and value are
    written ``into`` arrays that the caller has, or else new ones.
    """
    kept, largest, inverse, out, keep = residuals
    mask, is_causal = without_empty_blocks(mask, is_causal, query.shape[-2], key.shape[-2])
    query, key, value = same_lead(query * scale, key, value)
    scaled_key = key * scale
    g = g.reshape(out.shape) * transposed(inverse)
    total = xp.einsum("...ij,...ij->...i", g, out)[..., None, :]
    g *= survivors_scale(keep_probability)
    make = joinable if query.shape[-2] else _zeros  # without queries no block writes the keys' gradients
    places = zip((query, key, value), needed, into)
    d_query, d_key, d_value = ((make(x.shape, x.dtype) if place is None else place) if n else None for x, n, place in places)
    d_bias = aligned_zeros(bias, query.ndim, query.dtype) if needed[3] else None
    for i, block in enumerate(blocks(query, key, is_causal, _BLOCK, _QUERIES, _KEPT)):
        rows, columns = (block.batch, ..., block.queries, slice(None)), (block.batch, ..., block.keys, slice(None))
        # The first block of a sequence sees all its keys: it sets their gradients, to which the others add.
        put = _set if block.queries.stop == query.shape[-2] else _add
        weights = kept[i] if kept is not None else _scores(query, key, bias, mask, is_causal, block)
        if kept is None:
            _exp(weights, largest[block.batch, ..., block.queries])
        if d_value is not None:
            put(d_value[columns], _dropped(weights, keep, block), g[rows])
        if d_query is None and d_key is None and d_bias is None:
            continue
        d_scores = _dropped(kernels.matmul(value[columns], transposed(g[rows])), keep, block)
        d_scores -= total[block.batch, ..., block.queries]
        d_scores *= weights
        if d_query is not None:
            _set(d_query[rows], transposed(d_scores), scaled_key[columns])
        if d_key is not None:
            put(d_key[columns], d_scores, query[rows])
        if d_bias is not None:
            add_to_bias(d_bias, transposed(d_scores), block)
    return d_query, d_key, d_value, None if d_bias is None else d_bias.reshape(bias.shape)


def aligned_zeros(bias: Any, ndim: int, dtype: Any) -> Any:
    """Zeros for a bias's gradient, with as many axes as the scores."""
    return xp.zeros((1,) * (ndim - bias.ndim) + bias.shape, dtype)


def add_to_bias(d_bias: Any, d_scores: Any, block: Block) -> None:
    """Add the gradient of a block's scores, (..., T, S), to that of the bias, over the axes along which it was broadcast."""
    part = cut(d_bias, block.batch, block.queries, block.keys, d_scores.ndim)
    axes = tuple([axis for axis, (n, scores) in enumerate(zip(part.shape, d_scores.shape)) if n != scores])
    part += d_scores.sum(axis=axes, dtype=d_bias.dtype, keepdims=True)


def _exp(scores: Any, largest: Any) -> None:
    """exp(scores - largest), in place."""
    scores -= largest
    xp.exp(scores, out=scores)


def _survivors(query: Any, key: Any, random_key: RandomKey | None, keep_probability: float) -> Any:
    """Which weights dropout keeps, (..., S, T); None without dropout."""
    if random_key is None:
        return None
    lead = host.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return keep_mask(random_key, (*lead, key.shape[-2], query.shape[-2]), keep_probability)


def _dropped(weights: Any, keep: Any, block: Block) -> Any:
    return weights if keep is None else weights * cut(keep, block.batch, block.keys, block.queries, weights.ndim)


def _set(target: Any, x: Any, y: Any) -> None:
    kernels.matmul(x, y, out=target)


def _add(target: Any, x: Any, y: Any) -> None:
    target += kernels.matmul(x, y)


def _zeros(shape: Sequence[int], dtype: Any) -> Any:
    return xp.zeros(shape, dtype)
