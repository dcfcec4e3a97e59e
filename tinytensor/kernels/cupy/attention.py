"""Scaled dot-product attention: products by cuBLAS, and between them one kernel each way. ``kernels/numpy/attention.py`` has
the formulas. In bfloat16 without a bias, ``flash_attention.py`` mostly replaces it.

* Queries, keys and values lie as (..., T, D) with an even step between matrices, so that one call multiplies all heads. For a
  linear layer's output, a kernel moves them into this order, and another moves the result back (``heads.py``).
* The scores are stored in rows, (..., T, S). A warp reads a row, turns it into weights and writes it back in place. In bfloat16
  the scores are float32, as exp needs more than 8 bits, and the weights are bfloat16, not in place.
* A mask and a bias are read by their strides, however they broadcast. Keys that causality hides are not read.
* With the weights, the dropout mask is saved, too, one bit for each weight: a 32nd of the weights' memory.
* Long sequences are cut into blocks whose weights the backward pass recomputes. So memory grows with the length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tinytensor.device.backend import host, xp
from tinytensor.kernels.attention import multi_head, queries_keys_values
from tinytensor.kernels.cupy import flash_attention as flash, heads
from tinytensor.kernels.cupy.dropout import BIT_TILE, dropped_heads, keep_bits_of_tiles
from tinytensor.kernels.cupy.loader import accumulator, kernel
from tinytensor.kernels.cupy.products import matmul
from tinytensor.kernels.numpy.attention import (
    Block,
    add_to_bias,
    aligned_zeros,
    blocks,
    check_mask,
    cut,
    same_lead,
    transposed,
    without_empty_blocks,
)
from tinytensor.kernels.numpy.dropout import RandomKey, survivors_scale

_BLOCK = 1 << 26  # approximate scores of a block: 256 MiB of float32, more than enough to keep a GPU busy
_QUERIES = 256  # minimum queries of a block
_KEPT = 512 * 512  # maximum scores of a head whose weights are saved


class BlockResiduals(NamedTuple):
    """The arrays of a block that the forward pass saves for the backward pass."""

    weights: Any  # before dropout
    bits: Any  # the kept weights, see ``_Attention.bits``; None without dropout


class _Attention:
    """The inputs, in one dtype and with the same leading axes, and computations on blocks of them."""

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        bias: Any,
        mask: Any,
        is_causal: bool,
        scale: float,
        random_key: RandomKey | None,
        keep_probability: float,
    ) -> None:
        self.dtype = query.dtype
        self.has_lead = max(query.ndim, key.ndim, value.ndim) > 2
        self.mask, self.is_causal = without_empty_blocks(mask, is_causal, query.shape[-2], key.shape[-2])
        self.dropped_lead = host.broadcast_shapes(query.shape[:-2], key.shape[:-2])
        self.query, self.key, self.value = map(_evenly_spaced, same_lead(query, key, value))
        self.lead, self.queries, self.keys = self.query.shape[:-2], query.shape[-2], key.shape[-2]
        self.bias = bias
        for broadcast in (self.bias, self.mask):
            check_mask(broadcast, (*self.lead[: None if self.has_lead else 0], self.queries, self.keys))
        self.scale = float(scale)
        self.random_key, self.keep_probability = random_key, keep_probability
        self.keep_scale = survivors_scale(keep_probability)

    def blocks(self) -> Iterator[Block]:
        return blocks(self.query, self.key, self.is_causal, _BLOCK, _QUERIES, _KEPT)

    def weights(self, block: Block, bits: Any, is_kept: bool) -> tuple[Any, Any]:
        """Return a block's weights before and after dropout.

        Without dropout both are the same array. With dropout the first is None unless ``is_kept``.
        """
        query, key = self.query[block.of_queries], self.key[block.of_keys]
        shape = (*query.shape[:-1], key.shape[-2])
        scores = matmul(query, transposed(key), xp.empty(shape, accumulator(self.dtype)))
        first = scores if self.dtype == scores.dtype else xp.empty(shape, self.dtype)
        second = None
        if bits is not None:
            first, second = (first, xp.empty(shape, self.dtype)) if is_kept else (None, first)
        if scores.size:
            launch = kernel("attention.cu", "softmax", self.dtype)
            # The names keep the parts, and so their memory, alive until the launch.
            bias, *bias_steps = _strided(self.bias, block, shape)
            mask, *mask_steps = _strided(self.mask, block, shape)
            added = [_address(bias), *bias_steps, _address(mask), *mask_steps]
            scales = (self.scale, self.keep_scale)
            launch(*_grid(shape), scores, first, second, bits, *added, *scales, *self._shape(block, shape))
        return first, first if bits is None else second

    def d_scores(self, block: Block, weights: Any, g: Any, bits: Any, is_kept: bool, scale: float) -> tuple[Any, Any]:
        """Return the gradient of a block's scores times ``scale``, and the weights after dropout.

        Unless ``is_kept``, the weights after dropout overwrite those before it.
        """
        value = self.value[block.of_keys]
        d_dropped = matmul(g, transposed(value), xp.empty(weights.shape, accumulator(self.dtype)))
        d_scores = d_dropped if self.dtype == d_dropped.dtype else xp.empty(weights.shape, self.dtype)
        dropped = None
        if bits is not None:
            dropped = xp.empty(weights.shape, self.dtype) if is_kept else weights
        if weights.size:
            launch = kernel("attention.cu", "softmax_backward", self.dtype)
            shape = self._shape(block, weights.shape)
            launch(*_grid(weights.shape), weights, d_dropped, d_scores, dropped, bits, scale, self.keep_scale, *shape)
        return d_scores, weights if bits is None else dropped

    def bits(self, block: Block) -> Any:
        """Return a bit for each of a block's weights, set if dropout keeps it: (heads, tiles of queries, keys), or None."""
        if self.random_key is None:
            return None
        shape = (math.prod(self.query[block.batch].shape[:-2]), -(-_length(block) // BIT_TILE), block.keys.stop)
        start = (block.batch.start * math.prod(self.lead[1:]), block.queries.start)
        lengths, heads = (self.queries, self.keys), dropped_heads(self.dropped_lead, self.lead)
        return keep_bits_of_tiles(self.random_key, self.keep_probability, shape, start, lengths, self._seen(block), heads)

    def _seen(self, block: Block) -> int:
        """Return how many keys the block's first query sees. Each later query sees one key more, up to all of them."""
        return block.queries.start + self.keys - self.queries + 1 if self.is_causal else self.keys

    def _shape(self, block: Block, shape: Sequence[int]) -> tuple[int, ...]:
        return math.prod(shape[:-1]), *shape[-2:], self._seen(block)


def _strided(array: Any, block: Block, shape: Sequence[int]) -> tuple[Any, ...]:
    """Return a block's part of a mask or bias, the number of heads in a group of evenly spaced ones, and its strides in
    elements: of groups, heads, queries and keys."""
    if array is None:
        return None, 1, 0, 0, 0, 0
    part = xp.broadcast_to(cut(array, block.batch, block.queries, block.keys, len(shape)), shape)
    steps = _two_axes(shape[:-2], part.strides[:-2])
    if steps is None:
        part = part.copy()
        steps = (1, part.strides[-3], 0)
    length, group_step, head_step = steps
    return (part, length, *[step // part.itemsize for step in (group_step, head_step, *part.strides[-2:])])


def _address(array: Any) -> Any:
    return None if array is None else array.data.ptr


def _two_axes(lengths: Sequence[int], steps: Sequence[int]) -> tuple[int, int, int] | None:
    """Merge axes into two. Returns the inner length, the outer stride and the inner stride; None if two are too few."""
    axes = _joined(lengths, steps)
    if len(axes) > 2:
        return None
    (_, outer), (length, inner) = [(1, 0)] * (2 - len(axes)) + axes
    return length, outer, inner


def _joined(lengths: Sequence[int], steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return axes as (length, stride), with evenly spaced neighbours merged and without axes of length 1."""
    axes: list[tuple[int, int]] = []
    for n, step in zip(lengths, steps):
        if n == 1:
            continue
        if axes and axes[-1][1] == n * step:
            axes[-1] = (axes[-1][0] * n, step)
        else:
            axes.append((n, step))
    return axes


def _evenly_spaced(x: Any) -> Any:
    """Return x (..., T, D) if its matrices are evenly spaced, as a single call of cuBLAS needs them, or if it is broadcast,
    since a copy could be many times as large. Otherwise return a copy."""
    axes = _joined(x.shape[:-2], x.strides[:-2])
    return x if len(axes) < 2 or any(step == 0 for _, step in axes) else xp.ascontiguousarray(x)


def _length(block: Block) -> int:
    return int(block.queries.stop - block.queries.start)


def _grid(shape: Sequence[int]) -> tuple[int, tuple[int, int]]:
    return -(-math.prod(shape[:-1]) // 4), (32, 4)


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
    """softmax(query keyᵀ scale + bias) value, as in ``kernels/numpy/attention.py``.

    Saves the ``BlockResiduals`` of each block, or None if there are too many weights, or the residuals of
    ``flash_attention.py``.
    """
    if flash.fits(query, key, value, bias, mask, scale):
        return flash.flash_forward(query, key, value, mask, is_causal, scale, random_key, keep_probability)
    parts = _Attention(query, key, value, bias, mask, is_causal, scale, random_key, keep_probability)
    out = xp.empty((*parts.query.shape[:-1], value.shape[-1]), parts.dtype)
    residuals: list[BlockResiduals] | None = [] if any(needed) and parts.queries * parts.keys <= _KEPT else None
    for block in parts.blocks():
        bits = parts.bits(block)
        weights, dropped = parts.weights(block, bits, is_kept=residuals is not None)
        matmul(dropped, parts.value[block.of_keys], out[block.of_queries])
        if residuals is not None:
            residuals.append(BlockResiduals(weights, bits))
    return out if parts.has_lead else out[0], residuals


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
    """With the weights P, and dP = g valueᵀ masked by dropout, the gradient of the scores is dS = P (dP - rowsum(dP P)).

    For query and key it is multiplied by the scale. The gradients of query, key and value are written to the arrays in
    ``into``, or to new ones for None.
    """
    if isinstance(residuals, flash.Residuals):
        inputs = (query, key, value, mask)
        return *flash.flash_backward(g, residuals, needed, *inputs, is_causal, scale, keep_probability, into), None
    parts = _Attention(query, key, value, bias, mask, is_causal, scale, random_key, keep_probability)
    query, key, value, scale = parts.query, parts.key, parts.value, parts.scale
    d_bias = None
    if needed[3]:  # the bias needs the unscaled gradient of the scores, so the scale comes last
        d_bias = aligned_zeros(bias, query.ndim, accumulator(parts.dtype))
        scale = 1.0
    g = _evenly_spaced(g.astype(parts.dtype, copy=False).reshape(*parts.lead, *g.shape[-2:]))
    d_query = _array_for(query, into[0], parts.dtype) if needed[0] else None
    d_key, d_value = [
        _sum_over_blocks(x, parts.queries, target) if wanted else None
        for x, wanted, target in zip((key, value), needed[1:], into[1:])
    ]
    for i, block in enumerate(parts.blocks()):
        rows, columns = block.of_queries, block.of_keys
        if residuals is not None:
            weights, bits = residuals[i]
        else:
            weights, _ = parts.weights(block, None, is_kept=True)
            bits = parts.bits(block)
        d_scores, dropped = parts.d_scores(block, weights, g[rows], bits, is_kept=residuals is not None, scale=scale)
        if d_query is not None:
            matmul(d_scores, key[columns], d_query[rows])
        if d_key is not None:
            matmul(transposed(d_scores), query[rows], d_key[columns], accumulate=not block.is_first)
        if d_value is not None:
            matmul(transposed(dropped), g[rows], d_value[columns], accumulate=not block.is_first)
        if d_bias is not None:
            add_to_bias(d_bias, d_scores, block)
    for gradient in (d_query, d_key):
        if gradient is not None and d_bias is not None:
            gradient[...] = gradient * parts.scale
    gradients = (d_query, d_key, d_value)
    for gradient, target in zip(gradients, into):
        if gradient is not None and target is not None and gradient is not target:
            target[...] = gradient
    return *gradients, None if d_bias is None else d_bias.reshape(bias.shape)


def _array_for(x: Any, target: Any, dtype: Any) -> Any:
    """Return the caller's array for a gradient of x if it has this dtype, else a new one."""
    return target if target is not None and target.dtype == dtype else xp.empty(x.shape, dtype)


def _sum_over_blocks(x: Any, queries: int, target: Any) -> Any:
    """Return the array for the sum of a gradient of x over blocks. Without queries no block sets it, so it is 0."""
    dtype = accumulator(x.dtype) if queries >= 4 * _QUERIES else x.dtype  # a single block rounds only once
    return _array_for(x, target, dtype) if queries else xp.zeros(x.shape, dtype)


# ------------------------------------------------------------------------------------------------------ several heads

# For flash attention, which needs no copies of the heads.
_forward_of_views, _backward_of_views = multi_head(attention_forward, attention_backward)


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
    """``attention_forward`` of the heads, joined, as in ``kernels/attention.py``."""
    settings = (mask, is_causal, scale, random_key, keep_probability)
    if flash.fits(*queries_keys_values(projected, memory, num_heads), bias, mask, scale):
        return _forward_of_views(needed, projected, memory, bias, num_heads, *settings)
    has_memory = memory is not None
    query, key, value, _ = _split(projected, memory, num_heads)
    wanted = (needed[0], needed[has_memory], needed[has_memory], needed[2])
    out, residuals = attention_forward(wanted, query, key, value, bias, *settings)
    return heads.join_heads(out[None]), residuals


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
    """``attention_backward``, writing the gradients of the heads side by side, so that a single kernel joins them."""
    settings = (mask, is_causal, scale, random_key, keep_probability)
    if isinstance(residuals, flash.Residuals):
        return _backward_of_views(g, residuals, needed, projected, memory, bias, num_heads, *settings)
    query, key, value, g = _split(projected, memory, num_heads, g.astype(projected.dtype, copy=False))
    parts = 3 if memory is None else 1  # of the projection; a memory has two
    of_projected = xp.empty((parts, *query.shape), projected.dtype) if needed[0] else [None] * parts
    of_memory: Any = []
    if memory is not None:
        of_memory = xp.empty((2, *key.shape), memory.dtype) if needed[1] else [None] * 2
    into = [*of_projected, *of_memory]
    wanted = [*[target is not None for target in into], needed[2]]
    *_, d_bias = attention_backward(g, residuals, wanted, query, key, value, bias, *settings, into)
    return heads.join_heads(of_projected) if needed[0] else None, heads.join_heads(of_memory) if needed[1] else None, d_bias


def _split(projected: Any, memory: Any, num_heads: int, g: Any = None) -> tuple[Any, Any, Any, Any]:
    """Return the queries, keys and values in the inputs of ``multi_head_attention``, and the gradient of its output, unless it
    is None, each (batch, heads, length, width / heads)."""
    parts = list(heads.split_heads(projected, 3 if memory is None else 1, num_heads, g))
    of_output = None if g is None else parts.pop()
    query, key, value = parts if memory is None else [*parts, *heads.split_heads(memory, 2, num_heads)]
    return query, key, value, of_output
