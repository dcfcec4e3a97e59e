"""Losses between a prediction and a target of the same shape, and helpers for all losses.

Integer and half-precision inputs are computed in float32. ``reduction`` is "mean", "sum" or "none".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from tinytensor.autograd.inputs import check_not_negative
from tinytensor.autograd.op import Op, op
from tinytensor.common.arguments import checked
from tinytensor.device.backend import is_floating, is_host_array
from tinytensor.ops import abs, astype, clip, exp, log, log1p, mean, sigmoid, sign, square, sum, where
from tinytensor.ops.activations import _softplus
from tinytensor.ops.compiled import compile_elementwise

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "smooth_l1_loss",
]


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half-precision and integer tensors to float32."""
    return x if is_floating(x.dtype) and x.dtype.itemsize > 2 else astype(x, "float32")


def reduce(losses: Tensor, reduction: str) -> Tensor:
    """Return the mean or sum of the losses, or the unreduced losses for "none"."""
    return losses if reduction == "none" else mean(losses) if reduction == "mean" else sum(losses)


@op(weight=lambda g, x: weighted(g, x), x=lambda g, weight: weighted(weight, g))
def weighted(weight: Any, x: Any) -> Tensor:
    """Return weight * x, but 0 where the weight is 0 and x is infinite: an impossible event adds nothing to a loss."""
    return where((weight == 0) & (abs(x) == math.inf), 0.0, weight * x)


def check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be 'mean', 'sum' or 'none', got {reduction!r}")


