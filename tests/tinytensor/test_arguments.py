"""Arguments: a wrong kind is refused by the function's and the argument's names, and never gives a result."""

from __future__ import annotations

import collections
import copy
import enum
import inspect
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import functional, nn, optim
from tinytensor.autograd.op import Op, op
from tinytensor.device.backend import xp

x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])

# Values that no argument of this annotation may be. Where an annotation has several parts, those that are in all their rows.
WRONG: dict[str, tuple[Any, ...]] = {
    "Tensor": (None, 1.5, 2, True, "text", [1.0, 2.0], {"a": 1}, 1j, len),
    "Parameter": (None, 1.5, 2, True, "text", [1.0, 2.0], {"a": 1}, 1j, len, x),
    "Ids": (None, 1.5, 2, True, "text", [1.0, 2.0], {"a": 1}, 1j, len),
    "Mask": (None, 1.5, 2, "text", [1.0, 2.0], {"a": 1}, 1j, len),
    "Sequence[Tensor]": (None, 1.5, 2, True, "text", [1.0, 2.0], {"a": 1}, 1j, len, x),
    "int": (None, 1.5, True, "text", "1", [1.0, 2.0], [1], {"a": 1}, 1j, len, math.nan, x),
    "float": (None, "text", "1", [1.0, 2.0], [1], {"a": 1}, 1j, len, x),
    "bool": (None, 1.5, 2, "text", "False", [1.0, 2.0], [True], {"a": 1}, 1j, len, x),
    "str": (None, 1.5, 2, True, [1.0, 2.0], ["mean"], {"a": 1}, 1j, len, x),
    "DType": (None, 1.5, 2, True, "text", {"a": 1}, 1j, complex, object, "datetime64[s]"),
    "Sequence[int]": (None, 1.5, 2, True, "text", "1", [1.0, 2.0], [True], ["1"], {"a": 1}, 1j, len, math.nan, x),
    "Sequence[Sequence[int]]": (None, 1.5, 2, True, "text", "1", [1.0, 2.0], [["1"]], {"a": 1}, 1j, len, math.nan, x),
    "Callable": (None, 1.5, 2, True, "text", [1.0, 2.0], {"a": 1}, 1j, x),
    "Mapping[str, Any]": (None, 1.5, 2, True, "text", [1.0, 2.0], 1j, len, x),
    "PathLike": (None, 1.5, 2, True, [1.0, 2.0], {"a": 1}, 1j, len, x),
    "None": (
        1.5,
        2,
        True,
        "text",
        "1",
        "False",
        [1.0, 2.0],
        [1],
        [True],
        {"a": 1},
        1j,
        len,
        math.nan,
        x,
        complex,
        object,
        "U3",
    ),
}
SHORT = {"Axes": "int | Sequence[int] | None", "Shape": "int | Sequence[int]", "Function": "Callable"}


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function and class that users call, each once, with its name."""
    seen = set()
    for module, folder in (
        (tt, ""),
        (functional, ""),
        (tt.linalg, ".linalg"),
        (tt.random, ".random"),
        (nn, ""),
        (nn.init, ".nn.init"),
        (optim, ""),
    ):
        for name, function in vars(module).items():
            is_ours = str(getattr(function, "__module__", "")).startswith("tinytensor" + folder)
            if not name.startswith("_") and callable(function) and is_ours and id(function) not in seen:
                seen.add(id(function))
                if not (inspect.isclass(function) and issubclass(function, Exception)):
                    yield name, function


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    if isinstance(function, Op):
        function = getattr(function, "reference", function.forward)
    return [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]


def parts(parameter: inspect.Parameter) -> list[str]:
    text = str(parameter.annotation)
    found = [name for part in text.split(" | ") for name in SHORT.get(part, part).split(" | ")]
    return ["Callable" if part.startswith("Callable") else part for part in found]


def right(parameter: inspect.Parameter) -> Any:
    """A value of the right kind."""
    if parameter.default is not parameter.empty:
        return parameter.default
    examples: dict[str, Any] = {"Tensor": x, "Sequence[Tensor]": [x, x], "Mask": x > 0, "int": 1, "float": 0.5, "str": ""}
    examples |= {
        "Iterable[Parameter]": [nn.Parameter([[1.0]])],
        "Parameter": nn.Parameter([[1.0]]),
        "Callable": lambda *_: x,
        "Sequence[int]": (1,),
        "Mapping[str, Any]": {},
    }
    return next((examples[part] for part in parts(parameter) if part in examples), x)


def call(function: Callable[..., Any], wrong: inspect.Parameter, value: Any) -> Any:
    """The function with arguments of the right kinds, but one."""
    given, named = [], {}
    for parameter in parameters(function):
        one = value if parameter.name == wrong.name else right(parameter)
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = one
        elif parameter.kind is not parameter.VAR_POSITIONAL or parameter.name == wrong.name:
            given.append(one)
    return function(*given, **named)


CHECKED = [
    pytest.param(name, function, parameter, id=f"{name}({parameter.name})")
    for name, function in public()
    for parameter in parameters(function)
    if all(part in WRONG for part in parts(parameter))
]


@pytest.mark.parametrize(("name", "function", "parameter"), CHECKED)
def test_a_wrong_kind_is_refused(name, function, parameter):
    rows = [[repr(value) for value in WRONG[part]] for part in parts(parameter)]
    for value in WRONG[parts(parameter)[0]]:
        if all(repr(value) in row for row in rows) and not (value is None and parameter.default is None):
            with pytest.raises(TypeError) as caught:
                call(function, parameter, value)
            message = str(caught.value)
            assert parameter.name in message, (value, message)
            assert name in message or function.__module__.startswith("tinytensor.optim"), (value, message)
            assert "\n" not in message


# ---------------------------------------------------------------------------------------------------------- what arrives


class Size(enum.IntEnum):
    TWO = 2


ARRIVING = {
    "numpy axis": (lambda: x.sum(np.int64(0)).shape, (2,)),
    "array of axes": (lambda: x.sum(np.array([0, 1])).shape, ()),
    "0-d array": (lambda: tt.topk(x, np.array(1))[1].shape, (2, 1)),
    "tensor of one integer": (lambda: tt.topk(x, tt.tensor(1))[1].shape, (2, 1)),
    "list of axes": (lambda: x.sum([0, 1]).shape, ()),
    "numpy shape": (lambda: x.reshape(np.array([4, 1])).shape, (4, 1)),
    "numpy sections": (lambda: len(tt.split(x, np.int64(2))), 2),
    "array of places": (lambda: len(tt.split(x, np.array([1]))), 2),
    "numpy reps": (lambda: tt.tile(x, np.int64(2)).shape, (2, 4)),
    "numpy axes": (lambda: tt.tensordot(x, x, np.int64(1)).shape, (2, 2)),
    "0-d array of axes": (lambda: tt.tensordot(x, x, np.array(1)).shape, (2, 2)),
    "0-d tensor of axes": (lambda: tt.tensordot(x, x, tt.tensor(1)).shape, (2, 2)),
    "member of an enumeration": (lambda: tt.elu(-x, Size.TWO).dtype, np.float32),
    "arrays of axes": (lambda: tt.tensordot(x, x, (np.array([0]), [1])).shape, (2, 2)),
    "numpy boolean": (lambda: x.sum(0, keepdims=np.True_).shape, (1, 2)),
    "0 or 1": (lambda: x.sum(0, keepdims=1).shape, (1, 2)),
    "numpy number": (lambda: tt.elu(-x, np.float32(2.0)).dtype, np.float32),
    "generator": (lambda: tt.stack(row for row in x).shape, (2, 2)),
    "generator, no axis": (lambda: tt.concatenate((row for row in x), None).shape, (4,)),
}


@pytest.mark.parametrize(("act", "want"), ARRIVING.values(), ids=ARRIVING)
def test_numbers_of_numpy_become_pythons_and_lists_tuples(act, want):
    assert act() == want


def later(settings: Any, change: Callable[[], None], f: Callable[..., tt.Tensor]) -> tuple[list[float], list[float]]:
    """The gradient of f by its input, with settings that are changed before backward, and without the change."""
    point = tt.tensor([1.0, 2.0, 3.0], requires_grad=True)
    want = tt.grad(f(point, settings).sum(), point).tolist()
    loss = f(point, settings).sum()
    change()
    return tt.grad(loss, point).tolist(), want


@op(x=lambda g, setting: g * sum(setting))
def times_sum(x, setting):
    """A user's op, with a setting of any kind of collection."""
    return x * sum(setting)


