"""The blocks of a Transformer as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from tinyformer.export.attention import KeysValues, LayerCache, cross_attention, self_attention
from tinyformer.export.graph import Value
from tinyformer.export.layers import feed_forward, norm
from tinyformer.export.positions import Rotation, count_from_zero, rotation_of
from tinyformer.models.blocks import Block
from tinyformer.models.gpt import GPT
from tinyformer.models.transformer import Stack
from tinytensor.nn import Module


def blocks_of(layer: GPT | Stack) -> list[Block]:
    """The blocks of a model or of one of its stacks."""
    return cast("list[Block]", [*layer.blocks])


def block(
    layer: Block,
    x: Value,
    mask: Value,
    cache: LayerCache | None = None,
    rotation: Rotation | None = None,
    memory: KeysValues | None = None,
    memory_mask: Value | None = None,
) -> Value:
    """(batch, length, d_model) -> the same shape. ``memory`` are the keys and values for its cross-attention, if it has one."""
    x = _residual(layer, x, layer.attention_norm, lambda y: self_attention(layer.attention, y, mask, cache, rotation))
    attend = layer.cross_attention
    if attend is not None and layer.cross_attention_norm is not None:
        assert memory is not None and memory_mask is not None
        x = _residual(layer, x, layer.cross_attention_norm, lambda y: cross_attention(attend, y, memory, memory_mask))
    return _residual(layer, x, layer.feed_forward_norm, lambda y: feed_forward(layer.feed_forward, y))


def _residual(layer: Block, x: Value, layer_norm: Module, f: Callable[[Value], Value]) -> Value:
    if layer.norm_first:
        return x + f(norm(layer_norm, x))
    return norm(layer_norm, x + f(x))


def encoder(layer: Stack, x: Value, mask: Value) -> Value:
    """(batch, length, d_model) -> the same shape, through all blocks of an encoder."""
    rotation = rotation_of(blocks_of(layer)[0].attention.rotary, count_from_zero(x))
    for one in blocks_of(layer):
        x = block(one, x, mask, rotation=rotation)
    return _last_norm(layer, x)


def decoder(
    layer: Stack,
    x: Value,
    mask: Value,
    caches: Sequence[LayerCache],
    memories: Sequence[KeysValues],
    memory_mask: Value,
    rotation: Rotation | None,
) -> Value:
    """(batch, length, d_model) -> the same shape, through all blocks of a decoder: a cache and a memory for each."""
    for one, cache, memory in zip(blocks_of(layer), caches, memories):
        x = block(one, x, mask, cache, rotation, memory, memory_mask)
    return _last_norm(layer, x)


def _last_norm(layer: Stack, x: Value) -> Value:
    return x if layer.norm is None else norm(layer.norm, x)
