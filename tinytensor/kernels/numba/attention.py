"""Attention: the blocks of kernels/numpy/attention.py, with one compiled pass over a block's scores between two products."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy

from tinytensor.kernels.heads import multi_head
from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numba.exponential import exp
from tinytensor.kernels.numpy import attention as in_numpy


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
attention_forward = partial(in_numpy.attention_forward, passes=_PASSES)
attention_backward = partial(in_numpy.attention_backward, passes=_PASSES)
multi_head_attention_forward, multi_head_attention_backward = multi_head(attention_forward, attention_backward)
