"""Which function of tinytensor each entry of PyTorch's OpInfo is compared with, and where the two differ on purpose.

A function gets the arguments of PyTorch's, in PyTorch's order, with the names that are NumPy's translated (``dim`` is ``axis``).
Results that tinytensor does not give (attention's weights, say) come after those that it does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tinytensor as tt
from tinytensor import functional as F
from tinytensor import ops

# Entries whose arguments fit the function of that name, or of the one after "=", as they are.
ALIKE = """
    abs acos=arccos asin=arcsin atan=arctan ceil cos cosh erf exp exp2 expm1 floor isfinite isinf isnan log log10 log1p log2
    logical_not neg=negative reciprocal round rsqrt sgn=sign sigmoid sign sin sinh sqrt square tanh trunc

    nn.functional.elu=elu nn.functional.gelu=gelu nn.functional.glu=glu nn.functional.leaky_relu=leaky_relu
    nn.functional.logsigmoid=logsigmoid nn.functional.relu=relu nn.functional.silu=silu

    allclose clamp=clip div.no_rounding_mode=divide eq=equal floor_divide ge=greater_equal gt=greater isclose le=less_equal
    logaddexp logical_and logical_or logical_xor lt=less masked_fill max.binary=maximum maximum min.binary=minimum minimum
    mul=multiply ne=not_equal pow=power remainder true_divide=divide

    all amax=max amin=min any argmax argmin cumprod cumsum log_softmax log_softmax.with_dtype=log_softmax logsumexp
    max.reduction_no_dim=max mean min.reduction_no_dim=min prod softmax softmax.with_dtype=softmax sum

    __getitem__=getitem broadcast_to cat=concatenate diag diagonal flip hstack movedim=moveaxis permute=transpose repeat=tile
    reshape roll squeeze squeeze.multiple=squeeze stack t=transpose take tile transpose=swapaxes tril triu
    unsqueeze=expand_dims view=reshape vstack

    __rmatmul__=matmul bmm=matmul dot=matmul matmul mm=matmul mv=matmul nn.functional.linear=linear outer tensordot

    arange eye full full_like linspace ones ones_like zeros zeros_like

    nn.functional.binary_cross_entropy_with_logits=binary_cross_entropy_with_logits nn.functional.dropout=dropout
    nn.functional.huber_loss=huber_loss nn.functional.kl_div=kl_div nn.functional.mse_loss=mse_loss
    nn.functional.nll_loss=nll_loss
"""
TAKE_DTYPE = set("arange eye full full_like linspace ones ones_like zeros zeros_like to".split())  # the others' input has it


def find(name: str) -> Callable[..., Any]:
    return getattr(ops, name, None) or getattr(F, name, None) or getattr(tt, name)


def alike(line: str) -> tuple[str, Callable[..., Any]]:
    entry, _, name = line.partition("=")
    return entry, lambda *args, **settings: find(name or entry)(*args, **settings)


def attention(q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, **settings: Any) -> Any:
    """PyTorch's causal mask counts from the first key, tinytensor's from the last: they differ unless as many as queries."""
    if is_causal and q.shape[-2] != k.shape[-2]:
        attn_mask, is_causal = tt.tril(tt.ones((q.shape[-2], k.shape[-2]), "bool")), False
    return F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal, **settings)


def multi_head_attention(
    query: Any, key: Any, value: Any, width: int, heads: int, weight: Any, bias: Any, *others: Any, **settings: Any
) -> Any:
    """Of (length, batch, width) in PyTorch, or without the batch."""
    *_, dropout_p, weight_out, bias_out = others
    weights = [settings[f"{x}_proj_weight"] for x in "qkv"] if weight is None else tt.split(weight, 3)
    q, k, v = [tt.linear(x, w, b) for x, w, b in zip((query, key, value), weights, tt.split(bias, 3))]
    q, k, v = [tt.swapaxes(x.reshape(x.shape[0], -1, x.shape[-1]), 0, 1) for x in (q, k, v)]
    p = dropout_p if settings["training"] else 0.0
    out = F.multi_head_attention(q, heads, tt.concatenate([k, v], -1), settings["attn_mask"], dropout_p=p)
    return tt.linear(tt.swapaxes(out, 0, 1).reshape(query.shape), weight_out, bias_out)


def batch_last(x: Any) -> Any:
    """PyTorch has the classes in axis 1, tinytensor in the last."""
    return tt.moveaxis(x, 1, -1) if x.ndim > 2 else x


def cross_entropy(logits: Any, targets: Any, **settings: Any) -> Any:
    classes_too = targets.dtype.kind == "f"
    return F.cross_entropy(batch_last(logits), batch_last(targets) if classes_too else targets, **settings)


def gather(x: Any, axis: int, index: Any) -> Any:
    """PyTorch's index may be shorter than x along the other axes, too."""
    part = tuple(slice(None) if a == axis % x.ndim else slice(n) for a, n in enumerate(index.shape)) if x.ndim else ()
    return tt.take_along_axis(x[part], index, axis)


