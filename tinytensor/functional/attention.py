"""Attention: ``scaled_dot_product_attention``, ``multi_head_attention``, ``causal_mask`` and ``norm_and_rotate``.

In boolean masks, True means "may attend". If a query may not attend to any key, its output is zero, never NaN.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tinytensor import kernels, random
from tinytensor.autograd.fused import fused
from tinytensor.autograd.inputs import check_not_negative, check_probability
from tinytensor.autograd.tensor import wrap
from tinytensor.common.arguments import checked
from tinytensor.common.wording import counted
from tinytensor.device.backend import default_dtype, is_array, is_floating
from tinytensor.functional.normalization import rms_norm
from tinytensor.kernels.attention import causal_array, join_heads, lowest, padding, queries_keys_values, split_heads
from tinytensor.kernels.numpy.dropout import RandomKey
from tinytensor.ops import astype, concatenate, exp, expand_dims, matmul, maximum, rotate_pairs, softmax, sum, swapaxes, where

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["causal_mask", "multi_head_attention", "norm_and_rotate", "scaled_dot_product_attention"]


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
    hidden = padding(mask)
    if hidden is not None:
        key, value = [where(expand_dims(hidden, -1), 0.0, x) for x in (key, value)]
    scores = matmul(query * scale, swapaxes(key, -1, -2))
    weights = masked_softmax(scores if bias is None else scores + bias, mask, is_causal, bias is not None)
    if random_key is not None:
        *lead, length, keys = weights.shape
        keep = kernels.keep_mask(random_key, (*lead, keys, length), keep_probability)
        weights = where(keep.swapaxes(-1, -2), weights * kernels.survivors_scale(keep_probability), 0.0)
    return matmul(weights, value)


def masked_softmax(scores: Tensor, mask: Any = None, is_causal: bool = False, may_be_hidden: bool = False) -> Tensor:
    """Return the softmax of scores (..., T, S) over the allowed keys. If no key is allowed, return zeros.

    ``mask`` and ``is_causal`` are as in ``scaled_dot_product_attention``. Scores may be -inf if ``may_be_hidden``.
    """
    if mask is not None and is_floating(mask.dtype):
        scores, mask, may_be_hidden = scores + mask, None, True
    may_be_hidden |= mask is not None
    if is_causal:
        may_be_hidden |= scores.shape[-2] > scores.shape[-1]  # otherwise each query may attend to itself
        causal = causal_array(*scores.shape[-2:])
        mask = wrap(causal) if mask is None else mask & (causal if is_array(mask) else wrap(causal))
    if mask is not None:
        scores = where(mask, scores, -math.inf)
    if not may_be_hidden:
        return softmax(scores)
    if scores.dtype.itemsize == 2:  # half precision loses digits in a sum
        return astype(masked_softmax(astype(scores, default_dtype), may_be_hidden=True), scores.dtype)
    # With a finite maximum, exp(-inf - maximum) is 0 and no row is NaN. The maximum cancels out, so it needs no gradient.
    largest = maximum(scores.detach().max(-1, keepdims=True), lowest(scores.dtype))
    weights = exp(scores - largest)
    total = sum(weights, -1, keepdims=True)
    return weights / where(total == 0.0, 1.0, total)


@checked
def causal_mask(queries: int, keys: int | None = None) -> Tensor:
    """Return a boolean mask (queries, keys) that hides later keys from each query. True means "may attend".

    The last query is aligned with the last key. If there are more keys than queries, as with a key-value cache, the first keys
    are visible to all queries. If there are fewer, the first queries attend to nothing.

    >>> tt.causal_mask(3)
    tensor([[ True, False, False],
            [ True,  True, False],
            [ True,  True,  True]])
    """
    keys = queries if keys is None else keys
    check_not_negative("causal_mask: a length", min(queries, keys))
    return wrap(causal_array(queries, keys))


@checked
def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Compute attention: softmax(query @ keyᵀ * scale) @ value (Vaswani et al. 2017, equation 1).

    Shapes: query (..., T, D), key (..., S, D), value (..., S, D_v) -> (..., T, D_v).

    ``mask`` broadcasts to (..., T, S). In a boolean mask, True means "may attend". A floating-point mask is added to the scaled
    scores; -inf hides a key. It can be a learned bias that receives a gradient. If a query may not attend to any key, its
    output and gradients are zero. Keys that a boolean mask (..., 1, S) hides from all queries, such as padding, have no effect,
    even if they are NaN.

    ``is_causal``: hide keys after t from query t. If S > T, as with a cache, the last query is aligned with the last key.
    ``dropout_p``: the probability of dropping an attention weight. Pass 0 when not training. ``scale``: 1/sqrt(D) by default.

    Inputs of different dtypes, including a floating-point mask, are promoted to one dtype. Raises ValueError for mismatched
    shapes, and TypeError for an integer mask.

    >>> query, key, value = tt.zeros((2, 4, 8)), tt.zeros((2, 5, 8)), tt.ones((2, 5, 3))
    >>> tt.scaled_dot_product_attention(query, key, value).shape
    (2, 4, 3)
    >>> nothing = tt.zeros((4, 5), dtype=bool)
    >>> tt.scaled_dot_product_attention(query, key, value, mask=nothing).sum()
    tensor(0.)
    """
    _check_attention(query, key, value, mask, dropout_p)
    bias, seen = _bias_and_mask(mask)
    settings = _settings(is_causal, query.shape[-2], query.shape[-1], dropout_p, scale)
    if not key.shape[-2]:  # an empty sum is zero
        scores = matmul(query * settings[1], swapaxes(key, -1, -2))
        return matmul(scores if bias is None else scores + bias, value)
    return _attention(query, key, value, bias, seen, *settings)


