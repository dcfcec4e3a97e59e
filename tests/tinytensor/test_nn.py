"""Modules, layers and initialisers."""

import copy
import math
import pickle
import re

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn


class Block(nn.Module):
    """Every type of part: a module, a parameter, a list, a buffer, and other attributes."""

    def __init__(self):
        self.first = nn.Linear(3, 4)
        self.gain = nn.Parameter([2.0])
        self.layers = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Dropout(0.5)])
        self.register_buffer("mean", tt.zeros(3))
        self.plain = tt.ones(2)  # a tensor that is neither learned nor kept
        self.size = 3

    def forward(self, x):
        x = self.first(x - self.mean) * self.gain
        for layer in self.layers:
            x = layer(x)
        return x


NAMES = ["gain", "first.weight", "first.bias", "layers.0.weight"]


def values(module):
    return {name: t.numpy().copy() for name, t in module.state_dict().items()}


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


# ------------------------------------------------------------------------------------------------------------ the parts


def test_parameters_are_found_with_their_names():
    block = Block()
    assert [name for name, _ in block.named_parameters()] == NAMES
    assert [p.shape for p in block.parameters()] == [(1,), (4, 3), (4,), (4, 4)]
    assert block.num_parameters() == 1 + 12 + 4 + 16
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in block.parameters())


def test_modules_are_found_with_their_names():
    block = Block()
    names = dict(block.named_modules())
    assert set(names) == {"", "first", "layers", "layers.0", "layers.1"}
    assert names[""] is block
    assert names["layers.0"] is block.layers[0]
    assert list(block.modules()) == list(names.values())
    assert [name for name, _ in block.named_children()] == ["first", "layers"]
    assert list(block.children()) == [block.first, block.layers]
    block.again = block.first  # under a second name
    assert list(block.children()) == [block.first, block.layers]


def test_a_module_is_found_by_its_name():
    block = Block()
    block.again = block.first
    assert block.get_submodule("") is block
    assert block.get_submodule("layers.1") is block.layers[1]
    assert block.get_submodule("again") is block.first
    for name in ("layers.2", "first.weight", "mean", "layers.", "training"):
        with pytest.raises(AttributeError, match=f"Block has no module '{name}'"):
            block.get_submodule(name)


def test_a_module_is_added_under_a_name():
    block = Block()
    block.add_module("last", nn.Linear(1, 1))
    block.add_module("first", nn.ReLU())
    assert [name for name, _ in block.named_children()] == ["first", "layers", "last"]
    block.add_module("last", None)
    assert block.last is None
    with pytest.raises(TypeError, match=r"the part 'last' must be a module, such as nn\.ReLU\(\), got a tinytensor\.Parameter"):
        block.add_module("last", nn.Parameter(1.0))
    for name, message in {"mean": "has an attribute 'mean' already", "a.b": "without dots", "eval": "of its own"}.items():
        with pytest.raises(ValueError, match=message):
            block.add_module(name, nn.ReLU())
    with pytest.raises(TypeError, match="name must be text, got 0"):
        block.add_module(0, nn.ReLU())


def test_buffers_are_kept_but_not_learned():
    block = Block()
    assert [name for name, _ in block.named_buffers()] == ["mean"]
    assert list(block.buffers()) == [block.mean]
    assert set(block.state_dict()) == {*NAMES, "mean"}
    block.mean = tt.ones(3)  # it is still a buffer
    assert block.state_dict()["mean"].tolist() == [1, 1, 1]


def test_a_part_set_later_is_found_and_a_deleted_one_is_not():
    block = Block()
    block.extra = nn.Linear(1, 1)
    assert "extra.bias" in dict(block.named_parameters())
    del block.extra
    assert [name for name, _ in block.named_parameters()] == NAMES


class Tied(nn.Module):
    def __init__(self):
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        return self.head(self.embedding(ids))


def test_tied_parameters_count_once_and_add_up_their_gradients():
    model = Tied()
    assert [name for name, _ in model.named_parameters()] == ["embedding.weight"]
    assert model.num_parameters() == 15
    assert set(model.state_dict()) == {"embedding.weight"}
    ids = tt.tensor([0, 3])
    model(ids).sum().backward()
    w = model.embedding.weight
    once = tt.grad((tt.embedding(ids, w) @ w.detach().T).sum(), w) + tt.grad((tt.embedding(ids, w.detach()) @ w.T).sum(), w)
    np.testing.assert_allclose(w.grad.numpy(), once.numpy(), rtol=1e-5)
    tt.optim.SGD(model.parameters(), lr=0.1).step()
    assert model.head.weight is model.embedding.weight


def test_a_module_used_twice_counts_once():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert model.num_parameters() == 6
    assert len(list(model.parameters())) == 2


class Child(nn.Module):
    def __init__(self, parent):
        self.own = nn.Linear(2, 2)
        self.parent = parent


class Parent(nn.Module):
    """A module whose children refer back to it, and one of which refers to itself."""

    def __init__(self):
        self.first = Child(self)
        self.children_of_mine = nn.ModuleList([Child(self), self.first])
        self.first.me = self.first
        self.gain = nn.Parameter([1.0])


def test_modules_that_refer_back_are_visited_once():
    model = Parent()
    second = model.children_of_mine[0]
    expected = ["", "first", "first.own", "children_of_mine", "children_of_mine.0", "children_of_mine.0.own"]
    assert [name for name, _ in model.named_modules()] == expected
    names = ["gain", "first.own.weight", "first.own.bias", "children_of_mine.0.own.weight", "children_of_mine.0.own.bias"]
    assert [name for name, _ in model.named_parameters()] == names == list(model.state_dict())
    assert model.num_parameters() == 13
    seen = []
    model.apply(seen.append)
    order = [model.first.own, model.first, second.own, second, model.children_of_mine, model]
    assert [id(m) for m in seen] == [id(m) for m in order]
    assert not any(m.training for m in model.eval().modules())
    assert not second.own.training
    model.zero_grad()
    model.astype("float64")
    assert second.own.weight.dtype == "float64"
    model.load_state_dict(model.state_dict())
    assert repr(model).count("parent: Parent, as above") == 3
    assert "me: Child, as above" in repr(model)
    twin = copy.deepcopy(model)
    assert twin.first.parent is twin is not model


