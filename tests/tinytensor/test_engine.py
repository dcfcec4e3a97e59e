"""The engine: what is recorded, how gradients flow back, what is saved and freed, modes, dtypes."""

import copy
import gc
import inspect
import itertools
import pickle
import sys
import threading
import weakref

import garbage
import numpy as np
import pytest

import tinytensor as tt
from tinytensor.autograd.engine import Node
from tinytensor.autograd.fused import FusedOp
from tinytensor.autograd.op import Op, all_ops, op


def leaf(*values, dtype="float64"):
    return tt.tensor(np.array(values, dtype), requires_grad=True)


def saved(x):
    """The names of the values that x's op saved."""
    return set(x.node.saved)


# ------------------------------------------------------------------------------------------------------ backward, grad


def test_gradients_of_a_hand_worked_example():
    x, y = leaf(2.0), leaf(3.0)
    out = (x * y + x).sum()  # d/dx = y + 1, d/dy = x
    out.backward()
    assert x.grad.tolist() == [4.0]
    assert y.grad.tolist() == [2.0]


def test_backward_accumulates():
    x = leaf(1.0, 2.0)
    (x * 3).sum().backward()
    (x * x).sum().backward()
    assert x.grad.tolist() == [3 + 2, 3 + 4]
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_accumulating_leaves_an_older_gradient_alone():
    x = leaf(1.0)
    (x * 2).sum().backward()
    first = x.grad
    (x * 2).sum().backward()
    assert first.tolist() == [2]


def test_backward_with_a_gradient():
    x = leaf(1.0, 2.0)
    (x * x).backward(tt.tensor([10.0, 100.0]))  # float32: converted
    assert x.grad.tolist() == [20, 400]
    assert x.grad.dtype == "float64"


def test_a_leaf_can_be_its_own_output():
    x = leaf(5.0)
    x.backward()
    assert x.grad.tolist() == [1]
    assert tt.grad(x, x).tolist() == [1]


def test_grad_touches_no_grad():
    x, y = leaf(2.0), leaf(3.0)
    gx, gy = tt.grad((x * y).sum(), [x, y])
    assert (gx.tolist(), gy.tolist()) == ([3], [2])
    assert x.grad is None
    assert y.grad is None
    x.grad = tt.tensor(np.array([7.0]))
    tt.grad((x * y).sum(), x)
    assert x.grad.tolist() == [7]


def test_grad_of_one_tensor_and_of_a_sequence():
    x = leaf(2.0)
    assert isinstance(tt.grad((x * x).sum(), x), tt.Tensor)
    assert isinstance(tt.grad((x * x).sum(), (x,)), list)


def test_grad_with_respect_to_a_result_on_the_way():
    x = leaf(2.0)
    h = x * x
    out = (h * 3).sum()
    gh, gx = tt.grad(out, [h, x])
    assert (gh.tolist(), gx.tolist()) == ([3], [12])


def test_grad_stops_at_what_was_asked_for():
    x = leaf(2.0)
    h = x * x
    tt.grad((h * 3).sum(), h)
    h.sum().backward()  # backward did not go beyond h, so nothing behind it was freed
    assert x.grad.tolist() == [4]


def test_grad_does_not_pass_what_is_older_than_all_that_was_asked_for():
    x = leaf(2.0)
    older = tt.exp(x)
    h = older * 2
    tt.grad((h * 3 + older).sum(), h)  # another path, not through h, also leads to the older result
    older.sum().backward()
    assert x.grad.tolist() == [np.exp(2.0)]


def test_unused_inputs():
    x, y = leaf(1.0), leaf(1.0)
    with pytest.raises(RuntimeError, match=r"does not depend on input 1 .*allow_unused=True"):
        tt.grad((x * 2).sum(), [x, y])
    gx, gy = tt.grad((x * 2).sum(), [x, y], allow_unused=True)
    assert gx.tolist() == [2]
    assert gy is None


def test_backward_reaches_only_leaves_that_took_part():
    x, y = leaf(1.0), leaf(1.0)
    (x * 2).sum().backward()
    assert y.grad is None


def test_a_diamond_runs_each_op_once():
    calls = []

    def rule(g):
        calls.append(1)
        return g

    counted = Op(lambda x: x + 0, {"x": rule})
    del all_ops[counted.name]
    x = leaf(1.0)
    h = counted(x)
    (h * 2 + h * 3 + h).sum().backward()
    assert x.grad.tolist() == [6]
    assert len(calls) == 1


# -------------------------------------------------------------------------------------------------------- higher orders


def test_three_orders_against_the_analytic_derivatives():
    x = leaf(0.3, -1.2, 2.0)
    v = x.numpy()
    y = tt.sin(x) * x**3
    first = tt.grad(y.sum(), x, create_graph=True)
    second = tt.grad(first.sum(), x, create_graph=True)
    third = tt.grad(second.sum(), x)
    s, c = np.sin(v), np.cos(v)
    np.testing.assert_allclose(first.numpy(), c * v**3 + 3 * s * v**2)
    np.testing.assert_allclose(second.numpy(), -s * v**3 + 6 * c * v**2 + 6 * s * v)
    np.testing.assert_allclose(third.numpy(), -c * v**3 - 9 * s * v**2 + 18 * c * v + 6 * s)


def test_third_order_through_a_fused_op():
    x = leaf(0.3, -1.2, 2.0)
    direction = tt.tensor(np.array([0.5, -1.0, 2.0]))

    def derivatives(f):
        found, y = [], f(x)
        for _ in range(3):
            y = tt.grad((y * direction).sum(), x, create_graph=True)
            found.append(y.numpy())
        return found

    gelu = all_ops["gelu_tanh"]
    for fused, plain in zip(derivatives(gelu), derivatives(gelu.reference)):
        np.testing.assert_allclose(fused, plain, rtol=1e-9)


