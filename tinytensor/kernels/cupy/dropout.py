"""Dropout. ``kernels/numpy/dropout.py`` defines the mask that belongs to a random key.

The backward pass computes the mask again: on a GPU that costs less than storing and loading it.
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
    """The arguments that tell a kernel which elements to keep: the random key's two words, which in a captured step are an
    array on the GPU, then the limits ``part`` (of the further bits) and ``whole`` (of the byte)."""
    on_gpu, words = (random_key, (0, 0)) if isinstance(random_key, xp.ndarray) else (None, random_key)
    whole, part = divmod(keep_probability * 256, 1)
    return on_gpu, host.uint64(words[0]), host.uint64(words[1]), host.uint64(int(part * 2.0**64)), int(whole)


def _grid(size: int) -> tuple[int, int]:
    return -(-size // (_EACH * _THREADS)), _THREADS


def keep_mask(random_key: RandomKey, shape: Sequence[int], keep_probability: float) -> Any:
    """A boolean mask of this shape: each element is True with this probability."""
    out = xp.empty(shape, bool_dtype)
    # The kernel compiled for any dtype will do, as the mask does not depend on it.
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
    """Which of attention's weights dropout keeps, as a bit each: words of this shape, (heads, tiles of 32 queries, keys).

    They belong to the heads and queries from ``start`` (head, query) on, where a head of the dropout mask has ``lengths``
    (queries, keys). The first of the queries sees ``seen`` keys, and each later one sees one more: words of which no bit is
    seen are 0. ``heads_of_mask`` is what ``dropped_heads`` returns.
    """
    bits = xp.empty(shape, host.uint32)
    if bits.size:
        heads, tiles, keys = shape
        # The kernel compiled for any dtype will do, as for ``keep_mask``.
        launch = kernel("dropout.cu", "keep_bits_of_tiles", default_dtype)
        grid = (heads * tiles, -(-keys // _THREADS))
        keep = keep_arguments(random_key, keep_probability)
        launch(grid, _THREADS, bits, heads_of_mask, *keep, tiles, keys, seen, *start, *lengths)
    return bits


def dropped_heads(own_lead: Sequence[int], lead: Sequence[int]) -> Any:
    """The head of the dropout mask that belongs to each head of the scores. None where they are numbered alike.

    They are not where only the values have some leading axis. The mask has ``own_lead``, that of query and key, and the scores
    are made for all of ``lead``.
    """
    own = math.prod(own_lead)
    if own == math.prod(lead):
        return None
    return xp.broadcast_to(xp.arange(own).reshape(own_lead), lead).reshape(-1)


def dropout_forward(
    needed: Sequence[bool], x: Any, residual: Any, random_key: RandomKey, keep_probability: float
) -> tuple[Any, None]:
    """x / keep_probability where the mask keeps x, else 0; plus the residual if there is one. Saves nothing."""
    return _dropped(x, residual, random_key, keep_probability), None


def dropout_backward(
    g: Any, keep: None, needed: Sequence[bool], random_key: RandomKey, keep_probability: float
) -> Sequence[Any]:
    """The gradient of x is g / keep_probability where the mask kept x, else 0. The gradient of the residual is g itself."""
    return _dropped(g, None, random_key, keep_probability) if needed[0] else None, g if needed[1] else None


def _dropped(x: Any, residual: Any, random_key: RandomKey, keep_probability: float) -> Any:
    x, residual = contiguous(x), None if residual is None else contiguous(residual)
    out = xp.empty(x.shape, x.dtype)
    launch = kernel("dropout.cu", "dropout", x.dtype)
    keep = keep_arguments(random_key, keep_probability)
    launch(*_grid(x.size), x, residual, out, survivors_scale(keep_probability), *keep, x.size)
    return out
