"""Losses of a prediction and a target of one shape, and what all losses share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinytensor.backend import is_floating
from tinytensor.checks import check_tensors
from tinytensor.ops import abs, astype, clip, exp, log, log1p, mean, softplus, square, sum, where

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor

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
    """x in float32 where it is no floating-point number, or of half precision: a loss is float32."""
    return x if is_floating(x.dtype) and x.dtype.itemsize > 2 else astype(x, "float32")


def reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses if reduction == "none" else mean(losses) if reduction == "mean" else sum(losses)


def check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"a reduction is 'mean', 'sum' or 'none', not {reduction!r}")


def _pair(operation: str, prediction: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """A loss's two inputs, of one shape, in the dtype it is computed in."""
    check_tensors(operation, prediction=prediction, target=target)
    check_reduction(reduction)
    if prediction.shape != target.shape:
        raise ValueError(f"{operation}: the prediction has shape {prediction.shape} and the target {target.shape}")
    return at_least_float32(prediction), at_least_float32(target)


def mse_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(prediction - target) squared, two tensors of one shape."""
    prediction, target = _pair("mse_loss", prediction, target, reduction)
    return reduce(square(prediction - target), reduction)


def l1_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|prediction - target|, two tensors of one shape."""
    prediction, target = _pair("l1_loss", prediction, target, reduction)
    return reduce(abs(prediction - target), reduction)


def huber_loss(prediction: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """The half of the squared difference d up to ``delta``, and from there on its tangent, delta (|d| - delta / 2), which
    outliers pull less (Huber 1964)."""
    if delta <= 0:
        raise ValueError(f"huber_loss: delta must be positive, not {delta}")
    prediction, target = _pair("huber_loss", prediction, target, reduction)
    d = prediction - target
    near = clip(d, -delta, delta)
    return reduce(near * (d - 0.5 * near), reduction)


def smooth_l1_loss(prediction: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """|d| - beta / 2 of the difference d, rounded off below ``beta`` to a parabola: the Huber loss over beta. With
    beta = 0 it is ``l1_loss``."""
    if beta < 0:
        raise ValueError(f"smooth_l1_loss: beta must not be negative, but is {beta}")
    return huber_loss(prediction, target, reduction, beta) / beta if beta else l1_loss(prediction, target, reduction)


def kl_div(input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target (log target - input), the divergence of Kullback and Leibler (1951), of two tensors of one shape.

    ``input`` holds log-probabilities, and ``target`` probabilities, or with ``log_target`` their logarithms. The mean is over
    all elements; "batchmean" is the sum over the length of the first axis, the divergence as it is defined.
    """
    batch = reduction == "batchmean"
    input, target = _pair("kl_div", input, target, "sum" if batch else reduction)
    losses = exp(target) * (target - input) if log_target else _x_log_x(target) - target * input
    return sum(losses) / float(input.shape[0] if input.ndim else 1) if batch else reduce(losses, reduction)


def _x_log_x(x: Tensor) -> Tensor:
    """x log x, and 0 where x is 0, with the gradient log x + 1 elsewhere."""
    return where(x == 0, 0.0, x * log(where(x == 0, 1.0, x)))


def binary_cross_entropy_with_logits(
    logits: Tensor,
    targets: Tensor,
    reduction: str = "mean",
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
) -> Tensor:
    """-t log p - (1 - t) log(1 - p) with p = sigmoid(logits) and targets t in 0..1, without overflow.

    ``pos_weight`` multiplies the first term, and ``weight`` each loss; both broadcast against the logits. The mean is over all
    elements.
    """
    logits, targets = _pair("binary_cross_entropy_with_logits", logits, targets, reduction)
    # softplus(-x) = -log p and softplus(x) = -log(1 - p), so nothing cancels, however sure and right the logits are.
    positive = targets if pos_weight is None else targets * _factor("pos_weight", pos_weight, logits)
    losses = positive * softplus(-logits) + (1.0 - targets) * softplus(logits)
    return reduce(losses if weight is None else losses * _factor("weight", weight, logits), reduction)


def binary_cross_entropy(
    probabilities: Tensor, targets: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """-t log p - (1 - t) log(1 - p) of probabilities p and targets t in 0..1, each logarithm at least -100, as in PyTorch.

    Where the probabilities are a sigmoid's, ``binary_cross_entropy_with_logits`` keeps more digits.
    """
    p, targets = _pair("binary_cross_entropy", probabilities, targets, reduction)
    losses = -targets * clip(log(p), -100.0) - (1.0 - targets) * clip(log1p(-p), -100.0)
    return reduce(losses if weight is None else losses * _factor("weight", weight, p), reduction)


def _factor(name: str, weight: Tensor, like: Tensor) -> Tensor:
    """A weight that broadcasts to the losses. Raises ValueError for one that would enlarge them."""
    check_tensors("binary_cross_entropy", **{name: weight})
    fits = all(n in (1, of) for n, of in zip(weight.shape[::-1], like.shape[::-1]))
    if weight.ndim > like.ndim or not fits:
        raise ValueError(f"binary_cross_entropy: {name} {weight.shape} does not broadcast to the losses {like.shape}")
    return at_least_float32(weight)
