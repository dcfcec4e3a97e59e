"""Wrong input: every error names the op, what it got, and what to do instead."""

import math
import re

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn
from tinytensor.autograd.op import Op, all_ops

x = tt.ones((2, 3))  # a constant of shape (2, 3)
w = tt.tensor(np.ones((2, 3)), requires_grad=True)
ids = tt.tensor([0, 1])
array = np.ones((2, 3))

attention, heads, turn = tt.scaled_dot_product_attention, tt.multi_head_attention, tt.norm_and_rotate
broadcast = "each pair must be equal, or one of them 1"
the_shape_of_a_row = "weight and bias have the shape of a row"
make_it = r"tt.tensor(...)"


def ones(*shape):
    return tt.ones(shape)


# What is done, the kind of error, and what its message must contain.
SHAPES = {
    "matmul": (lambda: x @ x, ValueError, ["matmul", "(2, 3), (2, 3)", "last axis of the first (3)"]),
    "matmul batches": (lambda: ones(2, 3, 4) @ ones(3, 4, 5), ValueError, ["matmul", "(2, 3, 4), (3, 4, 5)", broadcast]),
    "matmul scalar": (lambda: x @ 2.0, ValueError, ["matmul", "use * for a scalar"]),
    "add": (lambda: x + ones(2, 4), ValueError, ["add", "(2, 3), (2, 4)", broadcast]),
    "multiply": (lambda: x * ones(2), ValueError, ["multiply", "(2, 3), (2,)", broadcast]),
    "maximum": (lambda: tt.maximum(x, ones(4)), ValueError, ["maximum", "(2, 3), (4,)", broadcast]),
    "where": (lambda: tt.where(x > 0, x, ones(4)), ValueError, ["where", "(2, 3), (2, 3), (4,)", broadcast]),
    "less": (lambda: x < ones(4), ValueError, ["less", "(2, 3), (4,)", broadcast]),
    "broadcast_to": (lambda: tt.broadcast_to(x, (3, 3)), ValueError, ["broadcast_to", "(2, 3)", broadcast]),
    "broadcast_to fewer axes": (lambda: tt.broadcast_to(x, (3,)), ValueError, ["broadcast_to", "(2, 3)", broadcast]),
    "linear": (lambda: tt.linear(x, ones(4, 5)), ValueError, ["linear", "(2, 3), (4, 5)", "as many inputs as weight"]),
    "roll": (lambda: x.roll((1, 2, 3), (0, 1)), ValueError, ["roll", "3 shifts for 2 axes", "one for each axis"]),
    "einsum, two ellipses": (lambda: tt.einsum("...a...,a->a", x, x[0]), ValueError, ["'...a...'", "at most one ellipsis"]),
    "einsum, dots": (lambda: tt.einsum("..a->a", x), ValueError, ["'..a' must have letters and at most one ellipsis"]),
    "einsum, a comma": (lambda: tt.einsum("ab->a,b", x), ValueError, ["'a,b' must have letters"]),
    "norm of a name": (lambda: x.norm("fro"), ValueError, ["norm", "'fro'", "Frobenius"]),
    "linear bias": (lambda: tt.linear(x, ones(4, 3), ones(5)), ValueError, ["linear", "(2, 3), (4, 3), (5,)", "(outputs,)"]),
    "linear bias axes": (
        lambda: tt.linear(x, ones(4, 3), ones(2, 2, 4)),
        ValueError,
        ["linear", "(2, 2, 4)", "bias must be (outputs,)"],
    ),
    "Linear": (lambda: nn.Linear(3, 2)(ones(2, 4)), ValueError, ["linear", "(2, 4), (2, 3)"]),
    "concatenate": (lambda: tt.concatenate([x, ones(2, 4)]), ValueError, ["concatenate", "(2, 3), (2, 4)", "must match"]),
    "concatenate axes": (
        lambda: tt.concatenate([x, ones(3)]),
        ValueError,
        ["concatenate", "(2, 3), (3,)", "number of dimensions"],
    ),
    "concatenate nothing": (lambda: tt.concatenate([]), ValueError, ["concatenate", "at least one"]),
    "stack": (lambda: tt.stack([x, ones(3)]), ValueError, ["stack", "one shape", "(2, 3)", "(3,)"]),
    "reshape": (lambda: x.reshape(4), ValueError, ["reshape", "(2, 3)", "size 6", "(4,)"]),
    "reshape unknowns": (lambda: x.reshape(-1, -1), ValueError, ["reshape", "(2, 3)", "one unknown"]),
    "transpose": (lambda: x.transpose(0), ValueError, ["transpose", "(2, 3)"]),
    "squeeze": (lambda: x.squeeze(0), ValueError, ["squeeze", "(2, 3)", "axis 0 is not of length 1"]),
    "pad mode": (lambda: x.pad(1, "mirror"), ValueError, ["pad", "'mirror'", "reflect"]),
    "tensordot": (lambda: tt.tensordot(x, x, 1), ValueError, ["tensordot", "(2, 3), (2, 3)", "differ"]),
    "diag": (lambda: tt.diag(ones(1, 2, 3)), ValueError, ["diag", "(1, 2, 3)", "diagonal"]),
    "scatter of more axes": (lambda: tt.scatter(ones(1, 2), slice(0, 2), (3,)), ValueError, ["scatter", "(1, 2)"]),
    "split": (lambda: x.split(2, axis=1), ValueError, ["split", "(2, 3)", "length 3", "2 parts"]),
    "pad": (lambda: x.pad(((1, 1), (1, 1), (1, 1))), ValueError, ["pad", "(2, 3)", "(before, after)"]),
    "moveaxis": (lambda: x.moveaxis((0, 1), 0), ValueError, ["moveaxis", "2 source axes but 1"]),
    "tril": (lambda: tt.tril(ones(3)), ValueError, ["tril", "(3,)", "matrix"]),
    "topk": (lambda: x.topk(5), ValueError, ["topk", "(2, 3)", "k=5", "3"]),
    "max of nothing": (lambda: ones(0, 3).max(axis=0), ValueError, ["max", "(0, 3)", "length 0"]),
    "layer_norm": (lambda: tt.layer_norm(x, ones(4)), ValueError, ["layer_norm", "(2, 3), (4,)", the_shape_of_a_row]),
    "layer_norm bias": (lambda: tt.layer_norm(x, bias=ones(2, 3)), ValueError, ["layer_norm", "(2, 3)", the_shape_of_a_row]),
    "layer_norm of a number": (lambda: tt.layer_norm(tt.tensor(1.0)), ValueError, ["layer_norm", "()", "needs a last axis"]),
    "layer_norm weight a number": (lambda: tt.layer_norm(x, 2.0), TypeError, ["layer_norm", "weight", "got 2.0"]),
    "rms_norm": (lambda: tt.rms_norm(x, ones(4)), ValueError, ["rms_norm", "(2, 3), (4,)", the_shape_of_a_row]),
    "einsum lengths": (lambda: tt.einsum("ij,jk", x, x), ValueError, ["einsum", "(2, 3), (2, 3)", "'j'"]),
    "einsum terms": (lambda: tt.einsum("ij", x, x), ValueError, ["einsum", "1 term for 2 tensors"]),
    "einsum axes": (lambda: tt.einsum("ijk", x), ValueError, ["einsum", "'ijk'", "(2, 3)"]),
    "einsum diagonal": (lambda: tt.einsum("ii", x), ValueError, ["einsum", "'i'", "(2, 3)"]),
    "cross_entropy": (
        lambda: tt.cross_entropy(x, tt.arange(3)),
        ValueError,
        ["cross_entropy", "(2, 3)", "(3,)", "the classes"],
    ),
    "cross_entropy soft": (
        lambda: tt.cross_entropy(x, ones(2)),
        ValueError,
        ["cross_entropy", "probabilities", "(2,)", "(2, 3)"],
    ),
    "linear_cross_entropy": (
        lambda: tt.linear_cross_entropy(x, ones(4, 5), tt.arange(2)),
        ValueError,
        ["linear_cross_entropy", "(2, 3)", "(2,)", "at the end, as wide as the weight (4, 5)"],
    ),
    "mse_loss": (lambda: tt.mse_loss(x, ones(3)), ValueError, ["mse_loss", "(2, 3)", "(3,)"]),
    "binary": (lambda: tt.binary_cross_entropy_with_logits(x, ones(3)), ValueError, ["binary", "(2, 3)", "(3,)"]),
    "attention widths": (lambda: attention(x, ones(4, 2), ones(4, 2)), ValueError, ["attention", "(2, 3)", "(4, 2)", "width"]),
    "attention lengths": (lambda: attention(x, x, ones(4, 2)), ValueError, ["attention", "(4, 2)", "length"]),
    "attention axes": (lambda: attention(ones(3), ones(3), ones(3)), ValueError, ["attention", "(3,)", "(..., length, width)"]),
    "linear of a vector": (
        lambda: tt.linear(tt.tensor(1.0), ones(2)),
        ValueError,
        ["linear", "(2,)", "weight (outputs, inputs)"],
    ),
    "heads": (lambda: heads(ones(2, 3, 10), 2), ValueError, ["multi_head_attention", "(2, 3, 10)", "3 * width", "num_heads=2"]),
    "heads of a matrix": (lambda: heads(ones(3, 12), 2), ValueError, ["multi_head_attention", "(3, 12)", "(batch, length"]),
    "memory width": (lambda: heads(ones(2, 3, 4), 2, ones(2, 5, 4)), ValueError, ["(2, 3, 4)", "(2, 5, 4)", "2 * width"]),
    "memory batch": (lambda: heads(ones(2, 3, 4), 2, ones(1, 5, 8)), ValueError, ["(2, 3, 4)", "(1, 5, 8)", "batch"]),
    "heads mask": (lambda: heads(ones(2, 3, 12), 2, mask=ones(3, 5) > 0), ValueError, ["multi_head", "(3, 5)", broadcast]),
    "heads array": (lambda: heads(ones(2, 3, 4), 2, np.ones((2, 5, 8))), TypeError, ["memory", "ndarray", "tt.tensor"]),
    "attention mask": (lambda: attention(x, x, x, ones(3, 5) > 0), ValueError, ["attention", "(3, 5)", broadcast]),
    "take_along_axis": (lambda: x.take_along_axis(ids, 0), IndexError, ["take_along_axis", "(2,)", "(2, 3)"]),
    "index_add": (lambda: x.index_add([0], x), ValueError, ["(2, 3)", "(1,)", broadcast]),
    "sum_rows": (lambda: tt.sum_rows(x, tt.arange(1), 3), ValueError, ["sum_rows", "(2, 3), (1,)", "one id"]),
    "tensor of ragged lists": (lambda: tt.tensor([[1, 2], [3]]), ValueError, ["equal lengths", "[[1, 2], [3]]"]),
    "assign": (lambda: nn.Parameter([1.0, 2.0]).assign([1.0]), ValueError, ["(1,)", "(2,)"]),  # NumPy would broadcast it
}