class Factors(list):
    """A list with attributes."""


class Pair(NamedTuple):
    first: Any
    second: Any


KEPT = {
    "where": (mask := xp.array([True, False, True]), lambda: mask.fill(False), lambda x, m: tt.where(m, x, 0.0)),
    "masked_fill": (fill := xp.array([True, False, True]), lambda: fill.fill(False), lambda x, m: x.masked_fill(m, 0.0)),
    "a boolean index": (chosen := xp.array([True, False, True]), lambda: chosen.fill(False), lambda x, m: x[m]),
    "an index": (index := xp.array([0, 0]), lambda: index.fill(2), lambda x, i: x[i]),
    "an index in a tuple": (inside := xp.array([0, 0]), lambda: inside.fill(2), lambda x, i: x[None][0, i]),
    "take": (places := xp.array([0, 0]), lambda: places.fill(2), lambda x, i: tt.take(x, i)),
    "embedding": (ids := xp.array([0, 0]), lambda: ids.fill(2), lambda x, i: tt.embedding(i, x.reshape(3, 1))),
    "scatter": (to := xp.array([0, 1, 2]), lambda: to.fill(9), lambda x, i: tt.scatter(x, i, 10)),
    "a list of axes": (axes := [0], lambda: axes.append(1), lambda x, a: tt.sum(x.reshape(3, 1), axis=a)),
    "a list as shape": (shape := [3, 1], lambda: shape.reverse(), lambda x, s: x.reshape(s) * x.reshape(3, 1)),
    "a list of widths": (widths := [1, 2], lambda: widths.reverse(), lambda x, w: tt.pad(x, w) * tt.arange(6.0)),
    "an array in a slice": (stop := np.array(1), lambda: stop.fill(3), lambda x, s: x[:s]),
    "a tensor in a slice": (end := tt.tensor(1), lambda: end.__setitem__((), 3), lambda x, s: x[None, :, None][0, :s]),
    "a user's dict": (named := {1: "a"}, lambda: named.update({2: "b"}), times_sum),
    "a user's set": (group := {1, 2}, lambda: group.add(5), times_sum),
    "a user's deque": (queue := collections.deque([1.0]), lambda: queue.append(5.0), times_sum),
    "a user's class of list": (factors := Factors([1.0]), lambda: factors.append(5.0), times_sum),
    "arrays in a named tuple": (
        pair := Pair(xp.ones(3, "float32"), xp.ones(3, "float32")),
        lambda: pair.first.fill(5.0),
        times_sum,
    ),
    "a checkpoint's array": (
        values := xp.ones(3, "float32"),
        lambda: values.fill(5.0),
        lambda x, v: tt.checkpoint(lambda x, v: x * tt.tensor(v), x, v),
    ),
    "a checkpoint's list": (
        numbers := [1.0, 2.0, 3.0],
        lambda: numbers.reverse(),
        lambda x, v: tt.checkpoint(lambda x, v: x * tt.tensor(v), x, v),
    ),
    "a checkpoint's dict of tensors": (
        state := {"a": tt.tensor([1.0, 2.0, 3.0])},
        lambda: state.update(a=tt.zeros(3)),
        lambda x, s: tt.checkpoint(lambda x, s: x * s["a"], x, s),
    ),
    "rotations": (
        cosine := xp.array([[0.5]], "float32"),
        lambda: cosine.fill(9.0),
        lambda x, c: tt.rotate_pairs(x[:2].reshape(1, 2), c, c),
    ),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_the_caller_changes_later_changes_no_gradient(name):
    found, want = later(*KEPT[name])
    assert found == want


def test_a_setting_keeps_its_class():
    seen = []

    @op(x=lambda g, factors: seen.append(type(factors)))
    def kept(x, factors):
        seen.append(type(factors))
        return x.copy()

    kept(tt.tensor(1.0, requires_grad=True), Factors([1.0])).backward()
    assert seen == [Factors, Factors]


def test_gradients_reach_tensors_in_a_checkpoints_list():
    factor = tt.tensor(2.0, requires_grad=True)
    tt.checkpoint(lambda x, factors: x * factors[0], tt.tensor(3.0, requires_grad=True), [factor]).backward()
    assert factor.grad is not None
    assert factor.grad.item() == 3.0


@pytest.mark.parametrize("function", [tt.sum, tt.layer_norm, tt.zeros, tt.masked_fill])
def test_functions_are_pickled_and_copied_by_name(function):
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function


WRONG_VALUES = {
    "a number in a list": (lambda: tt.sum(x, [0, 1.5]), TypeError, "axis must be .*got the list [0, 1.5]"),
    "an array of fractions": (lambda: tt.split(x, np.array([1.0])), TypeError, "got a numpy.ndarray of float64"),
    "bytes": (lambda: tt.sum(x, bytearray(b"a")), TypeError, "sum: axis"),
    "negative axes": (lambda: tt.tensordot(x, x, -1), ValueError, "tensordot of shapes (2, 2), (2, 2): .* -1 axes"),
    "more axes than there are": (lambda: tt.tensordot(x, x, 3), ValueError, "3 axes"),
    "too few repeats": (lambda: tt.repeat(x, [], 0), ValueError, "repeat: 0 repeats for axis 0 of length 2"),
    "glu": (lambda: tt.glu(x, 2), IndexError, "glu: axis 2"),
    "glu of an odd length": (lambda: tt.glu(tt.ones(3)), ValueError, "glu: axis 0 must have an even length"),
    "stack": (lambda: tt.stack([x, x], 3), IndexError, "stack: axis 3"),
    "the same axes": (lambda: tt.diagonal(x, 0, 1, -1), ValueError, "diagonal: axis1 and axis2"),
    "table of one axis": (lambda: tt.embedding(tt.tensor([0]), tt.ones(2)), ValueError, "embedding: weight must be"),
    "table of three axes": (lambda: tt.embedding(tt.tensor([0]), tt.ones((2, 2, 2))), ValueError, "(2, 2, 2)"),
    "product with a list": (lambda: x @ [1.0, 2.0], TypeError, "matmul: y must be a tensor, got the list [1.0, 2.0]"),
    "requires_grad": (lambda: setattr(tt.ones(1), "requires_grad", "no"), TypeError, "requires_grad: value must be True or"),
    "decimals": (lambda: round(x, {}), TypeError, "round: decimals must be an integer"),
    "state of an LSTM": (lambda: nn.LSTM(2, 1)(x, 1), TypeError, "LSTM takes a pair of states of .*not 1"),
    "states of an LSTM": (lambda: nn.LSTM(2, 1)(x, (x, None)), TypeError, "LSTM takes a pair of states"),
    "state of a GRU": (lambda: nn.GRU(2, 1)(x, [x]), TypeError, "GRU takes a state of .*not the list [a tinytensor.Tensor"),
    "lengths of a GRU": (lambda: nn.GRU(2, 1)(x, None, [True]), ValueError, "GRU: lengths must be 1 integer, one"),
    "a module's state": (lambda: nn.Linear(1, 1).load_state_dict([1]), TypeError, "load_state_dict: state must be a dict"),
    "an optimizer's state": (lambda: sgd().load_state_dict([1]), TypeError, "load_state_dict: state must be a dict"),
    "a name in a state": (lambda: sgd().load_state_dict({1: x}), TypeError, "1 cannot be a name"),
    "a value in a state": (lambda: sgd().load_state_dict({"groups.0.lr": "a"}), TypeError, "a tensor holds numbers"),
    "apply": (lambda: nn.Linear(1, 1).apply(None), TypeError, "apply: function must be a function"),
    "shards": (lambda: tt.parallel.backward(lambda shard: x.sum(), 3), TypeError, "shards must be a list of shards, got 3"),
    "loss of shards": (lambda: tt.parallel.backward(lambda shard: 1.0, [1]), TypeError, "loss must return a tensor, got 1.0"),
}


def sgd() -> optim.SGD:
    return optim.SGD([nn.Parameter([1.0])], lr=0.1)


@pytest.mark.parametrize(("act", "kind", "says"), WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_wrong_value_is_refused_in_the_functions_words(act, kind, says):
    with pytest.raises(kind) as caught:
        act()
    message = str(caught.value)
    assert all(part in message for part in says.split(".*"))
    assert "\n" not in message


# ----------------------------------------------------------------------------------------------------------- NumPy's names

GUIDE = (Path(__file__).parents[2] / "docs/guides/from_numpy.md").read_text("utf-8")
# The tensors, which NumPy gives many names.
OUR_FIRST = "x y tensors subscripts start constant_values".split()
THEIR_FIRST = "A a arr array arrays ary b m tup v x1 x2 start_or_stop operands xi kwargs".split()
OTHER_FUNCTIONS = {"trace", "load", "save"}
ALIKE = [
    name
    for name, function in public()
    if callable(getattr(np, name, None)) and getattr(tt, name, None) is function and name not in OTHER_FUNCTIONS
]


@pytest.mark.parametrize("name", ALIKE)
def test_arguments_have_numpys_names_or_the_guide_says_what_differs(name):
    theirs = list(inspect.signature(getattr(np, name)).parameters)
    ours = [parameter.name for parameter in parameters(getattr(tt, name))]
    differing = {*theirs} - {*ours} - {*THEIR_FIRST} | {*ours} - {*theirs} - {*OUR_FIRST}
    assert [argument for argument in differing if f"`{argument}=`" not in GUIDE] == []
    shared = [theirs.index(argument) for argument in ours if argument in theirs]
    assert shared == sorted(shared) or (
        name in ("std", "var") and "In `std` and `var`, `keepdims=` comes before `ddof=`" in GUIDE
    )


IDS, MAY = np.array([[1, 0], [2, 1]]), np.array([[True, False], [True, True]])
X, W = tt.random.normal((2, 2, 3)), tt.random.normal((3, 3))
TAKE_INTEGERS = {
    "cross_entropy": lambda ids, may: tt.cross_entropy(X, ids),
    "nll_loss": lambda ids, may: tt.nll_loss(tt.log_softmax(X), ids),
    "linear_cross_entropy": lambda ids, may: tt.linear_cross_entropy(X, W, ids),
    "binary_cross_entropy_with_logits": lambda ids, may: tt.binary_cross_entropy_with_logits(X[..., 0], may),
    "attention": lambda ids, may: tt.scaled_dot_product_attention(X, X, X, may),
    "embedding": lambda ids, may: tt.embedding(ids, W),
}


@pytest.mark.parametrize("use", TAKE_INTEGERS.values(), ids=TAKE_INTEGERS)
def test_numpys_integers_and_booleans_are_taken_as_targets_masks_and_indices(use):
    found = use(IDS, MAY)
    assert isinstance(found, tt.Tensor)
    np.testing.assert_array_equal(found.numpy(), use(tt.tensor(IDS), tt.tensor(MAY)).numpy())


def test_numpys_numbers_are_no_tensors():
    with pytest.raises(TypeError, match=r"target must be a tensor, got a numpy\.ndarray of float32: make it one"):
        tt.mse_loss(X, np.zeros(X.shape, np.float32))
