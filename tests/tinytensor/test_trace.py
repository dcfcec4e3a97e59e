"""A traced function gives the same as the function, bit for bit, and refuses what it cannot follow."""

import copy
import pickle

import numpy as np
import pytest
from cases import CASES_OF, run_checks

import tinytensor as tt
from tinytensor import nn, parallel
from tinytensor.autograd.replaying import Replacements
from tinytensor.device.backend import is_host_array


def normal(*shape, seed=0):
    return tt.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def counted(function):
    """Return the function, and a list that grows with each call."""
    calls = []

    def call(*inputs):
        calls.append(1)
        return function(*inputs)

    return call, calls


weight, bias, ids = normal(5, 4, seed=1), normal(5, seed=2), tt.tensor([[1, 0, 2]])

FUNCTIONS = {
    "linear": (lambda x: tt.linear(x, weight, bias), [(3, 4)]),
    "fused": (lambda x: tt.gelu(tt.layer_norm(x, weight[0]), approximate="tanh"), [(3, 4)]),
    "numbers": (lambda x: (x * 2.0 + 1) / 3, [(3, 4)]),
    "views": (lambda x: x.T.reshape(2, 6)[:, 1:-1], [(3, 4)]),
    "settings": (lambda x: x.sum(axis=-1, keepdims=True) + x.max(axis=0), [(3, 4)]),
    "a scalar": (lambda x: x.mean(), [(3, 4)]),
    "two inputs": (lambda x, y: x @ y + tt.where(x > 0, x, 0.5).sum(), [(3, 4), (4, 2)]),
    "variadic": (lambda x, y: tt.concatenate([x, y, x], axis=1), [(3, 4), (3, 2)]),
    "the input itself": (lambda x: x, [(3, 4)]),
    "attention": (lambda x: tt.multi_head_attention(x, 2, is_causal=True), [(2, 3, 12)]),
    "norms and rotation": (lambda x, w, t: tt.norm_and_rotate(x, 2, 2, w, w, rotation=t), [(2, 3, 12), (2,), (3, 2)]),
    "booleans and integers, which become floats": (
        lambda x: (x > 0).mean() + (x > 0) * x + (x > 0).astype("int64") * x,
        [(3, 4)],
    ),
    "in float64": (lambda x: x.astype("float64") * 2, [(3, 4)]),
}


@pytest.mark.parametrize("function, shapes", FUNCTIONS.values(), ids=FUNCTIONS)
def test_it_gives_what_the_function_gives(function, shapes):
    original, (function, calls) = function, counted(function)
    traced = tt.trace(function)
    for seed in range(3):
        inputs = [normal(*shape, seed=seed + 10 * i) for i, shape in enumerate(shapes)]
        got = traced(*inputs)
        assert len(calls) == 1
        with tt.no_grad():
            want = original(*inputs)
        assert got.dtype == want.dtype
        assert not got.requires_grad
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_integers_choose_rows():
    function, calls = counted(lambda i: tt.functional.embedding(i, weight) + weight[i, 0].reshape(1, 3, 1) * 0)
    with pytest.raises(TypeError, match="array of shape"):
        tt.trace(function)(ids)
    function, calls = counted(lambda i: tt.functional.embedding(i, weight))
    traced = tt.trace(function)
    for chosen in ([[1, 0, 2]], [[4, 4, 0]]):
        np.testing.assert_array_equal(traced(tt.tensor(chosen)).numpy(), weight.numpy()[chosen])
    assert len(calls) == 1


def test_each_shape_and_dtype_is_traced_once():
    function, calls = counted(lambda x: x * 2)
    traced = tt.trace(function)
    for x in (normal(2), normal(3), normal(2).astype("float64"), normal(2), normal(3)):
        np.testing.assert_array_equal(traced(x).numpy(), x.numpy() * 2)
    assert len(calls) == 3


def test_parameters_changed_in_place_are_seen():
    layer = nn.Linear(4, 2)
    traced = tt.trace(layer)
    x = normal(3, 4)
    before = traced(x).numpy().copy()
    layer.weight.assign(np.zeros((2, 4)))
    assert not np.array_equal(traced(x).numpy(), before)
    np.testing.assert_array_equal(traced(x).numpy(), layer(x).detach().numpy())


