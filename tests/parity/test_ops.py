"""The ops against PyTorch in float64: the values, the gradients and the gradients of the gradients.

There are two types of cases: smooth places, where derivatives of both orders must agree, and edges (ties, zeros,
ends), where the first derivative is a convention and the second none at all.
"""

import math

import numpy
import pytest
import torch
import torch.nn.functional as F
from parity.compare import assert_close, assert_same

import tinytensor as tt


def normal(*shape, seed=0):
    """float64 numbers, the same on every run."""
    return numpy.random.default_rng(seed).standard_normal(shape)


def positive(*shape, seed=0):
    return numpy.abs(normal(*shape, seed=seed)) + 0.3


def integers(high, *shape, seed=0):
    return numpy.random.default_rng(seed).integers(0, high, shape)


X = normal(3, 4)
Y = normal(3, 4, seed=1)
BLOCK = normal(2, 3, 4)
PLUS = positive(3, 4)
SHUFFLED = numpy.random.default_rng(5).permutation(24).reshape(2, 3, 4) / 7.0 - 1.5  # no two are equal

# -------------------------------------------------------------------------------------------------------- elementwise

ELEMENTWISE = {
    "add, equal shapes": (lambda x, y: x + y, lambda x, y: x + y, X, Y),
    "add, (3,4) and (4,)": (lambda x, y: x + y, lambda x, y: x + y, X, Y[0]),
    "subtract, (3,1) and (1,4)": (lambda x, y: x - y, lambda x, y: x - y, X[:, :1], Y[:1]),
    "subtract, from a number": (lambda x: 2 - x, lambda x: 2 - x, X),
    "multiply, leading axes": (lambda x, y: x * y, lambda x, y: x * y, BLOCK, Y[:, :1]),
    "multiply, by a scalar tensor": (lambda x, y: x * y, lambda x, y: x * y, X, numpy.array(1.5)),
    "multiply, with nothing": (lambda x, y: x * y, lambda x, y: x * y, X[:0], Y[0]),
    "multiply, x twice": (lambda x: x * x, lambda x: x * x, X),
    "divide": (lambda x, y: x / y, lambda x, y: x / y, X, PLUS[0]),
    "divide, a number": (lambda y: 3 / y, lambda y: 3 / y, -PLUS),
    "negative": (lambda x: -x, lambda x: -x, X),
    "abs": (tt.abs, torch.abs, X),
    "sign": (lambda x: tt.sign(x) * x, lambda x: torch.sign(x) * x, X),
    "square": (tt.square, torch.square, X),
    "sqrt": (tt.sqrt, torch.sqrt, PLUS),
    "rsqrt": (tt.rsqrt, torch.rsqrt, PLUS),
    "reciprocal": (tt.reciprocal, torch.reciprocal, -PLUS),
    "exp": (tt.exp, torch.exp, X),
    "expm1": (tt.expm1, torch.expm1, X * 1e-3),
    "log": (tt.log, torch.log, PLUS),
    "log1p": (tt.log1p, torch.log1p, PLUS * 1e-3),
    "sin": (tt.sin, torch.sin, X * 5),
    "cos": (tt.cos, torch.cos, X * 5),
    "tanh": (tt.tanh, torch.tanh, X * 2),
    "sigmoid": (tt.sigmoid, torch.sigmoid, X * 4),
    "erf": (tt.erf, torch.erf, numpy.linspace(-7, 7, 141)),
    "power, 3": (lambda x: x**3, lambda x: x**3, X),
    "power, 2": (lambda x: x**2, lambda x: x**2, X),
    "power, 0.5": (lambda x: x**0.5, lambda x: x**0.5, PLUS),
    "power, -0.5": (lambda x: x**-0.5, lambda x: x**-0.5, PLUS),
    "power, -2": (lambda x: x**-2, lambda x: x**-2, -PLUS),
    "power, 2.7": (lambda x: x**2.7, lambda x: x**2.7, PLUS),
    "power, 1": (lambda x: x**1, lambda x: x**1, X),
    "power, of tensors": (lambda x, y: x**y, lambda x, y: x**y, PLUS, Y),
    "power, of a number": (lambda y: 1.7**y, lambda y: 1.7**y, Y),
    "power, broadcasting": (tt.power, torch.pow, PLUS[:, :1], Y[:1]),
    "maximum": (tt.maximum, torch.maximum, X, Y[:1]),
    "minimum": (tt.minimum, torch.minimum, X, Y[:, :1]),
    "maximum, of a number": (lambda x: tt.maximum(x, 0.2), lambda x: torch.clamp(x, min=0.2), X),
    "clip": (lambda x: tt.clip(x, -0.5, 0.7) * x, lambda x: torch.clamp(x, -0.5, 0.7) * x, X),
    "clip, below alone": (lambda x: tt.clip(x, min=-0.1) * x, lambda x: torch.clamp(x, min=-0.1) * x, X),
    "clip, above alone": (lambda x: tt.clip(x, max=0.1) * x, lambda x: torch.clamp(x, max=0.1) * x, X),
    "where": (
        lambda x, y: tt.where(tt.tensor(X > 0), x * y, y),
        lambda x, y: torch.where(torch.tensor(X > 0), x * y, y),
        X,
        Y[:1],
    ),
    "where, a number": (lambda x: tt.where(x > 0, x * x, 0.5), lambda x: torch.where(x > 0, x * x, 0.5), X),
    "where, a condition that broadcasts": (
        lambda x, y: tt.where(tt.tensor(X[0] > 0), x, y),
        lambda x, y: torch.where(torch.tensor(X[0] > 0), x, y),
        numpy.array(2.0),
        Y[:, :1],
    ),
    "masked_fill": (
        lambda x: tt.masked_fill(x * x, tt.tensor(Y > 0), -2.0),
        lambda x: torch.masked_fill(x * x, torch.tensor(Y > 0), -2.0),
        X,
    ),
    "relu": (lambda x: tt.relu(x) * x, lambda x: torch.relu(x) * x, X),
    "leaky_relu": (lambda x: tt.leaky_relu(x, 0.3) * x, lambda x: F.leaky_relu(x, 0.3) * x, X),
    "silu": (tt.silu, F.silu, X * 3),
    "softplus": (tt.softplus, F.softplus, X * 3),
    "gelu": (tt.gelu, F.gelu, X * 2),
    "gelu, tanh": (lambda x: tt.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh"), X * 2),
}

# --------------------------------------------------------------------------------------------------------- reductions

HOLES = X.copy()
HOLES[0, 1] = HOLES[2, 0] = HOLES[2, 3] = 0.0  # rows with no zero, one and two
TOWERS = BLOCK * 300 + 500


def over_axes(name, ours, theirs, x):
    """One case for each way to pass axes. PyTorch's functions take a tuple, and name the flag differently."""
    ways = {"all": None, "0": 0, "-1": -1, "(0, 2)": (0, 2), "(-1, 0)": (-1, 0)}
    return {
        f"{name}, axis {way}{', keepdims' if keep else ''}": (
            lambda x, axis=axis, keep=keep: ours(x, axis=axis, keepdims=keep),
            lambda x, axis=axis, keep=keep: theirs(x, tuple(range(x.ndim)) if axis is None else axis, keep),
            x,
        )
        for way, axis in ways.items()
        for keep in (False, True)
    }


REDUCTIONS = {
    **over_axes("sum", tt.sum, lambda x, d, k: torch.sum(x * 1, d, k), BLOCK),
    **over_axes("mean", tt.mean, lambda x, d, k: torch.mean(x, d, k), BLOCK),
    **over_axes("var", tt.var, lambda x, d, k: torch.var(x, d, correction=0, keepdim=k), BLOCK),
    **over_axes(
        "var, ddof 1",
        lambda x, axis, keepdims: tt.var(x, axis, keepdims, ddof=1),
        lambda x, d, k: torch.var(x, d, correction=1, keepdim=k),
        BLOCK,
    ),
    **over_axes("std", tt.std, lambda x, d, k: torch.std(x, d, correction=0, keepdim=k), BLOCK),
    **over_axes(
        "std, ddof 1",
        lambda x, axis, keepdims: tt.std(x, axis, keepdims, ddof=1),
        lambda x, d, k: torch.std(x, d, correction=1, keepdim=k),
        BLOCK,
    ),
    **over_axes("max", tt.max, lambda x, d, k: torch.amax(x, d, k), SHUFFLED),
    **over_axes("min", tt.min, lambda x, d, k: torch.amin(x, d, k), SHUFFLED),
    **over_axes("logsumexp", tt.logsumexp, lambda x, d, k: torch.logsumexp(x, d, k), BLOCK),
    **over_axes("logsumexp, large", tt.logsumexp, lambda x, d, k: torch.logsumexp(x, d, k), TOWERS),
    **over_axes("norm", tt.norm, lambda x, d, k: torch.linalg.vector_norm(x, 2, d, k), BLOCK),
    **over_axes(
        "norm 1",
        lambda x, axis, keepdims: tt.norm(x, 1, axis, keepdims),
        lambda x, d, k: torch.linalg.vector_norm(x, 1, d, k),
        BLOCK,
    ),
    **over_axes(
        "norm inf",
        lambda x, axis, keepdims: tt.norm(x, math.inf, axis, keepdims),
        lambda x, d, k: torch.linalg.vector_norm(x, math.inf, d, k),
        BLOCK,
    ),
    "prod": (tt.prod, torch.prod, X),
    "prod, with zeros": (tt.prod, torch.prod, HOLES),
    "prod, axis 0 with zeros": (lambda x: tt.prod(x, 0), lambda x: torch.prod(x, 0), HOLES),
    "prod, axis 1 with zeros": (lambda x: tt.prod(x, -1, keepdims=True), lambda x: torch.prod(x, -1, True), HOLES),
    "prod, two axes": (lambda x: tt.prod(x, (0, 2)), lambda x: torch.prod(torch.prod(x, 2), 0), BLOCK),
    "prod, of nothing": (lambda x: tt.prod(x, 0), lambda x: torch.prod(x, 0), X[:0]),
    "sum, of nothing": (lambda x: tt.sum(x, 0), lambda x: torch.sum(x, 0), X[:0]),
    "cumsum": (lambda x: tt.cumsum(x, 1) ** 2, lambda x: torch.cumsum(x, 1) ** 2, BLOCK),
    "cumsum, last axis": (lambda x: tt.cumsum(x, -1), lambda x: torch.cumsum(x, -1), BLOCK),
    "cumsum, flattened": (lambda x: tt.cumsum(x) ** 2, lambda x: torch.cumsum(x.flatten(), 0) ** 2, BLOCK),
    "softmax": (lambda x: tt.softmax(x, 1), lambda x: torch.softmax(x, 1), BLOCK * 3),
    "softmax, large": (tt.softmax, lambda x: torch.softmax(x, -1), TOWERS),
    "log_softmax": (lambda x: tt.log_softmax(x, 0), lambda x: torch.log_softmax(x, 0), BLOCK * 3),
}

# ----------------------------------------------------------------------------------------------------------- indexing

ROWS = numpy.array([2, 0, 2, 2])
PAIRS = (numpy.array([0, 1, 0]), numpy.array([2, 3, 2]))
BACKWARDS = numpy.array([-1, 0, -3, -1])
PICK = integers(4, 2, 3, 5)
MASK = numpy.random.default_rng(7).random((2, 3, 4)) < 0.5

INDICES = {
    "an int": 1,
    "a negative int": -1,
    "a slice": slice(0, 2),
    "steps": (slice(None), slice(0, None, 2), slice(1, 4, 2)),
    "new axes": (None, 0, slice(None), None),
    "ellipsis": (..., 2),
    "an ellipsis in the middle": (1, ..., slice(1, 3)),
    "rows that repeat": (slice(None), ROWS),
    "negative rows that repeat": (slice(None), BACKWARDS),
    "pairs that repeat": (slice(None), numpy.array([0, 1, 0, 0]), numpy.array([2, 3, 2, 1])),
    "pairs around a slice": (numpy.array([0, 1, 0]), slice(None), numpy.array([2, 3, 2])),
    "a mesh": (slice(None), numpy.array([[0], [2]]), numpy.array([[1, 1, 3]])),
    "a matrix of rows": (slice(None), numpy.array([[0, 0], [2, 0]])),
    "an int beside rows": (1, ROWS),
    "a mask": MASK,
    "a mask for some axes": MASK[:, :, 0],
    "a mask of one axis": (slice(None), numpy.array([True, False, True])),
    "no rows": (slice(None), numpy.array([], dtype="int64")),
    "a mask that is all False": numpy.zeros((2, 3), dtype=bool),
}


def torch_index(index):
    if isinstance(index, tuple):
        return tuple(torch_index(i) for i in index)
    return torch.tensor(index) if isinstance(index, numpy.ndarray) else index


def tt_index(index):
    if isinstance(index, tuple):
        return tuple(tt_index(i) for i in index)
    return tt.tensor(index) if isinstance(index, numpy.ndarray) else index


INDEXING = {
    **{
        f"getitem, {name}": (
            lambda x, index=index: x[tt_index(index)] ** 2,
            lambda x, index=index: x[torch_index(index)] ** 2,
            BLOCK,
        )
        for name, index in INDICES.items()
    },
    "take": (lambda x: tt.take(x, tt.tensor(ROWS), 1), lambda x: torch.index_select(x, 1, torch.tensor(ROWS)), BLOCK),
    "take, flattened": (lambda x: tt.take(x, tt.tensor(PICK)) ** 2, lambda x: torch.take(x, torch.tensor(PICK)) ** 2, BLOCK),
    "take_along_axis": (
        lambda x: tt.take_along_axis(x, tt.tensor(PICK), -1) ** 2,
        lambda x: torch.take_along_dim(x, torch.tensor(PICK), -1) ** 2,
        BLOCK,
    ),
    "take_along_axis, a broadcast x": (
        lambda x: tt.take_along_axis(tt.broadcast_to(x, (2, 3, 4)), tt.tensor(PICK), 2),
        lambda x: torch.take_along_dim(torch.broadcast_to(x, (2, 3, 4)), torch.tensor(PICK), 2),
        X[:1],
    ),
    "scatter, pairs that repeat": (
        lambda v: tt.scatter(v * v, PAIRS, (3, 4)),
        lambda v: torch.zeros(3, 4, dtype=v.dtype).index_put(torch_index(PAIRS), v * v, accumulate=True),
        Y[0, :3],
    ),
    "index_add": (
        lambda x, v: tt.index_add(x, tt.tensor(ROWS), v * v, axis=1),
        lambda x, v: torch.index_add(x, 1, torch.tensor(ROWS), v * v),
        BLOCK,
        normal(2, 4, 4, seed=2),
    ),
    "index_add, first axis": (
        lambda x, v: tt.index_add(x, tt.tensor(ROWS), v),
        lambda x, v: torch.index_add(x, 0, torch.tensor(ROWS), v),
        X,
        normal(4, 4, seed=2),
    ),
    "sum_rows": (
        lambda v: tt.sum_rows(v * v, PICK[0, :, :4], 6),
        lambda v: torch.zeros(6, 5, dtype=v.dtype).index_add(0, torch.tensor(PICK[0, :, :4]).flatten(), (v * v).flatten(0, 1)),
        normal(3, 4, 5),
    ),
    "embedding": (
        lambda w: tt.functional.embedding(tt.tensor(PICK), w * w),
        lambda w: F.embedding(torch.tensor(PICK), w * w),
        normal(6, 3),
    ),
    "sort": (lambda x: tt.sort(x, 1) ** 2, lambda x: torch.sort(x, 1).values ** 2, SHUFFLED),
    "sort, last axis": (tt.sort, lambda x: torch.sort(x).values, SHUFFLED),
    "topk": (lambda x: tt.topk(x, 3)[0] ** 2, lambda x: torch.topk(x, 3).values ** 2, SHUFFLED),
    "topk, axis 1": (lambda x: tt.topk(x, 2, 1)[0], lambda x: torch.topk(x, 2, 1).values, SHUFFLED),
    "topk, of none": (lambda x: tt.topk(x, 0)[0], lambda x: torch.topk(x, 0).values, SHUFFLED),
}


# ------------------------------------------------------------------------------------------------------------- shapes

SHAPES = {
    "reshape": (lambda x: x.reshape(4, -1) ** 2, lambda x: x.reshape(4, -1) ** 2, BLOCK),
    "transpose": (lambda x: tt.transpose(x, (2, 0, 1)) ** 2, lambda x: x.permute(2, 0, 1) ** 2, BLOCK),
    "T": (lambda x: x.T, lambda x: x.T, X),
    "swapaxes": (lambda x: tt.swapaxes(x, 0, -1), lambda x: torch.swapaxes(x, 0, -1), BLOCK),
    "moveaxis": (lambda x: tt.moveaxis(x, 0, -1), lambda x: torch.movedim(x, 0, -1), BLOCK),
    "moveaxis, two": (lambda x: tt.moveaxis(x, (0, 1), (2, 0)), lambda x: torch.movedim(x, (0, 1), (2, 0)), BLOCK),
    "squeeze": (lambda x: tt.squeeze(x, 1), lambda x: torch.squeeze(x, 1), BLOCK[:, :1]),
    "squeeze, all": (tt.squeeze, torch.squeeze, BLOCK[:1, :, :1]),
    "expand_dims": (lambda x: tt.expand_dims(x, (0, -1)), lambda x: x[None, ..., None], X),
    "broadcast_to": (lambda x: tt.broadcast_to(x, (2, 3, 4)), lambda x: torch.broadcast_to(x, (2, 3, 4)), X[:, :1]),
    "concatenate": (lambda x, y: tt.concatenate([x, y * y, x], 1), lambda x, y: torch.cat([x, y * y, x], 1), X, Y[:, :2]),
    "stack": (lambda x, y: tt.stack([x, y * y], -1), lambda x, y: torch.stack([x, y * y], -1), X, Y),
    "split": (lambda x: tt.split(x, 2, -1)[1] ** 2, lambda x: torch.split(x, 2, -1)[1] ** 2, X),
    "split, at places": (
        lambda x: tt.split(x, [1, 3], -1)[1] * tt.split(x, [1, 3], -1)[0],
        lambda x: torch.tensor_split(x, (1, 3), -1)[1] * torch.tensor_split(x, (1, 3), -1)[0],
        X,
    ),
    "flip": (lambda x: tt.flip(x, (0, 2)), lambda x: torch.flip(x, (0, 2)), BLOCK),
    "flip, all": (tt.flip, lambda x: torch.flip(x, (0, 1, 2)), BLOCK),
    "pad": (lambda x: tt.pad(x, ((1, 0), (2, 3)), constant_values=1.5), lambda x: F.pad(x, (2, 3, 1, 0), value=1.5), X),
    "pad, all around": (lambda x: tt.pad(x, 2) ** 2, lambda x: F.pad(x, (2, 2, 2, 2)) ** 2, X),
    "repeat": (lambda x: tt.repeat(x, 3, 1), lambda x: torch.repeat_interleave(x, 3, 1), BLOCK),
    "repeat, each its own": (
        lambda x: tt.repeat(x, [2, 0, 3], 0),
        lambda x: torch.repeat_interleave(x, torch.tensor([2, 0, 3]), 0),
        X,
    ),
    "repeat, flattened": (lambda x: tt.repeat(x, 2), lambda x: torch.repeat_interleave(x, 2), X),
    "tile": (lambda x: tt.tile(x, (2, 1, 3)), lambda x: torch.tile(x, (2, 1, 3)), X),
    "tile, fewer axes": (lambda x: tt.tile(x, 2), lambda x: torch.tile(x, (2,)), X),
    "tril": (lambda x: tt.tril(x, 1) ** 2, lambda x: torch.tril(x, 1) ** 2, BLOCK),
    "triu": (lambda x: tt.triu(x, -1) ** 2, lambda x: torch.triu(x, -1) ** 2, BLOCK),
}

# ----------------------------------------------------------------------------------------------------------- products

A, B = normal(3, 4), normal(4, 5, seed=1)
EINSUMS = {
    "ij,jk->ik": (A, B),
    "ij,jk": (A, B),
    "ij->ji": (A,),
    "ij->": (A,),
    "ij->i": (A,),
    "ii->i": (normal(4, 4),),
    "ii": (normal(4, 4),),
    "iij->ij": (normal(3, 3, 2),),
    "iji->j": (normal(3, 2, 3),),
    "i,j->ij": (A[0], B[0]),
    "i,i->": (A[0], B[:, 0]),
    "ij,ij->j": (A, normal(3, 4, seed=2)),
    "bij,bjk->bik": (normal(2, 3, 4), normal(2, 4, 5, seed=1)),
    "bhtd,bhsd->bhts": (normal(2, 2, 3, 4), normal(2, 2, 5, 4, seed=1)),
    "...ij,...jk->...ik": (normal(2, 3, 4), normal(1, 4, 5, seed=1)),
    "...ij,jk->...ik": (normal(2, 3, 4), B),
    "...i,...i->...": (normal(2, 3, 4), normal(3, 4, seed=1)),
    "ij,kl->il": (A, B),
    "ij,jk,kl->il": (A, B, normal(5, 2, seed=2)),
    "bn,anm,bm->ba": (normal(2, 3), normal(4, 3, 5, seed=1), normal(2, 5, seed=2)),
}

PRODUCTS = {
    "matmul": (tt.matmul, torch.matmul, A, B),
    "matmul, vectors": (tt.matmul, torch.matmul, A[0], B[:, 0]),
    "matmul, a row": (tt.matmul, torch.matmul, A[0], B),
    "matmul, a column": (tt.matmul, torch.matmul, A, B[:, 0]),
    "matmul, a batch and a matrix": (tt.matmul, torch.matmul, normal(2, 3, 4), B),
    "matmul, a matrix and a batch": (tt.matmul, torch.matmul, A, normal(2, 4, 5)),
    "matmul, a vector and a batch": (tt.matmul, torch.matmul, A[0], normal(2, 4, 5)),
    "matmul, a batch and a vector": (tt.matmul, torch.matmul, normal(2, 3, 4), B[:, 0]),
    "matmul, batches that broadcast": (tt.matmul, torch.matmul, normal(2, 1, 3, 4), normal(5, 4, 2, seed=1)),
    "matmul, x by its transpose": (lambda x: x @ x.T, lambda x: x @ x.T, A),
    "matmul, of no rows": (tt.matmul, torch.matmul, A[:0], B),
    "matmul, over nothing": (tt.matmul, torch.matmul, A[:, :0], B[:0]),
    "outer": (tt.outer, torch.outer, A[0], B[0]),
    "linear": (tt.linear, F.linear, normal(2, 3, 4), B.T.copy(), normal(5)),
    **{
        f"einsum {text}": (lambda *x, text=text: tt.einsum(text, *x), lambda *x, text=text: torch.einsum(text, *x), *arrays)
        for text, arrays in EINSUMS.items()
    },
}

# ---------------------------------------------------------------------------------------- fused, and composed of many

COMPOSITES = {
    "layer_norm": (tt.layer_norm, lambda x, w, b: F.layer_norm(x, (4,), w, b), BLOCK, Y[0], Y[1]),
    "rms_norm": (tt.rms_norm, lambda x, w: F.rms_norm(x, (4,), w, 1e-5), BLOCK, Y[0]),
    "cross_entropy": (
        lambda x: tt.cross_entropy(x, tt.tensor([2, -100, 0]), label_smoothing=0.1),
        lambda x: F.cross_entropy(x, torch.tensor([2, -100, 0]), label_smoothing=0.1),
        X * 3,
    ),
    "attention": (
        lambda q, k, v: tt.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(3, 5).tril(2).bool()),
        normal(2, 3, 4),
        normal(2, 5, 4, seed=1),
        normal(2, 5, 2, seed=2),
    ),
    "two layers and a loss": (
        lambda x, w, v: tt.cross_entropy(tt.gelu(tt.layer_norm(x @ w), "tanh") @ v, tt.tensor([1, 0, 2])),
        lambda x, w, v: F.cross_entropy(F.gelu(F.layer_norm(x @ w, (5,)), approximate="tanh") @ v, torch.tensor([1, 0, 2])),
        A,
        B,
        normal(5, 3, seed=2),
    ),
    "a diamond": (lambda x: tt.sin(x) * tt.exp(x) / (1 + x * x), lambda x: torch.sin(x) * torch.exp(x) / (1 + x * x), X),
    "distances": (
        lambda x: tt.sqrt(tt.sum(tt.square(x[:, None] - x[None]), -1) + 1),
        lambda x: torch.sqrt(torch.sum(torch.square(x[:, None] - x[None]), -1) + 1),
        X,
    ),
}

