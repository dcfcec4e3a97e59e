"""Attention: one compiled call for all heads, where nothing but padding and causality hides keys (``heads``).

All else, like a mask of queries and keys or a bias, runs in the blocks of kernels/numpy/attention.py, with one compiled pass
over a block's scores between two products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy

from tinytensor.kernels.heads import multi_head
from tinytensor.kernels.masks import lowest
from tinytensor.kernels.numba import heads
from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numba.exponential import exp
from tinytensor.kernels.numpy import attention as in_numpy
from tinytensor.kernels.numpy.dropout import RandomKey, keep_mask, survivors_scale


@loop
def _find_largest(scores: Any, seen_by_first: int, floor: float, largest: Any) -> None:
    blocks, keys, queries = scores.shape
    for b in range(blocks):
        for t in range(queries):
            largest[b, 0, t] = floor
        for s in range(keys):
            for t in range(max(0, s - seen_by_first + 1), queries):
                largest[b, 0, t] = scores[b, s, t] if scores[b, s, t] > largest[b, 0, t] else largest[b, 0, t]


@loop
def _exponentiate(scores: Any, seen_by_first: int, largest: Any, total: Any) -> None:
    blocks, keys, queries = scores.shape
    for b in range(blocks):
        for t in range(queries):
            total[b, 0, t] = real(0)
        for s in range(keys):
            first = min(queries, max(0, s - seen_by_first + 1))  # the first query that sees this key
            for t in range(first):
                scores[b, s, t] = real(0)
            for t in range(first, queries):
                weight = exp(scores[b, s, t] - largest[b, 0, t])
                scores[b, s, t] = weight
                total[b, 0, t] += weight


@loop
def _subtract_and_multiply(d_weights: Any, total: Any, weights: Any) -> None:
    blocks, keys, queries = d_weights.shape
    for b in range(blocks):
        for s in range(keys):
            for t in range(queries):
                d_weights[b, s, t] = (d_weights[b, s, t] - total[b, 0, t]) * weights[b, s, t]


@loop
def _drop_subtract_and_multiply(d_weights: Any, keep: Any, total: Any, weights: Any) -> None:
    blocks, keys, queries = d_weights.shape
    for b in range(blocks):
        for s in range(keys):
            for t in range(queries):
                d_weights[b, s, t] = (d_weights[b, s, t] * keep[b, s, t] - total[b, 0, t]) * weights[b, s, t]


def _joined(x: Any) -> Any:
    """(..., S, T) -> (n, S, T), contiguous."""
    return numpy.ascontiguousarray(x).reshape(-1, *x.shape[-2:])


def _write_back(joined: Any, x: Any) -> None:
    """Bring what was computed in ``_joined(x)`` to x, where that is a copy, as products of views need not be contiguous."""
    if not x.flags.c_contiguous:
        x[...] = joined.reshape(x.shape)


def _weigh(scores: Any, seen_by_first: int | None, floor: float | None) -> tuple[Any, Any]:
    shape = (*scores.shape[:-2], 1, scores.shape[-1])
    largest, total = numpy.empty(shape, scores.dtype), numpy.empty(shape, scores.dtype)
    seen = scores.shape[-2] if seen_by_first is None else seen_by_first
    joined = _joined(scores)
    _find_largest(joined, seen, -math.inf if floor is None else floor, _joined(largest))
    _exponentiate(joined, seen, _joined(largest), _joined(total))
    _write_back(joined, scores)
    return largest, total


def _weigh_again(scores: Any, seen_by_first: int | None, largest: Any) -> None:
    seen = scores.shape[-2] if seen_by_first is None else seen_by_first
    largest = _joined(numpy.broadcast_to(largest, (*scores.shape[:-2], 1, scores.shape[-1])))
    joined = _joined(scores)
    _exponentiate(joined, seen, largest, numpy.empty_like(largest))
    _write_back(joined, scores)


def _to_scores(d_weights: Any, keep: Any, total: Any, weights: Any) -> None:
    joined = _joined(d_weights)
    if keep is None:
        _subtract_and_multiply(joined, _joined(total), _joined(weights))
    else:
        _drop_subtract_and_multiply(joined, _joined(keep), _joined(total), _joined(weights))
    _write_back(joined, d_weights)


_PASSES = in_numpy.Passes(_weigh, _weigh_again, _to_scores)
_in_blocks, _in_blocks_backward = (partial(f, passes=_PASSES) for f in (in_numpy.attention_forward, in_numpy.attention_backward))

# ------------------------------------------------------------------------------------------------------ all heads at once


class Statistics(NamedTuple):
    """What ``attention_forward`` saves for ``attention_backward`` where one call computes all heads."""

    weights: Any  # of all blocks, as ``heads`` lays them out, not normalised; empty: compute them again
    largest: Any  # each query's largest score, (batch, heads, T)
    inverse: Any  # 1 / the sum of each query's weights before they are normalised, (batch, heads, T)
    keep: Any  # the dropout mask of the weights, (batch, heads, S, T); None without dropout


def _is_plain(query: Any, key: Any, value: Any, bias: Any, mask: Any, is_causal: bool) -> bool:
    """Whether ``heads`` computes it: four axes, no broadcasting, no bias, and all queries see the same keys but for causality."""
    queries, keys = query.shape[-2], key.shape[-2]
    return (
        bias is None
        and (mask is None or (mask.ndim > 1 and mask.shape[-2] == 1 and mask.ndim <= 4))
        and query.ndim == key.ndim == value.ndim == 4
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.dtype == key.dtype == value.dtype
        and query.dtype.itemsize >= 4
        and bool(query.size and key.size and value.size)
        and (queries <= keys or not is_causal)
    )


def _in_rows(x: Any) -> Any:
    """x, copied if its rows do not lie in one piece in memory."""
    return x if x.strides[-1] == x.itemsize else numpy.ascontiguousarray(x)


def _settings(
    query: Any, key: Any, mask: Any, keep: Any, is_causal: bool, scale: float, keep_probability: float
) -> tuple[Any, ...]:
    """The arguments of the loops in ``heads`` that follow the inputs."""
    batch, num_heads, queries, keys = *query.shape[:3], key.shape[2]
    penalty = numpy.empty((batch, num_heads, 0 if mask is None else keys), query.dtype)
    if mask is not None:
        penalty[...] = numpy.where(mask, 0.0, -math.inf)[..., 0, :]
    kept = numpy.empty((0, 0, 0, 0), bool) if keep is None else keep
    seen_by_first = keys - queries + 1 if is_causal else keys
    return penalty, kept, scale, survivors_scale(keep_probability), seen_by_first


def _space_for_weights(is_needed: bool, query: Any, key: Any, seen_by_first: int) -> Any:
    """Where all weights are saved if they are few, as in kernels/numpy/attention.py."""
    batch, num_heads, queries, keys = *query.shape[:3], key.shape[2]
    is_saved = is_needed and queries * keys <= in_numpy._KEPT
    return numpy.empty(batch * num_heads * heads.size_of_weights(queries, keys, seen_by_first) if is_saved else 0, query.dtype)


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
    """softmax(query keyᵀ scale + bias) value, as kernels/numpy/attention.py documents it. Saves ``Statistics``, or its residuals."""
    if not _is_plain(query, key, value, bias, mask, is_causal) or (query.shape[-2] == 1 and not any(needed)):
        return _in_blocks(needed, query, key, value, bias, mask, is_causal, scale, random_key, keep_probability)
    in_numpy.check_mask(mask, (*query.shape[:-1], key.shape[-2]))
    keep = None if random_key is None else keep_mask(random_key, (*query.shape[:2], key.shape[2], query.shape[2]), keep_probability)
    settings = _settings(query, key, mask, keep, is_causal, scale, keep_probability)
    floor = -math.inf if mask is None else lowest(query.dtype)
    out = in_numpy.joinable((*query.shape[:-1], value.shape[-1]), query.dtype)
    largest = numpy.empty(query.shape[:3], query.dtype)
    inverse = numpy.empty_like(largest)
    weights = _space_for_weights(any(needed), query, key, settings[-1])
    heads.forward(*[_in_rows(x) for x in (query, key, value)], *settings, floor, weights, out, largest, inverse)
    return out, Statistics(weights, largest, inverse, keep)


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
) -> Sequence[Any]:
    """The gradients of query, key, value and bias, the first three written to the arrays in ``into`` where these are not None."""
    if not isinstance(residuals, Statistics):
        rest = (query, key, value, bias, mask, is_causal, scale, random_key, keep_probability, into)
        return _in_blocks_backward(g, residuals, needed, *rest)
    weights, largest, inverse, keep = residuals
    settings = _settings(query, key, mask, keep, is_causal, scale, keep_probability)
    places = zip((query, key, value), into)
    gradients = [in_numpy.joinable(x.shape, x.dtype) if place is None else place for x, place in places]
    heads.backward(*[_in_rows(x) for x in (g, query, key, value)], *settings, weights, largest, inverse, *gradients)
    return *[d if n else None for d, n in zip(gradients, needed)], None


multi_head_attention_forward, multi_head_attention_backward = multi_head(attention_forward, attention_backward)