def test_backward_with_create_graph_returns_differentiable_gradients():
    x = leaf(2.0)
    (x**3).sum().backward(create_graph=True)
    assert x.grad.requires_grad
    penalty = (x.grad * x.grad).sum()  # (3x²)², whose derivative is 36x³
    assert tt.grad(penalty, x).tolist() == [36 * 8]


def test_gradients_without_create_graph_have_no_history():
    x = leaf(2.0)
    assert not tt.grad((x**3).sum(), x).requires_grad
    (x**3).sum().backward()
    assert not x.grad.requires_grad


# ------------------------------------------------------------------------------------------- what is kept, and how long


def test_second_backward_names_the_op_and_the_remedy():
    x = leaf(2.0)
    y = tt.exp(x).sum()
    y.backward()
    with pytest.raises(RuntimeError, match=r"'sum' a second time.*retain_graph=True"):
        y.backward()
    assert x.grad.tolist() == [np.exp(2.0)]


def test_second_backward_through_a_shared_part():
    x = leaf(2.0)
    h = tt.exp(x)
    (h * 2).sum().backward()
    with pytest.raises(RuntimeError, match=r"'exp' a second time.*retain_graph=True"):
        (h * 3).sum().backward()


def test_retain_graph():
    x = leaf(2.0)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8]
    with pytest.raises(RuntimeError, match="retain_graph"):
        y.backward()
    z = (x * x).sum()
    tt.grad(z, x, retain_graph=True)
    assert tt.grad(z, x).tolist() == [4]


def test_create_graph_retains_by_default():
    x = leaf(2.0)
    y = (x**3).sum()
    tt.grad(y, x, create_graph=True)
    tt.grad(y, x, create_graph=True, retain_graph=False)
    with pytest.raises(RuntimeError, match="retain_graph"):
        tt.grad(y, x)


def test_saved_values_are_dropped_as_backward_passes():
    x = leaf(2.0)
    h = tt.exp(x)
    y = (h * h).sum()
    nodes = [y.node, y.node.parents[0], h.node]
    assert all(node.saved is not None for node in nodes)
    y.backward()
    assert all(node.saved is None and node.parents == () for node in nodes)


def test_results_on_the_way_are_freed_while_the_output_lives():
    x = leaf(2.0)
    h = x * 2
    middle = weakref.ref(h)
    y = tt.exp(h).sum()
    del h
    assert middle() is None  # nodes hold arrays, not tensors
    y.backward()
    assert x.grad.tolist() == [2 * np.exp(4.0)]


def test_a_step_leaves_nothing_to_the_garbage_collector():
    model = tt.nn.Sequential(tt.nn.Linear(4, 8), tt.nn.LayerNorm(8), tt.nn.GELU("tanh"), tt.nn.Linear(8, 3))
    optimizer = tt.optim.AdamW(model.parameters())
    x, target = tt.random.normal((5, 4)), tt.tensor([0, 1, 2, 0, 1])

    def step():
        loss = tt.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        tt.optim.clip_grad_norm(model.parameters(), 1.0)
        optimizer.step()

    step()
    with garbage.none_left():
        step()


def test_ops_save_only_what_their_rules_need():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    assert saved(x + y) == set()
    assert saved(x - y) == set()
    assert saved(-x) == set()
    assert saved(x.T) == {"axes"}
    assert saved(x.reshape(2, 1)) == {"x_shape"}
    assert saved(tt.exp(x)) == {"out"}
    assert saved(tt.tanh(x)) == {"out"}
    assert saved(tt.sin(x)) == {"x"}
    assert saved(x * y) == {"x", "y"}
    assert saved(tt.concatenate([x, y])) == {"arrays_shape", "axis"}


def test_a_fused_op_saves_the_inputs_that_its_backward_names():
    x, residual = leaf([1.0, 2.0], [3.0, 4.0]), leaf([1.0, 2.0], [3.0, 4.0])
    inputs = [x * 2, residual * 2]
    memories = [weakref.ref(made.data) for made in inputs]
    out = tt.dropout(inputs[0], 0.5, residual=inputs[1])
    del inputs
    assert [memory() for memory in memories] == [None, None]
    (out.sum() + tt.layer_norm(x, x[0], x[1]).sum()).backward()
    assert residual.grad.tolist() == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize("name", [name for name, op in all_ops.items() if isinstance(op, FusedOp)])
def test_what_a_backward_kernel_names_is_known_to_the_op(name):
    fused = all_ops[name]
    given = inspect.signature(fused.kernel_backward).parameters.values()
    required = [p.name for p in given if p.default is p.empty][3:]  # after g, residuals and needed
    assert required == [n for n in fused.names if n in required]


def test_what_only_a_constants_gradient_needs_is_not_saved():
    x, constant = leaf(1.0, 2.0), tt.tensor(np.array([5.0, 6.0]))
    product = x * constant
    assert saved(product) == {"y"}  # the gradient of x needs the constant; nobody needs x
    assert product.node.parents[1] is None
    weight = leaf([1.0, 2.0])
    assert saved(tt.linear(constant, weight)) == {"x"}
    assert saved(tt.linear(x, weight.detach())) == {"weight"}


def test_a_constants_rule_is_not_run():
    calls = []
    probe = Op(lambda x, y: x * y, {"x": lambda g, y: calls.append("x") or g * y, "y": lambda g, x: calls.append("y") or g * x})
    del all_ops[probe.name]
    probe(leaf(1.0), tt.tensor(np.array([2.0]))).sum().backward()
    assert calls == ["x"]