SMOOTH = {**ELEMENTWISE, **REDUCTIONS, **INDEXING, **SHAPES, **PRODUCTS, **COMPOSITES}


@pytest.mark.parametrize("name", SMOOTH)
def test_first_and_second_derivatives(name):
    ours, theirs, *arrays = SMOOTH[name]
    # The absolute tolerance is for derivatives that are 0 in exact arithmetic and differences of ones in ours.
    assert_same(ours, theirs, *arrays, relative=1e-10, absolute=1e-11, order=2)


# -------------------------------------------------------------------------------------------------------------- edges

TIES = numpy.array([[1.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0], [-1.0, -1.0, -2.0, -2.0]])
ZERO_ROW = X.copy()
ZERO_ROW[1] = 0.0
FLAT_ROW = X.copy()
FLAT_ROW[1] = 0.75
NO_CHANCE = X.copy()
NO_CHANCE[0, 2] = -numpy.inf
BASES = numpy.array([0.0, 0.0, 0.0, 2.0, -2.0, 1.0])
EXPONENTS = numpy.array([0.0, 1.0, 2.0, 0.0, 0.0, 0.0])

EDGES = {
    "max, ties": (lambda x: tt.max(x, 1), lambda x: torch.amax(x, 1), TIES),
    "max, ties over all": (tt.max, torch.amax, TIES),
    "min, ties": (lambda x: tt.min(x, -1, keepdims=True), lambda x: torch.amin(x, -1, keepdim=True), TIES),
    "min, ties over two axes": (lambda x: tt.min(x, (0, 1)), lambda x: torch.amin(x, (0, 1)), TIES),
    "maximum, ties": (tt.maximum, torch.maximum, TIES, TIES[:1]),
    "minimum, ties": (tt.minimum, torch.minimum, TIES, TIES[:1]),
    "clip, at its ends": (lambda x: tt.clip(x, -1.0, 2.0), lambda x: torch.clamp(x, -1.0, 2.0), TIES),
    "relu, at 0": (tt.relu, torch.relu, TIES - 1),
    "leaky_relu, at 0": (tt.leaky_relu, F.leaky_relu, TIES - 1),
    "abs, at 0": (tt.abs, torch.abs, TIES - 1),
    "sign, at 0": (lambda x: tt.sign(x) + x, lambda x: torch.sign(x) + x, TIES - 1),
    "norm, of zeros": (lambda x: tt.norm(x, axis=1), lambda x: torch.linalg.vector_norm(x, 2, 1), ZERO_ROW),
    "norm 1, of zeros": (lambda x: tt.norm(x, 1, 1), lambda x: torch.linalg.vector_norm(x, 1, 1), ZERO_ROW),
    "norm inf, ties": (lambda x: tt.norm(x, math.inf, 1), lambda x: torch.linalg.vector_norm(x, math.inf, 1), TIES),
    "std, of equals": (lambda x: tt.std(x, 1), lambda x: torch.std(x, 1, correction=0), FLAT_ROW),
    "var, of equals": (lambda x: tt.var(x, 1), lambda x: torch.var(x, 1, correction=0), FLAT_ROW),
    "sqrt, at 0": (tt.sqrt, torch.sqrt, numpy.array([0.0, 4.0])),
    "log, at 0": (tt.log, torch.log, numpy.array([0.0, 4.0])),
    "divide, by 0": (lambda x, y: x / y, lambda x, y: x / y, numpy.array([1.0, -2.0]), numpy.array([0.0, 4.0])),
    "power, 0 ** 0 and others": (lambda x, y: x**y, lambda x, y: x**y, BASES, EXPONENTS),
    "power, 0 at 0": (lambda x: x**0, lambda x: x**0, BASES),
    "power, 1 at 0": (lambda x: x**1, lambda x: x**1, BASES),
    "power, 2 at 0": (lambda x: x**2, lambda x: x**2, BASES),
    "power, 3 of negatives": (lambda x: x**3.0, lambda x: x**3.0, BASES),
    "power, -1 of negatives": (lambda x: x**-1, lambda x: x**-1, BASES[3:]),
    "power, 0 to a tensor": (lambda y: 0.0**y, lambda y: 0.0**y, positive(3)),
    "logsumexp, with -inf": (lambda x: tt.logsumexp(x, -1), lambda x: torch.logsumexp(x, -1), NO_CHANCE),
    "softmax, with -inf": (tt.softmax, lambda x: torch.softmax(x, -1), NO_CHANCE),
    "sigmoid, far out": (tt.sigmoid, torch.sigmoid, numpy.array([-800.0, -40.0, 40.0, 800.0])),
    "tanh, far out": (tt.tanh, torch.tanh, numpy.array([-800.0, -40.0, 40.0, 800.0])),
    "softplus, far out": (tt.softplus, F.softplus, numpy.array([-800.0, -40.0, 40.0, 800.0])),
}