def test_what_stands_in_a_plain_list_is_not_found():
    model = nn.Module()
    model.layers = [nn.Linear(2, 2)]  # as in PyTorch: a ModuleList is found
    assert list(model.parameters()) == []
    model.layers = nn.ModuleList(model.layers)
    assert len(list(model.parameters())) == 2


# ------------------------------------------------------------------------------------------- a parameter stays one

REPLACEMENTS = {
    "a computed tensor": lambda m: setattr(m, "weight", m.weight * 0.5),
    "a constant": lambda m: setattr(m, "weight", tt.ones((4, 3))),
    "an array": lambda m: setattr(m, "weight", np.ones((4, 3))),
    "a number": lambda m: setattr(m, "weight", 1.0),
    "detached": lambda m: setattr(m, "weight", m.weight.detach()),
    "a buffer": lambda m: m.register_buffer("weight", tt.ones((4, 3))),
}


@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_a_parameter_is_not_silently_replaced(replace):
    layer = nn.Linear(3, 4)
    weight, before = layer.weight, values(layer)
    with pytest.raises(TypeError, match=r"Linear\.weight is a Parameter.*assign.*nn\.Parameter"):
        replace(layer)
    assert layer.weight is weight
    assert same(values(layer), before)
    assert list(layer.buffers()) == []


def test_what_may_take_a_parameters_place():
    layer = nn.Linear(3, 4)
    other = layer.weight = nn.Parameter(layer.weight * 0.5)
    assert [p is other for p in layer.parameters()] == [True, False]
    layer.bias = None
    assert [name for name, _ in layer.named_parameters()] == ["weight"]
    layer.bias = nn.Parameter(tt.zeros(4))
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    layer.weight = nn.Linear(1, 1)
    assert [name for name, _ in layer.named_parameters()] == ["bias", "weight.weight", "weight.bias"]


def test_a_buffer_stays_one():
    block = Block()
    block.mean = block.mean * 0.9 + 1.0
    assert [name for name, _ in block.named_buffers()] == ["mean"]
    for value in (1.0, np.ones(3), [1.0], nn.Linear(1, 1)):
        with pytest.raises(TypeError, match=r"Block\.mean is a buffer: .*tensor"):
            block.mean = value
    block.mean = None
    assert list(block.buffers()) == []
    assert set(block.state_dict()) == set(NAMES)
    block.mean = tt.zeros(3)
    assert "mean" in block.state_dict()
    block.mean = nn.Parameter([1.0])
    assert list(block.buffers()) == []
    assert "mean" in dict(block.named_parameters())


def test_a_module_is_not_silently_replaced():
    block = Block()
    for value in (5, tt.ones(2), "layer", [nn.Linear(3, 4)], tt.relu):
        with pytest.raises(TypeError, match=r"Block\.first is a Linear, and .+ in its place .* another module or to None"):
            block.first = value
    with pytest.raises(TypeError, match=r"Block\.first is a Linear"):
        block.register_buffer("first", tt.ones(1))
    block.first = nn.ReLU()
    block.first = None
    block.first = 5


def test_a_part_that_is_deleted():
    block = Block()
    del block.first, block.mean, block.layers[0].weight
    assert list(block.state_dict()) == ["gain"]
    block.mean, block.first = 5, tt.ones(1)  # neither is a part any more
    assert list(block.state_dict()) == ["gain"]
    with pytest.raises(AttributeError):
        del block.first, block.first


def test_registering_a_buffer_twice():
    block = Block()
    block.register_buffer("mean", tt.ones(3))
    assert block.mean.tolist() == [1.0] * 3
    assert list(block.state_dict()).count("mean") == 1
    block.register_buffer("later", None)
    assert "later" not in block.state_dict()
    block.later = tt.ones(1)
    assert "later" in block.state_dict()


class Named(nn.Module):
    """A module with a plain attribute, a slot and a method."""

    __slots__ = ("slot",)

    def __init__(self):
        self.a = nn.Linear(1, 1)
        self.size = 5

    def method(self):
        pass


@pytest.mark.parametrize(
    "name", ["a.weight", "", ".", "forward", "training", "parameters", "_buffer_names", "method", "slot", "\ud800"]
)
@pytest.mark.parametrize("part", [nn.Parameter([1.0]), nn.ReLU(), tt.ones(1)], ids=["parameter", "module", "buffer"])
def test_names_that_no_part_may_have(name, part):
    model = Named()
    register = setattr if isinstance(part, (nn.Parameter, nn.Module)) else nn.Module.register_buffer
    with pytest.raises(ValueError, match="^" + re.escape(f"{name!r} cannot name a part of Named: ")):
        register(model, name, part)
    assert list(model.state_dict()) == ["a.weight", "a.bias"]
    assert [name for name, _ in model.named_modules()] == ["", "a"]


def test_a_state_with_a_name_that_is_no_text():
    with pytest.raises(TypeError, match="a state has tensors by name, and 5 cannot be a name"):
        nn.Linear(1, 1).load_state_dict({5: tt.ones(1)})


@pytest.mark.parametrize(
    ("name", "value", "kind", "message"),
    [
        ("size", tt.ones(1), ValueError, "Named has an attribute 'size' already: give the buffer another name"),
        (5, tt.ones(1), TypeError, "the name of a buffer must be text, got 5"),
        (None, tt.ones(1), TypeError, "the name of a buffer must be text, got None"),
        ("mean", [1.0], TypeError, "the buffer 'mean' must be a tensor that is not learned, got the list"),
        ("mean", np.ones(1), TypeError, "the buffer 'mean' must be a tensor that is not learned, got a numpy.ndarray"),
        (
            "mean",
            nn.Parameter([1.0]),
            TypeError,
            "the buffer 'mean' must be a tensor that is not learned, got a tinytensor.Parameter",
        ),
    ],
)
def test_what_cannot_be_a_buffer(name, value, kind, message):
    model = Named()
    before = dict(vars(model))
    with pytest.raises(kind, match=f"^{message}"):
        model.register_buffer(name, value)
    assert vars(model) == before


def test_a_shallow_copys_buffers_are_its_own():
    block = Block()
    twin = copy.copy(block)
    twin.register_buffer("plain", tt.ones(2))
    assert [name for name, _ in twin.named_buffers()] == ["mean", "plain"]
    assert [name for name, _ in block.named_buffers()] == ["mean"]


# ---------------------------------------------------------------------------------------------------------------- modes


