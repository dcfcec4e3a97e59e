"""Activation functions, except ``sigmoid`` and ``tanh``, which are in elementwise.py.

``gelu``, ``silu``, ``swiglu``, ``softmax`` and ``log_softmax`` have kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.autograd.fused import fused
from tinytensor.autograd.op import op  # compiled.py compiles the functions and rules of these ops without changing their values
from tinytensor.common.arguments import composite
from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.activations import FAR
from tinytensor.ops.elementwise import abs, erf, exp, sigmoid, tanh, where
from tinytensor.ops.reductions import sum
from tinytensor.ops.shapes import normalize_axes, normalize_axis, split

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "elu", "gelu", "glu", "leaky_relu", "log_softmax", "logsigmoid", "relu", "silu", "softmax", "softplus", "swiglu",
]  # fmt: skip


@op(x=lambda g, out: where(out <= 0, 0.0, g))  # not a product: 0 times infinity would be NaN
def relu(x: Tensor) -> Tensor:
    """Return max(x, 0). The gradient at 0 is 0. NaN inputs stay NaN and pass the gradient on.

    >>> tt.relu(tt.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    return xp.maximum(x, 0)


@op(floating=True, x=lambda g, x, negative_slope: where(x > 0, g, g * negative_slope))
def leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    """Return x where x is positive, else ``negative_slope`` times x."""
    return xp.where(x > 0, x, x * negative_slope)


# The inner ``where`` makes the slope at 0 a constant: the second derivative there is 0, as in PyTorch.
@op(floating=True, x=lambda g, x, alpha: where(x <= 0, g * exp(where(x < 0, x, 0.0)) * alpha, g))
def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """Return x where x is positive, else alpha * (e ** x - 1) (Clevert, Unterthiner and Hochreiter 2015)."""
    return xp.where(x <= 0, xp.expm1(xp.minimum(x, 0)) * alpha, x)


@op(floating=True, x=lambda g, x, beta: g * sigmoid(x * beta))
def _softplus(x: Tensor, beta: float) -> Tensor:
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.absolute(x * beta))) / beta


@composite
def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    """Return log(1 + e ** (beta x)) / beta, a smooth relu, without overflow."""
    if beta == 0 or beta != beta:
        raise ValueError(f"softplus: beta must not be 0 or NaN, got {beta:g}")
    return _softplus(x, beta) if beta > 0 else -_softplus(-x, -beta)


@op(floating=True, x=lambda g, x: g * sigmoid(-x))
def logsigmoid(x: Tensor) -> Tensor:
    """Return log(sigmoid(x)), accurate even where sigmoid(x) would round to 0."""
    return xp.minimum(x, 0) - xp.log1p(xp.exp(-xp.absolute(x)))


def _gated(x: Any, gate: Callable[[Any], Any]) -> Any:
    """Return x gate(x) for a gate that rises from 0 to 1.

    Far from 0, return relu(x): there the product could be infinity times 0 (NaN), and the gate may overflow.
    """
    is_far = abs(x) > FAR
    near = where(is_far, 0.0, x)
    return where(is_far, relu(x), near * gate(near))


@fused(kernels.gelu_tanh_forward, kernels.gelu_tanh_backward, inputs=("x",))
def _gelu_tanh(x: Tensor) -> Tensor:
    return _gated(x, lambda x: (tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)) + 1.0) * 0.5)


@fused(kernels.gelu_exact_forward, kernels.gelu_exact_backward, inputs=("x",))
def _gelu_exact(x: Tensor) -> Tensor:
    return _gated(x, lambda x: (erf(x * math.sqrt(0.5)) + 1.0) * 0.5)


@composite
def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Return x * Phi(x), where Phi is the standard normal distribution function (Hendrycks and Gimpel 2016).

    ``approximate="none"`` is exact and uses erf. ``approximate="tanh"`` is the approximation used to train GPT-2.
    """
    if approximate == "tanh":
        return _gelu_tanh(x)
    if approximate != "none":
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return _gelu_exact(x)


@fused(kernels.silu_forward, kernels.silu_backward, inputs=("x", "factor"))
def _silu(x: Any, factor: Any) -> Any:
    out = _gated(x, sigmoid)
    return out if factor is None else out * factor


@composite
def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x), also called swish (Hendrycks and Gimpel 2016)."""
    return _silu(x, None)


@composite
def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up, the hidden activation of a SwiGLU feed-forward network (Shazeer 2020, equation 6).

    Raises ValueError unless both have the same shape.
    """
    if gate.shape != up.shape:
        raise ValueError(f"swiglu: gate and up must have the same shape, got {gate.shape} and {up.shape}")
    return _silu(gate, up)


@composite
def glu(x: Tensor, axis: int = -1) -> Tensor:
    """Multiply the first half of x along ``axis`` by the sigmoid of the second half (Dauphin et al. 2016).

    Raises ValueError if the length of the axis is odd.
    """
    axis = normalize_axis(axis, x.ndim, "glu: axis")
    if x.shape[axis] % 2:
        raise ValueError(f"glu: axis {axis} must have an even length, got shape {x.shape}")
    values, gates = split(x, 2, axis)
    return values * sigmoid(gates)


@op(floating=True, x=lambda g, out, axis: _softmax_gradient(g, out, axis))
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return exp(x) / sum(exp(x)) along ``axis``, without overflow. The elements lie between 0 and 1 and sum to 1.

    >>> tt.softmax(tt.tensor([[0.0, 0.0], [5.0, 5.0]]))
    tensor([[0.5, 0.5],
            [0.5, 0.5]])
    """
    return kernels.softmax(x, normalize_axes(axis, x.ndim))


@op(
    d_weights=lambda g, weights, axis: _softmax_gradient(g, weights, axis),
    weights=lambda g, d_weights, weights, axis: (
        g * (d_weights - sum(d_weights * weights, axis, keepdims=True)) - d_weights * sum(g * weights, axis, keepdims=True)
    ),
)
def _softmax_gradient(d_weights: Any, weights: Any, axis: int) -> Any:
    """Return weights * (d_weights - sum(d_weights * weights)), the gradient of x for weights = softmax(x)."""
    return kernels.softmax_gradient(d_weights, weights, normalize_axes(axis, weights.ndim))


@op(floating=True, x=lambda g, out, axis: _log_softmax_gradient(g, out, axis))
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """Return log(softmax(x)) along ``axis``, accurate even where the softmax would round to 0."""
    return kernels.log_softmax(x, normalize_axes(axis, x.ndim))


@op(
    d_logs=lambda g, logs, axis: g - sum(g * exp(logs), axis, keepdims=True),
    logs=lambda g, d_logs, logs, axis: -g * exp(logs) * sum(d_logs, axis, keepdims=True),
)
def _log_softmax_gradient(d_logs: Any, logs: Any, axis: int) -> Any:
    """Return d_logs - exp(logs) * sum(d_logs), the gradient of x for logs = log_softmax(x)."""
    return kernels.log_softmax_gradient(d_logs, logs, normalize_axes(axis, logs.ndim))