@pytest.mark.parametrize("name", EDGES)
def test_conventions_at_the_edges(name):
    ours, theirs, *arrays = EDGES[name]
    with numpy.errstate(divide="ignore"):
        assert_same(ours, theirs, *arrays, relative=1e-10)


@pytest.mark.parametrize("size", [1e-12, 1e-6, 1e-3, 0.5, 0.9999, 1.0001, 2.0, 3.0, 5.0, 5.9, 6.1, 30.0])
def test_erf_of_one_number(size):
    """Each by itself, so that the digits of a small value count; on both sides of where the formula changes."""
    for x in (size, -size):
        assert_same(tt.erf, torch.erf, numpy.array([x]), relative=1e-13)


# -------------------------------------------------------------------------------------------------- without gradients

WITHOUT_GRADIENTS = {
    "argmax": (lambda x: tt.argmax(x), lambda x: torch.argmax(x)),
    "argmax, axis": (lambda x: tt.argmax(x, 1), lambda x: torch.argmax(x, 1)),
    "argmin, keepdims": (lambda x: tt.argmin(x, -1, keepdims=True), lambda x: torch.argmin(x, -1, keepdim=True)),
    "argsort": (lambda x: tt.argsort(x, 1), lambda x: torch.argsort(x, stable=True, dim=1)),
    "topk's indices": (lambda x: tt.topk(x, 2, 1)[1], lambda x: torch.topk(x, 2, 1).indices),
    "any": (lambda x: tt.any(x > 1.5, 1), lambda x: torch.any(x > 1.5, 1)),
    "all": (lambda x: tt.all(x > -1, (0, 2)), lambda x: torch.all(torch.all(x > -1, 2), 0)),
    "comparisons": (lambda x: (x > 0) & (x <= 1) | (x == x[0, 0, 0]), lambda x: (x > 0) & (x <= 1) | (x == x[0, 0, 0])),
    "comparisons, too": (lambda x: ~(x >= 0) ^ (x != x[0]), lambda x: ~(x >= 0) ^ (x != x[0])),
    "isnan": (lambda x: tt.isnan(tt.where(x > 0, math.nan, x)), lambda x: torch.isnan(torch.where(x > 0, math.nan, x))),
    "isfinite": (lambda x: tt.isfinite(tt.where(x > 0, math.inf, x)), lambda x: x <= 0),
}


