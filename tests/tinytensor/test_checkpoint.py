"""Gradient checkpointing: it gives the same values and gradients, and keeps less."""

import threading
from concurrent.futures import ThreadPoolExecutor

import garbage
import numpy as np
import pytest

import tinytensor as tt
from tinytensor import nn
from tinytensor.autograd import modes


def normal(*shape):
    return np.random.default_rng(0).standard_normal(shape)


def make():
    tt.seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 4))


def gradients(model, x, checkpointed):
    tt.seed(1)
    y = tt.checkpoint(model, x * 2.0) if checkpointed else model(x * 2.0)
    (y * tt.tensor(normal(*y.shape).astype("float32"))).sum().backward()
    found = [p.grad.numpy() for p in (x, *model.parameters())]
    for p in (x, *model.parameters()):
        p.grad = None
    return y.numpy(), found, tt.random.get_state()


def test_values_gradients_and_random_numbers_are_the_same():
    model, x = make(), tt.tensor(normal(3, 4), dtype="float32", requires_grad=True)
    plain, checkpointed = gradients(model, x, False), gradients(model, x, True)
    assert plain[2] == checkpointed[2]
    np.testing.assert_array_equal(plain[0], checkpointed[0])
    for a, b in zip(plain[1], checkpointed[1]):
        np.testing.assert_array_equal(a, b)


def test_the_function_runs_again_in_backward_and_keeps_only_its_inputs():
    calls = []

    def function(x):
        calls.append(tt.no_grad)
        return (x * x).exp().sum()

    x = tt.tensor([1.0, 2.0], requires_grad=True)
    out = tt.checkpoint(function, x)
    assert len(calls) == 1
    assert out.node.parents == (x.node,)
    out.backward()
    assert len(calls) == 2
    tt.checkpoint(function, x.detach())
    with tt.no_grad():
        assert not tt.checkpoint(function, x).requires_grad


def test_higher_orders():
    w = tt.tensor([0.5, -1.0], dtype="float64", requires_grad=True)
    tt.gradcheck(
        lambda x: tt.checkpoint(lambda y: (y * w).tanh() * y, x * x), tt.tensor(normal(2), requires_grad=True), order=2
    )
    x = tt.tensor([1.0, 2.0], dtype="float64", requires_grad=True)
    results = []
    for f in (lambda y: (y**3 * w).exp(), lambda y: tt.checkpoint(lambda z: (z**3 * w).exp(), y)):
        (first,) = tt.grad(f(x).sum(), [x], create_graph=True)
        results.append([g.numpy() for g in tt.grad(first.square().sum(), [x, w])])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-12)


def test_several_inputs_some_of_which_take_no_gradient():
    x, y = (tt.tensor(normal(3), dtype="float64", requires_grad=True) for _ in range(2))
    out = tt.checkpoint(lambda a, b, c, n: (a * b * c).sum() * n, x, y, tt.tensor([1.0, 2.0, 3.0], dtype="float64"), 2)
    out.backward()
    np.testing.assert_allclose(x.grad.numpy(), y.numpy() * [2.0, 4.0, 6.0])
    np.testing.assert_allclose(y.grad.numpy(), x.numpy() * [2.0, 4.0, 6.0])


def test_one_input_computed_from_another():
    x = tt.tensor([2.0], dtype="float64", requires_grad=True)
    y = x * x
    tt.checkpoint(lambda a, b: a * b, x, y).sum().backward()
    assert x.grad.tolist() == [12.0]


def test_inside_each_other():
    w = tt.tensor([3.0], requires_grad=True)
    x = tt.tensor([2.0], requires_grad=True)
    tt.checkpoint(lambda a: tt.checkpoint(lambda b: b * b * w, a) * w, x).sum().backward()
    assert x.grad.tolist() == [36.0]
    assert w.grad.tolist() == [24.0]


def test_gradients_add_up_and_the_graph_is_freed():
    x = tt.tensor([2.0], requires_grad=True)
    with garbage.none_left():
        out = tt.checkpoint(lambda a: a * a, x)
        (out.sum() + x.sum()).backward()
        del out
    assert x.grad.tolist() == [5.0]
    out = tt.checkpoint(lambda a: a * a, x)
    out.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()


