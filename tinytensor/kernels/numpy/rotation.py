"""The rotation of pairs of elements, as in rotary positions (Su et al. 2021, equation 34), and the preparation of queries and
keys for attention: an RMS norm of each head, then this rotation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.attention import Backward, Forward
from tinytensor.kernels.numpy.normalization import rms_norm_backward, rms_norm_forward


def rotate_pairs(x: Any, cosine: Any, sine: Any) -> Any:
    """first cos - second sin and second cos + first sin, for the halves ``first`` and ``second`` of x's last axis.

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


def _queries_and_keys(packed: Any, num_heads: int, num_key_value_heads: int) -> tuple[Any, Any]:
    """Return the queries and keys of a projection (batch, length, width), as views (batch, length, heads, d_head)."""
    batch, length, width = packed.shape
    count = num_heads + 2 * num_key_value_heads
    heads = packed.reshape(batch, length, count, width // count)
    return heads[:, :, :num_heads], heads[:, :, num_heads : num_heads + num_key_value_heads]


def _cosine_and_sine(rotation: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the halves of a table (length, d_head) for heads (batch, length, heads, d_head): (length, 1, d_head / 2)."""
    table = rotation.astype(dtype, copy=False)[:, None]
    half = table.shape[-1] // 2
    return table[..., :half], table[..., half:]


def norm_and_rotate(rms_norm_forward: Forward, rms_norm_backward: Backward) -> tuple[Forward, Backward]:
    """Make ``norm_and_rotate_forward`` and ``norm_and_rotate_backward`` from a backend's RMS norm."""

    def norm_and_rotate_forward(
        needed: Sequence[bool],
        projected: Any,
        query_weight: Any,
        key_weight: Any,
        num_heads: int,
        num_key_value_heads: int,
        eps: float,
        rotation: Any,
    ) -> tuple[Any, Any]:
        """Copy the projection; norm each head of queries and keys, if there are weights; rotate it, if there is a ``rotation``.

        Saves the residuals of ``rms_norm_forward`` for the queries and the keys.
        """
        out, residuals = projected.copy(), []
        parts = _queries_and_keys(out, num_heads, num_key_value_heads)
        for part, weight in zip(parts, (query_weight, key_weight)):
            x, saved = (part, None) if weight is None else rms_norm_forward(needed, part, weight, eps)
            part[...] = x if rotation is None else rotate_pairs(x, *_cosine_and_sine(rotation, x.dtype))
            residuals.append(saved)
        return out, residuals

    def norm_and_rotate_backward(
        g: Any,
        residuals: Sequence[Any],
        needed: Sequence[bool],
        projected: Any,
        query_weight: Any,
        key_weight: Any,
        num_heads: int,
        num_key_value_heads: int,
        rotation: Any,
    ) -> Sequence[Any]:
        """Rotate the gradient back by the same angles, then pass it through the norm's backward pass."""
        d_projected, d_weights = g.copy(), []
        parts = _queries_and_keys(d_projected, num_heads, num_key_value_heads)
        inputs = _queries_and_keys(projected, num_heads, num_key_value_heads)
        of_weights = zip((query_weight, key_weight), residuals, needed[1:])
        for part, x, (weight, saved, is_needed) in zip(parts, inputs, of_weights):
            h, d_weight = part, None
            if rotation is not None:
                cosine, sine = _cosine_and_sine(rotation, part.dtype)
                h = rotate_pairs(part, cosine, -sine)
            if weight is not None:
                h, d_weight = rms_norm_backward(h, saved, (True, is_needed), x, weight)
            part[...] = h
            d_weights.append(d_weight)
        return d_projected, *d_weights

    return norm_and_rotate_forward, norm_and_rotate_backward


norm_and_rotate_forward, norm_and_rotate_backward = norm_and_rotate(rms_norm_forward, rms_norm_backward)