def test_train_and_eval_reach_every_part():
    block = Block()
    assert all(m.training for m in block.modules())
    assert block.eval() is block
    assert not any(m.training for m in block.modules())
    assert block.train() is block
    assert all(m.training for m in block.modules())


def test_apply_reaches_every_module_children_first():
    block, seen = Block(), []
    assert block.apply(seen.append) is block
    assert seen[-1] is block
    assert {id(m) for m in seen} == {id(m) for m in block.modules()}
    assert seen.index(block.layers[0]) < seen.index(block.layers)


def test_zero_grad():
    block = Block()
    block(tt.ones((2, 3))).sum().backward()
    assert all(p.grad is not None for p in block.parameters())
    block.zero_grad(set_to_none=False)
    assert all(p.grad.shape == p.shape and not p.grad.any() for p in block.parameters())
    block.zero_grad()
    assert all(p.grad is None for p in block.parameters())
    block.zero_grad(set_to_none=False)
    assert all(p.grad is None for p in block.parameters())


def test_all_parameters_are_frozen_together():
    block = Block()
    assert block.requires_grad_(False) is block
    assert not block(tt.ones((2, 3))).requires_grad
    assert block.requires_grad_() is block
    assert all(p.requires_grad for p in block.parameters())


def test_a_frozen_parameter_gets_no_gradient():
    layer = nn.Linear(2, 2)
    layer.weight.requires_grad = False
    layer(tt.ones((1, 2))).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None


def test_a_model_with_frozen_parameters():
    """Parameters of every kind: tied, in a list, a vector, a matrix."""
    model = nn.Sequential(Tied(), nn.Linear(5, 5), nn.LayerNorm(5))
    frozen = [model[0].embedding.weight, model[1].bias]
    for p in frozen:
        p.requires_grad = False
    model(tt.tensor([0, 3])).sum().backward()
    assert [p.grad is None for p in model.parameters()] == [True, False, True, False, False]
    assert model.num_parameters() == 15 + 30 + 10
    model.zero_grad()
    assert all(p.grad is None for p in model.parameters())
    state = {name: t * 2 for name, t in model.state_dict().items()}
    model.load_state_dict(state)
    assert same(values(model), {name: t.numpy() for name, t in state.items()})
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert [p.requires_grad for p in twin.parameters()] == [False, True, False, True, True]
    for p in frozen:
        p.requires_grad = True
    model(tt.tensor([0, 3])).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_freezing_again_and_again():
    p = nn.Parameter([2.0])
    for _ in range(3):
        (p * p).sum().backward()
        assert p.grad.tolist() == [4]
        p.requires_grad = False
        assert not (p * p).requires_grad
        p.requires_grad = True
        p.grad = None


# ------------------------------------------------------------------------------------------------------ another dtype


