"""tinytensor's ops in NumPy: what the lines of a program are compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import cases
import numpy as np


def floating(f: Callable[..., Any]) -> Callable[..., Any]:
    """f of floats: of integers and booleans NumPy would compute some functions in float16."""

    def call(*args: Any, **settings: Any) -> Any:
        return f(*[x.astype(float) if hasattr(x, "dtype") and x.dtype.kind in "biu" else x for x in args], **settings)

    return call


def stable_argsort(x: Any, axis: int = -1, descending: bool = False) -> Any:
    return np.argsort(-x.astype(float) if descending else x, axis, kind="stable")


def sort(x: Any, axis: int = -1, descending: bool = False) -> Any:
    return np.take_along_axis(x, stable_argsort(x, axis, descending), axis)


def topk(x: Any, k: int, axis: int = -1, largest: bool = True) -> Any:
    if k > x.shape[axis]:
        raise IndexError(k)  # which NumPy overlooks in an empty array
    places = stable_argsort(x, axis, largest).take(range(k), axis)
    return np.take_along_axis(x, places, axis), places


def running(best: Any, x: Any, axis: int) -> Any:
    """The best so far along an axis, and where it stood: the last of equals."""
    values = best.accumulate(x, axis)
    places = np.moveaxis(np.broadcast_to(np.arange(x.shape[axis]), np.moveaxis(x, axis, -1).shape), -1, axis)
    return values, np.maximum.accumulate(np.where(x == values, places, 0), axis)


def scatter(values: Any, index: Any, shape: Any) -> Any:
    out = np.zeros(shape, values.dtype)
    np.add.at(out, index, values)
    return out


def sum_rows(rows: Any, ids: Any, count: int) -> Any:
    return np.stack([rows[ids == i].sum(0) for i in range(count)])


def norm(x: Any, ord: float = 2, axis: Any = None, keepdims: bool = False) -> Any:
    if np.isinf(ord):
        return (np.max if ord > 0 else np.min)(np.abs(x), axis=axis, keepdims=keepdims)
    if ord == 0:
        return np.sum(x != 0, axis=axis, keepdims=keepdims).astype(float)
    return np.sum(np.abs(x) ** ord, axis=axis, keepdims=keepdims) ** (1 / ord)


def causal(queries: int, keys: int) -> Any:
    return np.tri(queries, keys, keys - queries, dtype=bool)


def attention(q: Any, k: Any, v: Any, mask: Any = True, is_causal: bool = False) -> Any:
    """A mask of booleans says who may attend; one of numbers is added to the scores. Of nothing to attend to comes 0."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    scores = np.where(mask, scores, -np.inf) if np.asarray(mask).dtype.kind == "b" else scores + mask
    scores = np.where(causal(q.shape[-2], k.shape[-2]), scores, -np.inf) if is_causal else scores
    e = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e9))
    total = e.sum(-1, keepdims=True)
    return (e / np.where(total > 0, total, 1.0)) @ v


def multi_head_attention(x: Any, num_heads: int, memory: Any = None, is_causal: bool = False) -> Any:
    assert num_heads == 2
    keys = (x if memory is None else memory).shape[1]
    return cases.by_heads(x, memory, mask=causal(x.shape[1], keys) if is_causal else True)


def norm_and_rotate(
    x: Any, num_heads: int, keys: int = 0, query: Any = None, key: Any = None, eps: float = 1e-5, rotation: Any = None
) -> Any:
    assert num_heads == 2
    return cases.normed_and_rotated(x, query, key, keys or num_heads, rotation, eps)


def nll_loss(x: Any, t: Any, ignore_index: int = -100, reduction: str = "mean", weight: Any = None) -> Any:
    scale = np.where(t == ignore_index, 0.0, 1.0 if weight is None else weight[t])
    return cases.reduced(-np.take_along_axis(x, t[..., None], -1)[..., 0] * scale, reduction, scale.sum() or 1)


def huber_loss(x: Any, y: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    d = np.abs(x - y)
    return cases.reduced(np.where(d < delta, d * d / 2, delta * (d - delta / 2)), reduction, d.size)


def smooth_l1_loss(x: Any, y: Any, reduction: str, beta: float) -> Any:
    return huber_loss(x, y, reduction, beta) / beta if beta else cases.reduced(np.abs(x - y), reduction, x.size)


def kl_div(x: Any, y: Any, reduction: str, log_target: bool = False) -> Any:
    y = np.exp(y) if log_target else y
    losses = y * (np.log(y) - x)
    return losses.sum() / (len(x) if x.ndim else 1) if reduction == "batchmean" else cases.reduced(losses, reduction, x.size)


def binary_cross_entropy(p: Any, t: Any, reduction: str, weight: Any = 1.0) -> Any:
    return cases.reduced(-(t * np.log(p) + (1 - t) * np.log(1 - p)) * weight, reduction, p.size)


def with_logits(x: Any, t: Any, reduction: str, weight: Any = 1.0, pos_weight: Any = 1.0) -> Any:
    losses = pos_weight * t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)
    return cases.reduced(losses * weight, reduction, x.size)