AXES = {
    "sum": lambda: x.sum(axis=2),
    "mean": lambda: x.mean(axis=2),
    "var": lambda: x.var(axis=2),
    "std": lambda: x.std(axis=2),
    "prod": lambda: x.prod(axis=2),
    "max": lambda: x.max(axis=2),
    "argmax": lambda: x.argmax(axis=2),
    "logsumexp": lambda: x.logsumexp(axis=2),
    "norm": lambda: x.norm(axis=2),
    "cumsum": lambda: x.cumsum(axis=2),
    "cumprod": lambda: x.cumprod(axis=2),
    "cummax": lambda: x.cummax(axis=2),
    "diagonal": lambda: x.diagonal(0, 0, 2),
    "roll": lambda: x.roll(1, 2),
    "any": lambda: x.any(axis=2),
    "softmax": lambda: x.softmax(axis=2),
    "log_softmax": lambda: x.log_softmax(axis=2),
    "concatenate": lambda: tt.concatenate([x, x], axis=2),
    "argsort": lambda: x.argsort(axis=2),
    "topk": lambda: x.topk(1, axis=2),
    "swapaxes": lambda: x.swapaxes(0, 2),
    "moveaxis": lambda: x.moveaxis(0, 2),
    "squeeze": lambda: x.squeeze(2),
    "flip": lambda: x.flip(2),
    "split": lambda: x.split(1, axis=2),
    "repeat": lambda: x.repeat(2, axis=2),
    "take": lambda: x.take([0], axis=2),
    "index_add": lambda: x.index_add([0], x, axis=2),
    "transpose": lambda: x.transpose(0, 2),
}

