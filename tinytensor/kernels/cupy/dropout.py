"""Dropout. ``kernels/numpy/dropout.py`` defines the mask of a random key.

The backward pass recomputes the mask: on a GPU that is cheaper than storing and loading it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import bool_dtype, default_dtype, host, xp
from tinytensor.kernels.cupy.loader import contiguous, kernel
from tinytensor.kernels.numpy.dropout import RandomKey, survivors_scale

_THREADS = 64
_EACH = 32  # elements of a thread: one block of the random stream
BIT_TILE = 32  # queries that share a word of ``keep_bits_of_tiles``, as in philox.cuh


def keep_arguments(random_key: RandomKey, keep_probability: float) -> tuple[Any, Any, Any, Any, int]:
    """Return a kernel's arguments for the mask: the random key's two words, in a captured step an array on the GPU, then the
    limits ``part`` (of the further bits) and ``limit`` (of the byte)."""
    on_gpu, words = (random_key, (0, 0)) if isinstance(random_key, xp.ndarray) else (None, random_key)
    limit, part = divmod(keep_probability * 256, 1)
    return on_gpu, host.uint64(words[0]), host.uint64(words[1]), host.uint64(int(part * 2.0**64)), int(limit)


def _grid(size: int) -> tuple[int, int]:
    return -(-size // (_EACH * _THREADS)), _THREADS


def keep_mask(random_key: RandomKey, shape: Sequence[int], keep_probability: float) -> Any:
    """``keep_mask`` of kernels/numpy."""
    out = xp.empty(shape, bool_dtype)
    # The mask does not depend on the dtype, so any compiled kernel will do.
    launch = kernel("dropout.cu", "keep_mask", default_dtype)
    launch(*_grid(math.prod(shape)), out, *keep_arguments(random_key, keep_probability), math.prod(shape))
    return out


def keep_bits_of_tiles(
    random_key: RandomKey,
    keep_probability: float,
    shape: tuple[int, int, int],
    start: tuple[int, int],
    lengths: tuple[int, int],
    seen: int,
    heads_of_mask: Any,
) -> Any:
    """Return a bit for each of attention's weights that is set if dropout keeps it: (heads, tiles of 32 queries, keys) words.

    The first head and query are ``start``, and a head of the dropout mask has ``lengths`` (queries, keys). The first query sees
    ``seen`` keys, and each later one sees one more; words without any seen weight are 0. ``heads_of_mask`` comes from
    ``dropped_heads``.
    """
    bits = xp.empty(shape, host.uint32)
    if bits.size:
        heads, tiles, keys = shape
        # As for ``keep_mask``, any dtype will do.
        launch = kernel("dropout.cu", "keep_bits_of_tiles", default_dtype)
        grid = (heads * tiles, -(-keys // _THREADS))
        keep = keep_arguments(random_key, keep_probability)
        launch(grid, _THREADS, bits, heads_of_mask, *keep, tiles, keys, seen, *start, *lengths)
    return bits


def dropped_heads(mask_lead: Sequence[int], lead: Sequence[int]) -> Any:
    """Return the head of the dropout mask for each head of the scores. None if both are numbered alike.

    They differ if only the values have some leading axis. The mask has ``own_lead``, that of query and key, and the scores
    ``lead``.
    """
    heads = math.prod(mask_lead)
    if heads == math.prod(lead):
        return None
    return xp.broadcast_to(xp.arange(heads).reshape(mask_lead), lead).reshape(-1)


def dropout_forward(
    needed: Sequence[bool], x: Any, residual: Any, random_key: RandomKey, keep_probability: float
) -> tuple[Any, None]:
    """``dropout_forward`` of kernels/numpy. Saves nothing."""
    return _dropped(x, residual, random_key, keep_probability), None


def dropout_backward(
    g: Any, keep: None, needed: Sequence[bool], random_key: RandomKey, keep_probability: float
) -> Sequence[Any]:
    """``dropout_backward`` of kernels/numpy."""
    return _dropped(g, None, random_key, keep_probability) if needed[0] else None, g if needed[1] else None


def _dropped(x: Any, residual: Any, random_key: RandomKey, keep_probability: float) -> Any:
    x, residual = contiguous(x), None if residual is None else contiguous(residual)
    out = xp.empty(x.shape, x.dtype)
    launch = kernel("dropout.cu", "dropout", x.dtype)
    keep = keep_arguments(random_key, keep_probability)
    launch(*_grid(x.size), x, residual, out, survivors_scale(keep_probability), *keep, x.size)
    return out
