"""Which function of tinytensor each entry of PyTorch's OpInfo is compared with, and where the two differ on purpose.

A function gets the arguments of PyTorch's, in PyTorch's order, under the names that NumPy has for them (``dim`` is ``axis``).
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
from tinytensor import functional as F, ops

# Entries whose arguments fit the function of that name, or of the one after "=", as they are.
ALIKE = """
    acosh=arccosh asinh=arcsinh atan2=arctan2 atanh=arctanh deg2rad=radians hypot rad2deg=degrees
    abs acos=arccos asin=arcsin atan=arctan ceil cos cosh erf exp exp2 expm1 floor isfinite isinf isnan log log10 log1p log2
    bitwise_not=invert logical_not neg=negative reciprocal round rsqrt sgn=sign sigmoid sign sin sinh sqrt square tan tanh trunc

    nn.functional.elu=elu nn.functional.gelu=gelu nn.functional.glu=glu nn.functional.group_norm=group_norm
    nn.functional.leaky_relu=leaky_relu
    nn.functional.logsigmoid=logsigmoid nn.functional.relu=relu nn.functional.silu=silu

    allclose bitwise_and bitwise_or bitwise_xor clamp=clip div.no_rounding_mode=divide eq=equal floor_divide
    ge=greater_equal gt=greater isclose le=less_equal logaddexp logical_and logical_or logical_xor lt=less masked_fill
    max.binary=maximum maximum min.binary=minimum minimum mul=multiply ne=not_equal pow=power remainder true_divide=divide

    all amax=max amin=min any argmax argmin cummax cummin cumprod cumsum log_softmax log_softmax.with_dtype=log_softmax
    logsumexp max.reduction_no_dim=max mean min.reduction_no_dim=min prod softmax softmax.with_dtype=softmax sum

    diff meshgrid.variadic_tensors=meshgrid nn.functional.cosine_similarity=cosine_similarity

    __getitem__=getitem broadcast_to cat=concatenate diag diagonal hstack movedim=moveaxis permute=transpose repeat=tile
    reshape roll squeeze squeeze.multiple=squeeze stack t=transpose take tile transpose=swapaxes tril triu
    unsqueeze=expand_dims view=reshape vstack

    bmm=matmul dot matmul mm=matmul mv=matmul nn.functional.linear=linear outer

    eye full full_like linspace ones ones_like zeros zeros_like

    nn.functional.binary_cross_entropy=binary_cross_entropy nn.functional.dropout=dropout
    nn.functional.binary_cross_entropy_with_logits=binary_cross_entropy_with_logits
    nn.functional.huber_loss=huber_loss nn.functional.kl_div=kl_div nn.functional.l1_loss=l1_loss
    nn.functional.mse_loss=mse_loss nn.functional.smooth_l1_loss=smooth_l1_loss