DTYPES = {
    "float index": (lambda: x[tt.tensor([0.5])], IndexError, ["integers or booleans", "float32", ".astype('int64')"]),
    "number as index": (lambda: x[0.5], IndexError, ["integers or booleans", "float"]),
    "float ids": (lambda: tt.embedding(tt.tensor([0.5]), x), TypeError, ["embedding", "float32", ".astype('int64')"]),
    "float classes": (lambda: tt.one_hot(tt.tensor([0.5]), 3), TypeError, ["one_hot", "float32", ".astype('int64')"]),
    "boolean targets": (lambda: tt.cross_entropy(x, ids > 0), TypeError, ["cross_entropy", "bool", "integers"]),
    "integer mask": (
        lambda: attention(x, x, x, tt.ones((2, 2), "int64")),
        TypeError,
        ["attention", "boolean", "True = may attend", "mask > 0"],
    ),
    "gradients of integers": (lambda: tt.tensor([1, 2], requires_grad=True), TypeError, ["int64", ".astype('float32')"]),
    "gradients of integers, later": (lambda: setattr(tt.arange(2), "requires_grad", True), TypeError, ["int64", "float32"]),
    "text": (lambda: tt.tensor("text"), TypeError, ["numbers or booleans", "text"]),
    "complex": (lambda: tt.tensor(1j), TypeError, ["numbers or booleans", "complex"]),
    "to text": (lambda: x.astype(str), TypeError, ["astype", "numbers or booleans"]),
    "index of a float": (lambda: [1, 2][tt.tensor(1.0)], TypeError, ["integer"]),
    "negative power": (lambda: tt.arange(3) ** -1, ValueError, ["power", "(3,)"]),
    "gradcheck": (lambda: tt.gradcheck(tt.exp, tt.tensor([1.0], requires_grad=True)), TypeError, ["float64"]),
}

