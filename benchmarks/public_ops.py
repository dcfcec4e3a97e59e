"""Every public op of tinytensor beside PyTorch's: its inputs, and a call that works with both libraries.

A row's call gets the library as ``F``, a namespace of functions with tinytensor's names: ``tinytensors()`` or ``pytorchs()``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

SIZES = {8: (2, 4), 10_000: (100, 100), 1_000_000: (1000, 1000)}  # elements, as rows and columns


class Row(NamedTuple):
    """An op: the codes of its inputs (see ``array``) and its call."""

    inputs: str
    call: Callable[..., Any]


CONSTANTS = "YWw"  # codes of floating-point inputs without gradients


def array(code: str, shape: tuple[int, int], rng: Any) -> Any:
    """Make an input of shape (rows, columns), by its code."""
    rows, columns = shape
    makers: Mapping[str, Callable[[], Any]] = {
        "x": lambda: rng.standard_normal(shape, "float32"),
        "h": lambda: rng.standard_normal(shape, "float32").astype("float16"),
        "p": lambda: rng.uniform(0.5, 2.0, shape).astype("float32"),
        "n": lambda: rng.uniform(0.95, 1.05, shape).astype("float32"),  # products of many are finite
        "q": lambda: rng.uniform(1.5, 3.0, shape).astype("float32"),
        "z": lambda: rng.permutation(rows * columns).reshape(shape).astype("float32"),  # no two are equal
        "u": lambda: rng.uniform(0.1, 0.9, shape).astype("float32"),
        "s": lambda: rng.standard_normal((columns, columns), "float32"),
        "v": lambda: rng.standard_normal(columns, "float32"),
        "l": lambda: rng.standard_normal(rows * columns, "float32"),
        "a": lambda: rng.standard_normal((1, 1, rows, columns), "float32"),
        "w": lambda: rng.uniform(0.5, 2.0, columns).astype("float32"),
        "Y": lambda: rng.standard_normal(shape, "float32"),
        "W": lambda: rng.uniform(0.5, 2.0, shape).astype("float32"),
        "B": lambda: rng.random(shape) < 0.5,
        "I": lambda: rng.integers(1, 100, shape),
        "C": lambda: rng.integers(0, columns, shape),  # of columns
        "R": lambda: rng.integers(0, rows, rows),  # of rows
        "T": lambda: rng.integers(0, columns, rows),  # a class of each row
        "N": lambda: rng.integers(0, columns, rows * columns),
    }
    return makers[code]()


RENAMED = """
arccos=acos arcsin=asin arctan=atan arctan2=atan2 arccosh=acosh arcsinh=asinh arctanh=atanh degrees=rad2deg radians=deg2rad
concatenate=cat expand_dims=unsqueeze equal=eq not_equal=ne less=lt less_equal=le greater=gt greater_equal=ge
"""
ALIKE = """
abs:x add:xx subtract:xx multiply:xx divide:xp floor_divide:YW remainder:xp power:px negative:x sign:x square:x sqrt:p rsqrt:p
reciprocal:p floor:x ceil:x trunc:x round:x exp:x expm1:x exp2:x log:p log2:p log10:p log1p:p tanh:x sigmoid:x erf:x
logaddexp:xx where:Bxx maximum:xx minimum:xx copy:x sin:x cos:x tan:u arcsin:u arccos:u arctan:x sinh:x cosh:x hypot:xx
arctan2:xx degrees:x radians:x arcsinh:x arccosh:q arctanh:u equal:xx not_equal:xx less:xx less_equal:xx greater:xx
greater_equal:xx logical_and:BB logical_or:BB logical_xor:BB logical_not:B isnan:x isfinite:x isinf:x isclose:xx allclose:xx
bitwise_and:II bitwise_or:II bitwise_xor:II invert:I relu:x leaky_relu:x elu:x softplus:x logsigmoid:x gelu:x silu:x glu:x
sum:x mean:x var:x std:x max:x min:x all:B any:B argmax:x argmin:x norm:x
matmul:xs outer:vv dot:ll linear:xsv diag:v diagonal:x tril:x triu:x argsort:z
mse_loss:xx l1_loss:xx huber_loss:xx smooth_l1_loss:xx kl_div:xu binary_cross_entropy_with_logits:xu binary_cross_entropy:uu
nll_loss:xT cross_entropy:xT cosine_similarity:xx
"""


def _by_name(name: str, F: Any, *inputs: Any) -> Any:
    return getattr(F, name)(*inputs)


CALLS: dict[str, Row] = {
    "power, 3": Row("x", lambda F, x: x**3),
    "add, of a number": Row("x", lambda F, x: x + 1.5),
    "add, of a row": Row("xv", lambda F, x, v: x + v),
    "astype": Row("x", lambda F, x: F.astype(x, "float64")),
    "clip": Row("x", lambda F, x: F.clip(x, -0.5, 0.5)),
    "masked_fill": Row("xB", lambda F, x, mask: F.masked_fill(x, mask, 0.5)),
    "sum, rows": Row("x", lambda F, x: F.sum(x, axis=1)),
    "sum, columns": Row("x", lambda F, x: F.sum(x, axis=0)),
    "mean, rows": Row("x", lambda F, x: F.mean(x, axis=1)),
    "var, rows": Row("x", lambda F, x: F.var(x, axis=1)),
    "std, columns": Row("x", lambda F, x: F.std(x, axis=0)),
    "max, rows": Row("x", lambda F, x: F.max(x, axis=1)),
    "argmax, rows": Row("x", lambda F, x: F.argmax(x, axis=1)),
    "logsumexp": Row("x", lambda F, x: F.logsumexp(x, axis=1)),
    "prod": Row("n", lambda F, x: F.prod(x, axis=1)),
    "norm, rows": Row("x", lambda F, x: F.norm(x, axis=1)),
    "softmax": Row("x", lambda F, x: F.softmax(x, -1)),
    "softmax, columns": Row("x", lambda F, x: F.softmax(x, 0)),
    "log_softmax": Row("x", lambda F, x: F.log_softmax(x, -1)),
    "swiglu": Row("xx", lambda F, x, y: F.swiglu(x, y)),
    "cumsum": Row("x", lambda F, x: F.cumsum(x, 1)),
    "cumprod": Row("n", lambda F, x: F.cumprod(x, 1)),
    "cummax": Row("x", lambda F, x: F.cummax(x, 1)[0]),
    "cummin": Row("x", lambda F, x: F.cummin(x, 1)[0]),
    "diff": Row("x", lambda F, x: F.diff(x)),
    "einsum": Row("xx", lambda F, x, y: F.einsum("ij,ij->i", x, y)),
    "tensordot": Row("xs", lambda F, x, y: F.tensordot(x, y, 1)),
    "reshape": Row("x", lambda F, x: x.reshape(-1)),
    "transpose": Row("x", lambda F, x: x.T),
    "swapaxes": Row("x", lambda F, x: F.swapaxes(x, 0, 1)),
    "moveaxis": Row("x", lambda F, x: F.moveaxis(x, 0, 1)),
    "squeeze": Row("a", lambda F, x: F.squeeze(x, 0)),
    "expand_dims": Row("x", lambda F, x: F.expand_dims(x, 0)),
    "broadcast_to": Row("v", lambda F, x: F.broadcast_to(x, (4, x.shape[0]))),
    "split": Row("x", lambda F, x: F.split(x, 2, 0)[1]),
    "array_split": Row("x", lambda F, x: F.array_split(x, 2, 0)[1]),
    "concatenate": Row("xx", lambda F, x, y: F.concatenate([x, y], 0)),
    "stack": Row("xx", lambda F, x, y: F.stack([x, y], 0)),
    "hstack": Row("xx", lambda F, x, y: F.hstack([x, y])),
    "vstack": Row("xx", lambda F, x, y: F.vstack([x, y])),
    "meshgrid": Row("v", lambda F, x: F.meshgrid(x, x, indexing="ij")[0]),
    "roll": Row("x", lambda F, x: F.roll(x, 1, 1)),
    "flip": Row("x", lambda F, x: F.flip(x, (1,))),
    "pad": Row("x", lambda F, x: F.pad(x, ((1, 1), (1, 1)))),
    "repeat": Row("x", lambda F, x: F.repeat(x, 2, 0)),
    "tile": Row("x", lambda F, x: F.tile(x, (2, 1))),
    "getitem, a row": Row("x", lambda F, x: x[1]),
    "getitem, a slice": Row("x", lambda F, x: x[:, 1:3]),
    "getitem, rows": Row("xR", lambda F, x, rows: x[rows]),
    "getitem, a mask": Row("xB", lambda F, x, mask: x[mask]),
    "setitem, a row": Row("Y", lambda F, x: F.set_row(x)),
    "scatter": Row("xR", lambda F, x, rows: F.scatter(x, rows, x.shape)),
    "take": Row("xR", lambda F, x, rows: F.take(x, rows, 0)),
    "take_along_axis": Row("xC", lambda F, x, columns: F.take_along_axis(x, columns, 1)),
    "index_add": Row("xRx", lambda F, x, rows, y: F.index_add(x, rows, y, 0)),
    "sort": Row("z", lambda F, x: F.sort(x, 1)),
    "topk": Row("z", lambda F, x: F.topk(x, 3, 1)[0]),
    "one_hot": Row("T", lambda F, classes: F.one_hot(classes, 1000)),
    "bincount": Row("N", lambda F, x: F.bincount(x)),
    "embedding": Row("Rx", lambda F, ids, weight: F.embedding(ids, weight)),
    "layer_norm": Row("xvv", lambda F, x, weight, bias: F.layer_norm(x, weight, bias)),
    "rms_norm": Row("xv", lambda F, x, weight: F.rms_norm(x, weight)),
    "group_norm": Row("xvv", lambda F, x, weight, bias: F.group_norm(x, 1, weight, bias)),
    "cross_entropy, weighted": Row("xTw", lambda F, x, targets, w: F.cross_entropy(x, targets, weight=w)),
    "linear_cross_entropy": Row("xsT", lambda F, x, weight, targets: F.linear_cross_entropy(x, weight, targets)),
    "scaled_dot_product_attention": Row("aaa", lambda F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    "dropout": Row("x", lambda F, x: F.dropout(x, 0.1)),
    "causal_mask": Row("x", lambda F, x: F.causal_mask(x.shape[0])),
    **{
        f"{op}, float16": Row(codes, call)
        for op, codes, call in (
            ("add", "hh", lambda F, x, y: x + y),
            ("multiply", "hh", lambda F, x, y: x * y),
            ("sum", "h", lambda F, x: F.sum(x)),
            ("softmax", "h", lambda F, x: F.softmax(x, -1)),
            ("exp", "h", lambda F, x: F.exp(x)),
            ("gelu", "h", lambda F, x: F.gelu(x)),
            ("layer_norm", "h", lambda F, x: F.layer_norm(x)),
            ("matmul", "hh", lambda F, x, y: x @ y.T),
        )
    },
}
ROWS = {
    **{name: Row(codes, functools.partial(_by_name, name)) for name, codes in (word.split(":") for word in ALIKE.split())},
    **CALLS,
}
ELSEWHERE = "gru lstm rnn multi_head_attention norm_and_rotate rotate_pairs sum_rows".split()  # timed with the layers, or not


def tinytensors() -> Any:
    """Return tinytensor's functions and the helpers of some rows."""
    import tinytensor as tt
    from tinytensor import functional

    return SimpleNamespace(**{**vars(functional), **vars(tt), "set_row": set_row})