class Mixed(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.layers[1].weight = self.layers[0].weight  # shared
        self.register_buffer("mean", tt.ones(2))
        self.register_buffer("count", tt.tensor([3]))
        self.table = tt.ones(2)


def test_astype_converts_all_that_is_floating_in_place():
    model = Mixed()
    before = list(model.parameters())
    model.layers[0].bias.grad = tt.ones(2)
    assert model.astype("float64") is model
    assert [id(p) for p in model.parameters()] == [id(p) for p in before]
    assert model.layers[0].weight is model.layers[1].weight
    assert {str(t.dtype) for t in (*model.parameters(), model.mean, model.table)} == {"float64"}
    assert model.count.dtype == "int64"
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    model.layers[0](tt.ones((1, 2), dtype="float64")).sum().backward()
    assert model.layers[0].bias.grad.dtype == "float64"


@pytest.mark.parametrize("dtype", ["nonsense", "int64"])
def test_a_dtype_that_cannot_learn_changes_nothing(dtype):
    layer = nn.Linear(2, 2)
    with pytest.raises(TypeError, match=dtype):
        layer.astype(dtype)
    assert all(p.requires_grad and p.dtype == "float32" for p in layer.parameters())


def test_astype_keeps_what_is_frozen_and_what_has_the_dtype_already():
    layer = nn.Linear(2, 2)
    layer.weight.requires_grad = False
    node, values = layer.bias.node, layer.weight.tolist()
    layer.astype("float32")
    assert layer.bias.node is node  # nothing was done
    layer.astype("float64")
    assert not layer.weight.requires_grad
    assert layer.weight.tolist() == values


# ---------------------------------------------------------------------------------------------------- state dictionaries


def test_a_state_moves_a_model_into_another():
    one, other = Block(), Block()
    one.mean = tt.ones(3)
    other.load_state_dict(one.state_dict())
    assert same(values(one), values(other))
    x = tt.random.normal((2, 3))
    assert one.eval()(x).tolist() == other.eval()(x).tolist()


def test_loading_keeps_the_parameters_and_their_optimizer():
    block = Block()
    before = list(block.parameters())
    block.load_state_dict(Block().state_dict())
    assert all(a is b for a, b in zip(before, block.parameters()))


def test_loading_copies_and_converts():
    block = Block()
    state = {name: t.astype("float64") for name, t in Block().state_dict().items()}
    block.load_state_dict(state)
    assert block.gain.dtype == "float32"
    state["gain"][0] = 99.0
    assert block.gain.tolist() == [2]


def test_a_state_may_be_of_arrays():
    source, target = nn.Linear(3, 2), nn.Linear(3, 2)
    target.load_state_dict({name: value.numpy().astype("float64") for name, value in source.state_dict().items()})
    for a, b in zip(source.parameters(), target.parameters()):
        assert b.dtype == "float32"
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_state_that_does_not_fit_names_everything_and_changes_nothing():
    block = Block()
    state = Block().state_dict()
    before = values(block)
    del state["first.bias"], state["gain"]
    state["stranger"] = tt.ones(1)
    state["other.stranger"] = tt.ones(1)
    state["first.weight"] = tt.ones((9, 9))
    with pytest.raises(ValueError) as caught:
        block.load_state_dict(state)
    for part in (
        "Block",
        "missing: gain, first.bias",
        "unexpected: stranger, other.stranger",
        "first.weight",
        "(9, 9)",
        "(4, 3)",
    ):
        assert part in str(caught.value)
    assert same(before, values(block))


def test_loading_loosely_takes_what_fits_in_name_but_never_a_wrong_shape():
    block = Block()
    block.load_state_dict({"gain": tt.tensor([7.0]), "stranger": tt.ones(1)}, strict=False)
    assert block.gain.tolist() == [7]
    before = values(block)
    with pytest.raises(ValueError, match="gain"):
        block.load_state_dict({"first.bias": tt.ones(4), "gain": tt.ones(2)}, strict=False)
    assert same(before, values(block))


def test_loading_says_what_it_did_not_find():
    block = Block()
    assert block.load_state_dict(block.state_dict()) == ([], [])
    found = block.load_state_dict({"gain": tt.tensor([7.0]), "gian": tt.ones(1), "first.wieght": tt.ones(1)}, strict=False)
    assert found.missing_keys == ["mean", "first.weight", "first.bias", "layers.0.weight"]
    assert found.unexpected_keys == ["gian", "first.wieght"]


@pytest.mark.parametrize(
    "name", ["", ".", "gain.", ".gain", "layers.7.weight", "layers.weight", "first", "size", "plain", "first.weight.T"]
)
def test_a_name_of_nothing_is_unexpected(name):
    assert Block().load_state_dict({name: tt.ones(1)}, strict=False).unexpected_keys == [name]


# ------------------------------------------------------------------------------------------------------- tied tensors


class Twice(nn.Module):
    """A parameter, a buffer and a module, each in two places."""

    def __init__(self):
        self.a = nn.Linear(2, 2)
        self.b = nn.ModuleList([self.a])
        self.c = nn.Linear(3, 2)
        self.d = self.c.bias
        self.register_buffer("mean", tt.zeros(2))
        self.a.register_buffer("average", self.mean)


ONCE = ["d", "mean", "a.weight", "a.bias", "c.weight"]
ALSO = {"c.bias": "d", "a.average": "mean", "b.0.weight": "a.weight", "b.0.bias": "a.bias", "b.0.average": "mean"}


def full_state():
    """A state with each tied tensor under all of its names, as in older files."""
    state = {name: tt.random.normal(value.shape) for name, value in Twice().state_dict().items()}
    return {**state, **{also: state[name].copy() for also, name in ALSO.items()}}


def test_a_tied_tensor_is_stored_once(tmp_path):
    model = Twice()
    assert list(model.state_dict()) == ONCE
    assert [name for name, _ in model.named_buffers()] == ["mean"]
    tt.save(model.state_dict(), tmp_path / "file")
    assert set(tt.load(tmp_path / "file")) == set(ONCE)


@pytest.mark.parametrize("left_out", [[], [*ALSO], ["d"], ["a.weight", "a.bias"], ["mean", "a.average"], ["c.bias"]], ids=str)
@pytest.mark.parametrize("strict", [True, False])
def test_one_of_a_tied_tensors_names_is_enough(left_out, strict):
    state = full_state()
    given = {name: value for name, value in state.items() if name not in left_out}
    model = Twice()
    assert model.load_state_dict(given, strict) == ([], [])
    assert same(values(model), {name: state[name].numpy() for name in ONCE})
    assert model.d is model.c.bias
    assert model.b[0] is model.a


def test_a_tied_tensor_under_no_name_is_missing():
    given = {name: value for name, value in full_state().items() if name not in ("d", "c.bias")}
    with pytest.raises(ValueError, match=r"missing: d$"):
        Twice().load_state_dict(given)
    assert Twice().load_state_dict(given, strict=False) == (["d"], [])


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", ALSO)
def test_copies_that_differ_are_refused(name, strict):
    model, state = Twice(), full_state()
    before = values(model)
    state[name] = state[name] + 1.0
    with pytest.raises(ValueError, match=rf"{name} and {ALSO[name]} are one .*, but have different values"):
        model.load_state_dict(state, strict)
    with pytest.raises(ValueError, match=rf"{ALSO[name]} and {name} are one"):
        model.load_state_dict({name: state[name], **state}, strict)
    assert same(values(model), before)
    state[name] = tt.ones(7)
    with pytest.raises(ValueError, match=rf"{name}: shape \(7,\)"):
        model.load_state_dict(state, strict)
    assert same(values(model), before)


def test_copies_of_nan_are_the_same():
    state = full_state()
    state["d"] = state["c.bias"] = tt.tensor([math.nan, math.inf])
    model = Twice()
    model.load_state_dict(state)
    assert math.isnan(model.d[0].item())


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_a_duplicate_is_tied_as_the_original(duplicate):
    twin = duplicate(Twice())
    assert twin.d is twin.c.bias
    assert twin.b[0] is twin.a
    assert twin.a.average is twin.mean
    assert list(twin.state_dict()) == ONCE
    with pytest.raises(TypeError, match="Parameter"):
        twin.d = tt.ones(2)


def test_a_deep_copy_is_independent():
    block = Block()
    twin = copy.deepcopy(block)
    assert [name for name, _ in twin.named_parameters()] == NAMES
    assert same(values(block), values(twin))
    twin.gain.assign([5.0])
    assert block.gain.tolist() == [2]
    twin(tt.ones((1, 3))).sum().backward()
    assert block.gain.grad is None
    assert twin.gain.grad is not None


# ----------------------------------------------------------- values changed between the forward and the backward pass


class Holding(nn.Module):
    """A parameter, a frozen parameter and a buffer, all of the same shape."""

    def __init__(self):
        self.learned = nn.Parameter(tt.ones((2, 2)))
        self.frozen = nn.Parameter(tt.ones((2, 2)), requires_grad=False)
        self.register_buffer("kept", tt.ones((2, 2)))


VIEWS = {
    "itself": lambda model, name: getattr(model, name),
    "transposed": lambda model, name: getattr(model, name).T,
    "reshaped": lambda model, name: getattr(model, name).reshape(4)[:2],
    "row": lambda model, name: getattr(model, name)[0],
    "slice": lambda model, name: getattr(model, name)[:, ::-1],
    "split": lambda model, name: getattr(model, name).split(2)[1],
    "split columns": lambda model, name: getattr(model, name).split(2, axis=1)[1],
    "stretched": lambda model, name: tt.broadcast_to(getattr(model, name), (3, 2, 2)),
    "expanded": lambda model, name: tt.expand_dims(getattr(model, name), 0),
    "detached": lambda model, name: getattr(model, name).detach(),
    "state": lambda model, name: model.state_dict()[name],
    "view of a view": lambda model, name: getattr(model, name).T.detach()[1:].reshape(2),
}


def step_of(model, name):
    p = getattr(model, name)
    p.grad = tt.ones_like(p)
    tt.optim.SGD([p], lr=0.5).step()


def by_hand(model, name):
    getattr(model, name).data[...] = 5.0
    getattr(model, name).mark_changed()


WRITERS = {
    "load": lambda model, name: model.load_state_dict({name: tt.zeros((2, 2))}, strict=False),
    "assign": lambda model, name: getattr(model, name).assign(tt.zeros((2, 2))),
    "constant": lambda model, name: nn.init.constant_(getattr(model, name), 3.0),
    "normal": lambda model, name: nn.init.normal_(getattr(model, name)),
    "by hand": by_hand,
    "step": step_of,
}
CHANGES = [(name, write) for name in ("learned", "frozen") for write in WRITERS if (name, write) != ("frozen", "step")]
CHANGES += [("kept", "load")]


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_values_changed_in_place_are_not_used_in_the_backward_pass(view):
    """Backward never uses other values than the forward pass, whether the view was made before or after the change."""
    for name, write in CHANGES:
        model, x = Holding(), tt.tensor([1.0, 2.0], requires_grad=True)
        used, other = (view(model, name) * x).sum(), (x * x).sum()
        untouched = (model.kept if name != "kept" else model.learned) * x
        WRITERS[write](model, name)
        with pytest.raises(RuntimeError, match=r"'multiply'.*changed in place.*forward pass again"):
            tt.grad(used, x)
        assert tt.grad(other, x).tolist() == [2, 4]  # a graph that does not use the changed values
        assert tt.grad(untouched.sum(), x).tolist() == [2, 2]
        again = (view(model, name) * x).sum()
        assert np.isfinite(tt.grad(again, x).numpy()).all(), (name, write)


@pytest.mark.parametrize(("name", "write"), CHANGES)
def test_a_layer_changed_in_place(name, write):
    """The same holds for fused ops and for a checkpoint."""
    model, x = Holding(), tt.tensor([[1.0, 2.0]], requires_grad=True)

    def uses(x):
        return tt.linear(x, getattr(model, name)).sum()

    for loss in (uses(x), tt.checkpoint(uses, x)):
        WRITERS[write](model, name)
        with pytest.raises(RuntimeError, match="changed in place"):
            tt.grad(loss, x)


# -------------------------------------------------------------------------------------------------------------- printing


def test_repr_shows_the_tree_with_counts():
    lines = repr(Block()).splitlines()
    shown = [(line.split("(")[0].strip(), line.split()[-1]) for line in lines]
    assert ("Block", "33") in shown
    assert ("first: Linear", "16") in shown
    assert ("0: Linear", "16") in shown
    assert any("Dropout(p=0.5)" in line for line in lines)
    assert len({len(line) for line in lines if line.split()[-1].isdigit()}) == 1  # the counts are in one column


def test_repr_of_large_counts():
    assert repr(nn.Linear(1000, 2000)).endswith("2,002,000")


LAYERS = [
    (nn.Linear(3, 4), "Linear(3, 4)"),
    (nn.Linear(3, 4, bias=False), "Linear(3, 4, bias=False)"),
    (nn.Embedding(5, 2), "Embedding(5, 2)"),
    (nn.LayerNorm(4), "LayerNorm(4, eps=1e-05)"),
    (nn.LayerNorm(4, bias=False), "LayerNorm(4, eps=1e-05, bias=False)"),
    (nn.LayerNorm((3, 4)), "LayerNorm((3, 4), eps=1e-05)"),
    (nn.LayerNorm(4, elementwise_affine=False), "LayerNorm(4, eps=1e-05, elementwise_affine=False)"),
    (nn.GroupNorm(2, 4), "GroupNorm(2, 4, eps=1e-05)"),
    (nn.GroupNorm(2, 4, affine=False), "GroupNorm(2, 4, eps=1e-05, affine=False)"),
    (nn.Flatten(), "Flatten(start_axis=1, end_axis=-1)"),
    (nn.ELU(0.5), "ELU(0.5)"),
    (nn.Softplus(), "Softplus()"),
    (nn.Softplus(2.0), "Softplus(2.0)"),
    (nn.RMSNorm(4, eps=0.1), "RMSNorm(4, eps=0.1)"),
    (nn.Dropout(0.1), "Dropout(p=0.1)"),
    (nn.LeakyReLU(0.2), "LeakyReLU(0.2)"),
    (nn.GELU("tanh"), "GELU(approximate='tanh')"),
    (nn.Softmax(0), "Softmax(axis=0)"),
    (nn.ReLU(), "ReLU()"),
]


@pytest.mark.parametrize(("layer", "text"), LAYERS, ids=[text for _, text in LAYERS])
def test_repr_of_layers(layer, text):
    assert repr(layer).split("  ")[0] == text


def test_repr_of_parameters_and_tensors():
    assert repr(nn.Parameter([1.0])) == "Parameter tensor([1.], requires_grad=True)"
    assert repr(tt.tensor([1, 2])) == "tensor([1, 2])"
    assert repr(tt.tensor(np.ones(1))) == "tensor([1.], dtype=float64)"
    assert repr(nn.Parameter([1.0]) * 2) == "tensor([2.], op=multiply)"


# ---------------------------------------------------------------------------------------------------------------- layers

x = tt.tensor(np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32"))


@pytest.mark.parametrize(
    ("layer", "function"),
    [
        (nn.ReLU(), tt.relu),
        (nn.LeakyReLU(0.3), lambda x: tt.leaky_relu(x, 0.3)),
        (nn.GELU(), tt.gelu),
        (nn.GELU("tanh"), lambda x: tt.gelu(x, "tanh")),
        (nn.SiLU(), tt.silu),
        (nn.Softplus(), tt.softplus),
        (nn.Sigmoid(), tt.sigmoid),
        (nn.Tanh(), tt.tanh),
        (nn.Softmax(1), lambda x: tt.softmax(x, 1)),
        (nn.ELU(0.3), lambda x: tt.elu(x, 0.3)),
        (nn.Softplus(0.3), lambda x: tt.softplus(x, 0.3)),
        (nn.Identity(), lambda x: x),
        (nn.LayerNorm(4), tt.layer_norm),
        (nn.LayerNorm(4, elementwise_affine=False), tt.layer_norm),
        (nn.GroupNorm(3, 3), lambda x: tt.group_norm(x, 3)),
        (nn.RMSNorm(4), tt.rms_norm),
    ],
    ids=lambda value: repr(value).split("(")[0] if isinstance(value, nn.Module) else "",
)
def test_layers_without_learned_values_are_their_functions(layer, function):
    np.testing.assert_array_equal(layer(x).numpy(), function(x).numpy())


WRONG_SHAPES = {
    "width": (lambda: nn.LayerNorm(3, elementwise_affine=False)(x), r"LayerNorm takes \(\.\.\., 3,\), got \(2, 3, 4\)"),
    "axes": (lambda: nn.LayerNorm((4, 3))(x), r"LayerNorm takes \(\.\.\., 4, 3\), got \(2, 3, 4\)"),
    "too few axes": (lambda: nn.LayerNorm((5, 2, 3, 4))(x), r"LayerNorm takes \(\.\.\., 5, 2, 3, 4\)"),
    "no axes": (lambda: nn.LayerNorm(()), "normalized_shape needs at least one axis"),
    "groups": (lambda: nn.GroupNorm(2, 3), "GroupNorm: 3 channels cannot be divided into 2 groups"),
    "no groups": (lambda: nn.GroupNorm(0, 3), "3 channels cannot be divided into 0 groups"),
    "channels": (lambda: nn.GroupNorm(1, 4)(x), r"GroupNorm takes \(batch, 4, \.\.\.\), got \(2, 3, 4\)"),
    "groups of a function": (lambda: tt.group_norm(x, 2), "with channels for 2 groups, got"),
    "no channels": (lambda: tt.group_norm(tt.ones(3), 1), r"takes \(batch, channels, \.\.\.\)"),
    "weight": (lambda: tt.group_norm(x, 1, tt.ones(4)), r"weight and bias must have shape \(3,\), got \(4,\)"),
    "flatten": (lambda: nn.Flatten(2, 1)(x), "Flatten: end_axis 1 comes before start_axis 2"),
    "beta": (lambda: nn.Softplus(0.0)(x), "softplus: beta must not be 0 or NaN, got 0"),
}


@pytest.mark.parametrize(("act", "message"), WRONG_SHAPES.values(), ids=WRONG_SHAPES)
def test_layers_name_the_shapes_that_do_not_fit(act, message):
    with pytest.raises(ValueError, match=message):
        act()


def test_flatten_needs_its_axes():
    with pytest.raises(IndexError, match="start_axis 1 is out of range"):
        nn.Flatten()(tt.ones(3))


def test_a_dict_of_modules_is_a_part_like_any_other():
    heads = nn.ModuleDict({"a": nn.Linear(2, 3)})
    with pytest.raises(KeyError):
        heads["b"]
    with pytest.raises(KeyError):
        del heads["training"]
    for name, module, kind, message in [
        ("b", nn.Parameter(1.0), TypeError, "ModuleDict takes modules, such as nn.ReLU\\(\\), not a tinytensor.Parameter"),
        ("b", None, TypeError, "not None"),
        (0, nn.ReLU(), TypeError, "name must be text, got 0"),
        ("keys", nn.ReLU(), ValueError, "the class has a keys of its own"),
        ("training", nn.ReLU(), ValueError, "the class has a training of its own"),
        ("a.b", nn.ReLU(), ValueError, "without dots"),
    ]:
        with pytest.raises(kind, match=message):
            heads[name] = module
    assert list(heads) == ["a"]
    assert list(copy.deepcopy(heads).state_dict()) == ["a.weight", "a.bias"]
    del heads["a"]
    assert not heads and not heads.state_dict()
    heads["a"] = nn.ReLU()
    heads.clear()
    assert len(heads) == 0


def test_linear():
    layer = nn.Linear(4, 5)
    assert (layer.weight.shape, layer.bias.shape) == ((5, 4), (5,))
    np.testing.assert_allclose(layer(x).numpy(), x.numpy() @ layer.weight.numpy().T + layer.bias.numpy(), rtol=1e-5, atol=1e-6)
    assert nn.Linear(4, 5, bias=False).bias is None


def test_embedding():
    layer = nn.Embedding(6, 3)
    ids = tt.tensor([[0, 5], [2, 2]])
    np.testing.assert_array_equal(layer(ids).numpy(), layer.weight.numpy()[ids.numpy()])


def test_sequential_and_module_list():
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)]
    model = nn.Sequential(*layers)
    out = x
    for layer in layers:
        out = layer(out)
    np.testing.assert_array_equal(model(x).numpy(), out.numpy())
    assert len(model) == 3
    assert model[0] is layers[0]
    assert list(model) == layers
    grown = nn.ModuleList()
    grown.append(nn.Linear(1, 1))
    assert [name for name, _ in grown.named_parameters()] == ["0.weight", "0.bias"]