def attention_of_arrays(query: Any, key: Any, value: Any, mask: Any, is_causal: bool, dropout_p: float) -> Any:
    """Compute ``scaled_dot_product_attention`` for arrays, without shape checks or gradients."""
    _check_mask_and_dropout(mask, dropout_p)
    settings = _settings(is_causal, query.shape[-2], query.shape[-1], dropout_p)
    if query.dtype is key.dtype is value.dtype is default_dtype and (mask is None or mask.dtype.kind == "b"):
        return kernels.attention_forward(_NOTHING, query, key, value, None, mask, *settings)[0]
    bias, seen = (None, None) if mask is None else _bias_and_mask(wrap(mask))
    return _attention(wrap(query), wrap(key), wrap(value), bias, seen, *settings).data


def cached_attention(projected: Any, stored: Any, num_heads: int, is_causal: bool) -> Any:
    """Compute attention from new tokens to themselves and all earlier tokens, for arrays without gradients.

    ``projected`` (batch, length, all heads * width) holds the queries, keys and values of the new tokens. ``stored`` (2, batch,
    heads, keys, width) holds the keys and values of all tokens. The new keys and values are first written to its end. If there
    are fewer stored heads than query heads, neighboring query heads share one.
    """
    (batch, length, _), (_, _, shared, _, width) = projected.shape, stored.shape
    heads = projected.reshape(batch, length, num_heads + 2 * shared, width).transpose(0, 2, 1, 3)
    query, (keys, values) = heads[:, :num_heads], stored
    keys[:, :, -length:], values[:, :, -length:] = heads[:, num_heads : num_heads + shared], heads[:, num_heads + shared :]
    if shared == num_heads:
        return join_heads(attention_of_arrays(query, keys, values, None, is_causal, 0.0))
    if length == 1:  # query heads that share keys and values become several queries of one head
        query = query.reshape(batch, shared, num_heads // shared, width)
        mixed = attention_of_arrays(query, keys, values, None, False, 0.0)
        return mixed.reshape(batch, 1, num_heads * width)
    keys, values = (array.repeat(num_heads // shared, 1) for array in (keys, values))
    return join_heads(attention_of_arrays(query, keys, values, None, is_causal, 0.0))


def memory_attention(projected: Any, stored: Any, mask: Any, num_heads: int) -> Any:
    """Compute attention from tokens to a memory, for arrays without gradients.

    ``projected`` (batch, length, width) holds the queries. ``stored`` (2, rows, heads, keys, width / heads) holds the keys and
    values of the memory. ``mask`` is (rows, 1, 1, keys) or None. If the batch has more rows, consecutive batch rows share one.
    """
    (query,) = split_heads(projected.reshape(stored.shape[1], -1, projected.shape[2]), 1, num_heads)
    keys, values = stored
    return join_heads(attention_of_arrays(query, keys, values, mask, False, 0.0)).reshape(projected.shape)


_NOTHING = (False, False, False, False)


def _bias_and_mask(mask: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return (bias, None) for a floating-point mask, and (None, mask) for a boolean mask."""
    return (mask, None) if mask is not None and is_floating(mask.dtype) else (None, mask)


def _settings(
    is_causal: bool, queries: int, width: int, dropout_p: float, scale: float | None = None
) -> tuple[bool, float, RandomKey | None, float]:
    """Return the kernel arguments that follow the inputs and the mask. A single query attends to all keys, causal or not."""
    scale = 1.0 / math.sqrt(width or 1) if scale is None else scale
    random_key = random.random_key() if dropout_p else None
    return is_causal and queries > 1, scale, random_key, 1.0 - dropout_p


def _check_attention(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout_p: float) -> None:
    _check_mask_and_dropout(mask, dropout_p)
    of_query, of_key, of_value = query.data.shape, key.data.shape, value.data.shape
    problem = ""
    if min(len(of_query), len(of_key), len(of_value)) < 2:
        problem = "attention needs (..., length, width) for each"
    elif of_query[-1] != of_key[-1] or of_key[-2] != of_value[-2]:
        problem = "attention: query and key must share their width, key and value their length"
    if problem:
        raise ValueError(f"{problem}: query {of_query}, key {of_key}, value {of_value}")


def _check_mask_and_dropout(mask: Any, dropout_p: float) -> None:
    check_probability(dropout_p)
    if mask is not None and mask.dtype.kind != "b" and not is_floating(mask.dtype):
        raise TypeError(
            f"an attention mask must be boolean (True = may attend) or floating-point (added to the scores), got {mask.dtype}: "
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


@checked
def multi_head_attention(
    projected: Tensor,
    num_heads: int,
    memory: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    dropout_p: float = 0.0,
) -> Tensor:
    """Split the width into ``num_heads`` heads and compute attention in each (Vaswani et al. 2017, section 3.2.2).

    If you omit ``memory``, ``projected`` (batch, length, 3 * width) holds queries, keys and values side by side, the output of
    one linear layer. If you pass a ``memory`` (batch, keys, 2 * width) of keys and values, ``projected`` (batch, length, width)
    holds only queries. The result is (batch, length, width), and ``mask`` broadcasts to (batch, heads, length, keys). For
    everything else see ``scaled_dot_product_attention``.

    >>> tt.multi_head_attention(tt.zeros((2, 5, 3 * 8)), num_heads=4, is_causal=True).shape
    (2, 5, 8)
    """
    _check_heads(projected, num_heads, memory)
    _check_mask_and_dropout(mask, dropout_p)
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
        raise ValueError(
            f"multi_head_attention: projected {shape} must be (batch, length, {parts} * width), with a width that "
            f"num_heads={num_heads} divides"
        )
    if of_memory is not None and (len(of_memory) != 3 or of_memory[0] != shape[0] or of_memory[2] != 2 * shape[2]):
        raise ValueError(
            f"multi_head_attention: the memory for queries {shape} must be (batch, keys, 2 * width), got {of_memory}"
        )


# ----------------------------------------------------------------------------------------------------- rotary attention


@fused(kernels.norm_and_rotate_forward, kernels.norm_and_rotate_backward, inputs=("projected", "query_weight", "key_weight"))
def _norm_and_rotate(
    projected: Any, query_weight: Any, key_weight: Any, num_heads: int, num_key_value_heads: int, eps: float, rotation: Any
) -> Any:
    batch, length, width = projected.shape
    count = num_heads + 2 * num_key_value_heads
    heads, end = projected.reshape(batch, length, count, width // count).swapaxes(1, 2), num_heads + num_key_value_heads
    query, key, value = heads[:, :num_heads], heads[:, num_heads:end], heads[:, end:]
    if query_weight is not None:
        query, key = rms_norm(query, query_weight, eps), rms_norm(key, key_weight, eps)
    if rotation is not None:
        table, half = rotation.astype(projected.dtype), width // count // 2
        cosine, sine = table[:, :half], table[:, half:]
        query, key = rotate_pairs(query, cosine, sine), rotate_pairs(key, cosine, sine)
    return concatenate([query, key, value], 1).swapaxes(1, 2).reshape(projected.shape)


@checked
def norm_and_rotate(
    projected: Tensor,
    num_heads: int,
    num_key_value_heads: int = 0,
    query_weight: Tensor | None = None,
    key_weight: Tensor | None = None,
    eps: float = 1e-5,
    rotation: Tensor | None = None,
) -> Tensor:
    """Normalize and rotate the queries and keys in an input to ``multi_head_attention``. Values are unchanged.

    ``projected`` (batch, length, (num_heads + 2 num_key_value_heads) d_head) holds the heads of queries, keys and values side
    by side, the output of one linear layer. If ``num_key_value_heads`` is 0, it equals ``num_heads``. The result has the same
    shape.

    ``query_weight`` and ``key_weight`` (d_head,) apply an RMS norm to each head of queries and keys, as in ``rms_norm`` (Henry
    et al. 2020; Qwen3). A ``rotation`` (length, d_head) then rotates each head, as in ``rotate_pairs`` (Su et al. 2021,
    equation 34). Each row holds the cosines of the position's angles, then their sines. It receives no gradient.

    Raises ValueError for mismatched shapes.

    >>> turned = tt.norm_and_rotate(tt.ones((1, 2, 6)), num_heads=1, rotation=tt.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> turned[0, 1]  # query and key rotated by a right angle
    tensor([-1.,  1., -1.,  1.,  1.,  1.])
    """
    num_key_value_heads = num_key_value_heads or num_heads
    _check(projected, num_heads, num_key_value_heads, query_weight, key_weight, rotation)
    return _norm_and_rotate(projected, query_weight, key_weight, num_heads, num_key_value_heads, eps, rotation)


def _check(
    projected: Tensor,
    num_heads: int,
    num_key_value_heads: int,
    query_weight: Tensor | None,
    key_weight: Tensor | None,
    rotation: Tensor | None,
) -> None:
    shape, count = projected.shape, num_heads + 2 * num_key_value_heads
    if len(shape) != 3 or min(num_heads, num_key_value_heads) < 1 or not shape[2] or shape[2] % count:
        raise ValueError(
            f"norm_and_rotate: projected {shape} must be (batch, length, {count} * d_head), with "
            f"{counted(num_heads, 'head')} of queries, and {num_key_value_heads} each of keys and values"
        )
    width = shape[2] // count
    weights = [None if weight is None else weight.shape for weight in (query_weight, key_weight)]
    if weights not in ([None, None], [(width,), (width,)]):
        raise ValueError(f"norm_and_rotate: query_weight and key_weight must both be ({width},) or None, got {weights}")
    if rotation is not None and (rotation.shape != (shape[1], width) or width % 2):
        raise ValueError(
            f"norm_and_rotate: rotation {rotation.shape} must be (length, d_head), here {(shape[1], width)}, and d_head even"
        )
