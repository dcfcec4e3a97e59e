"""Classification losses. Targets are class indices or class probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.autograd.fused import fused
from tinytensor.autograd.op import op
from tinytensor.autograd.replaying import value_check
from tinytensor.autograd.tensor import wrap
from tinytensor.common.arguments import checked
from tinytensor.device.backend import host, is_floating, is_host_array, xp
from tinytensor.functional.losses import at_least_float32, check_reduction, reduce, weighted
from tinytensor.ops import expand_dims, linear, log_softmax, mean, reshape, scatter, sum, take_along_axis, where

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["cross_entropy", "linear_cross_entropy", "nll_loss"]


@fused(kernels.cross_entropy_forward, kernels.cross_entropy_backward, inputs=("logits",), is_loss=True)
def _cross_entropy(logits: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str) -> Any:
    kept = targets != ignore_index
    target = where(kept, targets, 0)
    logits = where(kept.reshape((*kept.shape, 1)), logits, 0.0)  # an ignored row has no effect, even if it is NaN
    log_probability = log_softmax(at_least_float32(logits))
    losses = -take_along_axis(log_probability, target.reshape((*target.shape, 1)), -1).reshape(targets.shape)
    if label_smoothing:
        losses = losses * (1.0 - label_smoothing) - mean(log_probability, -1) * label_smoothing
    losses = where(kept, losses, 0.0)
    if reduction == "none":
        return losses
    return sum(losses) / float(max(int(kept.sum()), 1)) if reduction == "mean" else sum(losses)


@checked
def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """Return the cross-entropy loss -log softmax(logits)[target]. The softmax is over the last axis.

    ``logits`` is (..., classes). ``targets`` holds class indices (...) or probabilities (..., classes). Targets equal to
    ``ignore_index`` are ignored. A ``label_smoothing`` of e mixes the target with the uniform distribution: (1 - e) target +
    e/classes (Szegedy et al. 2016). The mean over zero rows is 0.

    ``weight`` (classes,) rescales each class. The mean then divides by the targets' total weight (for probabilities by the
    number of rows, as in PyTorch). There is no kernel for weights or probabilities. Half-precision inputs give a float32 loss.

    Raises ValueError for mismatched shapes, and IndexError for a target that is not a class. On a GPU, targets are not checked,
    because a check would force a synchronization. The loss of an invalid target is NaN.

    >>> logits, targets = tt.zeros((3, 4)), tt.tensor([0, 3, -100])
    >>> loss = tt.cross_entropy(logits, targets)
    >>> round(loss.exp().item(), 4)
    4.0
    """
    check_reduction(reduction)
    _check_smoothing(label_smoothing)
    if weight is not None and weight.shape != logits.shape[-1:]:
        raise ValueError(f"cross_entropy: weight {weight.shape} must be (classes,), one for each in logits {logits.shape}")
    if is_floating(targets.dtype):
        if ignore_index != -100:
            raise ValueError("cross_entropy: ignore_index is for targets that are classes, and these are probabilities")
        return _soft_cross_entropy(logits, targets, label_smoothing, reduction, weight)
    if targets.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets must be integers (classes) or floats (probabilities), got {targets.dtype}")
    if logits.ndim == 0 or logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"cross_entropy: logits {logits.shape} must have the targets' shape {targets.shape} "
            "and one more axis at the end, the classes"
        )
    _check_classes("cross_entropy", targets.data, logits.shape[-1], ignore_index)
    if weight is not None:
        return _weighted_cross_entropy(logits, targets.data, ignore_index, label_smoothing, reduction, weight)
    return _cross_entropy(logits, targets, ignore_index, label_smoothing, reduction)


def _weighted_cross_entropy(
    logits: Tensor, targets: Any, ignore_index: int, label_smoothing: float, reduction: str, weight: Tensor
) -> Tensor:
    """Compute ``cross_entropy`` with class weights, including label smoothing."""
    weights = _weights_of(targets, weight, ignore_index)
    losses = weighted(weights, _cross_entropy(logits, targets, ignore_index, 0.0, "none"))
    if label_smoothing:
        kept = expand_dims(wrap(targets != ignore_index), -1)
        log_probability = log_softmax(where(kept, at_least_float32(logits), 0.0))
        smooth = -mean(where(kept, weighted(weight, log_probability), 0.0), -1)
        losses = losses * (1.0 - label_smoothing) + smooth * label_smoothing
    return _weighted(losses, weights, reduction)


def _weights_of(targets: Any, weight: Tensor | None, ignore_index: int) -> Tensor:
    """Return the weight of each row's target (1 if there are no weights). Ignored rows get 0."""
    kept = targets != ignore_index
    if weight is None:
        return wrap(kept.astype("float32"))
    return where(kept, at_least_float32(weight)[xp.where(kept, targets, 0)], 0.0)