def units(container):
    """Which layers a container holds: each has its own number of outputs."""
    return [layer.bias.size for layer in container]


def layers(*sizes):
    return [nn.Linear(1, size) for size in sizes]


def test_a_container_is_changed_like_a_list():
    for make in (nn.ModuleList, lambda modules: nn.Sequential(*modules)):
        container, plain = make(layers(1, 2, 3)), [1, 2, 3]
        assert container.append(*layers(4)).insert(0, *layers(5)).insert(-1, *layers(6)).extend(layers(7, 8)) is container
        plain.append(4), plain.insert(0, 5), plain.insert(-1, 6), plain.extend([7, 8])
        assert units(container) == plain
        assert [name for name, _ in container.named_parameters()] == [
            f"{i}.{kind}" for i in range(len(plain)) for kind in ("weight", "bias")
        ]
        container[1], container[-1], container[2:4] = *layers(9, 10), layers(11)
        plain[1], plain[-1], plain[2:4] = 9, 10, [11]
        assert units(container) == plain
        del container[0], container[-1], container[1:3]
        del plain[0], plain[-1], plain[1:3]
        assert units(container) == plain
        assert [name for name, _ in container.named_children()] == [str(i) for i in range(len(plain))]
        assert units(make(layers(1, 2, 3))[np.int64(-1) :]) == [3]


