"""Multi-head attention on projections as linear layers make them: the heads are cut out as views, and joined again.

If recorded ops cut and joined the heads, they would add seven nodes to the graph, and the gradient of each would take a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinytensor.device.backend import xp

if TYPE_CHECKING:
    from tinytensor.kernels.numpy.dropout import RandomKey

# ---------------------------------------------------------------------- views: of arrays, and in ``functional`` of tensors


def split_heads(packed: Any, parts: int, num_heads: int) -> Any:
    """(batch, length, parts * width) -> (parts, batch, heads, length, width / heads)."""
    batch, length, width = packed.shape
    return packed.reshape(batch, length, parts, num_heads, width // (parts * num_heads)).transpose(2, 0, 3, 1, 4)


def join_heads(x: Any) -> Any:
    """(batch, heads, length, width) -> (batch, length, heads * width). It copies, unless x
    was made by ``joinable`` (numpy/attention.py)."""
    batch, heads, length, width = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * width)


def queries_keys_values(projected: Any, memory: Any, num_heads: int, has_memory: bool | None = None) -> tuple[Any, Any, Any]:
    """The queries, keys and values in what ``multi_head_attention`` takes, each (batch, heads, length, width / heads).

    Without a memory all three come from ``projected``; with one, the keys and values come from ``memory``. Where the array that
    they would come from is None, they are None. Pass ``has_memory=True`` if there is a memory but ``memory`` may be None here,
    as where its gradient is not needed.
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
    """The kernels ``multi_head_attention_forward`` and ``..._backward``, made from a backend's own attention."""

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
        """``attention_backward``, which writes each gradient to its place in the gradient of the whole projection."""
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