class Changing(nn.Module):
    """Parts of all kinds, which a test changes."""

    def __init__(self):
        self.linear, self.more, self.shift = nn.Linear(3, 3), None, None
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.register_buffer("scale", tt.ones(3))

    def forward(self, x):
        x = self.linear(x) * self.scale
        for layer in [*self.layers, *([self.more] if self.more else [])]:
            x = layer(x)
        return x if self.shift is None else x + self.shift


CHANGES = {
    "a part set from None": lambda m: setattr(m, "more", nn.Linear(3, 3)),
    "a parameter set from None": lambda m: setattr(m, "shift", nn.Parameter(tt.ones(3))),
    "a buffer set from None": lambda m: m.register_buffer("shift", tt.ones(3)),
    "a parameter removed": lambda m: setattr(m.linear, "bias", None),
    "a part deleted": lambda m: m.layers.__delitem__(0),
    "append": lambda m: m.layers.append(nn.Linear(3, 3)),
    "extend": lambda m: m.layers.extend([nn.ReLU(), nn.Linear(3, 3)]),
    "insert": lambda m: m.layers.insert(0, nn.Linear(3, 3)),
    "load_state_dict with assign": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True),
    "data of a parameter": lambda m: setattr(m.linear.weight, "data", normal(3, 3, seed=5).data),
    "data of a buffer": lambda m: setattr(m.scale, "data", normal(3, seed=5).data),
    "a replaced buffer": lambda m: setattr(m, "scale", normal(3, seed=5)),
    "another dtype": lambda m: m.astype("float64"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_is_replaced_in_a_module_is_seen(change):
    model, x = Changing(), normal(2, 3)
    function, calls = counted(model)
    traced = tt.trace(function)
    before = traced(x).numpy().copy()
    change(model)
    after = traced(x)
    np.testing.assert_array_equal(after.numpy(), model(x).detach().numpy())
    assert not np.array_equal(after.numpy(), before)
    traced(x)
    assert len(calls) == 2


def test_what_is_replaced_while_a_function_is_traced_is_seen():
    model, x = Changing(), normal(2, 3)

    def function(x):
        out = model(x)
        if not changed:  # as another thread might, after this one has read the weights
            changed.append(setattr(model.linear.weight, "data", normal(3, 3, seed=5).data))
        return out

    changed = []
    traced = tt.trace(function)
    traced(x)
    np.testing.assert_array_equal(traced(x).numpy(), model(x).detach().numpy())


def test_a_replacement_is_noted_after_it_was_made(monkeypatch):
    """A trace that starts between the two has the new part, and runs once more than it must."""
    model, noted = Changing(), []
    monkeypatch.setattr(Replacements, "note", lambda: noted.append((model.more, "scale" in vars(model))))
    model.more = part = nn.ReLU()
    del model.scale
    assert noted == [(part, True), (part, False)]


def test_a_result_is_not_written_over_by_the_next_call():
    traced = tt.trace(lambda x: x + 1)
    first = traced(normal(3))
    kept = first.numpy().copy()
    traced(normal(3, seed=1))
    np.testing.assert_array_equal(first.numpy(), kept)


def test_what_is_opaque_is_called_each_time_with_its_objects():
    class Counter:
        count = 0

    @tt.opaque
    def times_count(x, y, counter):
        """A function of arrays. What it calls is not traced."""
        counter.count += 1
        return (tt.Tensor._wrap(x) * counter.count).data + (0 if y is None else y)

    counter = Counter()
    traced = tt.trace(lambda x: times_count(x + 1, None, counter) + times_count(x, x * 2, counter))
    x = normal(3)
    for i in range(3):
        expected = (x.numpy() + 1) * np.float32(2 * i + 1) + (x.numpy() * np.float32(2 * i + 2) + x.numpy() * 2)
        np.testing.assert_allclose(traced(x).numpy(), expected, rtol=1e-6)
    assert counter.count == 6


def changed_by(x, index, value):
    x[index] = value
    return x


def read(function):
    """A traced function of x that reads values of x and returns a tensor."""
    return lambda x: x * 2 + tt.tensor(function(x))


LEAKS = {
    "numpy": read(lambda x: x.numpy() * 2),
    "item": read(lambda x: x.sum().item()),
    "tolist": read(lambda x: x.tolist()),
    "float": read(lambda x: float(x[0])),
    "int": lambda x: x[int(x[0] > 0)] + x,
    "index": lambda x: x[(x > 0).sum() :] + x.sum(),
    "an index in a tuple": lambda x: x.reshape(((x > 9).sum() + 1, -1)),
    "bool": lambda x: x if x.sum() > 0 else -x,
    "all": lambda x: x if (x > 0).all() else -x,
    "max": lambda x: max(x),
    "in": lambda x: x * float(0.5 in x),
    "sorted": lambda x: tt.stack(sorted(x)),
    "tensor": lambda x: tt.tensor(x) + x,
    "tensor of tensors": lambda x: tt.tensor([x[0], x[1]]) + x.sum(),
    "tensor of data": lambda x: tt.tensor((x * 2).data) + x,
    "deepcopy": lambda x: copy.deepcopy(x * 2) + x,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)) + x,
    "numpy of a copy": lambda x: tt.tensor(x.copy().numpy()) + x,
    "setitem of an input": lambda x: changed_by(x, 0, 1.0),
    "setitem of a result": lambda x: changed_by(x * 2, 0, 1.0),
    "setitem with an input": lambda x: changed_by(tt.zeros(3), 0, x[1]) + x,
    "setitem at an input": lambda x: changed_by(tt.zeros(3), x > 0, 1.0) + x,
    "setitem at inputs": lambda x: changed_by(tt.zeros((3, 2)), ((x > 0).astype("int64"), 0), 1.0).sum() + x,
    "a parameter's assign": lambda x: nn.Parameter(tt.zeros(3)).assign(x) or x,
    "a list for an opaque function": lambda x: tt.opaque(lambda xs: xs[0].data + 1)([x * 2]) + x,
    "a mapping for an opaque function": lambda x: tt.opaque(lambda xs: xs["x"].data + 1)({"x": x}) + x,
}


