"""Scaled dot-product attention (Vaswani et al. 2017, equation 1), forward and backward.

Why it is fast:

* The scores are stored transposed, (..., S, T). Maxima and sums over the keys then run over whole rows of queries, which
  vectorises better than a short last axis.
* Blocks of a few sequences, and in long ones of some queries, keep their scores in the processor's cache. With causality, a
  block reads only the keys up to its last query.
* The division of softmax is applied to the outputs, which are fewer than the weights.
* If a head has more than 512 x 512 scores, the backward pass recomputes the weights, so that memory grows with the length, not
  its square.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tinytensor.device.backend import host, xp
from tinytensor.device.summation import sum_over
from tinytensor.kernels.attention import causal_array, lowest, multi_head, padding
from tinytensor.kernels.numpy.dropout import RandomKey, keep_mask, survivors_scale
from tinytensor.kernels.numpy.products import matmul

_HIDDEN = -math.inf  # added to the scores of hidden keys
_BLOCK = 1 << 17  # approximate scores of a block: 512 KiB, half of a core's cache
_QUERIES = 64  # minimum queries of a block: fewer make the products small
_KEPT = 512 * 512  # maximum scores of a head whose weights are saved
_SQUARE = 128  # maximum queries of a cached causal penalty, see _hide_later_keys


class Block(NamedTuple):
    """A part of the work: a slice of the first axis, some queries, and the keys that they may see."""

    batch: slice
    queries: slice
    keys: slice
    # True for the block with the last queries of its sequences. It comes first and sees all of their keys, so it sets the
    # gradients of keys and values, whose memory is not initialised. The following blocks add to them.
    is_first: bool

    @property
    def of_queries(self) -> tuple[Any, ...]:
        """The index of the block's queries in an array (..., T, D)."""
        return self.batch, ..., self.queries, slice(None)

    @property
    def of_keys(self) -> tuple[Any, ...]:
        """The index of the block's keys in an array (..., S, D)."""
        return self.batch, ..., self.keys, slice(None)


class Residuals(NamedTuple):
    """The arrays that ``attention_forward`` saves for ``attention_backward``."""

    weights: list[Any] | None  # of each block, (..., S, T), not normalised; None: recompute them
    largest: Any  # each query's largest score, (..., 1, T)
    inverse: Any  # 1 / the sum of each query's weights before normalisation, (..., 1, T)
    out: Any
    keep: Any  # the dropout mask of the weights, (..., S, T); None without dropout
    spoiled: Any  # the ``padding`` if some of it may not be finite, else None


