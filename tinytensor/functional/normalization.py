"""Normalization: ``layer_norm`` and ``rms_norm`` over the last axis, ``group_norm`` over groups of channels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.autograd.fused import fused
from tinytensor.common.arguments import composite
from tinytensor.common.wording import counted
from tinytensor.ops import mean, reshape, rsqrt, square
from tinytensor.ops.reductions import centred

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["group_norm", "layer_norm", "rms_norm"]


def _check_rows(x: Any, weight: Any, bias: Any = None) -> None:
    """Raise ValueError unless x has at least one axis, and weight and bias have the shape of one row.

    Neither may broadcast: kernels sum their gradients over rows only, and GPU kernels read them row by row.
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
    """Normalize each row (the last axis) to mean 0 and variance 1, then multiply by ``weight`` and add ``bias``, both (width,).

    The biased variance is used, and eps is added to it under the square root (Ba, Kiros and Hinton 2016, equation 4). Raises
    ValueError if the weight or bias has any other shape.
    """
    distance = centred(x, -1)
    out = distance * rsqrt(mean(square(distance), -1, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


@fused(kernels.rms_norm_forward, kernels.rms_norm_backward, inputs=("x", "weight"), check=_check_rows)
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Normalize each row (the last axis) to mean square 1, then multiply by ``weight`` (width,) (Zhang and Sennrich 2019).

    eps is added to the mean square under the square root. Raises ValueError if the weight has any other shape.

    >>> tt.rms_norm(tt.tensor([[3.0, 3.0], [-2.0, 2.0]]), eps=0.0)
    tensor([[ 1.,  1.],
            [-1.,  1.]])
    """
    out = x * rsqrt(mean(square(x), -1, keepdims=True) + eps)
    return out if weight is None else out * weight


@composite
def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalize each group of channels to mean 0 and variance 1, then multiply by ``weight`` and add ``bias`` (Wu and He 2018).

    x is (batch, channels, ...); weight and bias are (channels,). Raises ValueError for mismatched shapes.
    """
    if len(x.shape) < 2 or num_groups < 1 or x.shape[1] % num_groups:
        raise ValueError(
            f"group_norm takes (batch, channels, ...), with channels for {counted(num_groups, 'group')}, got {x.shape}"
        )
    batch, channels = x.shape[:2]
    for parameter in (weight, bias):
        if parameter is not None and parameter.shape != (channels,):
            raise ValueError(f"group_norm: weight and bias must have shape ({channels},), got {parameter.shape}")
    groups = reshape(x, (batch, num_groups, math.prod(x.shape[1:]) // num_groups))
    out = reshape(layer_norm(groups, eps=eps), x.shape)
    of_channels = (channels, *[1] * (len(x.shape) - 2))
    out = out if weight is None else out * reshape(weight, of_channels)
    return out if bias is None else out + reshape(bias, of_channels)