def test_nothing_is_recorded_without_a_need():
    a, b = tt.ones(2), tt.ones(2)
    assert (a * b).node is None
    assert (leaf(1.0) > 0).node is None
    assert tt.argmax(leaf(1.0, 2.0)).node is None
    assert leaf(1.5).astype("int64").node is None


# ------------------------------------------------------------------------------------------------------------ long chains


def test_a_chain_of_20_000_ops():
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y + 0.5
    y.sum().backward()
    assert x.grad.tolist() == [1]


def test_a_chain_of_20_000_ops_dropped_without_backward():
    def living_nodes():
        return sum(issubclass(type(thing), Node) for thing in gc.get_objects())

    gc.collect()
    before = living_nodes()
    x = leaf(1.0)
    y = x
    for _ in range(20_000):
        y = y * 1.0
    assert living_nodes() >= before + 20_000
    del y  # this frees the chain node by node, without recursion
    assert living_nodes() == before + 1


def test_a_wide_sum_of_many_uses():
    x = leaf(1.0)
    total = x * 0
    for i in range(500):
        total = total + x * i
    total.sum().backward()
    assert x.grad.tolist() == [sum(range(500))]


def test_numbers_grow_from_parents_to_children():
    x = leaf(1.0)
    h = x * 2
    y = h + x
    assert x.node.number < h.node.number < y.node.number


# ----------------------------------------------------------------------------------------------------------------- modes


def test_no_grad_and_enable_grad():
    x = leaf(2.0)
    with tt.no_grad():
        assert not (x * x).requires_grad
        with tt.enable_grad():
            assert (x * x).requires_grad
        assert not (x * x).requires_grad
    assert (x * x).requires_grad


def test_modes_as_decorators():
    x = leaf(2.0)

    @tt.no_grad()
    def plain():
        return x * x

    @tt.enable_grad()
    def recorded():
        return x * x

    assert not plain().requires_grad
    assert not plain().requires_grad  # the decorated function may be called several times
    with tt.no_grad():
        assert recorded().requires_grad
    assert (x * x).requires_grad


def test_modes_end_with_an_exception():
    x = leaf(2.0)
    with pytest.raises(KeyError), tt.no_grad():
        raise KeyError
    assert (x * x).requires_grad


def test_backward_works_inside_no_grad():
    x = leaf(2.0)
    y = (x * x).sum()
    with tt.no_grad():
        y.backward()
    assert x.grad.tolist() == [4]


def test_modes_hold_for_one_thread():
    x = leaf(2.0)
    inside, outside = threading.Event(), threading.Event()
    seen = {}

    def other():
        with tt.no_grad():
            inside.set()
            outside.wait(10)
            seen["other"] = (x * x).requires_grad

    thread = threading.Thread(target=other)
    thread.start()
    assert inside.wait(10)
    seen["main"] = (x * x).requires_grad
    outside.set()
    thread.join()
    assert seen == {"main": True, "other": False}


def test_threads_record_and_differentiate_side_by_side():
    results = {}

    def work(k):
        x = leaf(1.0 + k)
        total = 0.0
        for _ in range(50):
            total += float(tt.grad((x * x * x).sum(), x).item())
        results[k] = total

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {k: 50 * 3 * (1.0 + k) ** 2 for k in range(4)}


# ------------------------------------------------------------------------------------------------------ values in place

CHANGES = {
    "step": lambda p: step(p),
    "assign": lambda p: p.assign([9.0, 9.0]),
    "load_state_dict": lambda p: Holder(p).load_state_dict({"p": tt.tensor([9.0, 9.0])}),
    "initialiser": lambda p: tt.nn.init.ones_(p),
}


class Holder(tt.nn.Module):
    def __init__(self, p):
        self.p = p


def step(p):
    p.grad = tt.ones_like(p)
    tt.optim.SGD([p], lr=1.0).step()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_parameter_changed_after_the_forward_pass_is_refused(change):
    p = tt.nn.Parameter([1.0, 2.0])
    y = (p * p).sum()
    change(p)
    with pytest.raises(RuntimeError, match=r"'multiply'.*changed in place.*forward pass again"):
        y.backward()
    (p * p).sum().backward()  # after a new forward pass there is no error


def test_a_parameter_changed_through_a_view_is_refused():
    p = tt.nn.Parameter([[1.0, 2.0], [3.0, 4.0]])
    y = (p.T[0] * p.T[1]).sum()
    p.assign([[0.0, 0.0], [0.0, 0.0]])
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_tensors_are_values():
    x = tt.tensor([1.0, 2.0])
    alias = x
    x += 1
    assert alias.tolist() == [1, 2]
    view = x[:1]
    x[0] = 50.0
    assert x.tolist() == [50, 3]
    assert view.tolist() == [2]
    detached = x.detach()
    detached[1] = 7.0
    assert x.tolist() == [50, 3]


def test_setting_elements_by_any_index():
    x = tt.zeros((2, 3))
    x[0] = tt.tensor([1.0, 2.0, 3.0])
    x[tt.tensor([1, 1]), tt.tensor([0, 2])] = 5.0
    x[x == 2.0] = -1.0
    assert x.tolist() == [[1, -1, 3], [5, 0, 5]]


def test_a_tensor_copies_what_it_is_made_from():
    source = np.ones(3)
    x = tt.tensor(source)
    source[0] = 9
    assert x.tolist() == [1, 1, 1]
    y = tt.tensor(x)
    y[0] = 5.0
    assert x.tolist() == [1, 1, 1]


def test_copy_has_its_own_memory_and_passes_gradients():
    x = leaf(1.0, 2.0)
    y = x.copy()
    assert not np.shares_memory(x.numpy(), y.numpy())
    (y * 3).sum().backward()
    assert x.grad.tolist() == [3, 3]


