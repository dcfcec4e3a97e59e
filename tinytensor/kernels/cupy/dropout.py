"""Dropout. ``kernels/numpy/dropout.py`` defines the mask that belongs to a random key.

The backward pass computes the mask again: on a GPU that costs less than storing and loading it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tinytensor.backend import bool_dtype, default_dtype, host, xp
from tinytensor.kernels.cupy.loader import contiguous, kernel
from tinytensor.kernels.numpy.dropout import RandomKey, survivors_scale

_THREADS = 64
_EACH = 32  # elements of a thread: one block of the random stream


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


def dropout_forward(
    needed: Sequence[bool], x: Any, residual: Any, random_key: RandomKey, keep_probability: float
) -> tuple[Any, None]:
    """x / keep_probability where the mask keeps x, else 0; plus the residual if there is one. Saves nothing."""
    return _dropped(x, residual, random_key, keep_probability), None


def dropout_backward(
    g: Any, keep: None, needed: Sequence[bool], x: Any, residual: Any, random_key: RandomKey, keep_probability: float
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
