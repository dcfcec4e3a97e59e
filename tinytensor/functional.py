"""The functions of neural networks, written out as plain compositions of ops.

Where a function carries ``@fused``, its body is the definition and hand-written kernels do the work: the two are tested
to be equal, the body is what higher derivatives go through, and ``function.reference`` calls it.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from tinytensor import kernels, random
from tinytensor.backend import default_dtype, is_floating, is_host_array, wide, xp
from tinytensor.fused import fused
from tinytensor.kernels.numpy.attention import LOWEST
from tinytensor.op import wrap
from tinytensor.ops import (
    astype,
    elu,
    embedding,
    erf,
    glu,
    leaky_relu,
    linear,
    log_softmax,
    logsigmoid,
    logsumexp,
    matmul,
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
    transpose,
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


@fused(kernels.layer_norm_forward, kernels.layer_norm_backward, inputs=("x", "weight", "bias"))
def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Shift and scale each row (the last axis) to mean 0 and variance 1, then times ``weight`` plus ``bias``, both (width,).

    The variance is the biased one, and eps is added to it under the root (Ba, Kiros and Hinton 2016, equation 4).
    """
    centred = x - mean(x, -1, keepdims=True)
    out = centred * rsqrt(mean(square(centred), -1, keepdims=True) + eps)
    out = out if weight is None else out * weight
    return out if bias is None else out + bias


@fused(kernels.rms_norm_forward, kernels.rms_norm_backward, inputs=("x", "weight"))
def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """Scale each row (the last axis) to a mean square of 1, then times ``weight`` (width,) (Zhang and Sennrich 2019)."""
    out = x * rsqrt(mean(square(x), -1, keepdims=True) + eps)
    return out if weight is None else out * weight


# -------------------------------------------------------------------------------------------------------- activations


@fused(kernels.gelu_forward, kernels.gelu_backward, inputs=("x",))
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
    x = x if is_floating(x.dtype) else x.astype(default_dtype)
    if approximate == "tanh":
        return _gelu_tanh(x)
    if approximate != "none":
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', not {approximate!r}")
    return _gelu_exact(x)


# ------------------------------------------------------------------------------------------------------------ dropout


@fused(kernels.dropout_forward, kernels.dropout_backward, inputs=("x", "residual"))
def _dropout(x: Any, residual: Any, key: tuple[int, int], probability: float) -> Any:
    keep = kernels.keep_mask(key, x.shape, probability)
    out = where(keep, x * kernels.survivors_scale(probability), 0.0)
    return out if residual is None else out + residual


def dropout(x: Tensor, p: float = 0.5, training: bool = True, residual: Tensor | None = None) -> Tensor:
    """While ``training``, set each element to 0 with probability p and scale the others by 1/(1 - p), so that the expected
    value stays (Srivastava et al. 2014); otherwise x itself. A ``residual`` of x's shape is added to the result.

    Raises ValueError unless 0 <= p <= 1, and for a residual of another shape.
    """
    _check_probability(p)
    if residual is not None and residual.shape != x.shape:
        raise ValueError(f"dropout: the residual has shape {residual.shape} and x {x.shape}: they must be the same")
    if training and p:
        return _dropout(x, residual, random.dropout_key(), 1.0 - p)
    return x if residual is None else residual + x


def _check_probability(p: float) -> None:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"a dropout probability lies between 0 and 1, not at {p}")


# ---------------------------------------------------------------------------------------------------------- attention


@fused(kernels.attention_forward, kernels.attention_backward, inputs=("query", "key", "value"))
def _attention(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    is_causal: bool,
    scale: float,
    dropout_key: tuple[int, int] | None,
    keep_probability: float,
) -> Any:
    scores = matmul(query * scale, swapaxes(key, -1, -2))
    if is_causal:
        causal = _causal_array(query.shape[-2], key.shape[-2])
        mask = causal if mask is None else mask & causal
    if mask is None:
        weights = softmax(scores)
    else:  # a finite LOWEST, and zeros afterwards, so that a row with nothing to attend to gives zeros instead of NaN
        weights = where(mask, softmax(where(mask, scores, LOWEST)), 0.0)
    if dropout_key is not None:
        *lead, length, keys = weights.shape
        keep = kernels.keep_mask(dropout_key, (*lead, keys, length), keep_probability)
        weights = where(keep.swapaxes(-1, -2), weights * kernels.survivors_scale(keep_probability), 0.0)
    return matmul(weights, value)


@functools.lru_cache(maxsize=64)
def _causal_array(queries: int, keys: int) -> Any:
    return xp.arange(keys)[None, :] <= xp.arange(queries)[:, None] + (keys - queries)


