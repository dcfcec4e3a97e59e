"""Attention on any backend: masks, and heads cut out of projections as views.

Multi-head attention takes the projections as linear layers make them. If recorded ops cut and joined the heads, they would add
seven nodes to the graph, each of whose gradients would take a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinytensor.device.backend import host, xp

if TYPE_CHECKING:
    from tinytensor.kernels.numpy.dropout import RandomKey


def causal_array(queries: int, keys: int) -> Any:
    """Return the boolean array (queries, keys) that lets each query see the keys up to its own position (True = may attend).

    Positions are counted from the end: the last query stands at the last key. With more queries than keys, the first queries
    see no key.
    """
    return xp.arange(keys) <= xp.arange(queries)[:, None] + (keys - queries)


def lowest(dtype: Any) -> float:
    """Return the lowest finite number of a dtype, for a maximum over scores that may all be -inf.

    exp(-inf - lowest) is 0, whereas exp(-inf - -inf) is NaN.
    """
    return float(host.finfo(dtype).min)


def padding(mask: Any) -> Any:
    """Return the keys (..., S) that a boolean mask hides from all queries; None without a mask, or with one for each query.

    Callers replace them by zeros: a weight of 0 times NaN would be NaN.
    """
    if mask is None or (mask.ndim > 1 and mask.shape[-2] != 1):
        return None
    return ~(mask[..., 0, :] if mask.ndim > 1 else mask)


# ---------------------------------------------------------------------- views: of arrays, and in ``functional`` of tensors


def split_heads(packed: Any, parts: int, num_heads: int) -> Any:
    """(batch, length, parts * width) -> (parts, batch, heads, length, width / heads)."""
    batch, length, width = packed.shape
    return packed.reshape(batch, length, parts, num_heads, width // (parts * num_heads)).transpose(2, 0, 3, 1, 4)


def join_heads(x: Any) -> Any:
    """(batch, heads, length, width) -> (batch, length, heads * width). No copy if ``joinable`` (numpy/attention.py) made x."""
    batch, heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


def queries_keys_values(projected: Any, memory: Any, num_heads: int, has_memory: bool | None = None) -> tuple[Any, Any, Any]:
    """Return the queries, keys and values in the inputs of ``multi_head_attention``, each (batch, heads, length, width /
    heads).

    Keys and values come from ``memory`` if there is one, else from ``projected``, as the queries do. They are None if their
    array is. Pass ``has_memory=True`` if there is a memory but ``memory`` may be None, for example a gradient that is not
    needed.
    """
    if has_memory is None:
        has_memory = memory is not None
    if not has_memory:
        query, key, value = (None, None, None) if projected is None else split_heads(projected, 3, num_heads)
    else:
        (query,) = (None,) if projected is None else split_heads(projected, 1, num_heads)
        key, value = (None, None) if memory is None else split_heads(memory, 2, num_heads)
    return query, key, value


# -------------------------------------------------------------------------------------------------------------- kernels

Forward = Callable[..., tuple[Any, Any]]
Backward = Callable[..., Sequence[Any]]


def multi_head(attention_forward: Forward, attention_backward: Backward) -> tuple[Forward, Backward]:
    """Make ``multi_head_attention_forward`` and ``multi_head_attention_backward`` from a backend's attention."""

    def multi_head_attention_forward(
        needed: Sequence[bool],
        projected: Any,
        memory: Any,
        bias: Any,
        num_heads: int,
        mask: Any,
        is_causal: bool,
        scale: float,
        random_key: RandomKey | None,
        keep_probability: float,
    ) -> tuple[Any, Any]:
        """``attention_forward`` of the heads, joined. The last five arguments are its settings."""
        has_memory = memory is not None
        query, key, value = queries_keys_values(projected, memory, num_heads, has_memory)
        wanted = (needed[0], needed[has_memory], needed[has_memory], needed[2])
        settings = (mask, is_causal, scale, random_key, keep_probability)
        out, residuals = attention_forward(wanted, query, key, value, bias, *settings)
        return join_heads(out), residuals

    def multi_head_attention_backward(
        g: Any,
        residuals: Any,
        needed: Sequence[bool],
        projected: Any,
        memory: Any,
        bias: Any,
        num_heads: int,
        mask: Any,
        is_causal: bool,
        scale: float,
        random_key: RandomKey | None,
        keep_probability: float,
    ) -> Sequence[Any]:
        """``attention_backward``, writing each gradient into the gradients of ``projected`` and ``memory``."""
        make = xp.empty if projected.shape[1] else xp.zeros  # without queries nothing is written
        d_projected = make(projected.shape, projected.dtype) if needed[0] else None
        d_memory = make(memory.shape, memory.dtype) if needed[1] else None
        has_memory = memory is not None
        into = queries_keys_values(d_projected, d_memory, num_heads, has_memory)
        query, key, value = queries_keys_values(projected, memory, num_heads, has_memory)
        wanted = [*[x is not None for x in into], needed[2]]
        (g,) = split_heads(g, 1, num_heads)
        settings = (mask, is_causal, scale, random_key, keep_probability)
        *_, d_bias = attention_backward(g, residuals, wanted, query, key, value, bias, *settings, into)
        return d_projected, d_memory, d_bias

    return multi_head_attention_forward, multi_head_attention_backward
