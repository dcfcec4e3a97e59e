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
    scores, seen = (scores, mask) if np.asarray(mask).dtype.kind == "b" else (scores + mask, True)
    e = np.exp(scores) * (seen & causal(q.shape[-2], k.shape[-2]) if is_causal else seen)
    total = e.sum(-1, keepdims=True)
    return (e / np.where(total > 0, total, 1.0)) @ v


def multi_head_attention(x: Any, num_heads: int, memory: Any = None, is_causal: bool = False) -> Any:
    assert num_heads == 2
    keys = (x if memory is None else memory).shape[1]
    return cases.by_heads(x, memory, mask=causal(x.shape[1], keys) if is_causal else True)


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
NUMPY_NAMES = "arccos arcsin arctan cos cosh exp exp2 expm1 log log10 log1p log2 logaddexp mean sin sinh sqrt std tan tanh var"
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
    "glu": lambda x, axis=-1: np.split(x, 2, axis)[0] * cases.sigmoid(np.split(x, 2, axis)[1]),
    "gelu": lambda x, kind="none": cases.gelu_tanh(x) if kind == "tanh" else gelu_exact(x),
    "softmax": cases.softmax,
    "log_softmax": cases.log_softmax,
    "logsumexp": cases.logsumexp,
    "norm": norm,
    "linear": cases.linear,
    "layer_norm": cases.layer_norm,
    "rms_norm": cases.rms_norm,
    "dropout": lambda x, p: x * cases.survivors(x.shape, 1 - p),
    "scaled_dot_product_attention": attention,
    "multi_head_attention": multi_head_attention,
    "cross_entropy": cases.cross_entropy,
    "linear_cross_entropy": lambda x, w, t, **k: cases.cross_entropy(x @ w.T, t, **k),
    "mse_loss": cases.mse_loss,
    "binary_cross_entropy_with_logits": lambda x, t, r: cases.reduced(np.logaddexp(0, x) - t * x, r, x.size),
}


class Reference:
    """What ``tt`` is where a program runs in NumPy: the functions above, and for all other names NumPy's."""

    functions = MOVED_OR_CHOSEN | {name: floating(f) for name, f in COMPUTED.items()}

    def __getattr__(self, name: str) -> Any:
        return self.functions[name] if name in self.functions else getattr(np, name)


def in_numpy(text: str, values: dict[str, Any]) -> Any:
    """The value of a line, with floating-point operands in float64."""
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(eval(text, {"tt": Reference(), "np": np, **values}))


def as_float64(array: Any) -> Any:
    return array.astype("float64") if array.dtype.kind == "f" else array