def test_wrong_uses():
    x = tt.tensor([2.0], requires_grad=True)
    with pytest.raises(TypeError, match="must return one tensor, got tuple"):
        tt.checkpoint(lambda a: (a, a), x)


# ------------------------------------------------------------------------------- what the function uses besides its inputs


def test_an_input_that_the_function_also_uses_by_itself():
    w = tt.tensor(2.0, requires_grad=True)
    tt.checkpoint(lambda a: a * w, w).backward()
    assert w.grad.item() == 4.0
    h = w * 3.0
    assert tt.grad(tt.checkpoint(lambda a: a * h, h), w).item() == 36.0
    both = tt.checkpoint(lambda a, b: a * b * w, w, w)
    assert tt.grad(both, w).item() == 12.0


def test_a_tensor_computed_before():
    x = tt.tensor([2.0], dtype="float64", requires_grad=True)
    y = x * x
    assert tt.grad(tt.checkpoint(lambda a: a * y, x).sum(), x).tolist() == [12.0]
    assert tt.gradcheck(lambda x: (lambda y: tt.checkpoint(lambda a: a * y * y, x))(x * x), x, order=2)


def test_a_function_that_returns_what_it_was_not_given():
    w, x = tt.tensor([2.0], requires_grad=True), tt.tensor([3.0], requires_grad=True)
    (tt.checkpoint(lambda a: w, x) * 5.0).sum().backward()
    assert w.grad.tolist() == [5.0]
    assert x.grad is None
    tt.checkpoint(lambda a: a, x).sum().backward()
    assert x.grad.tolist() == [1.0]


def test_an_input_whose_array_was_replaced_since():
    x, y = tt.tensor([1.0, 2.0], requires_grad=True), tt.tensor([1.0, 1.0])
    out = tt.checkpoint(lambda a, b: a * b, x, y)
    y[0] = 7.0
    assert tt.grad(out.sum(), x).tolist() == [1.0, 1.0]


def test_another_use_than_at_first():
    x, ws = tt.tensor(1.0, requires_grad=True), [tt.tensor(2.0, requires_grad=True), tt.tensor(3.0, requires_grad=True)]
    w = ws[0]
    out = tt.checkpoint(lambda a: a * w, x)
    w = ws[1]
    with pytest.raises(RuntimeError, match=r"differs from the first \(it uses other tensors"):
        out.backward()


def test_parameters_changed_in_place_since():
    for frozen in (False, True):
        layer, x = nn.Linear(2, 2), tt.tensor([[1.0, 2.0]], requires_grad=True)
        layer.weight.requires_grad = not frozen
        out = tt.checkpoint(lambda x, layer=layer: layer(x).tanh(), x).sum()
        layer.weight.assign(np.zeros((2, 2), "float32"))
        with pytest.raises(RuntimeError, match="'checkpoint', but values that it used were changed in place"):
            out.backward()


# --------------------------------------------------------------------------------------------------------- random numbers


def kept(x):
    """Dropout by which one sees, in the gradient, whether both passes drop the same elements."""
    return tt.dropout(x, 0.5)


def masks_agree(function, x):
    y = tt.checkpoint(function, x)
    (found,) = tt.grad(y.sum(), [x])
    return bool(((found == 0) == (y == 0)).all())


def random_input():
    return tt.ones((64,), requires_grad=True)


def test_while_other_threads_draw():
    shared = np.random.default_rng(0)
    ready, drawn = threading.Event(), threading.Event()

    def draw():
        with tt.random.using(shared):
            ready.wait(10)
            tt.random.random_key()
            drawn.set()

    def function(x):
        ready.set()
        assert drawn.wait(10)
        return kept(x)

    for own in (shared, None):  # a generator that both threads use, and that of this thread
        ready.clear(), drawn.clear()
        thread = threading.Thread(target=draw)
        thread.start()
        with tt.random.using(own):
            assert masks_agree(function, random_input())
        thread.join()


def test_two_threads_in_parallel():
    def work(_):
        return all(masks_agree(kept, random_input()) for _ in range(50))

    with ThreadPoolExecutor(3) as threads:
        assert all(threads.map(work, range(3)))


def test_a_backward_pass_in_another_thread():
    x = random_input()
    y = tt.checkpoint(kept, x)
    with ThreadPoolExecutor(1) as thread:
        (found,) = thread.submit(tt.grad, y.sum(), [x]).result()
    assert ((found == 0) == (y == 0)).all()


