"""Losses whose prediction and target have the same shape, and the helpers that all losses share.

A loss is computed in float32 if its inputs are integers or of half precision. ``reduction`` is "mean", "sum" or "none".
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
    """x, converted to float32 if it is of half precision or not floating-point."""
    return x if is_floating(x.dtype) and x.dtype.itemsize > 2 else astype(x, "float32")


def reduce(losses: Tensor, reduction: str) -> Tensor:
    """The mean or the sum of the losses, or for "none" the losses themselves."""
    return losses if reduction == "none" else mean(losses) if reduction == "mean" else sum(losses)


@op(weight=lambda g, x: weighted(g, x), x=lambda g, weight: weighted(weight, g))
def weighted(weight: Any, x: Any) -> Tensor:
    """weight * x, but 0 where the weight is 0 and x infinite: what cannot happen adds nothing to a loss, however unlikely."""
    return where((weight == 0) & (abs(x) == math.inf), 0.0, weight * x)


def check_reduction(reduction: str) -> None:
    """Raise ValueError unless it is "mean", "sum" or "none"."""
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"the reduction must be 'mean', 'sum' or 'none', not {reduction!r}")


def _pair(operation: str, prediction: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """The two inputs of a loss, in the dtype in which it is computed. Raises ValueError unless they have the same shape."""
    check_reduction(reduction)
    if prediction.shape != target.shape:
        raise ValueError(f"{operation}: the prediction has shape {prediction.shape} and the target {target.shape}")
    return at_least_float32(prediction), at_least_float32(target)


@checked
def mse_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squared difference of two tensors of the same shape.

    >>> prediction, target = tt.tensor([1.0, 2.0]), tt.tensor([1.0, 4.0])
    >>> tt.mse_loss(prediction, target), tt.mse_loss(prediction, target, reduction="none")
    (tensor(2.), tensor([0., 4.]))
    """
    prediction, target = _pair("mse_loss", prediction, target, reduction)
    return reduce(square(prediction - target), reduction)


@checked
def l1_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The absolute difference of two tensors of the same shape."""
    prediction, target = _pair("l1_loss", prediction, target, reduction)
    return reduce(abs(prediction - target), reduction)


@checked
def huber_loss(prediction: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """d * d / 2 where the difference d is from -delta to delta, and beyond the tangent delta (|d| - delta / 2) (Huber 1964).

    Outliers have less influence than on the squared difference. Raises ValueError unless delta is positive.
    """
    if not delta > 0:
        raise ValueError(f"huber_loss: delta must be positive, not {delta}")
    prediction, target = _pair("huber_loss", prediction, target, reduction)
    return reduce(_huber(prediction, target, delta, 1.0), reduction)


def _near(d: Any, most: float) -> Any:
    """d limited to the numbers from -most to most. At both it is flat already, as the second derivative is in PyTorch."""
    return where(abs(d) < most, d, sign(d) * most)


@op(
    prediction=lambda g, prediction, target, delta, scale: g * (_near(prediction - target, delta) / scale),
    target=lambda g, prediction, target, delta, scale: g * (_near(target - prediction, delta) / scale),
)
def _huber(prediction: Any, target: Any, delta: float, scale: float) -> Tensor:
    """The loss of Huber, divided by ``scale``."""
    d = prediction - target
    near = _near(d, delta)
    return near / scale * (d - 0.5 * near)


@checked
def smooth_l1_loss(prediction: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """|d| - beta / 2 where |d| is larger than ``beta``, for the difference d, else d * d / (2 beta): huber_loss / beta.

    With beta = 0 it is ``l1_loss``. Raises ValueError if beta is negative.
    """
    check_not_negative("smooth_l1_loss: beta", beta)
    if not beta:
        return l1_loss(prediction, target, reduction)
    prediction, target = _pair("smooth_l1_loss", prediction, target, reduction)
    return reduce(_huber(prediction, target, beta, beta), reduction)


@checked
def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target (log target - input), the divergence of Kullback and Leibler (1951), for two tensors of the same shape.

    ``input`` holds log-probabilities. ``target`` holds probabilities, or with ``log_target`` their logarithms. "mean" is over
    all elements. "batchmean" is the sum divided by the length of the first axis, which is the divergence as it is defined.
    """
    batch = reduction == "batchmean"
    input, target = _pair("kl_div", input, target, "sum" if batch else reduction)
    losses = _of_logarithms(input, target) if log_target else _x_log_x(target) - weighted(target, input)
    return sum(losses) / float(input.shape[0] if input.ndim else 1) if batch else reduce(losses, reduction)


