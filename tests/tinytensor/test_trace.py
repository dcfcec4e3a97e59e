"""A traced function gives what the function gives, bit for bit, and refuses what it could not follow."""

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn


def normal(*shape, seed=0):
    return tt.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def counted(function):
    """The function, and a list that grows with each call of it."""
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
        """On arrays; what it calls is not traced in turn."""
        counter.count += 1
        return (tt.Tensor._wrap(x) * counter.count).data + (0 if y is None else y)

    counter = Counter()
    traced = tt.trace(lambda x: times_count(x + 1, None, counter) + times_count(x, x * 2, counter))
    x = normal(3)
    for i in range(3):
        expected = (x.numpy() + 1) * np.float32(2 * i + 1) + (x.numpy() * np.float32(2 * i + 2) + x.numpy() * 2)
        np.testing.assert_allclose(traced(x).numpy(), expected, rtol=1e-6)
    assert counter.count == 6


def test_values_read_in_python_are_refused():
    with pytest.raises(TypeError, match="input 0"):
        tt.trace(lambda x: tt.tensor(x.numpy() * 2) + 1)(normal(3))
    with pytest.raises(TypeError, match="input 1"):
        tt.trace(lambda x, y: x * y.item())(normal(3), tt.tensor([2.0]))


def test_arrays_that_leave_their_tensors_are_refused():
    with pytest.raises(TypeError, match="array of shape"):
        tt.trace(lambda x: x + tt.Tensor._wrap(tt.exp((x * 2).data)))(normal(3))


@pytest.mark.parametrize("function", [tt.sort, lambda x: tt.topk(x, 2)[0], lambda x: x[[0, 2]]])
def test_places_worked_out_from_values_are_refused(function):
    with pytest.raises(TypeError, match="array of shape"):
        tt.trace(function)(normal(4))


@pytest.mark.parametrize("function, given", [(lambda x: x, 1.0), (lambda x: x, np.ones(2)), (lambda x: (x, x), tt.ones(2))])
def test_what_is_no_tensor_is_refused(function, given):
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