@pytest.mark.parametrize("name", WITHOUT_GRADIENTS)
def test_without_gradients(name):
    ours, theirs = WITHOUT_GRADIENTS[name]
    assert_close(ours(tt.tensor(SHUFFLED)), theirs(torch.tensor(SHUFFLED)))


# ------------------------------------------------------------------------------------------------------------- dtypes

DTYPES = ["bool", "int32", "int64", "float32", "float64"]
BINARY = {"add": lambda x, y: x + y, "multiply": lambda x, y: x * y, "divide": lambda x, y: x / y, "less": lambda x, y: x < y}


@pytest.mark.parametrize("operation", BINARY)
@pytest.mark.parametrize("first", DTYPES)
@pytest.mark.parametrize("second", DTYPES)
def test_dtypes_of_pairs(operation, first, second):
    x, y = numpy.array([1, 0, 1]).astype(first), numpy.array([1, 1, 1]).astype(second)
    f = BINARY[operation]
    assert_close(f(tt.tensor(x), tt.tensor(y)), f(torch.tensor(x), torch.tensor(y)))


@pytest.mark.parametrize("operation", BINARY)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [True, 2, 2.5], ids=str)
def test_dtypes_with_python_numbers(operation, dtype, number):
    x = numpy.array([1, 0, 1]).astype(dtype)
    f = BINARY[operation]
    assert_close(f(tt.tensor(x), number), f(torch.tensor(x), number))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum", "prod", "cumsum"])