@pytest.mark.parametrize("function", LEAKS.values(), ids=LEAKS)
def test_values_that_leave_the_ops_are_refused(function):
    with pytest.raises(TypeError, match="cannot follow the values"):
        tt.trace(function)(normal(3))
    with tt.no_grad():  # outside there is no error
        function(normal(3))


def test_values_that_come_from_no_input_may_be_read():
    scale, mask = tt.tensor([2.0]), tt.ones(3)

    def function(x):
        mask[0] = float(scale)
        return x * mask * scale.item() + tt.tensor(mask.numpy())

    traced = tt.trace(function)
    for seed in range(2):
        x = normal(3, seed=seed)
        np.testing.assert_array_equal(traced(x).numpy(), x.numpy() * np.float32([4, 2, 2]) + np.float32([2, 1, 1]))


def test_a_tensor_can_be_shown_while_tracing():
    shown = []
    tt.trace(lambda x: (shown.append(repr(x)), x * 2)[1])(tt.tensor([1.0, 2.0]))
    assert shown == ["tensor([1., 2.])"]


@pytest.mark.parametrize("copied", [lambda x: x.copy(), copy.copy])
def test_copies_are_followed(copied):
    traced = tt.trace(lambda x: copied(x) + x)
    for value in (1.0, 5.0):
        assert traced(tt.tensor([value])).tolist() == [2 * value]


@pytest.mark.parametrize("create_graph", [True, False])
def test_gradients_are_refused(create_graph):
    def function(x):
        x.requires_grad = True
        with tt.enable_grad():
            y = (x * x).sum()
        return tt.grad(y, x, create_graph=create_graph) + x

    with pytest.raises(RuntimeError, match="cannot compute gradients"):
        tt.trace(function)(normal(3))


def test_shards_in_a_traced_function_are_part_of_it():
    function, calls = counted(lambda x: tt.concatenate(parallel.run(lambda part: part * 2, [x[:1], x[1:]])))
    traced = tt.trace(function)
    for seed in range(3):
        x = normal(3, seed=seed)
        np.testing.assert_array_equal(traced(x).numpy(), x.numpy() * 2)
    assert len(calls) == 1


def test_values_that_choose_how_many_elements_there_are():
    traced = tt.trace(lambda x: x[x > 0].sum() / x[x > 0].size)
    traced(tt.tensor([1.0, -1.0, 2.0]))
    assert traced(tt.tensor([3.0, 5.0, -1.0])).item() == 4.0
    with pytest.raises(ValueError, match=r"how many elements there are: getitem gave \(2,\) in the first call and \(3,\) now"):
        traced(tt.tensor([1.0, 2.0, 3.0]))