def test_parts_of_a_container_that_are_set_and_deleted_by_name():
    container, plain = nn.ModuleList(layers(1, 2, 3, 4)), {0: 1, 1: 2, 2: 3, 3: 4}
    for name, size in ((1, None), (3, None), (7, 5), (0, 6), (4, 7)):
        if size is None:
            delattr(container, str(name)), plain.pop(name)
        else:
            setattr(container, str(name), *layers(size)), plain.update({name: size})
        expected = [plain[number] for number in sorted(plain)]
        assert units(container) == [container[i].bias.size for i in range(len(container))] == expected
        assert units(copy.copy(container).append(*layers(9))) == [*expected, 9]
        assert container[-1].bias.size == expected[-1]


def test_appending_and_indexing_look_at_one_module(monkeypatch):
    container = nn.Sequential(*layers(1, 2))
    monkeypatch.setattr(container, "_own_modules", lambda: pytest.fail("it looked at all modules"))
    container.append(*layers(3)).extend(layers(4, 5))
    assert (len(container), container[2].bias.size, container[-1].bias.size) == (5, 3, 5)


def test_a_slice_is_a_container_of_the_same_kind():
    class Own(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    for model in (nn.Sequential(*Own()), Own()):
        first = model[:2]
        assert type(first) is nn.Sequential
        assert first[0] is model[0]
        np.testing.assert_array_equal(model[2:](first(x)).numpy(), model(x).numpy())
        assert list(first.state_dict()) == ["0.weight", "0.bias"]
    assert type(nn.ModuleList(layers(1, 2))[::-1]) is nn.ModuleList
    assert units(nn.ModuleList(layers(1, 2))[::-1]) == [2, 1]


@pytest.mark.parametrize("kind", [nn.ModuleList, nn.Sequential])
def test_a_container_has_parts_like_any_module(kind):
    class Own(kind):
        def __init__(self):
            self.before = nn.Linear(1, 1)
            super().__init__(*([layers(2, 3)] if kind is nn.ModuleList else layers(2, 3)))
            self.extra = nn.Linear(1, 4)
            self.gain = nn.Parameter([1.0])
            self.register_buffer("mean", tt.zeros(1))

    model = Own()
    expected = ["before.weight", "before.bias", "0.weight", "0.bias", "1.weight", "1.bias", "extra.weight", "extra.bias"]
    assert sorted(model.state_dict()) == sorted([*expected, "gain", "mean"])
    assert len(list(model.parameters())) == 9
    assert units(model) == [2, 3]
    assert len(model) == 2
    assert not model.eval().extra.training
    assert model.astype("float64").extra.weight.dtype == "float64"
    assert "extra: Linear(1, 4)" in repr(model)
    model.append(model.extra)  # under two names: it comes once
    assert sorted(model.state_dict()) == sorted([*expected, "gain", "mean"])
    setattr(model, "7", nn.Linear(1, 5))  # an item, whatever its number
    assert units(model.append(nn.Linear(1, 6))) == [2, 3, 4, 5, 6]
    assert [name for name in vars(model) if name.isdecimal()] == ["0", "1", "2", "3", "4"]
    del model[:]
    assert len(list(model.parameters())) == 5
    twin = copy.deepcopy(Own())
    assert twin.load_state_dict(Own().state_dict()) == ([], [])


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        (lambda m: m[2], IndexError, "Sequential of 2 modules has no index 2"),
        (lambda m: m[-3], IndexError, "Sequential of 2 modules has no index -3"),
        (lambda m: m.__setitem__(2, nn.ReLU()), IndexError, "no index 2"),
        (lambda m: m.__delitem__(5), IndexError, "no index 5"),
        (lambda m: m["0"], TypeError, "takes an integer or a slice as its index, not '0'"),
        (lambda m: m[0.0], TypeError, "takes an integer or a slice as its index, not 0.0"),
        (lambda m: m.__setitem__(0, None), TypeError, r"Sequential takes modules, such as nn.ReLU\(\), not None"),
        (lambda m: m.insert(0, tt.relu), TypeError, "Sequential takes modules"),
        (lambda m: m.insert("0", nn.ReLU()), TypeError, "insert: index must be an integer, got '0'"),
        (lambda m: m.extend([nn.ReLU(), 5]), TypeError, "Sequential takes modules"),
    ],
)
def test_wrong_uses_of_a_container_change_nothing(act, kind, message):
    model = nn.Sequential(*layers(1, 2))
    with pytest.raises(kind, match=message):
        act(model)
    assert units(model) == [1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential([nn.Linear(1, 1)]),
        lambda: nn.Sequential(nn.Linear(1, 1), tt.relu),
        lambda: nn.Sequential(nn.Linear(1, 1), nn.ReLU),
        lambda: nn.ModuleList([nn.Parameter([1.0])]),
        lambda: nn.ModuleList().append(None),
        lambda: setattr(nn.ModuleList(), "0", nn.Parameter([1.0])),
        lambda: setattr(nn.ModuleList(), "0", 5),
        lambda: nn.ModuleList().register_buffer("0", tt.ones(1)),
    ],
    ids=["a list", "a function", "a class", "a parameter", "None", "0 = a parameter", "0 = a number", "0 = a buffer"],
)
def test_lists_of_modules_hold_nothing_else(make):
    with pytest.raises(TypeError, match=r"(Sequential|ModuleList) takes modules, such as nn\.ReLU\(\), not"):
        make()