def test_copying_and_pickling_keep_the_kind():
    p = tt.nn.Parameter([1.0, 2.0])
    frozen = tt.nn.Parameter([1.0], requires_grad=False)
    for twin in (copy.deepcopy(p), pickle.loads(pickle.dumps(p))):
        assert type(twin) is tt.nn.Parameter
        assert twin.requires_grad
        assert twin.tolist() == [1, 2]
        assert not np.shares_memory(twin.numpy(), p.numpy())
    assert not copy.deepcopy(frozen).requires_grad
    assert type(copy.deepcopy(tt.tensor([1.0]))) is tt.Tensor


class Described(tt.nn.Parameter):
    """A subclass of Parameter with attributes and extra arguments."""

    def __init__(self, rows, *, unit):
        super().__init__(np.ones((rows, 2), "float32"))
        self.unit = unit
        self.itself = self


class Slotted(tt.Tensor):
    """A subclass of Tensor with slots: one is private, one is not set."""

    __slots__ = ("__private", "missing", "unit")

    def __init__(self, unit):
        super().__init__([1, 2])
        self.unit = unit
        self.__private = 7

    def private(self):
        return self.__private


DUPLICATES = {"copy": copy.copy, "deepcopy": copy.deepcopy} | {
    f"pickle {protocol}": lambda x, protocol=protocol: pickle.loads(pickle.dumps(x, protocol)) for protocol in range(6)
}


@pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)
def test_copying_and_pickling_keep_what_a_subclass_added(duplicate):
    p = Described(3, unit=["metre"])
    p.requires_grad = False
    p.grad_note = "frozen"
    twin = duplicate(p)
    assert type(twin) is Described
    assert (twin.tolist(), twin.unit, twin.grad_note) == (p.tolist(), ["metre"], "frozen")
    assert not twin.requires_grad
    assert not np.shares_memory(twin.numpy(), p.numpy())
    shallow = duplicate is copy.copy
    assert twin.itself is (p if shallow else twin)
    assert (twin.unit is p.unit) == shallow
    twin.another = 1
    assert not hasattr(p, "another")

    x = duplicate(Slotted("metre"))
    assert type(x) is Slotted
    assert (x.tolist(), x.dtype, x.unit, x.private(), hasattr(x, "missing")) == ([1, 2], "int64", "metre", 7, False)
    assert duplicate(Described(1, unit="")).requires_grad


def test_requires_grad_can_be_switched_on_leaves_only():
    x = tt.tensor([1.0])
    x.requires_grad = True
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2]
    x.requires_grad = False
    assert not (x * 2).requires_grad
    y = leaf(1.0) * 2
    with pytest.raises(RuntimeError, match=r"'multiply'.*detach"):
        y.requires_grad = False


def test_detach():
    x = leaf(2.0)
    y = (x * x).detach()
    assert not y.requires_grad
    (x * y).sum().backward()
    assert x.grad.tolist() == [4]


# ------------------------------------------------------------------------------------------------------ detect_anomaly


def next_line():
    """The line after the call of this function, which the error for that line should name."""
    import inspect

    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno + 1}"


def test_detect_anomaly_names_the_op_and_the_line_of_a_forward_fault():
    x = leaf(-1.0)
    with tt.detect_anomaly(), np.errstate(all="ignore"), pytest.raises(FloatingPointError) as caught:
        line = next_line()
        tt.log(x)
    assert "the output of 'log'" in str(caught.value)
    assert "NaN" in str(caught.value)
    assert line in str(caught.value)


def test_detect_anomaly_names_the_op_and_the_line_of_a_backward_fault():
    x = leaf(0.0)
    with tt.detect_anomaly():
        line = next_line()
        y = tt.sqrt(x)
        with pytest.raises(FloatingPointError) as caught:
            (y + 1).sum().backward()
    assert "gradient of 'sqrt'" in str(caught.value)
    assert "infinite" in str(caught.value)
    assert line in str(caught.value)


def test_detect_anomaly_is_silent_about_finite_numbers_and_off_outside():
    x = leaf(0.0)
    with tt.detect_anomaly():
        tt.exp(x).sum().backward()
        tt.tensor([1, 2]) + 1
    tt.sqrt(x).sum().backward()
    assert x.grad.tolist() == [np.inf]


def test_detect_anomaly_checks_constants_too():
    with tt.detect_anomaly(), np.errstate(all="ignore"), pytest.raises(FloatingPointError, match="'divide'"):
        tt.ones(2) / tt.zeros(2)


# --------------------------------------------------------------------------------------------------------------- dtypes

FLOATS = ["float32", "float64"]


def test_defaults():
    assert tt.tensor([1.0, 2]).dtype == "float32"
    assert tt.tensor(1.5).dtype == "float32"
    assert tt.tensor([1, 2]).dtype == "int64"
    assert tt.tensor([True]).dtype == "bool"
    assert tt.tensor(np.ones(2)).dtype == "float64"
    assert tt.tensor(np.ones(2, "int32")).dtype == "int32"
    assert tt.tensor([1, 2], dtype="float32").dtype == "float32"
    assert tt.tensor([tt.tensor(1.0), tt.tensor(2.0)]).dtype == "float32"
    assert tt.zeros(2).dtype == tt.ones(2).dtype == tt.eye(2).dtype == tt.full(2, 1.0).dtype == "float32"
    assert tt.arange(3).dtype == tt.full(2, 1).dtype == "int64"
    assert tt.arange(0, 1, 0.5).dtype == "float32"
    assert tt.full(2, True).dtype == "bool"
    assert tt.zeros_like(tt.arange(3)).dtype == "int64"
    assert tt.random.normal((2,)).dtype == tt.random.uniform((2,)).dtype == "float32"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("number", [2, 2.5, True, np.float64(2.5), np.float32(2.5), np.int64(2)])