MIXING = {
    "tensor + array": (lambda: x + array, TypeError, ["add", "array", make_it]),
    "tensor + tuple": (lambda: tt.add(x, (1, 2, 3)), TypeError, ["add", "tuple", make_it]),
    "array + tensor": (lambda: array + x, TypeError, ["add", "array", make_it]),
    "array - tensor": (lambda: array - x, TypeError, ["subtract", make_it]),
    "array / tensor": (lambda: array / x, TypeError, ["divide", make_it]),
    "array ** tensor": (lambda: array**x, TypeError, ["power", make_it]),
    "array == tensor": (lambda: array == x, TypeError, ["equal", make_it]),
    "array < tensor": (lambda: array < x, TypeError, [make_it]),
    "array & tensor": (lambda: (array > 0) & (x > 0), TypeError, [make_it]),
    "tensor @ array": (lambda: x @ array.T, TypeError, ["matmul", "array", make_it]),
    "array @ tensor": (lambda: array.T @ x, TypeError, ["matmul", make_it]),
    "np.exp": (lambda: np.exp(x), TypeError, ["exp", make_it, ".numpy()"]),
    "np.add": (lambda: np.add(array, x), TypeError, ["add", make_it, ".numpy()"]),
    "np.add.reduce": (lambda: np.add.reduce(x), TypeError, ["add", ".numpy()"]),
    "np.asarray": (lambda: np.asarray(w), TypeError, [".numpy()"]),
    "np.concatenate": (lambda: np.concatenate([array, x]), TypeError, [".numpy()"]),
    "where right": (lambda: tt.where(x > 0, x, array), TypeError, ["where", "array", make_it]),
    "where left": (lambda: tt.where(x > 0, array, x), TypeError, ["where", "array", make_it]),
    "concatenate": (lambda: tt.concatenate([x, array]), TypeError, ["concatenate", "array", make_it]),
    "list": (lambda: x[0] + [1, 2, 3], TypeError, ["add", "list", make_it]),
    "list left": (lambda: [1, 2, 3] + x[0], TypeError, ["add", "list", make_it]),
    "text": (lambda: x + "a", TypeError, ["add", "y must be a tensor or a number", "'a'"]),
    "None": (lambda: x + None, TypeError, ["add", "y must be a tensor or a number", "got None"]),
    "operand left out": (lambda: tt.add(x), TypeError, ["add", "y must be a tensor or a number", "got None"]),
    "number for a tensor": (lambda: tt.exp(1.0), TypeError, ["exp", "1.0", make_it]),
    "list for a tensor": (lambda: tt.exp([1.0]), TypeError, ["exp", "list", make_it]),
    "nothing": (lambda: tt.exp(), TypeError, ["exp", "x must be a tensor", "got None"]),
    "too many": (lambda: tt.add(x, x, x), TypeError, ["add", "2 arguments", "3"]),
    "unknown setting": (lambda: x.sum(dim=1), TypeError, ["sum", "dim is axis here", "keepdims"]),
    "array targets": (
        lambda: tt.cross_entropy(x, np.array([0.0, 1.0])),
        TypeError,
        ["cross_entropy", "targets", "ndarray", make_it],
    ),
    "list targets": (lambda: tt.cross_entropy(x, [0, 1]), TypeError, ["cross_entropy", "targets", "list", make_it]),
    "array prediction": (lambda: tt.mse_loss(x, array), TypeError, ["mse_loss", "target", "ndarray", make_it]),
    "array mask": (lambda: attention(x, x, x, np.ones((2, 2))), TypeError, ["attention", "mask", "ndarray", make_it]),
    "gradient": (lambda: (w * 2).backward(array), TypeError, ["gradient", "ndarray", make_it]),
    "gradient number": (lambda: (w * 2).backward(2.0), TypeError, ["gradient", "2.0", make_it]),
}