"""
TAKE_DTYPE = set("arange eye full full_like linspace ones ones_like zeros zeros_like to".split())  # the others' input has it

LOSSES = {  # float32 for half precision, where PyTorch rounds the mean of many to a half
    f"nn.functional.{name}"
    for name in "binary_cross_entropy binary_cross_entropy_with_logits cross_entropy huber_loss kl_div l1_loss "
    "linear_cross_entropy mse_loss nll_loss smooth_l1_loss".split()
}


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


def nll_loss(log_probabilities: Any, targets: Any, **settings: Any) -> Any:
    return F.nll_loss(batch_last(log_probabilities), targets, **settings)


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
    """PyTorch's var and std divide by n - 1 by default, and have three arguments for it."""

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
    "__rmatmul__": lambda x, y: y @ x,
    "__rand__": lambda x, y: y & x,
    "__ror__": lambda x, y: y | x,
    "__rxor__": lambda x, y: y ^ x,
    "positive": lambda x: +x,
    "clone": lambda x, **_: tt.copy(x),
    "bool": lambda x, **_: tt.astype(x, "bool"),
    "byte": lambda x, **_: tt.astype(x, "uint8"),
    "long": lambda x, **_: tt.astype(x, "int64"),
    "half": lambda x, **_: tt.astype(x, "float16"),
    "float": lambda x, **_: tt.astype(x, "float32"),
    "double": lambda x, **_: tt.astype(x, "float64"),
    "clamp_max": lambda x, high: tt.clip(x, max=high),
    "clamp_min": lambda x, low: tt.clip(x, min=low),
    "div.floor_rounding": lambda x, y, rounding_mode: tt.floor_divide(x, y),
    "div.trunc_rounding": lambda x, y, rounding_mode: tt.trunc(x / y).astype(x.dtype),
    "addcdiv": lambda x, y, z, value=1: x + value * (y / z),
    "addcmul": lambda x, y, z, value=1: x + value * (y * z),
    "lerp": lambda x, y, weight: x + weight * (y - x),
    "where": lambda x, condition, y: tt.where(condition, x, y),
    "nn.functional.softplus": lambda x, beta, threshold: tt.where(x * beta > threshold, x, tt.softplus(x * beta) / beta),
    "nn.functional.tanhshrink": lambda x: x - tt.tanh(x),
    # Reductions.
    "aminmax": lambda x, **axis: (tt.min(x, **axis), tt.max(x, **axis)),
    "max.reduction_with_dim": lambda x, *axis: (tt.max(x, *axis), tt.argmax(x, *axis)),
    "min.reduction_with_dim": lambda x, *axis: (tt.min(x, *axis), tt.argmin(x, *axis)),
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
    "meshgrid.list_of_tensors": lambda xs, indexing: tt.meshgrid(*xs, indexing=indexing),
    "tensor_split": lambda x, parts, axis=0: tt.array_split(
        x, parts if isinstance(parts, (int, tuple)) else parts.tolist(), axis
    ),
    "bincount": lambda x, weights=None, minlength=0: tt.bincount(x, weights, minlength),
    "unbind": lambda x, axis=0: list(tt.moveaxis(x, axis, 0)),
    "expand_as": lambda x, y: tt.broadcast_to(x, y.shape),
    "flip": lambda x, dims: tt.flip(x, dims),
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
    "einsum": lambda xs, equation: tt.einsum(equation, *xs),
    "inner": lambda x, y: tt.einsum("...i,...i", x, y) if x.ndim and y.ndim else x * y,
    "linalg.multi_dot": lambda xs: functools.reduce(tt.matmul, xs),
    "tensordot": lambda x, y, dims: tt.tensordot(x, y, dims),
    "linalg.inv": lambda x: tt.linalg.inv(x),
    "linalg.det": lambda x: tt.linalg.det(x),
    "linalg.slogdet": lambda x: tt.linalg.slogdet(x),
    "logdet": lambda x: tt.where(tt.linalg.slogdet(x)[0] > 0, tt.linalg.slogdet(x)[1], math.nan),
    "linalg.cholesky": lambda x, upper=False: tt.linalg.cholesky(x).swapaxes(-1, -2) if upper else tt.linalg.cholesky(x),
    "linalg.solve": lambda x, y: tt.linalg.solve(x, y),
    "linalg.vecdot": lambda x, y, axis=-1: tt.sum(x * y, axis),
    "arange": lambda x, *args, end=None, **dtype: tt.arange(x, *([] if end is None else [end]), *args, **dtype),
    # Networks.
    "nn.functional.layer_norm": over_last_axes(F.layer_norm),
    "nn.functional.rms_norm": over_last_axes(rms_norm),
    "nn.functional.scaled_dot_product_attention": attention,
    "nn.functional.multi_head_attention_forward": multi_head_attention,
    "nn.functional.cross_entropy": cross_entropy,
    "nn.functional.linear_cross_entropy": linear_cross_entropy,
    "nn.functional.nll_loss": nll_loss,
}


# ------------------------------------------------------------------------------------------------------ the differences


@dataclass(frozen=True)
class Difference:
    """Samples for which tinytensor gives something else, or an error, on purpose: entries, and which of their samples."""

    entries: str
    reason: str
    concerns: Callable[[Any, str], bool]  # of the sample (its input, args and kwargs) and the dtype


def unsigned(sample: Any, dtype: str) -> bool:
    return dtype == "uint8"


def number_below_0(sample: Any, dtype: str) -> bool:
    return dtype == "uint8" and any(x < 0 for x in (*sample.args, *sample.kwargs.values()) if isinstance(x, (int, float)))


def not_of_length_1(sample: Any, dtype: str) -> bool:
    axes = [a for arg in sample.args for a in (arg if isinstance(arg, tuple) else [arg])]
    return sample.input.ndim > 0 and any(sample.input.shape[a] != 1 for a in axes)


def fractions(sample: Any, dtype: str) -> bool:
    numbers = [sample.input, *sample.args, sample.kwargs.get("end", 0)]
    return "int" in dtype and (any(x != int(x) for x in numbers) or (dtype == "uint8" and min(numbers) < 0))