def test_a_number_never_changes_the_dtype(dtype, number):
    x = tt.tensor(np.array([1.0, 2.0], dtype), requires_grad=True)
    for out in (x + number, number + x, x * number, number - x, x / number, number / x, x**number, tt.maximum(x, number)):
        assert out.dtype == dtype
        out.sum().backward()
        assert x.grad.dtype == dtype
    assert tt.where(x > 1, x, number).dtype == dtype


def test_a_number_leaves_integers_integers_where_it_can():
    i = tt.arange(3)
    assert (i + 1).dtype == (2 * i).dtype == (i**2).dtype == tt.maximum(i, 1).dtype == "int64"
    assert (i + 0.5).dtype == "float32"
    small = tt.tensor(np.array([1, 2], "int32"))
    assert (small + 1).dtype == "int32"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("whole", ["int64", "int32", "uint8", "bool"])
def test_integers_take_the_dtype_of_floats(dtype, whole):
    x = tt.tensor(np.ones((2, 2), dtype))
    i = tt.tensor(np.ones((2, 2), whole))
    results = [x + i, i * x, i @ x, tt.where(x > 0, i, x), tt.concatenate([i, x]), tt.einsum("ij,jk->ik", i, x), i / x]
    for out in [*results, tt.linear(x, i), tt.maximum(i, x)]:
        assert out.dtype == dtype


def test_floats_of_two_kinds_take_the_larger():
    assert (tt.ones(2) + tt.ones(2, "float64")).dtype == "float64"
    assert (tt.ones((2, 2)) @ tt.ones((2, 2), "float64")).dtype == "float64"


@pytest.mark.parametrize("whole", ["int64", "int32"])
def test_integers_give_float32_where_they_cannot_stay(whole):
    i = tt.tensor(np.array([1, 2, 3], whole))
    for f in (tt.exp, tt.log, tt.sqrt, tt.sin, tt.tanh, tt.sigmoid, tt.erf, tt.mean, tt.var, tt.std, tt.softmax, tt.logsumexp):
        assert f(i).dtype == "float32", f
    for out in (i / i, i / 2, 1 / i, i * 0.5, i.reciprocal(), i.norm(), tt.layer_norm(i), tt.gelu(i)):
        assert out.dtype == "float32"


def test_float64_stays():
    x = tt.ones((2, 2), "float64")
    for out in (tt.exp(x), x.mean(), x / 3, x @ x, tt.softmax(x), tt.layer_norm(x), tt.gelu(x, "tanh"), x.var(), tt.erf(x)):
        assert out.dtype == "float64"


def test_astype():
    assert tt.ones(2).astype("float64").dtype == "float64"
    assert tt.arange(2).astype("float64").dtype == "float64"
    assert tt.ones(2).astype(np.int32).dtype == "int32"
    x = tt.tensor([1.0, 2.0], requires_grad=True)
    (x.astype("float64") * 3).sum().backward()
    assert x.grad.dtype == "float32"


def test_a_gradient_has_its_tensors_dtype_whatever_it_met():
    x = tt.tensor(np.ones(2, "float32"), requires_grad=True)
    y = tt.tensor(np.ones((3, 2), "float64"), requires_grad=True)
    (x * y).sum().backward()
    assert (x.grad.dtype, x.grad.shape) == ("float32", (2,))
    assert (y.grad.dtype, y.grad.shape) == ("float64", (3, 2))
    gx = tt.grad((x * y).sum(), x, create_graph=True)
    assert (gx.dtype, gx.shape) == ("float32", (2,))


# ------------------------------------------------------------------------------------------------------- declaring ops


def test_a_new_op_is_one_line_of_calculus():
    cube = Op(lambda x: x * x * x, {"x": lambda g, x: g * 3.0 * x * x})
    del all_ops[cube.name]
    x = leaf(2.0, -1.0)
    assert tt.gradcheck(cube, x)
    assert tt.gradcheck(cube, x, order=2)


@pytest.mark.parametrize("forward", [lambda: 0, lambda *x: x[0], lambda x, **k: x, lambda x, *, k: x * k], ids=range(4))
def test_a_function_whose_arguments_have_no_fixed_order_is_no_op(forward):
    with pytest.raises(TypeError, match=r"<lambda> cannot be an op: it needs parameters, without \* or \*\*"):
        Op(forward, {})


def test_a_rule_that_asks_for_what_the_op_lacks_is_refused():
    with pytest.raises(TypeError, match=r"cube.*'y'"):

        @op(x=lambda g, y: g * y)
        def cube(x):
            return x * x * x

    with pytest.raises(TypeError, match="square_of"):

        @op(z=lambda g: g)
        def square_of(x):
            return x * x

    assert "cube" not in all_ops
    assert "square_of" not in all_ops


def test_gradcheck_finds_a_wrong_gradient():
    wrong = Op(lambda x: x * x, {"x": lambda g, x: g * x})
    del all_ops[wrong.name]
    with pytest.raises(tt.GradcheckError, match=r"order 1 of input 0 at \(0,\)"):
        tt.gradcheck(wrong, leaf(3.0))


def test_gradcheck_finds_a_gradient_that_is_right_but_not_differentiable():
    # The rule computes the right number outside of the graph, so the second derivative is 0 without an error.
    cut = Op(lambda x: x * x, {"x": lambda g, x: g * 2.0 * (x.detach() if isinstance(x, tt.Tensor) else x)})
    del all_ops[cut.name]
    x = leaf(3.0, 4.0)
    assert tt.gradcheck(cut, x)
    with pytest.raises(tt.GradcheckError, match="order 2"):
        tt.gradcheck(cut, x, order=2)