def test_in_shards():
    x = random_input()
    outs = {}

    def loss(k):
        outs[k] = tt.checkpoint(kept, x)
        return outs[k].sum()

    tt.parallel.backward(loss, [0, 1, 2])
    assert x.grad.tolist() == sum(outs.values()).tolist()  # the input is 1, so an element is its own derivative


def test_a_function_that_calls_seed():
    def function(x):
        first = kept(x)
        tt.seed(5)
        return first + 4.0 * kept(x)

    x = random_input()
    tt.seed(1)
    plain = function(x)
    state = tt.random.get_state()
    tt.seed(1)
    y = tt.checkpoint(function, x)
    assert y.tolist() == plain.tolist()
    assert tt.random.get_state() == state
    (found,) = tt.grad(y.sum(), [x])
    assert found.tolist() == y.tolist()
    assert tt.random.get_state() == state  # the backward pass leaves the generator alone


def test_random_numbers_inside_each_other():
    def function(x):
        return kept(x) + 4.0 * tt.checkpoint(lambda y: kept(y) + 16.0 * tt.checkpoint(kept, y), x) + 256.0 * kept(x)

    x = random_input()
    tt.seed(2)
    plain = function(x).tolist()
    tt.seed(2)
    y = tt.checkpoint(function, x)
    assert y.tolist() == plain
    assert tt.grad(y.sum(), [x])[0].tolist() == plain


def test_a_generator_advances_though_the_function_fails():
    def fail(x):
        kept(x)
        raise KeyError

    tt.seed(3)
    kept(random_input())
    state = tt.random.get_state()
    tt.seed(3)
    with pytest.raises(KeyError):
        tt.checkpoint(fail, random_input())
    assert tt.random.get_state() == state


# --------------------------------------------------------------------------------------- the second call repeats the first


def test_inputs_that_the_caller_changes_meanwhile():
    constant, array, x = tt.tensor([2.0]), np.ones(1, "float32"), tt.tensor([1.0], requires_grad=True)
    for given, change in {
        "an array": (array, lambda: array.fill(9.0)),
        "a list": (numbers := [3.0], lambda: numbers.append(9.0)),
        "a dict of tuples": ({"factors": (array, [constant])}, lambda: (array.fill(9.0), constant.__setitem__(0, 9.0))),
    }.values():
        array[:], constant[0] = 1.0, 2.0

        def product(x, given):
            waiting = [given]
            while waiting:
                factor = waiting.pop()
                if isinstance(factor, (dict, list, tuple)):
                    waiting += factor.values() if isinstance(factor, dict) else factor
                else:
                    x = x * tt.tensor(factor)
            return x

        y = tt.checkpoint(product, x, given)
        change()
        for _ in range(2):
            (found,) = tt.grad(y.sum(), [x], retain_graph=True)
            assert found.tolist() == y.tolist()


def test_a_second_call_that_differs():
    x = random_input()
    module, scale, own = nn.Dropout(0.5), {"now": 2.0}, np.random.default_rng(0)

    def with_own_generator(x):
        with tt.random.using(own):
            return kept(x)

    for function, change in (
        (module, module.eval),
        (module, module.train),
        (lambda x: x * scale["now"], lambda: scale.update(now=3.0)),
        (with_own_generator, lambda: None),
    ):
        y = tt.checkpoint(function, x)
        change()
        with pytest.raises(RuntimeError, match=r"differs from the first \((dropout|multiply) of shape \(64,\)\)"):
            y.sum().backward()


def test_the_second_call_has_the_modes_of_the_first():
    seen = []

    def function(x):
        now = modes.modes()
        seen.append((now.recording, now.full_precision, now.detecting_anomalies, now.keeping_values))
        return x * x

    x = tt.tensor([1.0], requires_grad=True)
    with modes.Switched("full_precision", True), tt.keep_values():
        y = tt.checkpoint(function, x)
    with modes.Switched("full_precision", False), tt.detect_anomaly():
        y.sum().backward()
    assert seen == [(True, True, False, True)] * 2


def test_without_gradients_the_function_also_returns_a_tensor():
    with tt.no_grad(), pytest.raises(TypeError, match="must return one tensor, got NoneType"):
        tt.checkpoint(lambda x: None, random_input())