# A GPU wraps these indices around without an error: checking values there would make the program wait.
OUT_OF_RANGE = {
    "index array": (lambda: x[[0, 5]], IndexError, ["getitem", "(2, 3)", "5", "size 2"]),
    "take": (lambda: x.take([9], axis=0), IndexError, ["(2, 3)", "9"]),
    "id": (lambda: tt.embedding(tt.tensor([5]), x), IndexError, ["embedding", "id 5", "2 rows", "0 to 1"]),
    "negative id": (lambda: tt.embedding(tt.tensor([0, -1]), x), IndexError, ["embedding", "id -1", "0 to 1"]),
    "target": (lambda: tt.cross_entropy(x, tt.tensor([0, 3])), IndexError, ["cross_entropy", "target 3", "0 to 2"]),
    "a probability": (
        lambda: tt.binary_cross_entropy(x * -1.0, ones(2, 3)),
        ValueError,
        ["binary_cross_entropy", "all probabilities must be between 0 and 1", "_with_logits"],
    ),
    "a binary target": (lambda: tt.binary_cross_entropy(ones(2, 3), x + 2.0), ValueError, ["all targets must be between"]),
    "negative target": (lambda: tt.cross_entropy(x, tt.tensor([0, -1])), IndexError, ["cross_entropy", "target -1", "0 to 2"]),
}