def test_gradcheck_finds_faults_that_a_sum_hides():
    # The gradient of a plain sum of softmax is 0, whatever the rule does. A random cotangent finds the fault.
    fake = Op(lambda x: tt.softmax(tt.Tensor._wrap(x)).data, {"x": lambda g, out: out * (g - g.mean())})
    del all_ops[fake.name]
    with pytest.raises(tt.GradcheckError):
        tt.gradcheck(fake, leaf(0.1, 0.5, -0.3))


def test_gradcheck_finds_nan():
    nan = Op(lambda x: x * x, {"x": lambda g, x: g * float("nan")})
    del all_ops[nan.name]
    with pytest.raises(tt.GradcheckError):
        tt.gradcheck(nan, leaf(3.0))


def test_node_numbers_are_unique():
    numbers = [Node(None, (), None, (), "float32").number for _ in range(100)]
    assert all(a < b for a, b in itertools.pairwise(numbers))


def test_fused_ops_skip_the_kernels_work_for_constants():
    layer_norm = all_ops["layer_norm"]
    assert isinstance(layer_norm, FusedOp)
    x, weight = leaf([1.0, 2.0, 4.0]), tt.tensor(np.ones(3))
    out = layer_norm(x, weight)
    gradients = layer_norm.backward(out.node, tt.ones((1, 3), "float64").data, create_graph=False)
    assert [g is None for g in gradients] == [False, True, True]


def test_a_context_can_be_entered_inside_itself():
    x = tt.tensor([1.0], requires_grad=True)
    context = tt.no_grad()
    with context, context:
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_a_decorated_function_can_call_itself():
    x = tt.tensor([1.0], requires_grad=True)

    @tt.no_grad()
    def twice(y, depth):
        return twice(y * 2, depth - 1) if depth else y

    assert not twice(x * 1, 3).requires_grad or twice(x, 1).requires_grad is False
    assert (x * 2).requires_grad


# ------------------------------------------------------------------------------------------------------- users' own rules


def user_op(rule, forward=lambda x: x * x / 2.0):
    """An op that a user makes. It is not in the table of all ops."""
    made = Op(forward, {"x": rule})
    del all_ops[made.name]
    return made


