"""Attention while decoding: the new tokens' queries attend to the keys and values of all tokens so far, which a cache holds.

It works on arrays, and no gradient flows. The cache changes at each call, so ``tt.trace`` writes down opaque steps. Plain
self-attention is two: the cache makes room, and ``cached_attention`` computes. So is attention to a memory that the cache has:
it is read, and ``memory_attention`` computes. The second needs nothing but arrays, so compiled kernels can join it with the
steps around it. All else, such as keeping the weights for a picture, is one step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tinytensor as tt
from tinyformer.models.caches import KeyValueCache
from tinytensor import Tensor
from tinytensor.autograd.tensor import wrap
from tinytensor.device.backend import xp
from tinytensor.functional.attention import attention_of_arrays, cached_attention, memory_attention
from tinytensor.kernels.heads import join_heads

if TYPE_CHECKING:
    from tinyformer.models.attention import MultiHeadAttention


def attend_with_cache(
    layer: MultiHeadAttention,
    cache: KeyValueCache,
    projected: Tensor,
    key_value: Tensor | None,
    mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
) -> Tensor:
    """The mixed values (batch, length, num_heads * d_head) of a layer's new tokens. ``key_value`` is None for self-attention,
    and for a cross-attention whose cache is filled."""
    if layer.cross and key_value is None and not dropout_p and not layer.is_recorded:
        return _attend_to_memory(projected, _read(cache), mask, layer.num_heads)
    if layer.cross or mask is not None or dropout_p or layer.is_recorded:
        return _attend_to_cache(projected, key_value, mask, is_causal, dropout_p, layer, cache)
    batch, length, _ = projected.shape
    stored = _reserve(cache, (batch, layer.num_key_value_heads, length, layer.d_head), projected.dtype)
    return _attend_to_stored(projected, stored, layer.num_heads, is_causal)


@tt.opaque
def _reserve(cache: KeyValueCache, shape: tuple[int, ...], dtype: Any) -> Any:
    """Room for the keys and values of new tokens, behind those of all tokens before: see ``KeyValueCache.reserve``."""
    return cache.reserve(shape, dtype)


@tt.opaque
def _read(cache: KeyValueCache) -> Any:
    """The keys and values of a memory."""
    return cache.read()


_attend_to_stored = tt.opaque(cached_attention)
_attend_to_memory = tt.opaque(memory_attention)


@tt.opaque
def _attend_to_cache(
    projected: Any,
    key_value: Any,
    mask: Any,
    is_causal: bool,
    dropout_p: float,
    layer: MultiHeadAttention,
    cache: KeyValueCache,
) -> Any:
    """Add the new keys and values to the cache, and let the new queries of ``layer`` attend to everything in it.

    ``key_value`` is None for a cross-attention whose cache is filled already: then nothing is added. The cache may then have
    fewer rows than the batch: each is for several rows, one after the other.
    """
    memory = None if key_value is None else wrap(key_value)
    query, key, value = layer.heads(wrap(projected), memory)
    keys, values = cache.read() if key is None else cache.append(key.data, value.data)
    if len(keys) != len(projected):
        each = len(projected) // len(keys)
        keys, values, mask = [None if x is None else xp.repeat(x, each, axis=0) for x in (keys, values, mask)]
    if layer.is_recorded:
        wrapped = None if mask is None else wrap(mask)
        replaced = layer.record_weights(query, layer.for_each_query(wrap(keys)), wrapped, is_causal)
        if replaced is not None:
            return join_heads((replaced @ layer.for_each_query(wrap(values))).data)
    batch, num_heads, length, d_head = query.shape
    if length == 1 and mask is None:
        # Keys and values need not be repeated: the heads of queries that share them become queries of one head.
        shared = query.data.reshape(batch, layer.num_key_value_heads, -1, d_head)
        mixed = attention_of_arrays(shared, keys, values, None, False, dropout_p)
        return join_heads(mixed.reshape(batch, num_heads, 1, d_head))
    keys, values = layer.for_each_query(wrap(keys)).data, layer.for_each_query(wrap(values)).data
    return join_heads(attention_of_arrays(query.data, keys, values, mask, is_causal, dropout_p))
