"""The functions of neural networks, written out as plain compositions of ops.

Where a function carries ``@fused``, its body is the definition and hand-written kernels do the work: the two are tested
to be equal, the body is what higher derivatives go through, and ``function.reference`` calls it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor import kernels, random
from tinytensor.backend import default_dtype, is_array, is_floating, is_host_array, xp
from tinytensor.calling import wrap
from tinytensor.fused import fused
from tinytensor.kernels.heads import join_heads, queries_keys_values
from tinytensor.kernels.masks import causal_array, lowest
from tinytensor.kernels.numpy.dropout import RandomKey
from tinytensor.op import each_time
from tinytensor.ops import (
    abs,
    astype,
    clip,
    elu,
    embedding,
    erf,
    exp,
    expand_dims,
    glu,
    leaky_relu,
    linear,
    log,
    log1p,
    log_softmax,
    logsigmoid,
    logsumexp,
    matmul,
    maximum,
    mean,
    one_hot,
    relu,
    reshape,
    rsqrt,
    sigmoid,
    silu,
    softmax,
    softplus,
    square,
    sum,
    swapaxes,
    take_along_axis,
    tanh,
    where,
)

if TYPE_CHECKING:
    from tinytensor.tensor import Tensor


def _check_tensors(operation: str, **operands: Any) -> None:
    for name, value in operands.items():
        if not hasattr(value, "node"):
            raise TypeError(
                f"{operation}: {name} must be a tensor, not {type(value).__name__}: make it one with tt.tensor(...)"
            )


# ----------------------------------------------------------------------------------------------------- normalisation


def _check_rows(x: Any, weight: Any, bias: Any = None) -> None:
    """Refuse a weight or bias that would broadcast, as kernels add their gradients up over rows alone, and on a GPU read them
    by the row."""
    row = x.shape[-1:]
    for parameter in (weight, bias):
        if not row or (parameter is not None and getattr(parameter, "shape", None) != row):
            raise ValueError(
                "x needs a last axis, its rows, and weight and bias have the shape of a row: reshape them to (width,), or "
                "multiply and add in steps of their own"
            )


@fused(kernels.layer_norm_forward, kernels.layer_norm_backward, inputs=("x", "weight", "bias"), check=_check_rows)
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Shift and scale each row (the last axis) to mean 0 and variance 1, then times ``weight`` plus ``bias``, both (width,).

    The variance is the biased one, and eps is added to it under the root (Ba, Kiros and Hinton 2016, equation 4).
    """
    centred = x - mean(x, -1, keepdims=True)
    out = centred * rsqrt(mean(square(centred), -1, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


@fused(kernels.rms_norm_forward, kernels.rms_norm_backward, inputs=("x", "weight"), check=_check_rows)
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Scale each row (the last axis) to a mean square of 1, then times ``weight`` (width,) (Zhang and Sennrich 2019)."""
    out = x * rsqrt(mean(square(x), -1, keepdims=True) + eps)
    return out if weight is None else out * weight


# -------------------------------------------------------------------------------------------------------- activations


@fused(kernels.gelu_tanh_forward, kernels.gelu_tanh_backward, inputs=("x",))
def _gelu_tanh(x: Tensor) -> Tensor:
    return x * 0.5 * (tanh((x + x * x * x * 0.044715) * math.sqrt(2.0 / math.pi)) + 1.0)


@fused(kernels.gelu_exact_forward, kernels.gelu_exact_backward, inputs=("x",))
def _gelu_exact(x: Tensor) -> Tensor:
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x times the probability that a standard normal number is below x (Hendrycks and Gimpel 2016).

    ``approximate="none"`` computes that with erf; ``"tanh"`` is the approximation that GPT-2 was trained with.
    """
    _check_tensors("gelu", x=x)
    if approximate == "tanh":
        return _gelu_tanh(x)
    if approximate != "none":
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    return _gelu_exact(x)


# ------------------------------------------------------------------------------------------------------------ dropout


@fused(kernels.dropout_forward, kernels.dropout_backward, inputs=("x", "residual"))
def _dropout(x: Any, residual: Any, random_key: RandomKey, keep_probability: float) -> Any:
    keep = kernels.keep_mask(random_key, x.shape, keep_probability)
    out = where(keep, x * kernels.survivors_scale(keep_probability), 0.0)
    return out if residual is None else out + residual


def dropout(x: Tensor, p: float = 0.5, training: bool = True, residual: Tensor | None = None) -> Tensor:
    """While ``training``, set each element to 0 with probability p and scale the others by 1/(1 - p), so that the expected
    value stays (Srivastava et al. 2014); otherwise x itself. A ``residual`` of x's shape is added to the result.

    Raises ValueError unless 0 <= p <= 1, and for a residual of another shape.
    """
    _check_dropout_p(p)
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"dropout: the residual has shape {residual.shape} and x {x.shape}: they must be the same")
    if training and p:
        return _dropout(x, residual, random.random_key(), 1.0 - p)
    return x if residual is None else residual + x


def _check_dropout_p(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability lies between 0 and 1, not at {p}")


# ---------------------------------------------------------------------------------------------------------- attention


@fused(kernels.attention_forward, kernels.attention_backward, inputs=("query", "key", "value", "bias"))
def _attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    is_causal: bool,
    scale: float,
    random_key: RandomKey | None,
    keep_probability: float,
) -> Any:
    scores = matmul(query * scale, swapaxes(key, -1, -2))
    weights = softmax_of_seen(scores if bias is None else scores + bias, mask, is_causal, bias is not None)
    if random_key is not None:
        *lead, length, keys = weights.shape
        keep = kernels.keep_mask(random_key, (*lead, keys, length), keep_probability)
        weights = where(keep.swapaxes(-1, -2), weights * kernels.survivors_scale(keep_probability), 0.0)
    return matmul(weights, value)


def softmax_of_seen(scores: Tensor, mask: Any = None, is_causal: bool = False, may_be_hidden: bool = False) -> Tensor:
    """The softmax of scores (..., T, S) over the keys that a query may see; zeros where it may see none. ``mask`` as in
    ``scaled_dot_product_attention``; ``may_be_hidden``: some scores may be -inf already."""
    if mask is not None and is_floating(mask.dtype):
        scores, mask, may_be_hidden = scores + mask, None, True
    if is_causal:
        causal = causal_array(*scores.shape[-2:])
        mask = causal if mask is None else mask & (causal if is_array(mask) else wrap(causal))
    if mask is not None:
        scores = where(mask, scores, -math.inf)
    elif not may_be_hidden:
        return softmax(scores)
    if scores.dtype.itemsize == 2:  # half precision, which soon loses what is added up
        return astype(softmax_of_seen(astype(scores, default_dtype), may_be_hidden=True), scores.dtype)
    # The maximum cancels out, so it needs no gradient.
    largest = maximum(scores.detach().max(-1, keepdims=True), lowest(scores.dtype))
    weights = exp(scores - largest)
    total = sum(weights, -1, keepdims=True)
    return weights / where(total == 0.0, 1.0, total)


def causal_mask(queries: int, keys: int | None = None) -> Tensor:
    """The boolean mask (queries, keys), True = may attend, that lets each query see the keys up to its own place.

    With more keys than queries (a cache holds the earlier ones), the last query stands at the last key; with fewer, the first
    queries see none.
    """
    return wrap(causal_array(queries, queries if keys is None else keys))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """softmax(query @ keyᵀ * scale) @ value (Vaswani et al. 2017, equation 1).

    Shapes: query (..., T, D), key (..., S, D), value (..., S, D_v) -> (..., T, D_v). ``mask`` broadcasts to (..., T, S) and is
    boolean, True = may attend, or floating-point: then it is added to the scores (after ``scale``), -inf hides a key, and it
    gets a gradient where it requires one, as a learned bias does. A row that may attend to nothing gives zeros, and gets
    zero gradients. ``is_causal``, with or without a mask, lets query t see keys up to t (counted from the end where S > T, as
    with a cache). ``scale`` is 1/sqrt(D) by default. ``dropout_p`` drops attention weights: pass 0 when not training.

    Inputs of several dtypes, a floating-point mask among them, are brought to the one that they promote to.
    """
    _check_tensors("attention", query=query, key=key, value=value, **({} if mask is None else {"mask": mask}))
    _check_attention(query, key, value, mask, dropout_p)
    bias, seen = _bias_and_mask(mask)
    settings = _settings(is_causal, query.shape[-2], query.shape[-1], dropout_p, scale)
    if not key.shape[-2]:  # of no values the sum is zero, whatever the weights
        scores = matmul(query * settings[1], swapaxes(key, -1, -2))
        return matmul(scores if bias is None else scores + bias, value)
    return _attention(query, key, value, bias, seen, *settings)


def attention_of_arrays(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, dropout_p: float) -> Any:
    """``scaled_dot_product_attention`` of arrays whose shapes fit, for those who already have arrays."""
    _check_settings(mask, dropout_p)
    settings = _settings(is_causal, query.shape[-2], query.shape[-1], dropout_p)
    if query.dtype is key.dtype is value.dtype is default_dtype and (mask is None or mask.dtype.kind == "b"):
        return kernels.attention_forward(_NOTHING, query, key, value, None, mask, *settings)[0]
    bias, seen = (None, None) if mask is None else _bias_and_mask(wrap(mask))
    return _attention(wrap(query), wrap(key), wrap(value), bias, seen, *settings).data


_NOTHING = (False, False, False, False)


def _bias_and_mask(mask: Tensor | None) -> tuple[Tensor | None, Any]:
    """A floating-point mask as what to add to the scores, a boolean one as its array."""
    if mask is None:
        return None, None
    return (mask, None) if is_floating(mask.dtype) else (None, mask.data)


def _settings(
    is_causal: bool, queries: int, width: int, dropout_p: float, scale: float | None = None
) -> tuple[bool, float, RandomKey | None, float]:
    """What the kernels of attention take after their inputs and the mask. A single query sees all keys, causal or not."""
    scale = 1.0 / math.sqrt(width or 1) if scale is None else scale
    random_key = random.random_key() if dropout_p else None
    return is_causal and queries > 1, scale, random_key, 1.0 - dropout_p


def _check_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> None:
    _check_settings(mask, dropout_p)
    of_query, of_key, of_value = query.data.shape, key.data.shape, value.data.shape
    problem = ""
    if min(len(of_query), len(of_key), len(of_value)) < 2:
        problem = "attention needs (..., length, width) for each"
    elif of_query[-1] != of_key[-1] or of_key[-2] != of_value[-2]:
        problem = "attention: query and key must share their width, key and value their length"
    if problem:
        raise ValueError(f"{problem}: query {of_query}, key {of_key}, value {of_value}")


def _check_settings(mask: Any, dropout_p: float) -> None:
    _check_dropout_p(dropout_p)
    if mask is not None and mask.dtype.kind != "b" and not is_floating(mask.dtype):
        raise TypeError(
            f"an attention mask is boolean (True = may attend) or floating-point (added to the scores), not {mask.dtype}: "
            "compare it, as in mask > 0"
        )


@fused(kernels.multi_head_attention_forward, kernels.multi_head_attention_backward, inputs=("projected", "memory", "bias"))
def _multi_head_attention(
    projected: Any,
    memory: Any,
    bias: Any,
    num_heads: int,
    mask: Any,
    is_causal: bool,
    scale: float,
    random_key: RandomKey | None,
    keep_probability: float,
) -> Any:
    heads = queries_keys_values(projected, memory, num_heads)
    return join_heads(_attention(*heads, bias, mask, is_causal, scale, random_key, keep_probability))


def multi_head_attention(
    projected: Tensor,
    num_heads: int,
    memory: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """``scaled_dot_product_attention`` in each of ``num_heads`` parts of the width (Vaswani et al. 2017, section 3.2.2).

    ``projected`` (batch, length, 3 * width) holds queries, keys and values beside each other, as one linear layer makes them;
    with a ``memory`` (batch, keys, 2 * width), which holds keys and values, it is the queries alone (batch, length, width).
    The result is (batch, length, width). ``mask`` broadcasts to (batch, heads, length, keys); all else is as there.
    """
    operands = {"projected": projected, "memory": memory, "mask": mask}
    _check_tensors("multi_head_attention", **{name: x for name, x in operands.items() if x is not None})
    _check_heads(projected, num_heads, memory)
    _check_settings(mask, dropout_p)
    queries, keys = projected.shape[1], (projected if memory is None else memory).shape[1]
    if not keys:
        return join_heads(scaled_dot_product_attention(*queries_keys_values(projected, memory, num_heads), mask))
    width = projected.shape[2] // (num_heads if memory is not None else 3 * num_heads)
    bias, seen = _bias_and_mask(mask)
    return _multi_head_attention(projected, memory, bias, num_heads, seen, *_settings(is_causal, queries, width, dropout_p))


def _check_heads(projected: Tensor, num_heads: int, memory: Tensor | None) -> None:
    parts = 3 if memory is None else 1
    shape, of_memory = projected.shape, None if memory is None else memory.shape
    if len(shape) != 3 or num_heads < 1 or shape[2] % (parts * num_heads):
        raise ValueError(f"multi_head_attention: {shape} is no (batch, length, {parts} * width) that {num_heads} heads divide")
    if of_memory is not None and (len(of_memory) != 3 or of_memory[0] != shape[0] or of_memory[2] != 2 * shape[2]):
        raise ValueError(f"multi_head_attention: the memory of queries {shape} is (batch, keys, 2 * width), not {of_memory}")


# ------------------------------------------------------------------------------------------------------------- losses


def _wide(x: Tensor) -> Tensor:
    """x in float32 where it is no floating-point number, or of half precision: a loss is float32."""
    return x if is_floating(x.dtype) and x.dtype.itemsize > 2 else astype(x, "float32")


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses if reduction == "none" else mean(losses) if reduction == "mean" else sum(losses)


def _check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"a reduction is 'mean', 'sum' or 'none', not {reduction!r}")


@fused(kernels.cross_entropy_forward, kernels.cross_entropy_backward, inputs=("logits",), is_loss=True)
def _cross_entropy(logits: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str) -> Any:
    kept = targets != ignore_index
    target = where(kept, targets, 0)
    logits = where(kept.reshape((*kept.shape, 1)), logits, 0.0)  # of an ignored row nothing is read, not even NaN
    log_probability = log_softmax(_wide(logits))
    losses = -take_along_axis(log_probability, target.reshape((*target.shape, 1)), -1).reshape(targets.shape)
    if label_smoothing:
        losses = losses * (1.0 - label_smoothing) - mean(log_probability, -1) * label_smoothing
    losses = where(kept, losses, 0.0)
    if reduction == "none":
        return losses
    return sum(losses) / float(max(int(kept.sum()), 1)) if reduction == "mean" else sum(losses)


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """-log softmax(logits)[target], the softmax being over the last axis.

    logits: (..., classes). targets: integers (...), of which those equal to ``ignore_index`` count neither in the sum nor
    in the mean; or probabilities (..., classes). ``label_smoothing`` e mixes the target with the uniform distribution:
    (1 - e) target + e/classes (Szegedy et al. 2016). ``reduction``: mean, sum or none. The mean over no rows at all is 0.
    ``weight`` (classes,) is what each class counts; the mean is then over the targets' weights (with probabilities, as in
    PyTorch, over the rows). With weights or probabilities the loss is composed of ops, without a kernel.
    Of half precision the loss is float32, as every loss here.
    Raises ValueError for shapes that do not fit and IndexError for a target that is no class; on a GPU, where to look would
    mean to wait, such a target's loss is NaN.
    """
    _check_tensors("cross_entropy", logits=logits, targets=targets)
    _check_reduction(reduction)
    _check_smoothing(label_smoothing)
    if weight is not None:
        _check_tensors("cross_entropy", weight=weight)
        if weight.shape != logits.shape[-1:]:
            raise ValueError(f"cross_entropy: weight {weight.shape} must be (classes,), one for each in logits {logits.shape}")
    if is_floating(targets.dtype):
        return _soft_cross_entropy(logits, targets, label_smoothing, reduction, weight)
    if targets.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets are integers (classes) or floats (probabilities), not {targets.dtype}")
    if logits.ndim == 0 or logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"cross_entropy: logits {logits.shape} must be the targets' shape {targets.shape} "
            "and one more axis at the end, the classes"
        )
    _check_classes("cross_entropy", targets.data, logits.shape[-1], ignore_index)
    if weight is not None:
        return _weighted_cross_entropy(logits, targets.data, ignore_index, label_smoothing, reduction, weight)
    return _cross_entropy(logits, targets.data, ignore_index, label_smoothing, reduction)