VALUES = {
    "index": (lambda: x[5], IndexError, ["getitem", "(2, 3)", "5", "size 2"]),
    "too many indices": (lambda: x[0, 0, 0], IndexError, ["getitem", "(2, 3)", "2-dimensional"]),
    "boolean index": (lambda: x[tt.tensor([True, False, True])], IndexError, ["getitem", "(2, 3), (3,)"]),
    "one_hot": (lambda: tt.one_hot(tt.tensor([0, 5]), 3), IndexError, ["one_hot", "(2,)", "0 to 2"]),
    "clip": (lambda: tt.clip(x), ValueError, ["clip", "min, max or both"]),
    "gelu": (lambda: tt.gelu(x, "yes"), ValueError, ["gelu", "'none' or 'tanh'", "'yes'"]),
    "dropout": (lambda: tt.dropout(x, 1.5), ValueError, ["dropout", "between 0 and 1", "1.5"]),
    "heads of a projection": (lambda: turn(ones(2, 3, 10), 2), ValueError, ["norm_and_rotate", "(2, 3, 10)", "6 * d_head"]),
    "projection of no batch": (lambda: turn(ones(3, 6), 1), ValueError, ["norm_and_rotate", "(3, 6)", "(batch, length, "]),
    "one weight": (lambda: turn(ones(2, 3, 6), 1, 1, ones(2)), ValueError, ["norm_and_rotate", "both be (2,)", "[(2,), None]"]),
    "rotation": (lambda: turn(ones(2, 3, 6), 1, rotation=ones(2, 2)), ValueError, ["norm_and_rotate", "(2, 2)", "here (3, 2)"]),
    "rotation of an odd width": (lambda: turn(ones(2, 3, 9), 1, rotation=ones(3, 3)), ValueError, ["norm_and_rotate", "even"]),
    "rotate_pairs": (lambda: tt.rotate_pairs(x, x, x), ValueError, ["rotate_pairs", "(2, 3)", "an even length"]),
    "swiglu": (lambda: tt.swiglu(x, x[0]), ValueError, ["swiglu", "(3,)", "(2, 3)", "must have the same shape"]),
    "residual": (
        lambda: tt.dropout(x, 0.0, residual=x[0]),
        ValueError,
        ["dropout", "(3,)", "(2, 3)", "must have the shape of x"],
    ),
    "Dropout": (lambda: nn.Dropout(-0.1), ValueError, ["dropout", "between 0 and 1", "-0.1"]),
    "attention dropout": (lambda: attention(x, x, x, dropout_p=2.0), ValueError, ["between 0 and 1", "2.0"]),
    "reduction": (lambda: tt.cross_entropy(x, ids, reduction="avg"), ValueError, ["'mean', 'sum' or 'none'", "'avg'"]),
    "smoothing": (lambda: tt.cross_entropy(x, ids, label_smoothing=2), ValueError, ["smoothing", "between 0 and 1", "2"]),
    "huber_loss": (lambda: tt.huber_loss(x, x, delta=0.0), ValueError, ["huber_loss", "delta must be positive", "0.0"]),
    "huber_loss of NaN": (lambda: tt.huber_loss(x, x, delta=math.nan), ValueError, ["delta must be positive, got nan"]),
    "smooth_l1_loss": (lambda: tt.smooth_l1_loss(x, x, beta=-1.0), ValueError, ["beta must be at least 0, got -1.0"]),
    "smooth_l1_loss of NaN": (lambda: tt.smooth_l1_loss(x, x, beta=math.nan), ValueError, ["beta must be at least 0, got nan"]),
    "cosine_similarity": (lambda: tt.cosine_similarity(x, x, eps=-1.0), ValueError, ["eps must be at least 0, got -1.0"]),
    "isclose": (lambda: tt.isclose(x, x, rtol=math.nan), ValueError, ["isclose", "rtol must be at least 0, got nan"]),
    "allclose": (lambda: tt.allclose(x, x, atol=-1.0), ValueError, ["atol must be at least 0, got -1.0"]),
    "causal_mask": (lambda: tt.causal_mask(2, -1), ValueError, ["causal_mask: a length must be at least 0, got -1"]),
    "the same axis twice": (lambda: x.squeeze((0, 0)), ValueError, ["squeeze", "(0, 0)", "once"]),
    "gradcheck order": (lambda: tt.gradcheck(tt.exp, w, order=3), ValueError, ["order must be 1 or 2", "3"]),
    "gradcheck without gradients": (lambda: tt.gradcheck(tt.exp, x), ValueError, ["requires_grad=True"]),
    "fans": (lambda: nn.init.xavier_uniform_(nn.Parameter([1.0])), ValueError, ["(outputs, inputs)", "(1,)"]),
    "truth": (lambda: bool(x), ValueError, ["(2, 3)", ".any() or .all()"]),
    "item": (lambda: x.item(), ValueError, ["one element", "(2, 3)"]),
    "float": (lambda: float(x), ValueError, ["one element", "(2, 3)"]),
    "length of a scalar": (lambda: len(tt.tensor(1.0)), TypeError, ["no dimensions"]),
    "module without forward": (lambda: nn.Module()(x), TypeError, ["forward", "write one"]),
}

