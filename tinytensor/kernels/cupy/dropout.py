"""Dropout, its mask the function of a key that ``kernels/numpy/dropout.py`` defines.

The backward pass makes the mask again, which costs a GPU less than to store and load it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.backend import bool_dtype, default_dtype, host, xp
from tinytensor.kernels.cupy.loader import contiguous, kernel
from tinytensor.kernels.numpy.dropout import Key, survivors_scale

_THREADS = 64
_EACH = 32  # elements of a thread: a block of the random stream


def keep_arguments(key: Key, probability: float) -> tuple[Any, Any, Any, int]:
    """How a kernel is told which elements to keep: the key, then the limits of the further bits and of the byte."""
    whole, part = divmod(probability * 256, 1)
    return host.uint64(key[0]), host.uint64(key[1]), host.uint64(int(part * 2.0**64)), int(whole)


def _grid(size: int) -> tuple[int, int]:
    return -(-size // (_EACH * _THREADS)), _THREADS


def keep_mask(key: Key, shape: Sequence[int], probability: float) -> Any:
    """The boolean mask of that shape whose elements are True with this probability."""
    out = xp.empty(shape, bool_dtype)
    # The kernel of any dtype: the mask has nothing to do with it.
    launch = kernel("dropout.cu", "keep_mask", default_dtype)
    launch(*_grid(math.prod(shape)), out, *keep_arguments(key, probability), math.prod(shape))
    return out


def dropout_forward(needed: Sequence[bool], x: Any, residual: Any, key: Key, probability: float) -> tuple[Any, None]:
    """x / probability where the key's mask keeps it, else 0, plus the residual if there is one; keeps nothing."""
    return _dropped(x, residual, key, probability), None


def dropout_backward(
    g: Any, keep: None, needed: Sequence[bool], x: Any, residual: Any, key: Key, probability: float
) -> Sequence[Any]:
    """g / probability where the mask kept x, else 0; the residual's is g itself."""
    return _dropped(g, None, key, probability) if needed[0] else None, g if needed[1] else None


def _dropped(x: Any, residual: Any, key: Key, probability: float) -> Any:
    x, residual = contiguous(x), None if residual is None else contiguous(residual)
    out = xp.empty(x.shape, x.dtype)
    launch = kernel("dropout.cu", "dropout", x.dtype)
    launch(*_grid(x.size), x, residual, out, survivors_scale(probability), *keep_arguments(key, probability), x.size)
    return out
