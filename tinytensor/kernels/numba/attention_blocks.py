"""Attention of all heads in one call, without a bias; kernels/numpy/attention.py has the formulas. A block of queries stays in
the processor's cache for all steps.

The products are those of ``tiles``, without what causality hides. No weights are saved: recomputing them in the backward pass
takes about as long as writing and reading them.

Arrays of a block are (keys, queries), (keys, width) or (queries, width), padded to whole tiles. Query t of the block sees the
first ``seen`` + t keys. Results in the padding are never read.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numba.functions import exp
from tinytensor.kernels.numba.tiles import COLUMNS, ROWS, add_product, contiguous, set_product, whole_tiles

_QUERIES = 64  # of a block

# ------------------------------------------------------------------------------------------------- the steps of one block


@loop
def _copy_row(x: Any, factor: float, out: Any) -> None:
    for i in range(min(x.size, out.size)):
        out[i] = x[i] * factor


@loop
def _copy(x: Any, factor: float, rows: int, out: Any) -> None:
    for i in range(rows):
        _copy_row(contiguous(x[i]), factor, contiguous(out[i]))


@loop
def _copy_seen(x: Any, penalty: Any, keys: int, out: Any) -> None:
    """Copy the keys whose penalty is 0. The hidden ones become zeros: 0 times NaN would be NaN."""
    _copy(x, real(1), keys, out)
    for i in range(min(keys, penalty.size)):
        if penalty[i] != real(0):
            out[i] = real(0)


@loop
def _transpose(x: Any, rows: int, width: int, out: Any) -> None:
    for j in range(width):
        for i in range(rows):
            out[j, i] = x[i, j]


@loop
def _keys_by_queries(of_keys: Any, of_queries: Any, keys: int, width: int, seen: int, out: Any) -> None:
    """Write of_keys @ of_queries if a query sees the key: (keys, width) times (width, queries)."""
    for s in range(0, keys, ROWS):
        first = max(0, s - seen + 1)
        for t in range(first - first % COLUMNS, out.shape[1], COLUMNS):
            set_product(of_keys, of_queries, 0, width, out, s, t)


@loop
def _sum_over_keys(weights: Any, of_keys: Any, keys: int, seen: int, out: Any) -> None:
    """Write weights.T @ of_keys: (queries, keys) times (keys, width)."""
    for t in range(0, out.shape[0], ROWS):
        for d in range(0, out.shape[1], COLUMNS):
            set_product(weights.T, of_keys, 0, min(keys, seen + t + ROWS - 1), out, t, d)


@loop
def _sum_over_queries(weights: Any, of_queries: Any, keys: int, queries: int, seen: int, out: Any) -> None:
    """Add weights @ of_queries: (keys, queries) times (queries, width)."""
    for s in range(0, keys, ROWS):
        for d in range(0, out.shape[1], COLUMNS):
            add_product(weights, of_queries, max(0, s - seen + 1), queries, out, s, d)


@loop
def hide_later_keys(x: Any, keys: int, seen: int, value: float) -> None:
    """Set the elements of x (keys, queries) whose query does not see the key."""
    for s in range(keys):
        hidden = x[s, : max(0, s - seen + 1)]
        for t in range(hidden.size):
            hidden[t] = value


@loop
def _hide_padding(scores: Any, penalty: Any, keys: int) -> None:
    """Add to each key's scores its penalty, which is 0 or -inf."""
    for s in range(keys):
        for t in range(scores.shape[1]):
            scores[s, t] += penalty[s]


@loop
def find_largest(scores: Any, keys: int, floor: float, largest: Any) -> None:
    """Write each query's largest score, at least ``floor``, to ``largest`` (queries,)."""
    largest[:] = floor
    for s in range(keys):
        for t in range(largest.size):
            largest[t] = scores[s, t] if scores[s, t] > largest[t] else largest[t]


@loop
def exponentiate(scores: Any, keys: int, largest: Any, total: Any) -> None:
    """Replace the scores by the weights, not normalised, and write each query's sum to ``total``."""
    total[:] = real(0)
    for s in range(keys):
        for t in range(total.size):
            weight = exp(scores[s, t] - largest[t])
            scores[s, t] = weight
            total[t] += weight


@loop
def _drop(x: Any, keep: Any, first: int, keys: int, queries: int) -> None:
    for s in range(keys):
        kept = keep[s, first : first + queries]
        for t in range(kept.size):
            x[s, t] *= kept[t]


@loop
def _to_scores(d_weights: Any, weights: Any, keys: int, inverse: Any, total: Any) -> None:
    """Replace the weights' gradient by that of the scores: dS = P (dP - rowsum(dP P)), where P = weights * inverse and
    ``d_weights`` is dP * inverse."""
    total[:] = real(0)
    for s in range(keys):
        for t in range(total.size):
            total[t] += d_weights[s, t] * weights[s, t]
    for t in range(total.size):
        total[t] *= inverse[t]
    for s in range(keys):
        for t in range(total.size):
            d_weights[s, t] = (d_weights[s, t] - total[t]) * weights[s, t]


# ------------------------------------------------------------------------------------------------------------- all heads


@loop
def _matrix(rows: int, columns: int, like: Any) -> Any:
    """Return zeros (rows, columns), padded to whole tiles. The argument ``like`` gives Numba their dtype."""
    return numpy.zeros((whole_tiles(rows, ROWS), whole_tiles(columns, COLUMNS)), like.dtype)