def _pair(operation: str, prediction: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """Convert the inputs of a loss to the dtype of the computation. Raises ValueError if their shapes differ."""
    check_reduction(reduction)
    if prediction.shape != target.shape:
        raise ValueError(f"{operation}: prediction and target must have one shape, got {prediction.shape} and {target.shape}")
    return at_least_float32(prediction), at_least_float32(target)


@checked
def mse_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean squared error between two tensors of the same shape.

    >>> prediction, target = tt.tensor([1.0, 2.0]), tt.tensor([1.0, 4.0])
    >>> tt.mse_loss(prediction, target), tt.mse_loss(prediction, target, reduction="none")
    (tensor(2.), tensor([0., 4.]))
    """
    prediction, target = _pair("mse_loss", prediction, target, reduction)
    return reduce(square(prediction - target), reduction)


@checked
def l1_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean absolute error between two tensors of the same shape."""
    prediction, target = _pair("l1_loss", prediction, target, reduction)
    return reduce(abs(prediction - target), reduction)


@checked
def huber_loss(prediction: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return the Huber loss (1964): d * d / 2 for a difference |d| <= delta, else the tangent delta (|d| - delta / 2).

    It is less sensitive to outliers than the squared error. Raises ValueError unless delta is positive.
    """
    if not delta > 0:
        raise ValueError(f"huber_loss: delta must be positive, got {delta}")
    prediction, target = _pair("huber_loss", prediction, target, reduction)
    return reduce(_huber(prediction, target, delta, 1.0), reduction)


def _near(d: Any, limit: float) -> Any:
    """Clip d to [-limit, limit]. The slope at both ends is 0, so second derivatives match PyTorch's."""
    return where(abs(d) < limit, d, sign(d) * limit)


@op(
    prediction=lambda g, prediction, target, delta, scale: g * (_near(prediction - target, delta) / scale),
    target=lambda g, prediction, target, delta, scale: g * (_near(target - prediction, delta) / scale),
)
def _huber(prediction: Any, target: Any, delta: float, scale: float) -> Tensor:
    """Return the Huber loss divided by ``scale``."""
    d = prediction - target
    near = _near(d, delta)
    return near / scale * (d - 0.5 * near)


@checked
def smooth_l1_loss(prediction: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return huber_loss / beta: d * d / (2 beta) for a difference |d| <= beta, else |d| - beta / 2.

    If beta is 0, this equals ``l1_loss``. Raises ValueError if beta is negative.
    """
    check_not_negative("smooth_l1_loss: beta", beta)
    if not beta:
        return l1_loss(prediction, target, reduction)
    prediction, target = _pair("smooth_l1_loss", prediction, target, reduction)
    return reduce(_huber(prediction, target, beta, beta), reduction)


@checked
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return the Kullback-Leibler divergence (1951) target * (log target - input) of two tensors of the same shape.

    ``input`` holds log-probabilities. ``target`` holds probabilities, or log-probabilities if ``log_target`` is set. "mean"
    averages all elements. "batchmean", the mathematical definition, divides the sum by the length of the first axis.
    """
    batch = reduction == "batchmean"
    input, target = _pair("kl_div", input, target, "sum" if batch else reduction)
    losses = _of_logarithms(input, target) if log_target else _x_log_x(target) - weighted(target, input)
    return sum(losses) / float(input.shape[0] if input.ndim else 1) if batch else reduce(losses, reduction)


def _of_logarithms(input: Tensor, target: Tensor) -> Tensor:
    """Return exp(target) * (target - input). Where the target is -inf, the value and the gradients are 0."""
    nothing = target == -math.inf
    target = where(nothing, 0.0, target)
    return where(nothing, 0.0, exp(target) * (target - input))


def _x_log_x(x: Tensor) -> Tensor:
    """Return x log x. Where x is 0, the value and the gradient are 0. Elsewhere the gradient is log x + 1."""
    return where(x == 0, 0.0, x * log(where(x == 0, 1.0, x)))


@checked
def binary_cross_entropy_with_logits(
    logits: Tensor, targets: Tensor, reduction: str = "mean", weight: Tensor | None = None, pos_weight: Tensor | None = None
) -> Tensor:
    """Return -t log p - (1 - t) log(1 - p) for p = sigmoid(logits) and targets t in [0, 1], without overflow.

    ``pos_weight`` multiplies the first term and ``weight`` each loss. Both broadcast to the shape of the logits. The mean is
    over all elements.
    """
    logits, targets = _pair("binary_cross_entropy_with_logits", logits, targets, reduction)
    positive = targets if pos_weight is None else targets * _factor("pos_weight", pos_weight, logits)
    losses = _logistic(logits, positive, 1.0 - targets)
    return reduce(losses if weight is None else weighted(_factor("weight", weight, logits), losses), reduction)


@op(
    logits=lambda g, logits, positive, negative: g * (negative * sigmoid(logits) - positive * sigmoid(-logits)),
    positive=lambda g, logits: weighted(g, _softplus(-logits, 1.0)),
    negative=lambda g, logits: weighted(g, _softplus(logits, 1.0)),
)
def _logistic(logits: Any, positive: Any, negative: Any) -> Tensor:
    """Return -positive * log p - negative * log(1 - p), computed as softplus(-x) and softplus(x).

    No digits cancel this way, even where the loss is nearly 0.
    """
    return weighted(positive, _softplus(-logits, 1.0)) + weighted(negative, _softplus(logits, 1.0))


@checked
def binary_cross_entropy(
    probabilities: Tensor, targets: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """Return -t log p - (1 - t) log(1 - p) for probabilities p and targets t in [0, 1].

    As in PyTorch, logarithms are clamped to at least -100, and the divisor of the gradient (p - t) / (p (1 - p)) to at least
    1e-12, so a wrong p of 0 or 1 still has a gradient. For logits, use ``binary_cross_entropy_with_logits``: it is more
    accurate. On the CPU, raises ValueError for a probability or target outside [0, 1].
    """
    p, targets = _pair("binary_cross_entropy", probabilities, targets, reduction)
    losses = _binary_cross_entropy(p, targets)
    return reduce(losses if weight is None else losses * _factor("weight", weight, p), reduction)


_SMALLEST = 1e-12  # PyTorch's minimum divisor


@op(p=lambda g, p, targets: g * _slope(p, targets), targets=lambda g, p: weighted(g, log1p(-p) - log(p)))
def _binary_cross_entropy(p: Any, targets: Any) -> Tensor:
    for name, values in (("probabilities", p), ("targets", targets)):
        if is_host_array(values) and ((values < 0) | (values > 1)).any():  # a check would wait for the GPU
            raise ValueError(f"all {name} must be between 0 and 1: use binary_cross_entropy_with_logits")
    return (targets - 1.0) * clip(log1p(-p), -100.0) - targets * clip(log(p), -100.0)


@op(
    p=lambda g, p, targets: g * (p * (p - targets * 2.0) + targets) / square((p + _SMALLEST) * (1.0 - p + _SMALLEST)),
    targets=lambda g, p: -g / clip(p * (1.0 - p), _SMALLEST),
)
def _slope(p: Any, targets: Any) -> Tensor:
    return (p - targets) / clip(p * (1.0 - p), _SMALLEST)


def _factor(name: str, weight: Tensor, like: Tensor) -> Tensor:
    """Convert a weight to the dtype of the losses. Raises ValueError unless it broadcasts to their shape."""
    fits = all(n in (1, of) for n, of in zip(weight.shape[::-1], like.shape[::-1]))
    if weight.ndim > like.ndim or not fits:
        raise ValueError(f"binary_cross_entropy: {name} {weight.shape} does not broadcast to the losses {like.shape}")
    return at_least_float32(weight)


for each in (weighted, _huber, _logistic):
    compile_elementwise(cast(Op, each))