@pytest.mark.parametrize("given", [None, 5, nn.Linear(1, 1)])
def test_a_list_is_made_of_several_modules(given):
    with pytest.raises(TypeError, match="ModuleList takes several modules, as in a list, not"):
        nn.ModuleList(given)


def test_items_have_the_order_of_their_numbers():
    model = nn.Sequential(*layers(1, 2, 3))
    delattr(model, "1")
    assert units(model) == [1, 3]
    assert units(model.append(nn.Linear(1, 4))) == [1, 3, 4]
    setattr(model, "0", None)
    assert units(model) == [3, 4]


def test_a_container_may_change_during_a_loop():
    model = nn.ModuleList(layers(1, 2))
    for module in model:
        model.insert(0, module)
    assert units(model) == [2, 1, 1, 2]


# --------------------------------------------------------------------------------------------------------------- dropout


def test_dropout_drops_its_share_and_keeps_the_expected_value():
    n, p = 100_000, 0.3
    out = nn.Dropout(p)(tt.ones(n)).numpy()
    assert abs((out == 0).mean() - p) < 5 * math.sqrt(p * (1 - p) / n)
    np.testing.assert_allclose(np.unique(out), [0, 1 / (1 - p)], rtol=1e-6)
    assert abs(out.mean() - 1) < 0.02