def test_ids_are_checked_in_each_call():
    for function in (lambda i: tt.functional.embedding(i, weight), nn.Embedding(5, 2)):
        traced = tt.trace(function)
        traced(ids)
        for wrong in (-1, 5, -(2**62)):
            if is_host_array(ids.data):  # ids on a GPU are not checked
                with pytest.raises(IndexError, match=f"id {wrong} is outside the table of 5 rows"):
                    traced(tt.tensor([[1, wrong, 2]]))
        assert traced(tt.tensor([[4, 4, 0]])).shape[:2] == (1, 3)


def test_classes_are_checked_in_each_call():
    losses = {
        "cross_entropy": lambda x, i: tt.functional.cross_entropy(x, i),
        "linear_cross_entropy": lambda x, i: tt.functional.linear_cross_entropy(x, weight, i),
    }
    for name, loss in losses.items():
        function, calls = counted(loss)
        traced, x = tt.trace(function), normal(3, 4)
        for chosen in ([0, 1, 2], [3, 3, 0]):
            assert traced(x, tt.tensor(chosen)).item() == loss(x, tt.tensor(chosen)).item()
        for wrong in (-1, 9):
            if is_host_array(x.data):
                with pytest.raises(IndexError, match=f"^{name}: target {wrong} is not a class"):
                    traced(x, tt.tensor([0, wrong, 1]))
        assert len(calls) == 1


# ------------------------------------------------------------------------------------------------------------- all ops


def other_values(x):
    """The same values in another order, so that they fit the op as well."""
    return np.roll(x, 1).reshape(x.shape) if x.size > 1 or x.dtype.kind != "f" else x * np.asarray(0.75, x.dtype)


@pytest.mark.parametrize("op", CASES_OF)
def test_each_op_is_followed_or_refused(op):
    run_checks(op, lambda case: [check_trace])


def check_trace(case):
    """A function traced with some values gives the right result for others, or tracing it is an error."""
    for dtype in ("float64", "float32"):
        first, second = (
            [tt.tensor(x.astype(dtype) if x.dtype.kind == "f" else x) for x in inputs]
            for inputs in (case.inputs, [other_values(x) for x in case.inputs])
        )
        traced = tt.trace(case.f)
        try:
            traced(*first)
        except (TypeError, RuntimeError) as refused:
            assert "trace" in str(refused)
            continue
        got = traced(*second)
        with tt.no_grad():
            want = case.f(*second)
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert got.numpy().tobytes() == want.numpy().tobytes()


STEPS = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - y.T,
    lambda x, y: x @ y,
    lambda x, y: x.copy() * 0.5,
    lambda x, y: tt.where(x > y, x, y),
    lambda x, y: tt.maximum(x, y),
    lambda x, y: x.sum(axis=0, keepdims=True) + y,
    lambda x, y: x.max(axis=-1, keepdims=True) - y,
    lambda x, y: tt.concatenate([x, y], axis=0)[1:4],
    lambda x, y: tt.stack([x, y]).mean(axis=0),
    lambda x, y: x.reshape(9)[::-1].reshape(3, 3),
    lambda x, y: x.argmax(axis=1) + y,
    lambda x, y: (x > 0) * y,
    lambda x, y: (x > 0).astype("int64") + y,
    lambda x, y: tt.softmax(x) * y,
    lambda x, y: tt.layer_norm(x, y[0], y[1]),
    lambda x, y: tt.gelu(x) / 2,
    lambda x, y: tt.tanh(x).astype("float64").astype("float32"),
    lambda x, y: tt.masked_fill(x, y > 0, 0.25),
    lambda x, y: tt.functional.embedding(x.argmin(axis=0), y),
    lambda x, y: x[x.argmin(axis=0)],
    lambda x, y: tt.linear(x, y, y[2]).clip(-3, 3),
    lambda x, y: x[0] + 1 if x.shape[0] > 3 else tt.broadcast_to(x[:, 1:2], (3, 3)),
    lambda x, y: tt.cumsum(x, 0) * np.float32(0.1),
    lambda x, y: tt.full_like(x, 0.5) + x.detach(),
    lambda x, y: next(iter(x)) * y,
    lambda x, y: tt.scaled_dot_product_attention(x, y, x, x > -1),
]  # for shapes (3, 3) and (3, 3)