GRADIENTS = {
    "non-scalar": (lambda: (w * 2).backward(), ValueError, ["backward", "(2, 3)", "sum it first, or pass one"]),
    "non-scalar grad": (lambda: tt.grad(w * 2, w), ValueError, ["(2, 3)", "sum it first, or pass one"]),
    "wrong shape": (lambda: (w * 2).backward(ones(3)), ValueError, ["(3,)", "(2, 3)"]),
    "nothing recorded": (lambda: x.sum().backward(), RuntimeError, ["requires_grad=True", "no_grad"]),
    "grad of a constant": (lambda: tt.grad(w.sum(), x), RuntimeError, ["input 0", "(2, 3)", "requires_grad=True"]),
    "grad of nothing recorded": (lambda: tt.grad(x.sum(), w), RuntimeError, ["requires_grad=True"]),
    "setting elements": (lambda: w.__setitem__(0, 1.0), RuntimeError, ["x[i] = y", "tt.where", "tt.concatenate"]),
    "setting elements of a result": (lambda: (w * 2).__setitem__(0, 1.0), RuntimeError, ["tt.where", "tt.concatenate"]),
    "setting grad of a result": (lambda: setattr(w * 2, "grad", x), RuntimeError, ["leaf", "requires_grad=True"]),
    "setting grad of a constant": (lambda: setattr(x, "grad", x), RuntimeError, ["leaf", "requires_grad=True"]),
    "setting a gradient's shape": (lambda: setattr(w, "grad", tt.ones(3, "float64")), ValueError, ["(3,)", "(2, 3)"]),
    "setting a gradient's dtype": (lambda: setattr(w, "grad", x), ValueError, ["float32", "float64"]),
}


kinds = {"shapes": SHAPES, "dtypes": DTYPES, "mixing": MIXING, "values": VALUES, "gradients": GRADIENTS}
messages = {f"{kind}: {name}": entry for kind, entries in kinds.items() for name, entry in entries.items()}


def check_message(act, kind, says):
    with pytest.raises(kind) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    for part in says:
        assert part in message


@pytest.mark.parametrize("name", messages)
def test_message(name):
    check_message(*messages[name])
    if name.startswith(("shapes", "dtypes", "mixing: tensor")):
        with tt.no_grad():  # where nothing is recorded, the same is said
            check_message(*messages[name])