def blocks(
    query: Any, key: Any, is_causal: bool, scores_in_block: int, fewest_queries: int, most_saved: int
) -> Iterator[Block]:
    """Yield all blocks, those with a sequence's last queries first (see ``Block.is_first``).

    A block has about ``scores_in_block`` scores, and at least ``fewest_queries`` queries if the sequence has as many. A long
    sequence is cut if its attention is causal, or if a head has more than ``most_saved`` scores.
    """
    heads, queries, keys = math.prod(query.shape[1:-2]), query.shape[-2], key.shape[-2]
    is_cut = queries >= 4 * fewest_queries and (is_causal or queries * keys > most_saved)
    length = max(fewest_queries, queries // 8) if is_cut else max(queries, 1)
    group = max(1, scores_in_block // max(1, heads * length * keys))
    for first in range(0, query.shape[0], group):
        for start in reversed(range(0, queries, length)):
            stop = min(start + length, queries)
            seen = stop + keys - queries if is_causal else keys
            yield Block(slice(first, first + group), slice(start, stop), slice(0, seen), is_first=stop == queries)


def transposed(x: Any) -> Any:
    """Exchange the last two axes."""
    return x.swapaxes(-1, -2)


def same_lead(*arrays: Any) -> Iterator[Any]:
    """Broadcast the arrays to the same leading axes, at least one."""
    leads = [a.shape[:-2] for a in arrays]
    if leads[0] and leads.count(leads[0]) == len(leads):
        return iter(arrays)
    lead = host.broadcast_shapes(*leads) or (1,)
    return iter([xp.broadcast_to(a, (*lead, *a.shape[-2:])) for a in arrays])


def joinable(shape: Sequence[int], dtype: Any) -> Any:
    """Return an empty array (batch, heads, T, D), stored as (batch, T, heads, D) to join heads without a copy."""
    if len(shape) != 4:
        return xp.empty(shape, dtype)
    batch, heads, length, width = shape
    return xp.empty((batch, length, heads, width), dtype).transpose(0, 2, 1, 3)


def _hide_later_keys(scores: Any, first: int) -> None:
    """Make scores (..., S, T) causal, in place. The first query sees the keys before ``first``, and each later query one more.
    Squares along the diagonal keep the arrays that ``_triangle`` caches small."""
    queries = scores.shape[-1]
    for start in range(0, queries, _SQUARE):
        stop = min(start + _SQUARE, queries)
        scores[..., first + start : first + stop - 1, start:stop] += _triangle(stop - start, scores.dtype)
        if stop < queries:
            scores[..., first + stop - 1 :, start:stop] = _HIDDEN


@functools.lru_cache(maxsize=64)  # at most 64 KiB each, or 128 KiB in float64
def _triangle(queries: int, dtype: Any) -> Any:
    """Return the penalty (queries - 1, queries) of the keys that only some of the queries see."""
    return _penalty(xp.ascontiguousarray(causal_array(queries, queries - 1).T), dtype)


def _penalty(mask: Any, dtype: Any) -> Any:
    """Return what a mask adds to the scores: 0 where it is True, else -inf."""
    return xp.where(mask, xp.zeros((), dtype), xp.full((), _HIDDEN, dtype))


def without_empty_blocks(mask: Any, is_causal: bool, queries: int, keys: int) -> tuple[Any, bool]:
    """Return the mask, and whether attention is also causal.

    With more queries than keys, the first queries of causal attention see no key, and their block has no scores. Causality then
    becomes part of the mask.
    """
    if not is_causal or queries <= keys:
        return mask, is_causal
    causal = causal_array(queries, keys)
    return causal if mask is None else mask & causal, False


def cleared(x: Any, hidden: Any) -> Any:
    """Replace the keys of x (..., S, D) that are in ``hidden`` by zeros; None hides none."""
    return x if hidden is None else xp.where(hidden[..., None], xp.zeros((), x.dtype), x)


def _is_finite(x: Any) -> bool:
    """Return True if all elements are finite. Summing them takes a tenth of the time of ``cleared``."""
    return math.isfinite(xp.einsum("abcdefghijklmnopqrstuvwxyz"[: x.ndim] + "->", x))  # faster than ``sum`` for views


def check_mask(mask: Any, scores: tuple[int, ...]) -> None:
    """Raise ValueError unless a mask, or None, broadcasts to the scores' shape (..., T, S)."""
    if mask is not None and host.broadcast_shapes(mask.shape, scores) != scores:
        raise ValueError(f"mask must broadcast to the scores {scores}, got shape {mask.shape}")


def cut(mask: Any, batch: slice, second_last: slice, last: slice, ndim: int) -> Any:
    """Return a block's part of an array that broadcasts to the scores, which have ``ndim`` axes."""
    mask = mask.reshape((1,) * (ndim - mask.ndim) + mask.shape)
    parts = [batch, *[slice(None)] * (ndim - 3), second_last, last]
    return mask[tuple([slice(None) if n == 1 else part for n, part in zip(mask.shape, parts)])]


def _scores(query: Any, key: Any, bias: Any, mask: Any, block: Block) -> Any:
    """Return a block's scores (..., S, T) with the bias added, and -inf where the mask hides a key."""
    scores = matmul(key[block.of_keys], transposed(query[block.of_queries]))
    if bias is not None:
        scores += transposed(cut(bias, block.batch, block.queries, block.keys, query.ndim))
    if mask is not None:
        seen = cut(mask, block.batch, block.queries, block.keys, query.ndim)
        scores += transposed(_penalty(seen, scores.dtype))
    return scores


def _seen_by_first(query: Any, key: Any, is_causal: bool, block: Block) -> int | None:
    """Return how many keys a block's first query sees; each later query sees one more. None: all see all keys."""
    return block.queries.start + key.shape[-2] - query.shape[-2] + 1 if is_causal else None


class Passes(NamedTuple):
    """The operations on a block's scores (..., S, T) between its products: the functions below, or loops of kernels/numba."""

    # (scores, seen by the first query, floor): replaces the scores by their weights, not normalised. Returns each query's
    # largest score, at least ``floor``, and the sum of its weights, both (..., 1, T).
    weigh: Callable[[Any, int | None, float | None], tuple[Any, Any]]
    # (scores, seen by the first query, largest): replaces the scores by the same weights again.
    weigh_again: Callable[[Any, int | None, Any], None]
    # (gradient of the dropped weights, keep or None, total, weights): replaces the gradient by that of the scores.
    to_scores: Callable[[Any, Any, Any, Any], None]


def _weigh(scores: Any, seen_by_first: int | None, floor: float | None) -> tuple[Any, Any]:
    if seen_by_first is not None:
        _hide_later_keys(scores, seen_by_first)
    largest = scores.max(axis=-2, keepdims=True)
    if floor is not None:
        largest = xp.maximum(largest, floor)
    _exp(scores, largest)
    return largest, sum_over(scores, (scores.ndim - 2,), keepdims=True)


def _weigh_again(scores: Any, seen_by_first: int | None, largest: Any) -> None:
    if seen_by_first is not None:
        _hide_later_keys(scores, seen_by_first)
    _exp(scores, largest)


def _to_scores(d_weights: Any, keep: Any, total: Any, weights: Any) -> None:
    if keep is not None:
        d_weights *= keep
    d_weights -= total
    d_weights *= weights


_PASSES = Passes(_weigh, _weigh_again, _to_scores)


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
    passes: Passes = _PASSES,
) -> tuple[Any, Any]:
    """softmax(query keyᵀ scale + bias) value for query (..., T, D), key (..., S, D) and value (..., S, D_v).

    ``bias`` (-inf hides a key) and the boolean ``mask`` (True = may see) broadcast to (..., T, S) or are None. ``is_causal``
    lets a query see the keys up to its own position, counted from the end. A query that sees no key gives zeros. ``random_key``
    determines the dropout mask of the weights, in the order (..., S, T). Without dropout it is None and ``keep_probability`` is
    1.

    Saves ``Residuals``. ``passes`` lets kernels/numba use the same blocks.
    """
    if query.shape[-2] == 1 and mask is None and bias is None and random_key is None and not any(needed):
        return _one_query(query, key, value, scale), None
    has_lead = max(query.ndim, key.ndim, value.ndim) > 2
    keep, keep_scale = _survivors(query, key, random_key, keep_probability), survivors_scale(keep_probability)
    hidden = padding(mask)
    spoiled = None if hidden is None or (_is_finite(key) and _is_finite(value)) else hidden
    mask, is_causal = without_empty_blocks(mask, is_causal, query.shape[-2], key.shape[-2])
    query, key, value = same_lead(query * scale, cleared(key, spoiled), cleared(value, spoiled))
    for broadcast in (bias, mask):
        check_mask(broadcast, (*query.shape[: -2 if has_lead else 0], query.shape[-2], key.shape[-2]))
    may_see_nothing = mask is not None or bias is not None
    floor = lowest(query.dtype) if may_see_nothing else None
    out = joinable((*query.shape[:-1], value.shape[-1]), query.dtype)
    largest = xp.empty((*query.shape[:-2], 1, query.shape[-2]), query.dtype)
    inverse = xp.empty_like(largest)
    saved: list[Any] | None = [] if any(needed) and query.shape[-2] * key.shape[-2] <= _KEPT else None
    for block in blocks(query, key, is_causal, _BLOCK, _QUERIES, _KEPT):
        weights = _scores(query, key, bias, mask, block)
        columns = (block.batch, ..., slice(None), block.queries)
        largest[columns], total = passes.weigh(weights, _seen_by_first(query, key, is_causal, block), floor)
        inverse[columns] = 1.0 / (xp.where(total == 0, math.inf, total) if may_see_nothing else total)
        mixed = matmul(transposed(_dropped(weights, keep, block)), value[block.of_keys])
        mixed *= transposed(inverse[columns]) * keep_scale
        out[block.of_queries] = mixed
        if saved is not None:
            saved.append(weights)
    return out if has_lead else out[0], Residuals(saved, largest, inverse, out, keep, spoiled)


def _one_query(query: Any, key: Any, value: Any, scale: float) -> Any:
    """Return the attention of a single query to all keys, as in decoding. Blocks would only slow it down."""
    weights = matmul(query * scale, transposed(key))
    _exp(weights, weights.max(axis=-1, keepdims=True))
    out = matmul(weights, value)
    out /= weights.sum(axis=-1, keepdims=True)
    return out


def attention_backward(
    g: Any,
    residuals: Any,
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
    passes: Passes = _PASSES,
) -> Sequence[Any]:
    """With the weights P and dP = g valueᵀ, the gradient of the scores is dS = P (dP - rowsum(dP P)).

    rowsum(dP P) equals rowsum(g out), which is cheaper. The saved weights are not normalised (P = weights * inverse), so g is
    multiplied by ``inverse``. The gradients of query, key and value are written to the arrays in ``into``, or to new ones for
    None.
    """
    saved, largest, inverse, out, keep, spoiled = residuals
    hidden = padding(mask)
    mask, is_causal = without_empty_blocks(mask, is_causal, query.shape[-2], key.shape[-2])
    query, key, value = same_lead(query * scale, cleared(key, spoiled), cleared(value, spoiled))
    scaled_key = key * scale
    g = g.reshape(out.shape) * transposed(inverse)
    total = xp.einsum("...ij,...ij->...i", g, out)[..., None, :]
    g *= survivors_scale(keep_probability)
    make = joinable if query.shape[-2] else xp.zeros  # without queries there is no block to write the keys' gradients
    outputs = zip((query, key, value), needed, into)
    d_query, d_key, d_value = (
        (make(x.shape, x.dtype) if target is None else target) if n else None for x, n, target in outputs
    )
    d_bias = aligned_zeros(bias, query.ndim, query.dtype) if needed[3] else None
    for i, block in enumerate(blocks(query, key, is_causal, _BLOCK, _QUERIES, _KEPT)):
        of_queries, of_keys = block.of_queries, block.of_keys
        weights = saved[i] if saved is not None else _scores(query, key, bias, mask, block)
        if saved is None:
            seen_by_first = _seen_by_first(query, key, is_causal, block)
            passes.weigh_again(weights, seen_by_first, largest[block.batch, ..., block.queries])
        if d_value is not None:
            matmul(_dropped(weights, keep, block), g[of_queries], out=d_value[of_keys], accumulate=not block.is_first)
        if d_query is None and d_key is None and d_bias is None:
            continue
        d_scores = matmul(value[of_keys], transposed(g[of_queries]))
        kept = None if keep is None else cut(keep, block.batch, block.keys, block.queries, weights.ndim)
        passes.to_scores(d_scores, kept, total[block.batch, ..., block.queries], weights)
        if d_query is not None:
            matmul(transposed(d_scores), scaled_key[of_keys], out=d_query[of_queries])
        if d_key is not None:
            matmul(d_scores, query[of_queries], out=d_key[of_keys], accumulate=not block.is_first)
        if d_bias is not None:
            add_to_bias(d_bias, transposed(d_scores), block)
    if hidden is not None and not xp.isfinite(total).all():  # a query that is NaN has made these NaN
        for gradient in (d_key, d_value):
            if gradient is not None:
                gradient[xp.broadcast_to(hidden, gradient.shape[:-1])] = 0
    return d_query, d_key, d_value, None if d_bias is None else d_bias.reshape(bias.shape)


def aligned_zeros(bias: Any, ndim: int, dtype: Any) -> Any:
    """Return zeros for the gradient of a bias, with as many axes as the scores."""
    return xp.zeros((1,) * (ndim - bias.ndim) + bias.shape, dtype)


def add_to_bias(d_bias: Any, d_scores: Any, block: Block) -> None:
    """Add the gradient of a block's scores, (..., T, S), to the bias's gradient, summed over the broadcast axes."""
    part = cut(d_bias, block.batch, block.queries, block.keys, d_scores.ndim)
    axes = tuple([axis for axis, (n, length) in enumerate(zip(part.shape, d_scores.shape)) if n != length])
    part += d_scores.sum(axis=axes, dtype=d_bias.dtype, keepdims=True)


def _exp(scores: Any, largest: Any) -> None:
    """Replace scores by exp(scores - largest)."""
    scores -= largest
    xp.exp(scores, out=scores)


def _survivors(query: Any, key: Any, random_key: RandomKey | None, keep_probability: float) -> Any:
    """Return the dropout mask of the weights, (..., S, T); None without dropout."""
    if random_key is None:
        return None
    lead = host.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return keep_mask(random_key, (*lead, key.shape[-2], query.shape[-2]), keep_probability)


def _dropped(weights: Any, keep: Any, block: Block) -> Any:
    """Return a block's weights, or their gradient, with 0 for the dropped ones."""
    return weights if keep is None else weights * cut(keep, block.batch, block.keys, block.queries, weights.ndim)


multi_head_attention_forward, multi_head_attention_backward = multi_head(attention_forward, attention_backward)