DIFFERENCES = [
    Difference("sum cumsum cumprod prod trace", "NumPy adds up unsigned integers in uint64, PyTorch in int64", unsigned),
    Difference(
        "prod", "a product of booleans is an integer", lambda sample, dtype: dtype == "bool" and "dtype" in sample.kwargs
    ),
    Difference("sign sgn", "booleans count as the integers 0 and 1", lambda sample, dtype: dtype == "bool"),
    Difference(
        "masked_fill",
        "the value takes the tensor's dtype in PyTorch; here a number beside booleans makes integers, as in NumPy's where",
        lambda sample, dtype: dtype == "bool",
    ),
    Difference("all any", "PyTorch answers in uint8 for uint8, NumPy in booleans", unsigned),
    Difference(
        "add sub index_add full_like", "a negative number beside unsigned integers is an error, as in NumPy", number_below_0
    ),
    Difference(
        "__rpow__",
        "an integer to a negative integer power is an error, as in NumPy; PyTorch gives 0",
        lambda sample, dtype: dtype == "int64" and bool((sample.input < 0).any()),
    ),
    Difference(
        "einsum",
        "NumPy adds up in the operands' dtype, PyTorch in int64 where one operand alone is added up",
        lambda sample, dtype: dtype == "uint8" and (len(sample.input) == 1 or "..." in sample.args[0]),
    ),
    Difference("arange", "NumPy and PyTorch round the start and the step to integers at different points", fractions),
    Difference(
        "linspace",
        "NumPy rounds down to integers, PyTorch towards 0",
        lambda sample, dtype: "int" in dtype and (sample.input != int(sample.input) or min(sample.input, sample.args[0]) < 0),
    ),
    Difference(
        "cat",
        "PyTorch passes over an empty tensor that has other axes than the rest",
        lambda sample, dtype: len({x.ndim for x in sample.input}) > 1,
    ),
    Difference(
        "bincount",
        "integers as weights become float32, as elsewhere; in PyTorch float64",
        lambda sample, dtype: sample.kwargs["weights"] is not None and not sample.kwargs["weights"].is_floating_point(),
    ),
    Difference(
        "linalg.solve",
        "only a 1-d y is a vector, as in NumPy; in PyTorch each row is one, too, where x has one axis more",
        lambda sample, dtype: sample.args[0].ndim == sample.input.ndim - 1 > 1,
    ),
    Difference("squeeze squeeze.multiple", "an axis of another length than 1 is an error, as in NumPy", not_of_length_1),
    Difference("transpose", "of a scalar no axes can be swapped, as in NumPy", lambda sample, dtype: sample.input.ndim == 0),
    Difference(
        "tensordot",
        "axes of different lengths are an error, as in NumPy; PyTorch stretches one of length 1",
        lambda sample, dtype: sample.input.shape[:2] == (1, 1),
    ),
    Difference(
        "gather",
        "indices have as many axes as the tensor, and one at least, as in NumPy",
        lambda sample, dtype: sample.args[1].ndim > sample.input.ndim or sample.input.ndim == 0,
    ),
    Difference(
        "index_add index_select cumsum cumprod cummax cummin",
        "of a scalar the result has one axis, as in NumPy, or there is none to index",
        lambda sample, dtype: sample.input.ndim == 0,
    ),
    Difference(
        "sort argsort topk",
        "equals keep their order; PyTorch leaves it open unless asked",
        lambda sample, dtype: not sample.kwargs.get("stable") and len(sample.input.unique()) < sample.input.numel(),
    ),
    Difference(
        "constant_pad_nd nn.functional.pad.constant nn.functional.pad.reflect nn.functional.pad.replicate "
        "nn.functional.pad.circular",
        "a negative width is an error, as in NumPy; PyTorch cuts",
        lambda sample, dtype: min(sample.args[0]) < 0,
    ),
    Difference(
        "nn.functional.one_hot",
        "the number of classes is not guessed from the indices",
        lambda sample, dtype: sample.kwargs["num_classes"] < 0,
    ),
    Difference(
        "nn.functional.dropout",
        "other random numbers",
        lambda sample, dtype: sample.kwargs.get("p", 0.5) == 0.5 and sample.kwargs.get("training", True),
    ),
    Difference(
        "nn.functional.scaled_dot_product_attention",
        "other random numbers",
        lambda sample, dtype: sample.kwargs.get("dropout_p", 0.0) > 0,
    ),
    Difference(
        "nn.functional.linear_cross_entropy",
        "without bias, class weights, classes in several axes, probabilities or each row's loss",
        lambda sample, dtype: (
            {"linear_bias", "weight"} & sample.kwargs.keys()
            or sample.kwargs.get("reduction") == "none"
            or sample.args[0].ndim > 2
            or sample.args[1].is_floating_point()
        ),
    ),
    Difference(
        "nn.functional.multi_head_attention_forward",
        "other random numbers; keys of its own beside those given",
        lambda sample, dtype: (
            (sample.args[9] > 0 and sample.kwargs["training"]) or sample.args[6] is not None or sample.args[8]
        ),
    ),
]

# tinytensor's functions that no entry of OpInfo is compared with, and why.
WITHOUT_ENTRY = {
    "causal_mask": "PyTorch has none",
    "sum_rows": "PyTorch's is the gradient of embedding, whose second derivative compares it",
}
