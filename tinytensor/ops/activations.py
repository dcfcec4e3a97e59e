"""The nonlinear functions of neural networks that are plain ops; those with kernels of their own are in functional.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor.backend import wide, xp
from tinytensor.op import op
from tinytensor.ops.elementwise import exp, sigmoid, where
from tinytensor.ops.reductions import sum

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor


@op(x=lambda g, out: g * (out > 0))  # several times faster than where(out > 0, g, 0.0)
def relu(x: Tensor) -> Tensor:
    """x where positive, else 0; its gradient at 0 is 0."""
    return xp.maximum(x, 0)


@op(x=lambda g, x, negative_slope: where(x > 0, g, g * negative_slope))
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """x where positive, else ``negative_slope`` times x."""
    return xp.where(x > 0, x, x * negative_slope)


@op(x=lambda g, x: g * sigmoid(x))
def softplus(x: Tensor) -> Tensor:
    """log(1 + e ** x), without overflow."""
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.absolute(x)))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), also called swish (Hendrycks and Gimpel 2016)."""
    return x * sigmoid(x)


@op(x=lambda g, out, axis: out * (g - sum(g * out, axis, keepdims=True)))
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) scaled to sum to 1 along ``axis``, without overflow."""
    e = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
    e /= xp.sum(e, axis=axis, keepdims=True, dtype=wide(e.dtype))
    return e


@op(x=lambda g, out, axis: g - exp(out) * sum(g, axis, keepdims=True))
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)) along ``axis``, exact where the softmax itself would round to 0."""
    shifted: Any = x - xp.max(x, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True, dtype=wide(x.dtype)))