def test_dropout_draws_a_new_mask_each_time_and_repeats_with_the_seed():
    layer, data = nn.Dropout(0.5), tt.ones(64)
    tt.seed(3)
    first, second = layer(data).tolist(), layer(data).tolist()
    assert first != second
    tt.seed(3)
    assert layer(data).tolist() == first


def test_dropout_while_evaluating_is_nothing_at_all():
    layer = nn.Dropout(0.5).eval()
    assert layer(x) is x


def test_the_gradient_of_dropout_passes_where_the_value_did():
    data = tt.tensor(np.full(1000, 2.0, "float32"), requires_grad=True)
    out = tt.dropout(data, 0.4)
    out.sum().backward()
    np.testing.assert_allclose(data.grad.numpy() * 2, out.numpy(), rtol=1e-6)


# ----------------------------------------------------------------------------------------------------------- initialisers


def large():
    return nn.Parameter(tt.zeros((300, 200)))  # 200 inputs, 300 outputs


@pytest.mark.parametrize(
    ("fill", "std"),
    [
        (lambda p: nn.init.normal_(p, 0.0, 0.7), 0.7),
        (lambda p: nn.init.uniform_(p, -0.3, 0.3), 0.3 / math.sqrt(3)),
        (nn.init.xavier_uniform_, math.sqrt(2 / 500)),
        (nn.init.xavier_normal_, math.sqrt(2 / 500)),
        (lambda p: nn.init.xavier_normal_(p, gain=3.0), 3 * math.sqrt(2 / 500)),
        (nn.init.kaiming_uniform_, math.sqrt(2 / 200)),
        (nn.init.kaiming_normal_, math.sqrt(2 / 200)),
        (lambda p: nn.init.kaiming_normal_(p, gain=1.0), math.sqrt(1 / 200)),
    ],
    ids=["normal", "uniform", "xavier uniform", "xavier normal", "gain", "kaiming uniform", "kaiming normal", "gain 1"],
)
def test_initialisers_spread(fill, std):
    p = large()
    assert fill(p) is p
    v = p.numpy()
    assert abs(v.std() / std - 1) < 0.02
    assert abs(v.mean()) < 5 * std / math.sqrt(v.size)
    assert p.dtype == "float32"


@pytest.mark.parametrize(
    ("fill", "bound"),
    [(nn.init.xavier_uniform_, math.sqrt(6 / 500)), (nn.init.kaiming_uniform_, math.sqrt(6 / 200))],
    ids=["xavier", "kaiming"],
)
def test_uniform_initialisers_stay_within_their_bound_and_reach_it(fill, bound):
    v = np.abs(fill(large()).numpy())
    assert 0.99 * bound < v.max() <= bound * (1 + 1e-6)


FILLS = [n for n in vars(nn.init) if n.endswith("_") and not n.startswith("_")]


@pytest.mark.parametrize("name", FILLS)
def test_a_weight_without_elements_is_left_as_it_is(name):
    for shape in [(0, 0), (0, 3), (3, 0)]:
        p = nn.Parameter(tt.zeros(shape))
        settings = {"value": 1.0} if name == "constant_" else {}
        assert getattr(nn.init, name)(p, **settings) is p
        assert p.shape == shape


@pytest.mark.parametrize(("inputs", "outputs"), [(0, 3), (3, 0), (0, 0)])
def test_linear_of_nothing(inputs, outputs):
    layer = nn.Linear(inputs, outputs)
    data = tt.ones((2, inputs))
    out = layer(data)
    assert out.shape == (2, outputs)
    assert out.tolist() == [layer.bias.tolist()] * 2
    assert inputs or layer.bias.tolist() == [0.0] * outputs
    out.sum().backward()
    assert layer.weight.grad.shape == (outputs, inputs)
    assert layer.bias.grad.tolist() == [2.0] * outputs


def test_an_initialiser_of_matrices_refuses_a_vector():
    with pytest.raises(ValueError, match=r"\(outputs, inputs\), got \(3,\)"):
        nn.init.xavier_normal_(nn.Parameter(tt.zeros(3)))


def test_constant_initialisers():
    p = nn.Parameter([1.0, 2.0])
    assert nn.init.zeros_(p).tolist() == [0, 0]
    assert nn.init.ones_(p).tolist() == [1, 1]
    assert nn.init.constant_(p, 0.5).tolist() == [0.5, 0.5]


def test_normal_initialiser_has_its_mean():
    assert abs(nn.init.normal_(large(), mean=4.0).numpy().mean() - 4) < 0.03


def test_initialisers_are_those_of_the_standard_distributions_by_default():
    assert abs(nn.init.normal_(large()).numpy().std() - 1) < 0.02
    drawn = nn.init.uniform_(large()).numpy()
    assert 0 <= drawn.min() < 0.01 and 0.99 < drawn.max() <= 1


def test_dropout_drops_half_by_default():
    assert nn.Dropout().p == 0.5


def test_layers_start_from_the_seed():
    tt.seed(5)
    first = nn.Linear(3, 3).weight.tolist()
    tt.seed(5)
    assert nn.Linear(3, 3).weight.tolist() == first


def test_linear_starts_within_one_over_the_root_of_its_inputs():
    layer = nn.Linear(100, 200)
    for p in (layer.weight, layer.bias):
        assert 0.09 < np.abs(p.numpy()).max() <= 0.1


def test_assign():
    p = nn.Parameter([1.0, 2.0])
    before = p.numpy()
    p.assign(np.array([3.0, 4.0]))
    assert p.tolist() == [3, 4]
    assert p.dtype == "float32"
    p.assign(tt.tensor([5, 6]))
    assert p.tolist() == [5, 6]
    if tt.backend_name == "numpy":
        assert before.tolist() == [5, 6]  # it is a change in place, so an array that was taken before shows it


def test_assigning_a_flag_to_a_method_is_an_error() -> None:
    layer = nn.Linear(2, 2)
    for name, method in {"requires_grad": "requires_grad_", "train": "train", "eval": "eval"}.items():
        with pytest.raises(TypeError, match=rf"call .{method}\("):
            setattr(layer, name, False)
    layer.training = False
    layer.flag = True
    assert layer.requires_grad_(False).weight.requires_grad is False


def test_a_module_may_define_requires_grad() -> None:
    class Frozen(nn.Module):
        requires_grad = True

    module = Frozen()
    module.requires_grad = False
    assert module.requires_grad is False