def test_dtypes_of_sums(name, dtype):
    x = numpy.array([1, 0, 1]).astype(dtype)
    assert_close(getattr(tt, name)(tt.tensor(x), 0), getattr(torch, name)(torch.tensor(x), 0))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "bool"])
@pytest.mark.parametrize("name", ["exp", "log1p", "sqrt", "sigmoid", "tanh", "erf", "reciprocal", "square", "abs"])
def test_dtypes_of_functions(name, dtype):
    x = numpy.array([1, 2, 3]).astype(dtype)
    assert_close(getattr(tt, name)(tt.tensor(x)), getattr(torch, name)(torch.tensor(x)))


@pytest.mark.parametrize("source", DTYPES)
@pytest.mark.parametrize("target", DTYPES)
def test_conversions(source, target):
    x = numpy.array([0, 1, 1]).astype(source)
    assert_close(tt.tensor(x).astype(target), torch.tensor(x).to(getattr(torch, target)))


def test_conversions_pass_gradients_back():
    """A gradient has its tensor's dtype, so what comes back through float32 is rounded on the way, as in PyTorch."""
    x, c = normal(3, 4), normal(3, 4, seed=1)
    mine, its = tt.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    (mine.astype("float32") * mine).backward(tt.tensor(c))
    (its.float() * its).backward(torch.tensor(c))
    assert_close(mine.grad, its.grad, relative=1e-7)