@pytest.mark.needs("numpy")  # values on a GPU are not checked
@pytest.mark.parametrize(("act", "kind", "says"), OUT_OF_RANGE.values(), ids=OUT_OF_RANGE)
def test_message_of_an_index_out_of_range(act, kind, says):
    check_message(act, kind, says)


@pytest.mark.parametrize(("name", "act"), AXES.items(), ids=AXES)
def test_axis_out_of_range(name, act):
    with pytest.raises(IndexError) as caught:
        act()
    message = str(caught.value)
    assert message.startswith(name)
    assert re.search(r"axis 2|destination 2", message)
    assert re.search(r"-2 to 1|-ndim to ndim - 1", message)


def test_expand_dims_counts_the_new_axis():
    with pytest.raises(IndexError, match=r"expand_dims: axis 5 .* -3 to 2"):
        x.expand_dims(5)


def test_an_error_does_not_show_the_librarys_own_chain():
    with pytest.raises(ValueError) as caught:
        x + ones(2, 4)
    assert caught.value.__suppress_context__


FAULTS = {
    "a type": (TypeError, "'NoneType' object is not subscriptable"),
    "a number of arguments": (TypeError, "f() takes 1 positional argument but 2 were given"),
    "a value": (ValueError, "shape mismatch between what we made and what we wanted"),
    "a division": (ZeroDivisionError, "division by zero"),
    "a name": (AttributeError, "'Fault' object has no attribute 'x'"),
}


@pytest.mark.parametrize(("kind", "text"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_a_forward_function_is_not_disguised(kind, text):
    fault = kind(text)

    def forward(x):
        raise fault

    faulty = Op(forward, {"x": lambda g: g})
    del all_ops[faulty.name]
    with pytest.raises(kind) as caught:
        faulty(w)
    assert text in str(caught.value)
    assert "operand is missing" not in str(caught.value)
    assert fault in (caught.value, caught.value.__cause__)


def test_numpy_numbers_are_numbers_on_either_side():
    for number in (np.float64(2.0), np.float32(2.0), np.int64(2)):
        for out in (number * x, x * number, number + x, number - x, number / x, number**x):
            assert isinstance(out, tt.Tensor)
            assert out.dtype == "float32"
        assert (number - x).tolist() == [[1, 1, 1], [1, 1, 1]]
        assert (number > x).tolist() == [[True] * 3] * 2
        assert (number == x).tolist() == [[False] * 3] * 2


def test_setting_elements_is_refused_before_anything_changes():
    leaf = tt.tensor([1.0, 2.0], requires_grad=True)
    with pytest.raises(RuntimeError):
        leaf[0] = 5.0
    assert leaf.tolist() == [1, 2]


def test_numpy_integers_are_axes():
    assert x.mean(axis=np.int64(1)).shape == x.expand_dims(np.int64(0)).squeeze(0).mean(1).shape == (2,)


@pytest.mark.parametrize("norm", [tt.layer_norm, tt.rms_norm])
@pytest.mark.parametrize("mode", [tt.enable_grad, tt.no_grad])
def test_a_norms_weight_does_not_broadcast(norm, mode):
    """The gradient is summed over rows, so a weight of another shape would get a gradient of the shape of a row."""
    for shape in [(), (1,), (1, 3), (2, 3), (2, 1), (2, 1, 3)]:
        with mode(), pytest.raises(ValueError, match="the shape of a row"):
            norm(tt.tensor(np.ones((2, 3)), requires_grad=True), tt.ones(shape))


def test_targets_are_integers_of_any_length():
    logits = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    want = tt.cross_entropy(logits, ids).item()
    for dtype in ("uint8", "int8", "uint16", "int32", "uint64"):  # unsigned dtypes cannot hold -100, the index that is ignored
        assert tt.cross_entropy(logits, ids.astype(dtype)).item() == want
    for loss in (tt.cross_entropy, tt.nll_loss):
        with pytest.raises(TypeError, match="targets must be integers"):
            loss(logits, ids > 0)