RULES_WITHOUT_A_FIT = {
    "a number": (lambda g: 2.0, "returned a float"),
    "a list": (lambda g: [1.0, 2.0, 3.0], "returned a list"),
    "too few": (lambda g: g[:2], r"returned shape \(2,\)"),
    "too many": (lambda g: tt.stack([g, g], 1), r"returned shape \(3, 2\)"),
    "too few axes": (lambda g: g.sum(), r"returned shape \(\)"),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(("rule", "says"), RULES_WITHOUT_A_FIT.values(), ids=RULES_WITHOUT_A_FIT)
def test_a_rule_whose_gradient_does_not_fit_is_named(rule, says, create_graph):
    x = leaf(1.0, 2.0, 3.0)
    out = user_op(rule)(x).sum()
    with pytest.raises(ValueError, match=rf"the gradient rule of '<lambda>' for 'x' of shape \(3,\) {says}"):
        out.backward(create_graph=create_graph)
    assert x.grad is None


def test_a_rule_of_many_operands_returns_a_gradient_for_each():
    total = Op(lambda xs: sum(xs[1:], start=xs[0]), {"xs": lambda g: [g]}, several=True)
    del all_ops[total.name]
    with pytest.raises(ValueError, match="'<lambda>' returned 1 gradient for 2 operands"):
        total([leaf(1.0), leaf(2.0)]).sum().backward()


RULES_THAT_RETURN_WHAT_WAS_SAVED = {
    "an input": lambda g, x: x,
    "a view of it": lambda g, x: x[:],
    "the output": lambda g, out: out,
    "a view of that": lambda g, out: out.reshape(-1),
}


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("rule", RULES_THAT_RETURN_WHAT_WAS_SAVED.values(), ids=RULES_THAT_RETURN_WHAT_WAS_SAVED)
def test_what_was_saved_is_not_added_to_and_not_handed_out(rule, create_graph):
    f, x = user_op(rule), leaf(1.0, 2.0, 3.0)
    out = f(x)
    value = out.tolist()
    (out + out + f(x)).sum().backward(retain_graph=True, create_graph=create_graph)
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert out.tolist() == value
    x.grad = None
    out.sum().backward(create_graph=create_graph)
    assert not np.shares_memory(x.grad.numpy(), x.numpy())
    assert not np.shares_memory(x.grad.numpy(), out.numpy())
    tt.optim.clip_grad_norm([x], 0.1)
    assert x.tolist() == [1.0, 2.0, 3.0]
    assert out.tolist() == value


def test_what_was_saved_is_not_added_to_when_g_is_a_view_of_it():
    x = leaf(1.0, 2.0, 3.0)
    y = x * 1.0
    f = Op(lambda x, z: x + z, {"x": lambda g, x: x, "z": lambda g: g})
    del all_ops[f.name]
    f(y, y * 1.0).backward(y.detach()[:])  # y gets two gradients: the saved array, and that of y * 1.0
    assert y.tolist() == [1.0, 2.0, 3.0]
    assert x.grad.tolist() == [2.0, 4.0, 6.0]


ONE_ARRAY_FOR_TWO_INPUTS = {
    "twice": (lambda new: new, lambda new: new),
    "and a view of it": (lambda new: new, lambda new: new[:]),
    "after a view of it": (lambda new: new[:], lambda new: new),
    "two views": (lambda new: new[:], lambda new: new[:]),
}


@pytest.mark.parametrize("names", ["ab", "ba"])  # the later one is added first on the way back
@pytest.mark.parametrize("returns", ONE_ARRAY_FOR_TWO_INPUTS.values(), ids=ONE_ARRAY_FOR_TWO_INPUTS)
def test_one_array_returned_for_two_inputs_is_the_gradient_of_each(returns, names):
    new = []

    def first(g, y):
        new.append(g * y)
        return returns[0](new[-1])

    both = Op(lambda x, y: x * y, {"x": first, "y": lambda g: returns[1](new[-1])})
    del all_ops[both.name]
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    inputs = {"a": x * 1.0, "b": y * 1.0}
    a, b = inputs.values()
    others = sum(inputs[name] * (10.0 if name == "a" else 100.0) for name in names)
    (both(a, b) + others).sum().backward()
    assert x.grad.tolist() == [13.0, 14.0]
    assert y.grad.tolist() == [103.0, 104.0]
    x.grad = y.grad = None
    both(x, y).sum().backward()
    assert not np.shares_memory(x.grad.numpy(), y.grad.numpy())


# --------------------------------------------------------------------------------------------- whose a gradient's memory is


SHARING = {
    "reshape and add": lambda p, b: ((p.reshape(4) + b) ** 2).sum(),
    "sum": lambda p, b: p.sum() + b.sum(),
    "transpose": lambda p, b: p.T.sum() + b.reshape(2, 2).T.sum(),
    "broadcast": lambda p, b: tt.broadcast_to(p, (3, 2, 2)).sum() + b.sum(),
    "concatenate": lambda p, b: tt.concatenate([p.reshape(4), b]).sum(),
}


@pytest.mark.parametrize("f", SHARING.values(), ids=SHARING)
def test_gradients_with_a_graph_own_their_memory(f):
    p, b = leaf([1.0, 2.0], [3.0, 4.0]), leaf(1.0, 1.0, 1.0, 1.0)
    f(p, b).backward(create_graph=True)
    by_grad = tt.grad(f(p, b), [p, b], create_graph=True)
    arrays = [t.numpy() for t in (p, b, p.grad, b.grad, *by_grad)]
    assert not any(np.shares_memory(x, y) for x, y in itertools.combinations(arrays, 2))
    before = [x.copy() for x in arrays[2:4]]
    norm = tt.optim.clip_grad_norm([p, b], 0.5).item()
    for x, was in zip((p.grad.numpy(), b.grad.numpy()), before):
        np.testing.assert_allclose(x, was * 0.5 / norm, rtol=1e-5)


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_tensor_asked_for_twice_has_two_gradients(create_graph):
    x = leaf(1.0, 2.0)
    y = x * 2.0
    first, second, _ = tt.grad((y * y).sum(), [y, y, x], create_graph=create_graph)
    assert first.tolist() == second.tolist() == [4.0, 8.0]
    assert not np.shares_memory(first.numpy(), second.numpy())


def test_a_gradient_with_a_graph_shares_nothing_with_what_was_passed_in():
    x, g = leaf(1.0, 2.0), tt.tensor([3.0, 4.0], dtype="float64")
    x.reshape(2).backward(g, create_graph=True)
    assert not np.shares_memory(x.grad.numpy(), g.numpy())


@pytest.mark.parametrize("f", [lambda p: (p * p).sum(), lambda p: p.sum(), lambda p: tt.checkpoint(tt.exp, p).sum()])
def test_a_gradient_with_a_graph_makes_no_cycle(f):
    with garbage.none_left():
        p = leaf(1.0, 2.0, 3.0)
        f(p).backward(create_graph=True)
        del p


def test_gradients_with_a_graph_add_up_inside_no_grad():
    x = leaf(2.0)
    outs = [(x**3).sum() for _ in range(2)]
    with tt.no_grad():
        for out in outs:
            out.backward(create_graph=True)
    assert tt.grad(x.grad.sum(), x).tolist() == [24.0]


def test_threads_add_to_one_gradient_and_lose_nothing():
    p = tt.tensor(np.zeros(1000), requires_grad=True)

    def work():
        for _ in range(100):
            (p * 1.0).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads switch often
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert p.grad.tolist() == [400.0] * 1000


@pytest.mark.parametrize("change", ["freeze", "freeze and release", "convert"])
def test_a_parameter_that_is_another_leaf_by_now_gets_no_gradient(change):
    layer = tt.nn.Linear(2, 1)
    out = layer(tt.ones((1, 2))).sum()
    if change == "convert":
        layer.astype("float64")
    else:
        layer.weight.requires_grad = False
        layer.weight.requires_grad = change == "freeze and release"
    out.backward()
    assert layer.weight.grad is None
    assert (layer.bias.grad is None) == (change == "convert")


# ------------------------------------------------------------------------------------------------------------- generators


def test_a_decorated_generator_has_its_mode_while_it_runs():
    x, seen = leaf(1.0), []

    @tt.no_grad()
    def records(count):
        try:
            for _ in range(count):
                seen.append((yield (x * 2.0).requires_grad))
        except KeyError:
            yield "caught", (x * 2.0).requires_grad
        finally:
            seen.append((x * 2.0).requires_grad)
        return "the end"

    items = records(2)
    assert next(items) is False
    assert (x * 2.0).requires_grad  # the caller records
    assert items.send("a value") is False
    with pytest.raises(StopIteration, match="the end"):
        next(items)
    assert seen == ["a value", None, False]
    thrown = records(2)
    next(thrown)
    assert thrown.throw(KeyError("mine")) == ("caught", False)
    closed = records(2)
    next(closed)
    seen.clear()
    closed.close()
    assert seen == [False]
    assert (x * 2.0).requires_grad


@pytest.mark.parametrize(
    ("value", "shown"), [(5.0, "5.0"), ([1.0, 2.0], r"the list \[1.0, 2.0\]"), (np.ones(2), "a numpy.ndarray of float64")]
)
def test_an_assigned_gradient_is_a_tensor(value, shown):
    x = leaf(1.0, 2.0)
    with pytest.raises(TypeError, match=f"a gradient must be a tensor, got {shown}: make it one"):
        x.grad = value


# ---------------------------------------------------------------------------- kernels that add to what has arrived already


NORMS = {"layer norm": lambda x, w: tt.layer_norm(x, w), "rms norm": lambda x, w: tt.rms_norm(x, w)}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("order", ["residual first", "residual last", "twice", "its own weight", "shared gradient"])
def test_a_norm_adds_to_the_gradient_of_a_residual(norm, order):
    """x also gets gradients from elsewhere, before and after the norm's, and none of them is lost, counted twice or changed."""
    forms = {
        "residual first": lambda x, w: x * 3.0 + norm(x, w),
        "residual last": lambda x, w: norm(x, w) * x,
        "twice": lambda x, w: x + norm(norm(x + 1.0, w) + x, w),
        "its own weight": lambda x, w: norm(x[0], x[0]) + x[1] * norm(x[0], w),
        "shared gradient": lambda x, w: x + norm(x, w) + (x + w),
    }
    rng = np.random.default_rng(0)
    x, w = [tt.tensor(rng.standard_normal(shape), requires_grad=True) for shape in ((3, 4), (4,))]
    tt.gradcheck(lambda x, w: forms[order](x, w), [x, w])
    out = forms[order](x, w)
    g = tt.tensor(rng.standard_normal(out.shape))
    kept = g.numpy().copy()
    first = tt.grad(out, [x, w], g, retain_graph=True)
    again = tt.grad(out, [x, w], g, retain_graph=True)
    graph = tt.grad(out, [x, w], g, create_graph=True)  # where the readable formula is differentiated
    with tt.detect_anomaly():
        apart = tt.grad(forms[order](x, w), [x, w], g)
    for a, b, c, d in zip(first, again, graph, apart):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        np.testing.assert_allclose(a.numpy(), c.numpy(), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(a.numpy(), d.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(g.numpy(), kept)


IDS = np.array([[1, 0, 1], [3, 1, 1]])
LOOKUPS = {
    "the output layer, too": lambda w: tt.linear(tt.embedding(IDS, w) * 2.0, w),
    "looked up first": lambda w: tt.embedding(IDS, w).sum((0, 1)) + w * 3.0,
    "looked up last": lambda w: w * 3.0 + tt.embedding(IDS, w).sum((0, 1)),
    "looked up twice": lambda w: tt.embedding(IDS, w) * tt.embedding(IDS[::-1].copy(), w),
    "shared gradient": lambda w: tt.embedding(np.arange(4), w) + w + (w + w),
    "turned round": lambda w: tt.embedding(IDS, w).sum((0, 1)) + (w.T * 3.0).T,
    "cut": lambda w: tt.embedding(IDS, w).sum((0, 1)) + w[1:3].sum() + w[2:, :2].sum(),
    "computed": lambda w: tt.linear(tt.embedding(IDS, w * w), w * w),
}


@pytest.mark.parametrize("lookup", LOOKUPS.values(), ids=LOOKUPS)
def test_an_embedding_adds_rows_to_the_gradient_of_its_table(lookup):
    """The table also gets gradients from elsewhere, and none of them is lost, counted twice or changed."""
    rng = np.random.default_rng(0)
    w = tt.tensor(rng.standard_normal((4, 3)), requires_grad=True)
    tt.gradcheck(lookup, [w])
    out = lookup(w)
    g = tt.tensor(rng.standard_normal(out.shape))
    kept = g.numpy().copy()
    first = tt.grad(out, w, g, retain_graph=True)
    again = tt.grad(out, w, g, retain_graph=True)
    graph = tt.grad(out, w, g, create_graph=True)
    with tt.detect_anomaly():
        apart = tt.grad(lookup(w), w, g)
    np.testing.assert_array_equal(first.numpy(), again.numpy())
    for other in (graph, apart):
        np.testing.assert_allclose(first.numpy(), other.numpy(), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(g.numpy(), kept)
    out.backward(g)
    out = lookup(w)
    out.backward(g)
    np.testing.assert_allclose(w.grad.numpy(), 2 * first.numpy(), rtol=1e-12)


def test_detect_anomaly_finds_rows_that_add_up_to_infinity():
    w = leaf(1.0, dtype="float16")
    with tt.detect_anomaly(), pytest.raises(FloatingPointError, match="gradient of 'embedding'"):
        out = tt.embedding(np.zeros(100, int), w.reshape(1, 1))
        out.backward(tt.tensor(np.full((100, 1), 1000.0), dtype="float16"))


@pytest.mark.parametrize(
    "index", [slice(None), slice(0, 9), (slice(None), slice(0, 4)), slice(None, None, -1), slice(-3, None)], ids=str
)
def test_a_slice_of_everything_passes_its_gradient_on(index):
    """Also where x gets the same gradient from elsewhere, and where the slice is of everything but turned round."""
    x = tt.tensor(np.arange(12.0).reshape(3, 4), requires_grad=True)
    g = np.random.default_rng(0).standard_normal((3, 4))
    (first,) = tt.grad(x[index] + x, [x], tt.tensor(g))
    turned = g[::-1] if index == slice(None, None, -1) else g
    np.testing.assert_array_equal(first.numpy(), turned + g)
    x[index].backward(tt.tensor(g))
    x.grad += 1.0
    np.testing.assert_array_equal(x.grad.numpy(), turned + 1.0)