def _weighted_cross_entropy(
    logits: Tensor, targets: Any, ignore_index: int, label_smoothing: float, reduction: str, weight: Tensor
) -> Tensor:
    """``cross_entropy`` where classes count differently: smoothing takes each class by its own weight, too."""
    kept = wrap(targets != ignore_index)
    logits = where(expand_dims(kept, -1), _wide(logits), 0.0)
    log_probability = log_softmax(logits)
    losses = nll_loss(log_probability, wrap(targets), weight, ignore_index, "none")
    if label_smoothing:
        smooth = -mean(log_probability * weight, -1)
        losses = losses * (1.0 - label_smoothing) + where(kept, smooth, 0.0) * label_smoothing
    return _weighted(losses, _weights_of(targets, weight, ignore_index), reduction)


def _weights_of(targets: Any, weight: Tensor | None, ignore_index: int) -> Tensor:
    """What each row counts: its target's weight (1 without weights), and 0 where it is ignored."""
    kept = targets != ignore_index
    if weight is None:
        return wrap(kept.astype("float32"))
    return where(kept, _wide(weight)[xp.where(kept, targets, 0)], 0.0)


def _weighted(losses: Tensor, weights: Tensor, reduction: str) -> Tensor:
    """The losses reduced, the mean being over the weights; over none at all it is 0."""
    if reduction != "mean":
        return _reduce(losses, reduction)
    total = sum(weights)
    return sum(losses) / where(total == 0, 1.0, total)


