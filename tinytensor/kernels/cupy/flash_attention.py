"""Attention whose scores never lie in memory (Dao 2023, FlashAttention-2), in bfloat16: see ``flash_attention.cu``.

Memory grows with the length, and a forward pass takes one launch where products, softmax and copies of the heads take five. The
arrays here are (batch, heads, length, width), and heads may be read and written where linear layers have them, side by side.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from cupy import cuda

from tinytensor.backend import host, xp
from tinytensor.kernels.cupy.dropout import BIT_TILE, keep_bits_of_tiles
from tinytensor.kernels.cupy.loader import kernel
from tinytensor.kernels.numpy.dropout import RandomKey, survivors_scale

_THREADS = 128  # these are those of flash_attention.cu
_ROWS = 64  # queries or keys of a block
_WIDTHS = (16, 32, 64, 128)


class Residuals(NamedTuple):
    """What the forward pass saves for the backward pass."""

    out: Any
    log_sums: Any  # log2 of each query's sum of exponentials (batch * heads, queries, padded to whole blocks), in float32
    bits: Any  # which weights dropout keeps, see ``keep_bits``; None without dropout


def fits(query: Any, key: Any, value: Any, bias: Any, mask: Any, is_causal: bool, scale: float) -> bool:
    """Whether the kernels can do this: bfloat16, widths of heads that they are compiled for, no mask but causality."""
    return (
        query.dtype.name == "bfloat16"
        and query.shape[-1] == value.shape[-1] in _WIDTHS
        and bias is None
        and mask is None
        and scale > 0.0  # so that the largest score has the largest weight
        and query.size > 0
        and 0 < key.shape[-2]
        and (not is_causal or query.shape[-2] <= key.shape[-2])  # every query sees some key
        and _has_tensor_cores()
    )


@functools.cache
def _has_tensor_cores() -> bool:
    """Whether the GPU multiplies bfloat16 and copies to shared memory on its own: from Ampere on."""
    return int(cuda.Device().compute_capability) >= 80


def as_heads(x: Any) -> Any:
    """x (..., length, width) as (batch, heads, length, width), however many leading axes it has."""
    lead = (1, 1, *x.shape[:-2])
    return x.reshape(math.prod(lead[:-1]), lead[-1], *x.shape[-2:])


def keep_bits(shape: tuple[int, ...], keys: int, is_causal: bool, random_key: RandomKey, keep_probability: float) -> Any:
    """Which weights dropout keeps, for queries of this shape: a bit each, padded to whole blocks of queries and of keys."""
    batch, heads, queries, _ = shape
    padded = (batch * heads, _blocks(queries) * (_ROWS // BIT_TILE), _blocks(keys) * _ROWS)
    return keep_bits_of_tiles(random_key, keep_probability, padded, (0, 0), (queries, keys), _seen(queries, keys, is_causal))


def forward(
    out: Any, query: Any, key: Any, value: Any, bits: Any, is_causal: bool, scale: float, keep_probability: float
) -> Residuals:
    """Writes softmax(query keyᵀ scale) value to ``out``, after dropout of the weights whose bits are 0. All arrays are bfloat16
    and (batch, heads, length, width)."""
    query, key, value = map(_readable, (query, key, value))
    batch, heads, queries, width = query.shape
    keys = key.shape[-2]
    log_sums = xp.empty((batch * heads, _blocks(queries) * _ROWS), host.float32)
    arrays = [part for x in (query, key, value, out) for part in _rows(x)]
    scales = (scale * math.log2(math.e), survivors_scale(keep_probability))
    launch = kernel("flash_attention.cu", "flash_forward", query.dtype, Width=width)
    grid = batch * heads * _blocks(queries)
    launch(grid, _THREADS, *arrays, log_sums, bits, *scales, heads, queries, keys, _seen(queries, keys, is_causal))
    return Residuals(out, log_sums, bits)


def backward(
    g: Any,
    residuals: Residuals,
    into: tuple[Any, Any, Any],
    query: Any,
    key: Any,
    value: Any,
    is_causal: bool,
    scale: float,
    keep_probability: float,
) -> None:
    """Writes the gradients of query, key and value to the arrays in ``into``, unless these are None.

    All are bfloat16 and (batch, heads, length, width), and ``g`` is the gradient of the output.
    """
    g, query, key, value = map(_readable, (g, query, key, value))
    d_query, d_key, d_value = into
    batch, heads, queries, width = query.shape
    keys = key.shape[-2]
    out, log_sums, bits = residuals
    deltas = xp.empty(log_sums.shape, host.float32)
    scales = (scale * math.log2(math.e), scale, survivors_scale(keep_probability))
    sizes = (heads, queries, keys, _seen(queries, keys, is_causal))
    arrays = [part for x in (query, key, value, out, g, d_query) for part in _rows(x)]
    launch = kernel("flash_attention.cu", "flash_backward_queries", query.dtype, Width=width)
    launch(batch * heads * _blocks(queries), _THREADS, *arrays, log_sums, deltas, bits, *scales, *sizes)
    if d_key is None and d_value is None:
        return
    arrays = [part for x in (query, key, value, g, d_key, d_value) for part in _rows(x)]
    launch = kernel("flash_attention.cu", "flash_backward_keys", query.dtype, Width=width)
    launch(batch * heads * _blocks(keys), _THREADS, *arrays, log_sums, deltas, bits, *scales, *sizes)


def _blocks(length: int) -> int:
    return -(-length // _ROWS)


def _seen(queries: int, keys: int, is_causal: bool) -> int:
    """How many keys the first query sees. Each later one sees one more, up to all of them."""
    return keys - queries + 1 if is_causal else keys


def _readable(x: Any) -> Any:
    """x itself if each of its rows is contiguous and starts at a multiple of 16 bytes, else a copy."""
    steps = [step for n, step in zip(x.shape[:-1], x.strides) if n > 1]
    is_readable = x.strides[-1] == x.itemsize and x.data.ptr % 16 == 0 and all(step % 16 == 0 for step in steps)
    return x if is_readable else x.copy()


def _rows(x: Any) -> tuple[Any, int, int, int]:
    """The address, and how many elements further the next sequence, head and row are. Nothing where x is None."""
    return (None, 0, 0, 0) if x is None else (x.data.ptr, *[step // x.itemsize for step in x.strides[:-1]])