def causal_mask(queries: int, keys: int | None = None) -> Tensor:
    """The boolean mask (queries, keys), True = may attend, that lets each query see the keys up to its own place.

    With more keys than queries (a cache holds the earlier ones), the last query stands at the last key.
    """
    return wrap(_causal_array(queries, queries if keys is None else keys))


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

    Shapes: query (..., T, D), key (..., S, D), value (..., S, D_v) -> (..., T, D_v). ``mask`` is boolean, True = may
    attend, and broadcasts to (..., T, S); a row that may attend to nothing gives zeros. ``is_causal`` lets query t see
    keys up to t (counted from the end where S > T, as with a cache). ``scale`` is 1/sqrt(D) by default. ``dropout_p``
    drops attention weights: pass 0 when not training.
    """
    _check_tensors("attention", query=query, key=key, value=value, **({} if mask is None else {"mask": mask}))
    _check_attention(query, key, value, mask, dropout_p)
    if not key.shape[-2]:
        return matmul(matmul(query, swapaxes(key, -1, -2)), value)  # of no values the sum is zero, whatever the weights
    mask = None if mask is None else mask.data
    return _attention(query, key, value, *_settings(mask, is_causal, query.shape[-2], query.shape[-1], dropout_p, scale))


def attention_of_arrays(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, dropout_p: float) -> Any:
    """``scaled_dot_product_attention`` of arrays whose shapes fit, for those who already have arrays."""
    _check_settings(mask, dropout_p)
    settings = _settings(mask, is_causal, query.shape[-2], query.shape[-1], dropout_p)
    return kernels.attention_forward((False, False, False), query, key, value, *settings)[0]


def _settings(
    mask: Any, is_causal: bool, queries: int, width: int, dropout_p: float, scale: float | None = None
) -> tuple[Any, bool, float, tuple[int, int] | None, float]:
    """What the kernels of attention take after their inputs. A single query sees all keys, causal or not."""
    scale = 1.0 / math.sqrt(width) if scale is None else scale
    dropout_key = random.dropout_key() if dropout_p else None
    return mask, is_causal and queries > 1, scale, dropout_key, 1.0 - dropout_p


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


def _check_settings(mask: Tensor | None, dropout_p: float) -> None:
    _check_probability(dropout_p)
    if mask is not None and mask.dtype.kind != "b":
        raise TypeError(f"an attention mask is boolean (True = may attend), not {mask.dtype}: compare it, as in mask > 0")


def split_heads(packed: Tensor, parts: int, num_heads: int) -> list[Tensor]:
    """(batch, length, parts * width) -> that many tensors (batch, heads, length, width / heads)."""
    batch, length, width = packed.shape
    cut = reshape(packed, (batch, length, parts, num_heads, width // (parts * num_heads)))
    return [transpose(cut[:, :, part], (0, 2, 1, 3)) for part in range(parts)]


def join_heads(x: Tensor) -> Tensor:
    """(batch, heads, length, width) -> (batch, length, heads * width)."""
    batch, heads, length, width = x.shape
    return reshape(transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


def queries_keys_values(projected: Tensor, memory: Tensor | None, num_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """The heads in what ``multi_head_attention`` takes, each (batch, heads, length, width / heads)."""
    if memory is None:
        query, key, value = split_heads(projected, 3, num_heads)
    else:
        (query,), (key, value) = split_heads(projected, 1, num_heads), split_heads(memory, 2, num_heads)
    return query, key, value


@fused(kernels.multi_head_attention_forward, kernels.multi_head_attention_backward, inputs=("projected", "memory"))
def _multi_head_attention(
    projected: Any,
    memory: Any,
    num_heads: int,
    mask: Any,
    is_causal: bool,
    scale: float,
    dropout_key: tuple[int, int] | None,
    keep_probability: float,
) -> Any:
    heads = queries_keys_values(projected, memory, num_heads)
    return join_heads(_attention(*heads, mask, is_causal, scale, dropout_key, keep_probability))


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
        return join_heads(scaled_dot_product_attention(*queries_keys_values(projected, memory, num_heads)))
    width = projected.shape[2] // (num_heads if memory is not None else 3 * num_heads)
    mask = None if mask is None else mask.data
    return _multi_head_attention(projected, memory, num_heads, *_settings(mask, is_causal, queries, width, dropout_p))


def _check_heads(projected: Tensor, num_heads: int, memory: Tensor | None) -> None:
    parts = 3 if memory is None else 1
    shape, of_memory = projected.shape, None if memory is None else memory.shape
    if len(shape) != 3 or num_heads < 1 or shape[2] % (parts * num_heads):
        raise ValueError(f"multi_head_attention: {shape} is no (batch, length, {parts} * width) that {num_heads} heads divide")
    if of_memory is not None and (len(of_memory) != 3 or of_memory[0] != shape[0] or of_memory[2] != 2 * shape[2]):
        raise ValueError(f"multi_head_attention: the memory of queries {shape} is (batch, keys, 2 * width), not {of_memory}")


# ------------------------------------------------------------------------------------------------------------- losses


def _wide(x: Tensor) -> Tensor:
    """x in float32 where it is bfloat16: a loss is float32."""
    dtype = wide(x.dtype)
    return x if dtype is None else astype(x, dtype)


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses if reduction == "none" else mean(losses) if reduction == "mean" else sum(losses)


def _check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"a reduction is 'mean', 'sum' or 'none', not {reduction!r}")


@fused(kernels.cross_entropy_forward, kernels.cross_entropy_backward, inputs=("logits",))
def _cross_entropy(logits: Any, targets: Any, ignore_index: int, label_smoothing: float, reduction: str) -> Any:
    kept = targets != ignore_index
    target = where(kept, targets, 0)
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
) -> Tensor:
    """-log softmax(logits)[target], the softmax being over the last axis.

    logits: (..., classes). targets: integers (...), of which those equal to ``ignore_index`` count neither in the sum nor
    in the mean; or probabilities (..., classes). ``label_smoothing`` e mixes the target with the uniform distribution:
    (1 - e) target + e/classes (Szegedy et al. 2016). ``reduction``: mean, sum or none. The mean over no rows at all is 0.
    Of bfloat16 logits the loss is float32, as every loss here.
    Raises ValueError for shapes that do not fit and IndexError for a target that is no class; on a GPU, where to look would
    mean to wait, such a target's loss is NaN.
    """
    _check_tensors("cross_entropy", logits=logits, targets=targets)
    _check_reduction(reduction)
    _check_smoothing(label_smoothing)
    if is_floating(targets.dtype):
        return _soft_cross_entropy(logits, targets, label_smoothing, reduction)
    if targets.dtype.kind not in "iu":
        raise TypeError(f"cross_entropy: targets are integers (classes) or floats (probabilities), not {targets.dtype}")
    if logits.ndim == 0 or logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"cross_entropy: logits {logits.shape} must be the targets' shape {targets.shape} "
            "and one more axis at the end, the classes"
        )
    _check_classes("cross_entropy", targets, logits.shape[-1], ignore_index)
    return _cross_entropy(logits, targets.data, ignore_index, label_smoothing, reduction)


@fused(kernels.linear_cross_entropy_forward, kernels.linear_cross_entropy_backward, inputs=("x", "weight"))
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
    _check_classes("linear_cross_entropy", targets, weight.shape[0], ignore_index)
    return _linear_cross_entropy(x, weight, targets.data, ignore_index, label_smoothing, reduction)


def _check_smoothing(label_smoothing: float) -> None:
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label smoothing lies between 0 and 1, not at {label_smoothing}")


def _check_classes(operation: str, targets: Tensor, classes: int, ignore_index: int) -> None:
    if targets.dtype.kind not in "iu":
        raise TypeError(f"{operation}: targets are integers (classes), not {targets.dtype}")
    if not is_host_array(targets.data):
        return  # a check of GPU values would wait for the device
    wrong = ((targets.data < 0) | (targets.data >= classes)) & (targets.data != ignore_index)
    if wrong.any():
        raise IndexError(
            f"{operation}: target {int(targets.data[wrong][0])} is no class: there are {classes}, 0 to {classes - 1}"
        )


def _soft_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float, reduction: str) -> Tensor:
    if logits.shape != targets.shape:
        raise ValueError(f"cross_entropy: probabilities of shape {targets.shape} for logits of shape {logits.shape}")
    if label_smoothing:
        targets = targets * (1.0 - label_smoothing) + label_smoothing / logits.shape[-1]
    return _reduce(-sum(targets * log_softmax(_wide(logits)), -1), reduction)


def mse_loss(prediction: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """(prediction - target) squared, two tensors of one shape."""
    _check_tensors("mse_loss", prediction=prediction, target=target)
    _check_reduction(reduction)
    if prediction.shape != target.shape:
        raise ValueError(f"mse_loss: the prediction has shape {prediction.shape} and the target {target.shape}")
    return _reduce(square(_wide(prediction) - _wide(target)), reduction)


def binary_cross_entropy_with_logits(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """-t log p - (1 - t) log(1 - p) with p = sigmoid(logits) and targets t in 0..1, without overflow."""
    _check_tensors("binary_cross_entropy_with_logits", logits=logits, targets=targets)
    _check_reduction(reduction)
    if logits.shape != targets.shape:
        raise ValueError(f"binary_cross_entropy_with_logits: logits {logits.shape}, but targets {targets.shape}")
    logits, targets = _wide(logits), _wide(targets)
    # softplus(-x) = -log p and softplus(x) = -log(1 - p), so nothing cancels, however sure and right the logits are.
    return _reduce(targets * softplus(-logits) + (1.0 - targets) * softplus(logits), reduction)


__all__ = [
    "binary_cross_entropy_with_logits",
    "causal_mask",
    "cross_entropy",
    "dropout",
    "elu",
    "embedding",
    "gelu",
    "glu",
    "layer_norm",
    "leaky_relu",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "logsigmoid",
    "logsumexp",
    "mse_loss",
    "multi_head_attention",
    "one_hot",
    "relu",
    "rms_norm",
    "scaled_dot_product_attention",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]