def index_put(x: Any, index: Any, values: Any, accumulate: bool) -> Any:
    values = tt.broadcast_to(values, x[index].shape)
    added = tt.scatter(values, index, x.shape)
    return x + added if accumulate else tt.where(tt.scatter(tt.ones_like(values), index, x.shape) > 0, added, x)


def linear_cross_entropy(x: Any, linear_weight: Any, target: Any, **settings: Any) -> Any:
    return F.linear_cross_entropy(x, linear_weight, target, **settings)


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    return tt.norm(x, 2 if ord in (None, "fro") else ord, axis, keepdims)


def over_last_axes(normalize: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch normalises over as many axes as ``shape`` has; tinytensor over the last, so these are made one."""

    def call(x: Any, shape: tuple[int, ...], *weights: Any, **eps: Any) -> Any:
        rows = x.reshape(*x.shape[: x.ndim - len(shape)], math.prod(shape))
        return normalize(rows, *[w if w is None else w.reshape(-1) for w in weights], **eps).reshape(x.shape)

    return call


def rms_norm(x: Any, weight: Any = None, eps: float | None = None) -> Any:
    """PyTorch's eps is by default that of the dtype it computes in."""
    return F.rms_norm(
        x, weight, torch.finfo(torch.float64 if x.dtype == "float64" else torch.float32).eps if eps is None else eps
    )


def pad(x: Any, widths: Any, mode: str = "constant", value: float | None = None) -> Any:
    """PyTorch's widths begin with the last axis."""
    pairs = [(0, 0)] * (x.ndim - len(widths) // 2) + list(zip(widths[-2::-2], widths[::-2]))
    names = {"constant": {}, "reflect": {"mode": "reflect"}, "replicate": {"mode": "edge"}, "circular": {"mode": "wrap"}}
    return tt.pad(x, pairs, **({} if value is None else {"constant_values": value}), **names[mode])


def split(x: Any, sizes: Any, axis: int = 0) -> list[Any]:
    """PyTorch names the sizes of the pieces, tinytensor the places between them."""
    sizes = [sizes] * -(-x.shape[axis] // sizes) if isinstance(sizes, int) else sizes
    return tt.split(x, [sum(sizes[:i]) for i in range(1, len(sizes))], axis)


def spread(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's var and std divide by n - 1 unless told otherwise, and tell it in three ways."""

    def call(x: Any, axis: Any = None, *, unbiased: bool | None = None, ddof: Any = 1, **settings: Any) -> Any:
        if isinstance(axis, bool):
            axis, unbiased = None, axis
        ddof = 1 if ddof is None else ddof
        return reduce(x, axis, ddof=ddof if unbiased is None else int(unbiased), **settings)

    return call


ENTRIES: dict[str, Callable[..., Any]] = {
    **dict(alike(line) for line in ALIKE.split()),
    # Elementwise.
    "add": lambda x, y, alpha=1: tt.add(x, y if alpha == 1 else y * alpha),
    "sub": lambda x, y, alpha=1: tt.subtract(x, y if alpha == 1 else y * alpha),
    "__radd__": lambda x, y: y + x,
    "__rsub__": lambda x, y: y - x,
    "__rmul__": lambda x, y: y * x,
    "__rdiv__": lambda x, y: y / x,
    "__rpow__": lambda x, y: y**x,
    "__rmod__": lambda x, y: y % x,
    "__rand__": lambda x, y: y & x,
    "__ror__": lambda x, y: y | x,
    "__rxor__": lambda x, y: y ^ x,
    "bitwise_not": lambda x: ~x,
    "positive": lambda x: +x,
    "clone": lambda x, **_: x.copy(),
    "bool": lambda x, **_: tt.astype(x, "bool"),
    "byte": lambda x, **_: tt.astype(x, "uint8"),
    "long": lambda x, **_: tt.astype(x, "int64"),
    "half": lambda x, **_: tt.astype(x, "float16"),
    "float": lambda x, **_: tt.astype(x, "float32"),
    "double": lambda x, **_: tt.astype(x, "float64"),
    "clamp_max": lambda x, high: tt.clip(x, max=high),
    "clamp_min": lambda x, low: tt.clip(x, min=low),
    "div.floor_rounding": lambda x, y, rounding_mode: tt.floor_divide(x, y),
    "div.trunc_rounding": lambda x, y, rounding_mode: tt.trunc(x / y),
    "addcdiv": lambda x, y, z, value=1: x + value * (y / z),
    "addcmul": lambda x, y, z, value=1: x + value * (y * z),
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "where": lambda x, condition, y: tt.where(condition, x, y),
    "nn.functional.hardtanh": lambda x: tt.clip(x, -1.0, 1.0),
    "nn.functional.softplus": lambda x, beta, threshold: tt.where(x * beta > threshold, x, tt.softplus(x * beta) / beta),
    "nn.functional.tanhshrink": lambda x: x - tt.tanh(x),
    # Reductions.
    "aminmax": lambda x, **axis: (tt.min(x, **axis), tt.max(x, **axis)),
    "max.reduction_with_dim": lambda x, *axis: (tt.max(x, *axis), tt.argmax(x, *axis)),
    "min.reduction_with_dim": lambda x, *axis: (tt.min(x, *axis), tt.argmin(x, *axis)),
    "cummax": lambda x, axis: tt.cummax(x, axis),
    "linalg.vector_norm": norm,
    "norm": norm,
    "norm.inf": norm,
    "std": spread(tt.std),
    "std.unbiased": spread(tt.std),
    "var": spread(tt.var),
    "var.unbiased": spread(tt.var),
    "nn.functional.normalize": lambda x, p=2.0, axis=1, eps=1e-12: x / tt.maximum(tt.norm(x, p, axis, True), eps),
    "nn.functional.softmin": lambda x, axis: tt.softmax(-x, axis),
    # Shapes.
    "chunk": lambda x, count, axis=0: split(x, -(-x.shape[axis] // count), axis),
    "split": split,
    "split.list_args": split,
    "split_with_sizes": split,
    "unbind": lambda x, axis=0: list(tt.moveaxis(x, axis, 0)),
    "expand_as": lambda x, y: tt.broadcast_to(x, y.shape),
    "fliplr": lambda x: tt.flip(x, 1),
    "flipud": lambda x: tt.flip(x, 0),
    "linalg.diagonal": lambda x, offset=0, axis1=-2, axis2=-1: tt.diagonal(x, offset, axis1, axis2),
    "trace": lambda x: tt.sum(tt.diagonal(x)),
    "mT": lambda x: tt.swapaxes(x, -1, -2),
    "ravel": lambda x: tt.reshape(x, -1),
    "constant_pad_nd": lambda x, widths, value=0: pad(x, widths, value=value),
    "nn.functional.pad.constant": pad,
    "nn.functional.pad.reflect": pad,
    "nn.functional.pad.replicate": pad,
    "nn.functional.pad.circular": pad,
    "repeat_interleave": lambda x, repeats, axis=None, output_size=None: tt.repeat(
        x, repeats if isinstance(repeats, int) else repeats.tolist(), axis
    ),
    # Indexing.
    "argsort": lambda x, axis=-1, descending=False, stable=True: tt.argsort(x, axis, descending=descending),
    "sort": lambda x, axis=-1, descending=False, stable=True: (
        tt.sort(x, axis, descending=descending),
        tt.argsort(x, axis, descending=descending),
    ),
    "msort": lambda x: tt.sort(x, 0),
    "topk": lambda x, k, axis=-1, largest=True, sorted=True: tt.topk(x, k, axis, largest=largest),
    "gather": gather,
    "index_add": lambda x, axis, index, values, alpha: tt.index_add(x, index, values * alpha, axis),
    "index_put": index_put,
    "index_select": lambda x, axis, index: tt.take(x, index, axis),
    "select": lambda x, axis, index: tt.take(x, index, axis),
    "take_along_dim": lambda x, index, axis=None: (
        tt.take_along_axis(x.reshape(-1), index.reshape(-1), 0) if axis is None else tt.take_along_axis(x, index, axis)
    ),
    "nn.functional.embedding": lambda weight, ids, **_: tt.embedding(ids, weight),
    "nn.functional.one_hot": lambda x, num_classes: tt.one_hot(x, num_classes).astype("int64"),
    # Products.
    "addmm": lambda x, y, z, alpha=1, beta=1: beta * x + alpha * (y @ z),
    "addr": lambda x, y, z, alpha=1, beta=1: beta * x + alpha * tt.outer(y, z),
    "addbmm": lambda x, y, z, alpha=1, beta=1: beta * x + alpha * tt.einsum("bij,bjk->ik", y, z),
    "einsum": lambda xs, equation: tt.einsum(equation, *xs),
    "inner": lambda x, y: tt.einsum("...i,...i", x, y) if x.ndim and y.ndim else x * y,
    "linalg.multi_dot": lambda xs: functools.reduce(tt.matmul, xs),
    "linalg.vecdot": lambda x, y, axis=-1: tt.sum(x * y, axis),
    "nn.functional.bilinear": lambda x, y, w, b=0.0: tt.einsum("...i,oij,...j->...o", x, w, y) + b,
    # Networks.
    "nn.functional.layer_norm": over_last_axes(F.layer_norm),
    "nn.functional.rms_norm": over_last_axes(rms_norm),
    "nn.functional.scaled_dot_product_attention": attention,
    "nn.functional.multi_head_attention_forward": multi_head_attention,
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.linear_cross_entropy": linear_cross_entropy,
    "nn.functional.l1_loss": lambda x, y, reduction="mean": reduced(tt.abs(x - y), reduction),
    "nn.functional.smooth_l1_loss": lambda x, y, **settings: F.smooth_l1_loss(x, y, **settings),
}


def reduced(losses: Any, reduction: str) -> Any:
    return losses if reduction == "none" else tt.mean(losses) if reduction == "mean" else tt.sum(losses)
