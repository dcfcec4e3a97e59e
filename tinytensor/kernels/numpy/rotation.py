"""The rotation of pairs of elements, as in rotary positions (Su et al. 2021, equation 34)."""

from __future__ import annotations

from typing import Any

from tinytensor.backend import xp


def rotate_pairs(x: Any, cosine: Any, sine: Any) -> Any:
    """first cos - second sin, and second cos + first sin, where first and second are the halves of x's last axis.

    x is (..., 2 n); ``cosine`` and ``sine`` broadcast to (..., n).
    """
    half = x.shape[-1] // 2
    swapped = xp.empty(x.shape, x.dtype)
    swapped[..., :half] = x[..., half:]
    swapped[..., half:] = x[..., :half]
    # Two operations on whole rows are faster than four on halves.
    swapped *= xp.concatenate([-sine, sine], axis=-1)
    out = x * xp.concatenate([cosine, cosine], axis=-1)
    out += swapped
    return out