def _of_logarithms(input: Tensor, target: Tensor) -> Tensor:
    """exp(target) (target - input), and 0 where the target is -inf, whose gradients are 0, too."""
    nothing = target == -math.inf
    target = where(nothing, 0.0, target)
    return where(nothing, 0.0, exp(target) * (target - input))


def _x_log_x(x: Tensor) -> Tensor:
    """x log x, and 0 where x is 0. The gradient is 0 there, and log x + 1 elsewhere."""
    return where(x == 0, 0.0, x * log(where(x == 0, 1.0, x)))


@checked
def binary_cross_entropy_with_logits(
    logits: Tensor, targets: Tensor, reduction: str = "mean", weight: Tensor | None = None, pos_weight: Tensor | None = None
) -> Tensor:
    """-t log p - (1 - t) log(1 - p), for p = sigmoid(logits) and targets t from 0 to 1, without overflow.

    ``pos_weight`` multiplies the first term and ``weight`` multiplies each loss. Both broadcast to the shape of the logits. The
    mean is over all elements.
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
    """positive times -log p and negative times -log(1 - p). These logarithms are softplus(-x) and softplus(x), so no digits
    cancel even where the loss is nearly 0."""
    return weighted(positive, _softplus(-logits, 1.0)) + weighted(negative, _softplus(logits, 1.0))


@checked
def binary_cross_entropy(
    probabilities: Tensor, targets: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """-t log p - (1 - t) log(1 - p), for probabilities p and targets t from 0 to 1. Each logarithm is at least -100, as in
    PyTorch. The slope is (p - t) / (p (1 - p)) with a divisor of at least 1e-12, so it also pulls back from p = 0 and p = 1.

    If the probabilities come from a sigmoid, ``binary_cross_entropy_with_logits`` is more accurate. On the CPU it raises
    ValueError for a probability or a target below 0 or above 1.
    """
    p, targets = _pair("binary_cross_entropy", probabilities, targets, reduction)
    losses = _binary_cross_entropy(p, targets)
    return reduce(losses if weight is None else losses * _factor("weight", weight, p), reduction)


_SMALLEST = 1e-12  # what PyTorch keeps divisors from 0 by


@op(p=lambda g, p, targets: g * _slope(p, targets), targets=lambda g, p: weighted(g, log1p(-p) - log(p)))
def _binary_cross_entropy(p: Any, targets: Any) -> Tensor:
    for name, values in (("probabilities", p), ("targets", targets)):
        if is_host_array(values) and ((values < 0) | (values > 1)).any():  # reading a GPU's values would wait for it
            raise ValueError(f"the {name} must lie between 0 and 1, and some do not: use binary_cross_entropy_with_logits")
    return (targets - 1.0) * clip(log1p(-p), -100.0) - targets * clip(log(p), -100.0)


@op(
    p=lambda g, p, targets: g * (p * (p - targets * 2.0) + targets) / square((p + _SMALLEST) * (1.0 - p + _SMALLEST)),
    targets=lambda g, p: -g / clip(p * (1.0 - p), _SMALLEST),
)
def _slope(p: Any, targets: Any) -> Tensor:
    return (p - targets) / clip(p * (1.0 - p), _SMALLEST)


def _factor(name: str, weight: Tensor, like: Tensor) -> Tensor:
    """A weight in the dtype of the losses. Raises ValueError unless it broadcasts to their shape."""
    fits = all(n in (1, of) for n, of in zip(weight.shape[::-1], like.shape[::-1]))
    if weight.ndim > like.ndim or not fits:
        raise ValueError(f"binary_cross_entropy: {name} {weight.shape} does not broadcast to the losses {like.shape}")
    return at_least_float32(weight)


for each in (weighted, _huber, _logistic):
    compile_elementwise(cast(Op, each))
