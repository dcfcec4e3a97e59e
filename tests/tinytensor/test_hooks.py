"""Forward hooks, and the outputs that they record."""

from __future__ import annotations

import copy
import gc
import threading

import numpy as np
import pytest

import tinytensor as tt
from tinytensor.nn import LSTM, Linear, Module, Sequential, Tanh, recording_outputs
from tinytensor.nn.hooks import any_hooks, hooked


@pytest.fixture
def model() -> Sequential:
    return Sequential(Linear(3, 4), Tanh(), Linear(4, 2))


X = tt.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 2.0]])


def test_a_hook_gets_the_module_the_inputs_and_the_output(model: Sequential) -> None:
    seen: list[tuple[object, ...]] = []
    handle = model[0].register_forward_hook(lambda *given: seen.append(given))
    out = model[0](X)
    assert [len(given) for given in seen] == [3] and seen[0][0] is model[0] and seen[0][1] == (X,) and seen[0][2] is out
    handle.remove()
    handle.remove()
    model(X)
    assert len(seen) == 1 and not any_hooks()


def test_hooks_are_called_in_order_and_may_replace_the_output(model: Sequential) -> None:
    plain = model(X)
    with (
        model.register_forward_hook(lambda module, inputs, output: output + 1),
        model.register_forward_hook(lambda module, inputs, output: output * 2),
        model.register_forward_hook(lambda module, inputs, output: None),
    ):
        hooked = model(X)
    np.testing.assert_allclose(hooked.numpy(), (plain.numpy() + 1) * 2, rtol=1e-6)
    np.testing.assert_array_equal(model(X).numpy(), plain.numpy())


def test_a_hook_may_remove_itself_and_its_error_leaves_no_other_state(model: Sequential) -> None:
    calls: list[int] = []
    handles = [model.register_forward_hook(lambda *given: (calls.append(1), handles[0].remove(), None)[-1])]
    model(X)
    model(X)
    assert calls == [1]

    def stop(*given: object) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), model.register_forward_hook(stop):
        model(X)
    assert not any_hooks()
    with pytest.raises(TypeError, match="hook must be"):
        model.register_forward_hook("print")


def test_outputs_are_recorded_by_name_and_gradients_flow_through_them(model: Sequential) -> None:
    with recording_outputs(model) as recorded:
        loss = model(X).sum()
        model(X)
    assert {name: len(calls) for name, calls in recorded.items()} == {"": 2, "0": 2, "1": 2, "2": 2}
    with recording_outputs(model, (Tanh,)) as only:
        model(X)
    assert list(only) == ["1"] and only["1"][0].shape == (2, 4)
    (gradient,) = tt.grad(loss, [recorded["1"][0]])
    np.testing.assert_allclose(gradient.numpy(), np.tile(model[2].weight.numpy().sum(0), (2, 1)), rtol=1e-6)


def test_kinds_that_are_no_modules_are_refused(model: Sequential) -> None:
    for kinds in ("Linear", [Linear], model[0]):
        with pytest.raises(TypeError, match="kinds must be"), recording_outputs(model, kinds):
            pass


def test_traced_functions_call_hooks(model: Sequential) -> None:
    fast = tt.trace(model)
    fast(X)
    expected = fast(X)
    with recording_outputs(model, Linear) as recorded:
        np.testing.assert_allclose(fast(X).numpy(), expected.numpy(), rtol=1e-6)
        fast(X)
    fast(X)
    assert {name: len(calls) for name, calls in recorded.items()} == {"0": 2, "2": 2}
    with tt.no_grad(), model.register_forward_hook(lambda *given: given[-1] * 0):
        assert not fast(X).numpy().any()
    assert fast(X).numpy().any()


def test_a_copy_has_its_own_hooks(model: Sequential) -> None:
    calls: list[Module] = []
    handle = model.register_forward_hook(lambda module, inputs, output: calls.append(module))
    other = copy.deepcopy(model)
    handle.remove()
    fast = tt.trace(other)
    for _ in range(3):
        fast(X)
    model(X)
    assert calls == [other] * 3
    calls.clear()
    del other, fast
    gc.collect()
    assert not any_hooks()


def test_the_layers_of_a_recurrent_network_show_their_states() -> None:
    lstm, shown = LSTM(3, 4, num_layers=2), []
    with hooked([(lstm, "layer_states", lambda module, inputs, states: shown.append(states))]):
        outputs, (_, c) = lstm(tt.ones((5, 2, 3)))
    assert [[s.shape for s in states] for states in shown] == [[(5, 2, 4)] * 2] * 2
    np.testing.assert_array_equal(shown[1][0].numpy(), outputs.numpy())
    np.testing.assert_array_equal(shown[0][1].numpy()[-1], c.numpy()[0])


def test_threads_may_record_one_module_in_parallel(model: Sequential) -> None:
    counts: list[int] = []

    def watch() -> None:
        for _ in range(50):
            with recording_outputs(model[0]) as recorded:
                model[0](X)
            counts.append(len(recorded[""]))

    threads = [threading.Thread(target=watch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(counts) == 200 and min(counts) >= 1
    assert not any_hooks()
