"""Similarity of vectors: ``cosine_similarity``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinytensor.autograd.inputs import check_not_negative
from tinytensor.common.arguments import composite
from tinytensor.device.backend import default_dtype, host, is_floating, xp
from tinytensor.ops import astype, broadcast_to, clip, norm, sum

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["cosine_similarity"]


@composite
def cosine_similarity(x: Tensor, y: Tensor, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between the vectors of x and y along ``axis``. x and y broadcast.

    A norm below ``eps`` is replaced by ``eps``, so the similarity with a zero vector is 0. Half-precision inputs are computed
    in float32.

    >>> tt.cosine_similarity(tt.tensor([[1.0, 0.0], [1.0, 1.0]]), tt.tensor([0.0, 2.0]))
    tensor([0.    , 0.7071])
    """
    check_not_negative("cosine_similarity: eps", eps)
    shape = host.broadcast_shapes(x.shape, y.shape)
    dtypes = [vectors.dtype for vectors in (x, y) if is_floating(vectors.dtype)] or [default_dtype]
    dtype = xp.promote_types(dtypes[0], dtypes[-1])
    x, y = [broadcast_to(astype(vectors, xp.promote_types(dtype, default_dtype)), shape) for vectors in (x, y)]
    lengths = [clip(norm(vectors, axis=axis, keepdims=True), min=eps) for vectors in (x, y)]
    return astype(sum(x / lengths[0] * (y / lengths[1]), axis), dtype)