def random_program(rng):
    """A function of two tensors: a sequence of steps, each with two of the values so far, some of them constants."""
    lines = [(STEPS[rng.integers(len(STEPS))], rng.random(2)) for _ in range(rng.integers(1, 12))]
    constant = tt.tensor(rng.standard_normal((3, 3)).astype("float32"))

    def program(x, y):
        values = [constant, x, y]
        for step, places in lines:
            one, other = [values[int(place * len(values))] for place in places]
            values.append(step(one, other) * 0.5 if one is other else step(one, other))
        return tt.stack([tt.broadcast_to(value, (3, 3)).astype("float32") for value in values])

    return program


def test_random_programs():
    for seed in range(150):
        rng = np.random.default_rng(seed)
        function, calls = counted(random_program(rng))
        traced = tt.trace(function)
        for call in range(3):
            inputs = [tt.tensor(rng.standard_normal((3, 3)).astype("float32")) for _ in range(2)]
            got = traced(*inputs)
            assert len(calls) == 1 + call, f"seed {seed}"
            with tt.no_grad(), np.errstate(all="ignore"):
                want = function(*inputs)
            assert got.numpy().tobytes() == want.numpy().tobytes(), f"seed {seed}"


def test_arrays_that_leave_their_tensors_are_refused():
    with pytest.raises(TypeError, match="array of shape"):
        tt.trace(lambda x: x + tt.Tensor._wrap(tt.exp((x * 2).data)))(normal(3))


@pytest.mark.parametrize("function", [tt.sort, lambda x: tt.topk(x, 2)[0], lambda x: x[[0, 2]]])
def test_places_worked_out_from_values_are_refused(function):
    with pytest.raises(TypeError, match="array of shape"):
        tt.trace(function)(normal(4))


@pytest.mark.parametrize("function, given", [(lambda x: x, 1.0), (lambda x: x, np.ones(2)), (lambda x: (x, x), tt.ones(2))])
def test_only_tensors_are_accepted(function, given):
    with pytest.raises(TypeError, match="a traced function"):
        tt.trace(function)(given)


def test_random_numbers_are_refused():
    with pytest.raises(RuntimeError, match="random numbers"):
        tt.trace(lambda x: tt.dropout(x, 0.5))(normal(3))
    assert tt.dropout(normal(3), 0.5).shape == (3,)


def test_inputs_that_were_equal_may_differ_later():
    traced = tt.trace(lambda x, y: x - y + weight)
    traced(weight, weight)
    x, y = normal(5, 4, seed=3), normal(5, 4, seed=4)
    np.testing.assert_array_equal(traced(x, y).numpy(), (x - y + weight).numpy())


def test_numbers_of_numpy_do_not_change_the_dtype():
    traced = tt.trace(lambda x: x * np.float64(1.5))
    for seed in range(2):
        x = normal(3, seed=seed)
        assert traced(x).dtype == "float32"
        np.testing.assert_array_equal(traced(x).numpy(), x.numpy() * np.float32(1.5))


def test_an_error_leaves_nothing_behind():
    traced = tt.trace(lambda x: x @ weight)
    with pytest.raises(ValueError, match="matmul"):
        traced(normal(3, 4))
    np.testing.assert_array_equal(traced(normal(2, 5)).numpy(), (normal(2, 5) @ weight).numpy())
    assert (tt.tensor([1.0], requires_grad=True) * 2).requires_grad


def test_a_trace_in_a_trace_is_part_of_it():
    inner, calls = counted(lambda x: x * 3)
    traced_inner = tt.trace(inner)
    traced = tt.trace(lambda x: traced_inner(x) + 1)
    for seed in range(3):
        x = normal(3, seed=seed)
        np.testing.assert_array_equal(traced(x).numpy(), x.numpy() * 3 + 1)
    assert len(calls) == 1


def test_anomalies_are_found():
    traced = tt.trace(lambda x: tt.log(x))
    traced(tt.tensor([1.0]))
    with tt.detect_anomaly(), pytest.raises(FloatingPointError, match="log"):
        traced(tt.tensor([-1.0]))
