"""The norms and rotations of rotary attention: ``norm_and_rotate``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.autograd.fused import fused
from tinytensor.common.arguments import checked
from tinytensor.common.wording import counted
from tinytensor.functional.normalization import rms_norm
from tinytensor.ops import concatenate, rotate_pairs

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["norm_and_rotate"]


@fused(kernels.norm_and_rotate_forward, kernels.norm_and_rotate_backward, inputs=("projected", "query_weight", "key_weight"))
def _norm_and_rotate(
    projected: Any, query_weight: Any, key_weight: Any, num_heads: int, num_key_value_heads: int, eps: float, rotation: Any
) -> Any:
    batch, length, width = projected.shape
    count = num_heads + 2 * num_key_value_heads
    heads, end = projected.reshape(batch, length, count, width // count).swapaxes(1, 2), num_heads + num_key_value_heads
    query, key, value = heads[:, :num_heads], heads[:, num_heads:end], heads[:, end:]
    if query_weight is not None:
        query, key = rms_norm(query, query_weight, eps), rms_norm(key, key_weight, eps)
    if rotation is not None:
        table, half = rotation.astype(projected.dtype), width // count // 2
        cosine, sine = table[:, :half], table[:, half:]
        query, key = rotate_pairs(query, cosine, sine), rotate_pairs(key, cosine, sine)
    return concatenate([query, key, value], 1).swapaxes(1, 2).reshape(projected.shape)


@checked
def norm_and_rotate(
    projected: Tensor,
    num_heads: int,
    num_key_value_heads: int = 0,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 1e-5,
    rotation: Tensor | None = None,
) -> Tensor:
    """Normalize and rotate the queries and keys in the input of ``multi_head_attention``. Values are unchanged.

    ``projected`` (batch, length, (num_heads + 2 num_key_value_heads) d_head) holds the heads of queries, keys and values side
    by side, as one linear layer makes them. If ``num_key_value_heads`` is 0, there are ``num_heads`` of each. The result has
    the same shape.

    ``query_weight`` and ``key_weight`` (d_head,) apply an RMS norm to each head of queries and keys, as in ``rms_norm`` (Henry
    et al. 2020; Qwen3). A ``rotation`` (length, d_head) then rotates each head, as in ``rotate_pairs`` (Su et al. 2021,
    equation 34): the row for a position holds the cosines of the angles, then their sines. It gets no gradient.

    Raises ValueError for mismatched shapes.

    >>> turned = tt.norm_and_rotate(tt.ones((1, 2, 6)), num_heads=1, rotation=tt.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> turned[0, 1]  # query and key rotated by a right angle
    tensor([-1.,  1., -1.,  1.,  1.,  1.])
    """
    num_key_value_heads = num_key_value_heads or num_heads
    _check(projected, num_heads, num_key_value_heads, query_weight, key_weight, rotation)
    return _norm_and_rotate(projected, query_weight, key_weight, num_heads, num_key_value_heads, eps, rotation)


def _check(
    projected: Tensor,
    num_heads: int,
    num_key_value_heads: int,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    rotation: Tensor | None,
) -> None:
    shape, count = projected.shape, num_heads + 2 * num_key_value_heads
    if len(shape) != 3 or min(num_heads, num_key_value_heads) < 1 or not shape[2] or shape[2] % count:
        raise ValueError(
            f"norm_and_rotate: projected {shape} must be (batch, length, {count} * d_head), with "
            f"{counted(num_heads, 'head')} of queries, and {num_key_value_heads} each of keys and values"
        )
    width = shape[2] // count
    weights = [None if weight is None else weight.shape for weight in (query_weight, key_weight)]
    if weights not in ([None, None], [(width,), (width,)]):
        raise ValueError(f"norm_and_rotate: query_weight and key_weight must both be ({width},) or None, got {weights}")
    if rotation is not None and (rotation.shape != (shape[1], width) or width % 2):
        raise ValueError(
            f"norm_and_rotate: rotation {rotation.shape} must be (length, d_head), here {(shape[1], width)}, and d_head even"
        )
