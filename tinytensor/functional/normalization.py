"""Normalisation over the last axis: ``layer_norm`` and ``rms_norm``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.fused import fused
from tinytensor.ops import mean, rsqrt, square
from tinytensor.ops.reductions import centred

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor

__all__ = [
    "layer_norm",
    "rms_norm",
]


def _check_rows(x: Any, weight: Any, bias: Any = None) -> None:
    """Raise ValueError unless x has rows, and weight and bias have the shape of one row.

    They must not broadcast: the kernels sum their gradients over rows only, and on a GPU read them row by row.
    """
    row = x.shape[-1:]
    for parameter in (weight, bias):
        if not row or (parameter is not None and getattr(parameter, "shape", None) != row):
            raise ValueError(
                "x needs a last axis, its rows, and weight and bias have the shape of a row: reshape them to (width,), or "
                "multiply and add in separate steps"
            )


@fused(kernels.layer_norm_forward, kernels.layer_norm_backward, inputs=("x", "weight", "bias"), check=_check_rows)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Shift and scale each row (the last axis) to mean 0 and variance 1; then multiply by ``weight`` and add ``bias``.

    Both have shape (width,). The variance is the biased one, and eps is added to it under the root (Ba, Kiros and Hinton 2016,
    equation 4). Raises ValueError if a weight or a bias has another shape.
    """
    distance = centred(x, -1)
    out = distance * rsqrt(mean(square(distance), -1, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


@fused(kernels.rms_norm_forward, kernels.rms_norm_backward, inputs=("x", "weight"), check=_check_rows)
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Scale each row (the last axis) to mean square 1; then multiply by ``weight`` (width,) (Zhang and Sennrich 2019).

    eps is added to the mean square under the root. Raises ValueError if the weight has another shape.

    >>> tt.rms_norm(tt.tensor([[3.0, 3.0], [-2.0, 2.0]]), eps=0.0)
    tensor([[ 1.,  1.],
            [-1.,  1.]])
    """
    out = x * rsqrt(mean(square(x), -1, keepdims=True) + eps)
    return out if weight is None else out * weight
