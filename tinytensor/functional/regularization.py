"""Regularization: ``dropout``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor import kernels, random
from tinytensor.autograd.fused import fused
from tinytensor.autograd.inputs import check_probability
from tinytensor.common.arguments import checked
from tinytensor.kernels.numpy.dropout import RandomKey
from tinytensor.ops import where

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["dropout"]


@fused(kernels.dropout_forward, kernels.dropout_backward, inputs=("x", "residual"))
def _dropout(x: Any, residual: Any, random_key: RandomKey, keep_probability: float) -> Any:
    keep = kernels.keep_mask(random_key, x.shape, keep_probability)
    out = where(keep, x * kernels.survivors_scale(keep_probability), 0.0)
    return out if residual is None else out + residual


@checked
def dropout(x: Tensor, p: float = 0.5, training: bool = True, residual: Tensor | None = None) -> Tensor:
    """Zero each element with probability p and scale the others by 1/(1 - p), preserving the mean (Srivastava et al. 2014).

    If ``training`` is False, return x itself. If there is a ``residual``, add it to the result. Raises ValueError unless 0 <= p
    <= 1, and if the shapes of x and the residual differ.

    >>> x = tt.ones(1000)
    >>> y = tt.dropout(x, p=0.5)
    >>> bool(((y == 0) | (y == 2)).all()), tt.dropout(x, p=0.5, training=False) is x
    (True, True)
    """
    check_probability(p)
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"dropout: the residual must have the shape of x, got {residual.shape} and {x.shape}")
    if training and p:
        return _dropout(x, residual, random.random_key(), 1.0 - p)
    return x if residual is None else residual + x