def set_row(x: Any) -> Any:
    """Change a row in place."""
    x[1] = 0.5
    return x


def pytorchs() -> Any:
    """Return PyTorch's functions with tinytensor's names."""
    import torch
    from torch.nn import functional

    def pad(x: Any, widths: Any) -> Any:
        return functional.pad(x, [width for pair in reversed(widths) for width in pair])

    def swiglu(gate: Any, up: Any) -> Any:
        return functional.silu(gate) * up

    def scatter(values: Any, rows: Any, shape: Any) -> Any:
        return torch.zeros(shape).index_add(0, rows, values)

    def linear_cross_entropy(x: Any, weight: Any, targets: Any) -> Any:
        return functional.cross_entropy(functional.linear(x, weight), targets)

    renamed = {
        **{name: getattr(torch, other) for name, other in (pair.split("=") for pair in RENAMED.split())},
        "set_row": set_row, "pad": pad, "swiglu": swiglu, "scatter": scatter, "linear_cross_entropy": linear_cross_entropy,
        "invert": torch.bitwise_not,
        "astype": lambda x, dtype: x.to(getattr(torch, dtype)),
        "copy": torch.clone,
        "power": torch.pow,
        "var": functools.partial(torch.var, correction=0),
        "std": functools.partial(torch.std, correction=0),
        "max": torch.amax, "min": torch.amin,
        "norm": torch.linalg.vector_norm,
        "array_split": torch.tensor_split,
        "split": lambda x, parts, axis: torch.chunk(x, parts, axis),
        "take": lambda x, rows, axis: torch.index_select(x, axis, rows),
        "take_along_axis": lambda x, index, axis: torch.gather(x, axis, index),
        "index_add": lambda x, rows, y, axis: x.index_add(axis, rows, y),
        "repeat": torch.repeat_interleave,
        "one_hot": lambda classes, count: functional.one_hot(classes, count).float(),
        "layer_norm": lambda x, *weights: functional.layer_norm(x, x.shape[-1:], *weights),
        "rms_norm": lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, 1e-5),
        "sort": lambda x, axis: torch.sort(x, axis)[0],
        "causal_mask": lambda length: torch.ones(length, length, dtype=torch.bool).tril(),
    }  # fmt: skip
    return SimpleNamespace(**{**vars(torch), **vars(functional), **renamed})
