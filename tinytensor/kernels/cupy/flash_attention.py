"""Attention that never stores its scores (Dao 2023, FlashAttention-2), in bfloat16: see ``flash_attention.cu``.

So memory grows with the length, not with its square. The kernels read and write heads as linear layers store them, side by
side: one launch forward, and two backward.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from cupy import cuda

from tinytensor.device.backend import host, xp
from tinytensor.kernels.cupy.dropout import BIT_TILE, dropped_heads, keep_bits_of_tiles
from tinytensor.kernels.cupy.loader import kernel
from tinytensor.kernels.numpy.attention import check_mask, joinable, same_lead
from tinytensor.kernels.numpy.dropout import RandomKey, survivors_scale

_THREADS = 128  # as in flash_attention.cu
_ROWS = 64  # queries or keys of a block
_WIDTHS = (16, 32, 64, 128)
_MASKED_WIDTHS = (16, 32, 64)  # with a mask, 128 would take more registers than a thread has
_LOG2_E = math.log2(math.e)


class Residuals(NamedTuple):
    """The arrays that the forward pass saves for the backward pass."""

    out: Any  # (..., T, D)
    log_sums: Any  # of each query's scores, in base 2: (batch * heads, queries, padded to whole blocks), float32
    bits: Any  # the kept weights, see ``keep_bits_of_tiles``; None without dropout


def fits(query: Any, key: Any, value: Any, bias: Any, mask: Any, scale: float) -> bool:
    """Return True if the kernels support the inputs: bfloat16, no bias, and a width of the heads that they are compiled for."""
    return (
        query.dtype.name == "bfloat16"
        and bias is None
        and query.shape[-1] == value.shape[-1]
        and query.shape[-1] in (_WIDTHS if mask is None else _MASKED_WIDTHS)
        and scale > 0.0  # so that the largest score has the largest weight
        and query.size > 0
        and key.size > 0
        and _has_tensor_cores()
    )


@functools.cache
def _has_tensor_cores() -> bool:
    """Return True from Ampere on: the GPU multiplies bfloat16 and copies to shared memory asynchronously."""
    return int(cuda.Device().compute_capability) >= 80


def flash_forward(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    is_causal: bool,
    scale: float,
    random_key: RandomKey | None,
    keep_probability: float,
) -> tuple[Any, Residuals]:
    """softmax(query keyᵀ scale) value, with dropout of the weights. ``kernels/numpy/attention.py`` explains the arguments."""
    has_lead = max(query.ndim, key.ndim, value.ndim) > 2
    mask_lead = host.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    query, key, value = same_lead(query, key, value)
    lead, of_scores = query.shape[:-2], (*query.shape[:-1], key.shape[-2])
    check_mask(mask, of_scores if has_lead else of_scores[1:])
    out = joinable(query.shape, query.dtype)
    mask = _of_heads(mask, of_scores)
    query, key, value = [_readable(_heads(x)) for x in (query, key, value)]
    batch, heads, queries, width = query.shape
    keys, seen = key.shape[-2], _seen(query, key, is_causal)
    bits = None
    if random_key is not None:
        words = (batch * heads, _blocks(queries) * (_ROWS // BIT_TILE), _blocks(keys) * _ROWS)
        heads_of_mask = dropped_heads(mask_lead, lead)
        bits = keep_bits_of_tiles(random_key, keep_probability, words, (0, 0), (queries, keys), seen, heads_of_mask)
    log_sums = xp.empty((batch * heads, _blocks(queries) * _ROWS), host.float32)
    arrays = [part for x in (query, key, value, _heads(out)) for part in _steps(x, 3)]
    scales = (scale * _LOG2_E, survivors_scale(keep_probability))
    settings = (log_sums, bits, *_steps(mask, 4), *scales, heads, queries, keys, seen)
    launch = kernel("flash_attention.cu", "flash_forward", query.dtype, Width=width, Masked=int(mask is not None))
    launch(batch * heads * _blocks(queries), _THREADS, *arrays, *settings)
    return out if has_lead else out[0], Residuals(out, log_sums, bits)


def flash_backward(
    g: Any,
    residuals: Residuals,
    needed: Sequence[bool],
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    is_causal: bool,
    scale: float,
    keep_probability: float,
    into: Sequence[Any],
) -> list[Any]:
    """The gradients of query, key and value, or None if not needed.

    They are written to the arrays in ``into``, which have the inputs' dtype, or to new ones for None.
    """
    out, log_sums, bits = residuals
    g = g.astype(out.dtype, copy=False).reshape(out.shape)
    inputs = list(same_lead(query, key, value))
    gradients = [
        (xp.empty(x.shape, x.dtype) if target is None else target) if wanted else None
        for x, wanted, target in zip(inputs, needed, into)
    ]
    d_query, d_key, d_value = [None if x is None else _heads(x) for x in gradients]
    mask = _of_heads(mask, (*inputs[0].shape[:-1], inputs[1].shape[-2]))
    query, key, value, g = [_readable(_heads(x)) for x in (*inputs, g)]
    batch, heads, queries, width = query.shape
    deltas = xp.empty(log_sums.shape, host.float32)
    scales = (scale * _LOG2_E, scale, survivors_scale(keep_probability))
    sizes = (heads, queries, key.shape[-2], _seen(query, key, is_causal))
    settings = (log_sums, deltas, bits, *_steps(mask, 4), *scales, *sizes)
    constants = {"Width": width, "Masked": int(mask is not None)}
    arrays = [part for x in (query, key, value, _heads(out), g, d_query) for part in _steps(x, 3)]
    launch = kernel("flash_attention.cu", "flash_backward_queries", query.dtype, **constants)
    launch(batch * heads * _blocks(queries), _THREADS, *arrays, *settings)
    if d_key is not None or d_value is not None:
        arrays = [part for x in (query, key, value, g, d_key, d_value) for part in _steps(x, 3)]
        launch = kernel("flash_attention.cu", "flash_backward_keys", query.dtype, **constants)
        launch(batch * heads * _blocks(key.shape[-2]), _THREADS, *arrays, *settings)
    return gradients


def _heads(x: Any) -> Any:
    """Return x (..., length, width) as (batch, heads, length, width), for any number of leading axes."""
    lead = (1, 1, *x.shape[:-2])
    return x.reshape(math.prod(lead[:-1]), lead[-1], *x.shape[-2:])


def _blocks(length: int) -> int:
    return -(-length // _ROWS)


def _seen(query: Any, key: Any, is_causal: bool) -> int:
    """Return how many keys the first query sees. Each later one sees one more, up to all of them."""
    keys: int = key.shape[-2]
    return keys - query.shape[-2] + 1 if is_causal else keys


def _readable(x: Any) -> Any:
    """Return x if each of its rows is contiguous and starts at a multiple of 16 bytes, else a copy."""
    steps = [step for n, step in zip(x.shape[:-1], x.strides) if n > 1]
    is_readable = x.strides[-1] == x.itemsize and x.data.ptr % 16 == 0 and all(step % 16 == 0 for step in steps)
    return x if is_readable else x.copy()


def _of_heads(mask: Any, of_scores: tuple[int, ...]) -> Any:
    """Broadcast a mask to the shape of the scores, as (batch, heads, queries, keys). None stays None."""
    return None if mask is None else _heads(xp.broadcast_to(mask, of_scores))


def _steps(x: Any, axes: int) -> tuple[Any, ...]:
    """Return the address, and the strides in elements of the first axes. None and zeros for None."""
    return (None, *[0] * axes) if x is None else (x.data.ptr, *[step // x.itemsize for step in x.strides[:axes]])