def gelu_exact(x: Any) -> Any:
    return cases.gelu_exact(x) if x.size else x


MOVED_OR_CHOSEN: dict[str, Callable[..., Any]] = {
    "tensor": np.array,
    "argsort": stable_argsort,
    "sort": sort,
    "topk": topk,
    "scatter": scatter,
    "sum_rows": sum_rows,
    "embedding": lambda ids, weight: weight[ids],
    "index_add": lambda x, index, values, axis: cases.index_added(x, values, index, axis),
    "one_hot": lambda ids, n: np.eye(n)[ids],
    "masked_fill": lambda x, mask, value: np.where(mask, value, x),
    "causal_mask": causal,
    "relu": lambda x: np.maximum(x, 0),
    "clip": lambda x, min=None, max=None: np.clip(x, min, max),
    "cummax": lambda x, axis: running(np.maximum, x, axis),
    "cummin": lambda x, axis: running(np.minimum, x, axis),
    "prod": lambda x, axis=None, keepdims=False: np.prod(x, axis=axis, keepdims=keepdims),
}
NUMPY_NAMES = """
    arccos arccosh arcsin arcsinh arctan arctan2 arctanh cos cosh degrees exp exp2 expm1 hypot log log10 log1p log2 logaddexp
    mean radians sin sinh sqrt std tan tanh var
"""
COMPUTED: dict[str, Callable[..., Any]] = {name: getattr(np, name) for name in NUMPY_NAMES.split()} | {
    "erf": lambda x: cases.erf(x) if x.size else x,
    "sigmoid": cases.sigmoid,
    "rsqrt": lambda x: x**-0.5,
    "reciprocal": lambda x: 1.0 / x,
    "leaky_relu": lambda x, slope: np.where(x > 0, x, slope * x),
    "elu": lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))),
    "softplus": lambda x: np.logaddexp(x, 0),
    "logsigmoid": lambda x: -np.logaddexp(-x, 0),
    "silu": lambda x: x * cases.sigmoid(x),
    "swiglu": lambda gate, up: gate * cases.sigmoid(gate) * up,
    "glu": lambda x, axis=-1: np.split(x, 2, axis)[0] * cases.sigmoid(np.split(x, 2, axis)[1]),
    "gelu": lambda x, kind="none": cases.gelu_tanh(x) if kind == "tanh" else gelu_exact(x),
    "softmax": cases.softmax,
    "log_softmax": cases.log_softmax,
    "logsumexp": cases.logsumexp,
    "norm": norm,
    "linear": cases.linear,
    "rotate_pairs": cases.rotated,
    "norm_and_rotate": norm_and_rotate,
    "cosine_similarity": cases.cosine_similarity,
    "layer_norm": cases.layer_norm,
    "rms_norm": cases.rms_norm,
    "group_norm": cases.group_norm,
    "dropout": lambda x, p: x * cases.survivors(x.shape, 1 - p),
    "scaled_dot_product_attention": attention,
    "multi_head_attention": multi_head_attention,
    "rnn": cases.rnn,
    "gru": cases.gru,
    "lstm": cases.lstm,
    "mse_loss": cases.mse_loss,
    "l1_loss": lambda x, y, reduction: smooth_l1_loss(x, y, reduction, 0),
    "huber_loss": huber_loss,
    "smooth_l1_loss": smooth_l1_loss,
    "kl_div": kl_div,
    "binary_cross_entropy": binary_cross_entropy,
    "binary_cross_entropy_with_logits": with_logits,
}
OF_CLASSES: dict[str, Callable[..., Any]] = {  # whose targets must stay integers
    "cross_entropy": cases.cross_entropy,
    "linear_cross_entropy": lambda x, w, t, **k: cases.cross_entropy(x @ w.T, t, **k),
    "nll_loss": nll_loss,
}
BY_ROW = {name: want for name, _, want, *_ in [*cases.UNARY, *cases.BINARY, *cases.REDUCTIONS]}


class Reference:
    """What ``tt`` is where a program runs in NumPy: the functions above, or NumPy's, or those of the rows in cases.py."""

    functions = MOVED_OR_CHOSEN | OF_CLASSES | {name: floating(f) for name, f in COMPUTED.items()}

    def __getattr__(self, name: str) -> Any:
        if name in self.functions:
            return self.functions[name]
        return getattr(np, name) if hasattr(np, name) else BY_ROW[name]


def in_numpy(text: str, values: dict[str, Any]) -> Any:
    """The value of a line, with floating-point operands in float64."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(eval(text, {"tt": Reference(), "np": np, **values}))


def as_float64(array: Any) -> Any:
    return array.astype("float64") if array.dtype.kind == "f" else array
