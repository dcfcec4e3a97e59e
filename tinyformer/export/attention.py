"""Attention as graph nodes, with masks and rotations but without caches (see ``caches.py``).

Uses basic operators: ONNX's Attention is new, and runtimes disagree on causal masks with fewer queries than keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinyformer.export.graph import Value
from tinyformer.export.program import Operators, Writer, difference
from tinytensor import functional, ops
from tinytensor.device.backend import host
from tinytensor.functional import attention
from tinytensor.replay.recording import Size

_LOWEST = float(host.finfo(host.float32).min)


def rms_norm(write: Writer, x: Value, weight: Value | None, eps: float) -> Value:
    """Return the root-mean-square norm over the last axis."""
    out = x / ((x * x).mean() + eps).function("Sqrt")
    return out if weight is None else out * weight


# ------------------------------------------------------------------------------------------------------------- masks


def causal_mask(write: Writer, queries: int | Size, keys: int | Size) -> Value:
    """Return the mask (queries, keys) of causal attention. The queries are the last ``queries`` of all tokens, and each attends
    to ``keys`` up to its own position."""

    def make() -> Value:
        ends = write.range(difference(keys, queries), keys).unsqueeze(1)
        return write.graph.node("LessOrEqual", write.range(0, keys).unsqueeze(0), ends)

    return write.once(("causal", queries, keys), make)


def both(write: Writer, mask: Value | None, other: Value | None) -> Value | None:
    """Return a mask that is True where both masks are True. None allows all."""
    if mask is None or other is None:
        return other if mask is None else mask
    return write.once(("both", mask.name, other.name), lambda: write.graph.node("And", mask, other))


# ------------------------------------------------------------------------------------------------------------- heads


def split_heads(write: Writer, x: Value, parts: Sequence[int], d_head: int) -> list[Value]:
    """Split (batch, length, sum of parts * d_head) into the heads of each part, (batch, part, length, d_head)."""

    def make() -> list[Value]:
        heads = x.reshape(0, 0, sum(parts), d_head).transpose(0, 2, 1, 3)
        return [heads] if len(parts) == 1 else heads.split(*parts, axis=1)

    return write.once(("heads", x.name, *parts), make)


def join_heads(x: Value) -> Value:
    """Convert (batch, heads, length, d_head) to (batch, length, heads * d_head)."""
    return x.transpose(0, 2, 1, 3).reshape(0, 0, -1)


def _norm_and_rotate(
    write: Writer,
    projected: Value,
    query_weight: Value | None,
    key_weight: Value | None,
    num_heads: int,
    shared: int,
    eps: float,
    rotation: Value | None,
) -> Value:
    """Attention reads the heads from ``once``. The nodes that join them here are removed if unused."""
    parts = [num_heads, shared, shared]
    query, key, value = split_heads(write, projected, parts, d_head := projected.shape[2] // sum(parts))
    if query_weight is not None and key_weight is not None:
        query, key = rms_norm(write, query, query_weight, eps), rms_norm(write, key, key_weight, eps)
    if rotation is not None:
        half = d_head // 2
        cosine, sine = write.once(("angles", rotation.name), lambda: rotation.split(half, half))
        query, key = _rotated(query, cosine, sine, half), _rotated(key, cosine, sine, half)
    out = write.graph.concatenate([join_heads(x) for x in (query, key, value)], axis=2)
    write.once(("heads", out.name, *parts), lambda: [query, key, value])
    return out


def _rotated(x: Value, cosine: Value, sine: Value, half: int) -> Value:
    """Rotate the pairs i and half + i of x (..., length, 2 * half) by these cosines and sines."""
    first, second = x.split(half, half)
    return x.graph.concatenate([first * cosine - second * sine, first * sine + second * cosine], axis=-1)


# --------------------------------------------------------------------------------------------------------- attention


def attend(
    write: Writer, query: Value, key: Value, value: Value, mask: Value | None, scale: float, bias: Any = None, ndim: int = 4
) -> Value:
    """Return the mixed values (..., queries, d_head), which are 0 for a query that attends to no key."""
    graph, axes = write.graph, [*range(ndim - 2), ndim - 1, ndim - 2]
    scores = (query * scale) @ key.transpose(*axes)
    if bias is not None:
        scores = scores + bias  # bias may be -inf
        mask = both(write, mask, graph.node("GreaterOrEqual", scores, _LOWEST))
    if mask is None:
        return scores.function("Softmax", axis=-1) @ value
    weights = graph.node("Where", mask, scores, _LOWEST).function("Softmax", axis=-1)
    return graph.node("Where", mask, weights, 0.0) @ value


def _attention(
    write: Writer,
    query: Value,
    key: Value,
    value: Value,
    bias: Value | None,
    mask: Value | None,
    is_causal: bool,
    scale: float,
    random_key: Any,
    keep_probability: float,
) -> Value:
    mask = both(write, mask, causal_mask(write, query.shape[-2], key.shape[-2]) if is_causal else None)
    return attend(write, query, key, value, mask, scale, bias, len(key.shape))


def _multi_head_attention(
    write: Writer,
    projected: Value,
    memory: Value | None,
    bias: Value | None,
    num_heads: int,
    mask: Value | None,
    is_causal: bool,
    scale: float,
    random_key: Any,
    keep_probability: float,
) -> Value:
    d_head = write.shape[2] // num_heads
    keys = (projected if memory is None else memory).shape[1]
    if memory is None:
        query, key, value = split_heads(write, projected, [num_heads] * 3, d_head)
    else:
        (query,) = split_heads(write, projected, [num_heads], d_head)
        key, value = split_heads(write, memory, [num_heads] * 2, d_head)
    mask = both(write, mask, causal_mask(write, projected.shape[1], keys) if is_causal else None)
    return join_heads(attend(write, query, key, value, mask, scale, bias))


def _rotate_pairs(write: Writer, x: Value, cosine: Value, sine: Value) -> Value:
    return _rotated(x, cosine, sine, x.shape[-1] // 2)


ATTENTION: Operators = {
    functional.causal_mask: causal_mask,
    attention._attention: _attention,
    attention._multi_head_attention: _multi_head_attention,
    attention._norm_and_rotate: _norm_and_rotate,
    ops.rotate_pairs: _rotate_pairs,
    functional.rms_norm: rms_norm,
}