def nll_loss(
    log_probabilities: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-log_probabilities[target], the negative log-likelihood: ``cross_entropy`` of what went through ``log_softmax``.

    log_probabilities: (..., classes). targets: integers (...). ``weight`` (classes,), ``ignore_index`` and the errors are as
    in ``cross_entropy``.
    """
    _check_tensors(
        "nll_loss", log_probabilities=log_probabilities, targets=targets, **({} if weight is None else {"weight": weight})
    )
    _check_reduction(reduction)
    shape = log_probabilities.shape
    if not shape or shape[:-1] != targets.shape or (weight is not None and weight.shape != shape[-1:]):
        raise ValueError(
            f"nll_loss: log-probabilities {shape} must be the targets' shape {targets.shape} and one more axis at the end, the "
            "classes" + ("" if weight is None else f", of which each has a weight: {weight.shape}")
        )
    _check_classes("nll_loss", targets.data, shape[-1], ignore_index)
    weights = _weights_of(targets.data, weight, ignore_index)
    kept = targets.data != ignore_index
    target = xp.where(kept, targets.data, 0).reshape((*targets.shape, 1))
    right = reshape(take_along_axis(_wide(log_probabilities), target, -1), targets.shape)
    return _weighted(-where(kept, right, 0.0) * weights, weights, reduction)


@fused(kernels.linear_cross_entropy_forward, kernels.linear_cross_entropy_backward, inputs=("x", "weight"), is_loss=True)
def _linear_cross_entropy(x: Any, weight: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str) -> Any:
    return _cross_entropy(linear(x, weight), targets, ignore_index, label_smoothing, reduction)


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
) -> Tensor:
    """``cross_entropy`` of the logits x @ weight.T, without ever holding them all.

    x: (..., width). weight: (classes, width). targets: integers (...). The rest is as in ``cross_entropy``, but that the
    reduction is mean or sum.
    """
    _check_tensors("linear_cross_entropy", x=x, weight=weight, targets=targets)
    if reduction not in ("mean", "sum"):
        raise ValueError(f"linear_cross_entropy: the reduction is 'mean' or 'sum', not {reduction!r}")
    _check_smoothing(label_smoothing)
    if weight.ndim != 2 or x.ndim == 0 or x.shape[-1] != weight.shape[1] or x.shape[:-1] != targets.shape:
        raise ValueError(
            f"linear_cross_entropy: x {x.shape} must be the targets' shape {targets.shape} and one more axis at the end, as "
            f"wide as the weight {weight.shape}"
        )
    _check_classes("linear_cross_entropy", targets.data, weight.shape[0], ignore_index)
    return _linear_cross_entropy(x, weight, targets.data, ignore_index, label_smoothing, reduction)


def _check_smoothing(label_smoothing: float) -> None:
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label smoothing lies between 0 and 1, not at {label_smoothing}")


@each_time
def _check_classes(operation: str, targets: Any, classes: int, ignore_index: int) -> None:
    if targets.dtype.kind not in "iu":
        raise TypeError(f"{operation}: targets are integers (classes), not {targets.dtype}")
    if not is_host_array(targets):
        return  # a check of GPU values would wait for the device
    wrong = ((targets < 0) | (targets >= classes)) & (targets != ignore_index)
    if wrong.any():
        raise IndexError(f"{operation}: target {int(targets[wrong][0])} is no class: there are {classes}, 0 to {classes - 1}")


def _soft_cross_entropy(
    logits: Tensor, targets: Tensor, label_smoothing: float, reduction: str, weight: Tensor | None
) -> Tensor:
    if logits.shape != targets.shape:
        raise ValueError(f"cross_entropy: probabilities of shape {targets.shape} for logits of shape {logits.shape}")
    if label_smoothing:
        targets = targets * (1.0 - label_smoothing) + label_smoothing / logits.shape[-1]
    targets = targets if weight is None else targets * weight
    losses = -sum(_wide(targets) * log_softmax(_wide(logits)), -1)
    return _reduce(losses, reduction)


def _pair(operation: str, prediction: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """A loss's two inputs, of one shape, in the dtype it is computed in."""
    _check_tensors(operation, prediction=prediction, target=target)
    _check_reduction(reduction)
    if prediction.shape != target.shape:
        raise ValueError(f"{operation}: the prediction has shape {prediction.shape} and the target {target.shape}")
    return _wide(prediction), _wide(target)


def mse_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(prediction - target) squared, two tensors of one shape."""
    prediction, target = _pair("mse_loss", prediction, target, reduction)
    return _reduce(square(prediction - target), reduction)


def l1_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """|prediction - target|, two tensors of one shape."""
    prediction, target = _pair("l1_loss", prediction, target, reduction)
    return _reduce(abs(prediction - target), reduction)


def huber_loss(prediction: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """The half of the squared difference d up to ``delta``, and from there on its tangent, delta (|d| - delta / 2), which
    outliers pull less (Huber 1964)."""
    if delta <= 0:
        raise ValueError(f"huber_loss: delta must be positive, not {delta}")
    prediction, target = _pair("huber_loss", prediction, target, reduction)
    d = prediction - target
    near = clip(d, -delta, delta)
    return _reduce(near * (d - 0.5 * near), reduction)


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
    return sum(losses) / float(input.shape[0] if input.ndim else 1) if batch else _reduce(losses, reduction)


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
    return _reduce(losses if weight is None else losses * _factor("weight", weight, logits), reduction)


def binary_cross_entropy(
    probabilities: Tensor, targets: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """-t log p - (1 - t) log(1 - p) of probabilities p and targets t in 0..1, each logarithm at least -100, as in PyTorch.

    Where the probabilities are a sigmoid's, ``binary_cross_entropy_with_logits`` keeps more digits.
    """
    p, targets = _pair("binary_cross_entropy", probabilities, targets, reduction)
    losses = -targets * clip(log(p), -100.0) - (1.0 - targets) * clip(log1p(-p), -100.0)
    return _reduce(losses if weight is None else losses * _factor("weight", weight, p), reduction)


def _factor(name: str, weight: Tensor, like: Tensor) -> Tensor:
    """A weight that broadcasts to the losses. Raises ValueError for one that would enlarge them."""
    _check_tensors("binary_cross_entropy", **{name: weight})
    fits = all(n in (1, of) for n, of in zip(weight.shape[::-1], like.shape[::-1]))
    if weight.ndim > like.ndim or not fits:
        raise ValueError(f"binary_cross_entropy: {name} {weight.shape} does not broadcast to the losses {like.shape}")
    return _wide(weight)


__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "causal_mask",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "logsigmoid",
    "logsumexp",
    "mse_loss",
    "multi_head_attention",
    "nll_loss",
    "one_hot",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "tanh",
]