@loop
def _scores(q: Any, k: Any, penalty: Any, queries: int, keys: int, width: int, seen: int, q_columns: Any, out: Any) -> None:
    """Write the scores of a block's scaled queries q to out. ``q_columns`` is memory for the transposed q."""
    _transpose(q, queries, width, q_columns)
    _keys_by_queries(k, q_columns, keys, width, seen, out)
    hide_later_keys(out, keys, seen, real(-math.inf))
    if penalty.size:
        _hide_padding(out, penalty, keys)


@loop
def forward(
    query: Any,
    key: Any,
    value: Any,
    penalty: Any,
    keep: Any,
    scale: float,
    keep_scale: float,
    seen_by_first: int,
    floor: float,
    out: Any,
    largest: Any,
    inverse: Any,
) -> None:
    """softmax(query keyᵀ scale + penalty) value, with dropout of the weights. The last three arguments are written.

    ``penalty`` (batch, heads, keys) and ``keep`` (batch, heads, keys, queries) may be empty.
    """
    batch, heads, queries, width = query.shape
    keys, values_width = value.shape[2:]
    block = whole_tiles(min(queries, _QUERIES), COLUMNS)
    q, q_columns = _matrix(block, width, query), _matrix(width, block, query)
    k, v = _matrix(keys, width, query), _matrix(keys, values_width, query)
    weights, mixed = _matrix(keys, block, query), _matrix(block, values_width, query)
    top, total = numpy.zeros(block, real), numpy.zeros(block, real)
    for b in range(batch):
        for h in range(heads):
            _copy_seen(key[b, h], penalty[b, h], keys, k)
            _copy_seen(value[b, h], penalty[b, h], keys, v)
            for first in range(0, queries, _QUERIES):
                count, seen = min(_QUERIES, queries - first), seen_by_first + first
                visible = min(keys, whole_tiles(seen + count - 1, ROWS))
                _copy(query[b, h, first : first + count], scale, count, q)
                _scores(q, k, penalty[b, h], count, visible, width, seen, q_columns, weights)
                find_largest(weights, visible, floor, top)
                exponentiate(weights, visible, top, total)
                if keep.size:
                    _drop(weights, keep[b, h], first, visible, count)
                _sum_over_keys(weights, v, visible, seen, mixed)
                for t in range(count):
                    largest[b, h, first + t] = top[t]
                    inverse[b, h, first + t] = real(0) if total[t] == real(0) else real(1) / total[t]
                    _copy_row(mixed[t], inverse[b, h, first + t] * keep_scale, contiguous(out[b, h, first + t]))


@loop
def backward(
    g: Any,
    query: Any,
    key: Any,
    value: Any,
    penalty: Any,
    keep: Any,
    scale: float,
    keep_scale: float,
    seen_by_first: int,
    largest: Any,
    inverse: Any,
    d_query: Any,
    d_key: Any,
    d_value: Any,
) -> None:
    """Write the gradients of query, key and value to the last three arguments."""
    batch, heads, queries, width = query.shape
    keys, values_width = value.shape[2:]
    block = whole_tiles(min(queries, _QUERIES), COLUMNS)
    q, q_columns = _matrix(block, width, query), _matrix(width, block, query)
    k, v = _matrix(keys, width, query), _matrix(keys, values_width, query)
    d_q, d_k, d_v = _matrix(block, width, query), _matrix(keys, width, query), _matrix(keys, values_width, query)
    weights, d_scores = _matrix(keys, block, query), _matrix(keys, block, query)
    d_out, d_out_columns = _matrix(block, values_width, query), _matrix(values_width, block, query)
    top, scales, total = numpy.zeros(block, real), numpy.zeros(block, real), numpy.zeros(block, real)
    for b in range(batch):
        for h in range(heads):
            _copy_seen(key[b, h], penalty[b, h], keys, k)
            _copy_seen(value[b, h], penalty[b, h], keys, v)
            d_k[:] = real(0)
            d_v[:] = real(0)
            for first in range(0, queries, _QUERIES):
                count, seen = min(_QUERIES, queries - first), seen_by_first + first
                visible = min(keys, whole_tiles(seen + count - 1, ROWS))
                _copy(query[b, h, first : first + count], scale, count, q)
                for t in range(count):
                    top[t], scales[t] = largest[b, h, first + t], inverse[b, h, first + t]
                    _copy_row(contiguous(g[b, h, first + t]), scales[t] * keep_scale, d_out[t])
                _scores(q, k, penalty[b, h], count, visible, width, seen, q_columns, weights)
                exponentiate(weights, visible, top, total)
                _transpose(d_out, count, values_width, d_out_columns)
                _keys_by_queries(v, d_out_columns, visible, values_width, seen, d_scores)
                hide_later_keys(d_scores, visible, seen, real(0))
                if keep.size:
                    _drop(d_scores, keep[b, h], first, visible, count)
                _to_scores(d_scores, weights, visible, scales, total)
                if keep.size:
                    _drop(weights, keep[b, h], first, visible, count)
                _sum_over_queries(weights, d_out, visible, count, seen, d_v)
                _sum_over_queries(d_scores, q, visible, count, seen, d_k)
                _sum_over_keys(d_scores, k, visible, seen, d_q)
                _copy(d_q, scale, count, d_query[b, h, first : first + count])
            _copy_seen(d_k, penalty[b, h], keys, d_key[b, h])
            _copy_seen(d_v, penalty[b, h], keys, d_value[b, h])