def _weighted(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    """Reduce the losses. The mean divides by the sum of the weights; if that is 0, the mean is 0."""
    if reduction != "mean":
        return reduce(losses, reduction)
    total = sum(weights)
    return sum(losses) / where(total == 0, 1.0, total)


@checked
def nll_loss(
    log_probabilities: Tensor, targets: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Return the negative log-likelihood loss -log_probabilities[target]. After ``log_softmax`` it equals ``cross_entropy``.

    ``log_probabilities`` is (..., classes) and ``targets`` integers (...). For other arguments and errors, see
    ``cross_entropy``.
    """
    check_reduction(reduction)
    shape = log_probabilities.shape
    if not shape or shape[:-1] != targets.shape or (weight is not None and weight.shape != shape[-1:]):
        raise ValueError(
            f"nll_loss: log-probabilities {shape} must have the targets' shape {targets.shape} and one more axis at the end, "
            "the classes" + ("" if weight is None else f", and one weight for each class, got {weight.shape}")
        )
    _check_classes("nll_loss", targets.data, shape[-1], ignore_index)
    losses = _nll(at_least_float32(log_probabilities), targets, ignore_index)
    is_plain_mean = xp is host and targets.size and (targets.data != ignore_index).all()  # a check would wait for the GPU
    if weight is None and (is_plain_mean or reduction != "mean"):
        return reduce(losses, reduction)
    weights = _weights_of(targets.data, weight, ignore_index)
    return _weighted(losses if weight is None else weighted(weights, losses), weights, reduction)


def _nll_gradient(g: Any, x_shape: tuple[int, ...], targets: Any, ignore_index: int) -> Any:
    index, kept = _of_targets(targets, ignore_index)
    rows = scatter(where(kept, -reshape(g, -1), 0.0), index, (targets.size, x_shape[-1]))
    return reshape(rows, x_shape)


@op(x=_nll_gradient)
def _nll(x: Any, targets: Any, ignore_index: int) -> Tensor:
    """Return -x[target] for each row. An ignored row gives 0 even if it holds NaN."""
    index, kept = _of_targets(targets, ignore_index)
    return xp.where(kept, -x.reshape(-1, x.shape[-1])[index], 0.0).reshape(targets.shape)


def _of_targets(targets: Any, ignore_index: int) -> tuple[tuple[Any, Any], Any]:
    target = targets.reshape(-1)
    kept = target != ignore_index
    return (xp.arange(len(target)), xp.where(kept, target, 0)), kept


@fused(kernels.linear_cross_entropy_forward, kernels.linear_cross_entropy_backward, inputs=("x", "weight"), is_loss=True)
def _linear_cross_entropy(x: Any, weight: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str) -> Any:
    kept = targets != ignore_index
    x = where(kept.reshape((*kept.shape, 1)), x, 0.0)  # an ignored row has no effect, even if it is NaN
    return _cross_entropy(linear(x, weight), targets, ignore_index, label_smoothing, reduction)


@checked
def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int = -100, label_smoothing: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """Return ``cross_entropy(x @ weight.T, targets)`` without storing all logits in memory.

    ``x`` is (..., width), ``weight`` (classes, width), ``targets`` integers (...), and ``reduction`` "mean" or "sum". See
    ``cross_entropy`` for the rest.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"linear_cross_entropy: reduction must be 'mean' or 'sum', got {reduction!r}")
    _check_smoothing(label_smoothing)
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[1] or x.shape[:-1] != targets.shape:
        raise ValueError(
            f"linear_cross_entropy: x {x.shape} must have the targets' shape {targets.shape} and one more axis at the end, as "
            f"wide as the weight {weight.shape}"
        )
    _check_classes("linear_cross_entropy", targets.data, weight.shape[0], ignore_index)
    return _linear_cross_entropy(x, weight, targets, ignore_index, label_smoothing, reduction)


def _check_smoothing(label_smoothing: float) -> None:
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing must be between 0 and 1, got {label_smoothing}")


@value_check
def _check_classes(operation: str, targets: Any, classes: int, ignore_index: int) -> None:
    if targets.dtype.kind not in "iu":
        raise TypeError(f"{operation}: targets must be integers (classes), got {targets.dtype}")
    if not is_host_array(targets):
        return  # a check would wait for the GPU
    if not targets.size or targets.astype(host.uint64).max() < classes:  # as unsigned integers, negative targets are large
        return
    wrong = ((targets < 0) | (targets >= classes)) & (targets != ignore_index)
    if wrong.any():
        raise IndexError(
            f"{operation}: target {int(targets[wrong][0])} is not a class: there are {classes}, from 0 to {classes - 1}"
        )


def _soft_cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float, reduction: str, weight: Tensor | None
) -> Tensor:
    if logits.shape != targets.shape:
        raise ValueError(f"cross_entropy: probabilities {targets.shape} must have the shape of the logits {logits.shape}")
    if label_smoothing:
        targets = targets * (1.0 - label_smoothing) + label_smoothing / logits.shape[-1]
    targets = targets if weight is None else targets * weight
    losses = -sum(weighted(at_least_float32(targets), log_softmax(at_least_float32(logits))), -1)
    return reduce(losses, reduction)
