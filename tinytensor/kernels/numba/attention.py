"""Attention: one compiled call for all heads if only padding and causality hide keys (``attention_blocks``).

Otherwise, for example with a bias or a mask for each query, it runs in the blocks of kernels/numpy/attention.py, with one
compiled pass over a block's scores between two products. Read that file first; it has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy

from tinytensor.device.summation import sum_over
from tinytensor.kernels.attention import lowest, multi_head
from tinytensor.kernels.numba.attention_blocks import backward, exponentiate, find_largest, forward, hide_later_keys
from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numpy import attention as in_numpy
from tinytensor.kernels.numpy.dropout import RandomKey, keep_mask, survivors_scale

_LONGEST = 1 << 14  # maximum queries or keys that are added up one after the other

# ------------------------------------------------------------------------------------------- the passes over NumPy's blocks


@loop
def _weigh_blocks(scores: Any, seen_by_first: int, floor: float, largest: Any, total: Any) -> None:
    blocks, keys, _ = scores.shape
    for b in range(blocks):
        hide_later_keys(scores[b], keys, seen_by_first, real(-math.inf))
        find_largest(scores[b], keys, floor, largest[b, 0])
        exponentiate(scores[b], keys, largest[b, 0], total[b, 0])


@loop
def _weigh_blocks_again(scores: Any, seen_by_first: int, largest: Any, total: Any) -> None:
    blocks, keys, _ = scores.shape
    for b in range(blocks):
        hide_later_keys(scores[b], keys, seen_by_first, real(-math.inf))
        exponentiate(scores[b], keys, largest[b, 0], total[b, 0])


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
    """Return (..., S, T) as contiguous (n, S, T)."""
    return numpy.ascontiguousarray(x).reshape(-1, *x.shape[-2:])


def _write_back(joined: Any, x: Any) -> None:
    """Copy ``joined`` back to x if ``_joined(x)`` was a copy: products of views need not be contiguous."""
    if not x.flags.c_contiguous:
        x[...] = joined.reshape(x.shape)


def _weigh(scores: Any, seen_by_first: int | None, floor: float | None) -> tuple[Any, Any]:
    shape = (*scores.shape[:-2], 1, scores.shape[-1])
    largest, total = numpy.empty(shape, scores.dtype), numpy.empty(shape, scores.dtype)
    seen = scores.shape[-2] if seen_by_first is None else seen_by_first
    joined = _joined(scores)
    _weigh_blocks(joined, seen, -math.inf if floor is None else floor, _joined(largest), _joined(total))
    _write_back(joined, scores)
    return largest, total if scores.shape[-2] <= _LONGEST else sum_over(scores, (scores.ndim - 2,), keepdims=True)


def _weigh_again(scores: Any, seen_by_first: int | None, largest: Any) -> None:
    seen = scores.shape[-2] if seen_by_first is None else seen_by_first
    largest = _joined(numpy.broadcast_to(largest, (*scores.shape[:-2], 1, scores.shape[-1])))
    joined = _joined(scores)
    _weigh_blocks_again(joined, seen, largest, numpy.empty_like(largest))
    _write_back(joined, scores)


def _to_scores(d_weights: Any, keep: Any, total: Any, weights: Any) -> None:
    joined = _joined(d_weights)
    if keep is None:
        _subtract_and_multiply(joined, _joined(total), _joined(weights))
    else:
        _drop_subtract_and_multiply(joined, _joined(keep), _joined(total), _joined(weights))
    _write_back(joined, d_weights)


_PASSES = in_numpy.Passes(_weigh, _weigh_again, _to_scores)
_in_blocks = partial(in_numpy.attention_forward, passes=_PASSES)
_in_blocks_backward = partial(in_numpy.attention_backward, passes=_PASSES)

# ------------------------------------------------------------------------------------------------------ all heads at once


class Statistics(NamedTuple):
    """The arrays that ``attention_forward`` saves for ``attention_backward`` if one call computes all heads."""

    largest: Any  # each query's largest score, (batch, heads, T)
    inverse: Any  # 1 / the sum of each query's weights before normalisation, (batch, heads, T)
    keep: Any  # the dropout mask of the weights, (batch, heads, S, T); None without dropout


def _is_plain(query: Any, key: Any, value: Any, bias: Any, mask: Any, is_causal: bool) -> bool:
    """Return True if ``attention_blocks`` supports it: no broadcasting, and a mask that hides the same keys from all
    queries."""
    same = query.ndim == key.ndim == value.ndim == 4 and query.shape[:2] == key.shape[:2] == value.shape[:2]
    one_dtype = query.dtype == key.dtype == value.dtype and query.dtype.itemsize >= 4
    unmasked = bias is None and (mask is None or (2 <= mask.ndim <= 4 and mask.shape[-2] == 1))
    some_keys_each = query.shape[-2] <= key.shape[-2] or not is_causal
    same = same and max(query.shape[-2], key.shape[-2]) <= _LONGEST
    return same and one_dtype and unmasked and some_keys_each and bool(query.size and key.size and value.size)


def _settings(query: Any, key: Any, mask: Any, keep: Any, is_causal: bool, scale: float, keep_probability: float) -> list[Any]:
    """Return the arguments of ``attention_blocks`` after the inputs."""
    batch, num_heads, queries, _ = query.shape
    keys = key.shape[2]
    penalty = numpy.empty((batch, num_heads, 0 if mask is None else keys), query.dtype)
    if mask is not None:
        penalty[...] = numpy.where(mask, 0.0, -math.inf)[..., 0, :]
    kept = numpy.empty((0, 0, 0, 0), bool) if keep is None else keep
    seen_by_first = keys - queries + 1 if is_causal else keys
    return [penalty, kept, scale, survivors_scale(keep_probability), seen_by_first]


def _in_rows(*arrays: Any) -> list[Any]:
    """Return the arrays, copied if their rows are not contiguous."""
    return [x if x.strides[-1] == x.itemsize else numpy.ascontiguousarray(x) for x in arrays]


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
    """softmax(query keyᵀ scale + bias) value, as in kernels/numpy/attention.py. Saves ``Statistics`` or its residuals."""
    if not _is_plain(query, key, value, bias, mask, is_causal) or (query.shape[-2] == 1 and not any(needed)):
        return _in_blocks(needed, query, key, value, bias, mask, is_causal, scale, random_key, keep_probability)
    of_scores = (*query.shape[:-1], key.shape[-2])
    in_numpy.check_mask(mask, of_scores)
    of_weights = (*of_scores[:-2], of_scores[-1], of_scores[-2])
    keep = None if random_key is None else keep_mask(random_key, of_weights, keep_probability)
    settings = _settings(query, key, mask, keep, is_causal, scale, keep_probability)
    floor = -math.inf if mask is None else lowest(query.dtype)
    out = in_numpy.joinable((*query.shape[:-1], value.shape[-1]), query.dtype)
    largest, inverse = numpy.empty((2, *query.shape[:-1]), query.dtype)
    forward(*_in_rows(query, key, value), *settings, floor, out, largest, inverse)
    return out, Statistics(largest, inverse, keep)


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
    """The gradients of query, key, value and bias. The first three are written to ``into``, or to new arrays for None."""
    if not isinstance(residuals, Statistics):
        options = (mask, is_causal, scale, random_key, keep_probability, into)
        return _in_blocks_backward(g, residuals, needed, query, key, value, bias, *options)
    largest, inverse, keep = residuals
    settings = _settings(query, key, mask, keep, is_causal, scale, keep_probability)
    made = [in_numpy.joinable(x.shape, x.dtype) if target is None else target for x, target in zip((query, key, value), into)]
    backward(*_in_rows(g, query, key, value), *settings, largest, inverse, *made)
    d_query, d_key, d_value = (gradient if n else None for gradient, n in zip(made, needed))
    return d_query, d_key, d_value, None


multi_head_attention_forward, multi_head_attention_backward = multi_head(attention_forward, attention_backward)
