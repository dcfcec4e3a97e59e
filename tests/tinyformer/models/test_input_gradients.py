"""The norms of gradients with respect to inputs, against explicit computations."""

from __future__ import annotations

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.models.recording import input_gradients
from tinytensor import Tensor


def test_a_linear_recurrent_network_has_powers_of_its_matrix() -> None:
    # h' = x + h Wᵀ, so the last state's derivative with respect to the input t steps before is W to the power of t.
    weight = np.random.default_rng(0).normal(size=(3, 3)) / 2

    def last_state(x: Tensor) -> Tensor:
        state = tt.zeros((2, 3), dtype="float64")
        for t in range(x.shape[1]):
            state = x[:, t] + tt.linear(state, tt.tensor(weight))
        return state

    inputs = tt.tensor(np.random.default_rng(1).normal(size=(2, 40, 3)))
    norms = input_gradients(last_state, inputs)
    by_hand = [np.linalg.norm(np.linalg.matrix_power(weight, t)) for t in reversed(range(40))]
    np.testing.assert_allclose(norms, [by_hand, by_hand], rtol=1e-10)


def test_each_row_has_the_norms_of_its_inputs() -> None:
    inputs = tt.tensor(np.array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]))
    norms = input_gradients(lambda x: (x * x).sum(axis=1), inputs)  # whose derivatives are 2 x, on the diagonal
    np.testing.assert_allclose(norms, 2 * np.linalg.norm(inputs.numpy(), axis=-1))


def test_norms_far_below_float32s_are_found() -> None:
    def last_state(x: Tensor) -> Tensor:
        state = x[:, 0]
        for _ in range(60):
            state = state * 0.1
        return state + x[:, 1]

    norms = input_gradients(last_state, tt.ones((1, 2, 1), dtype="float64"))
    assert norms == pytest.approx(np.array([[1e-60, 1.0]]), rel=1e-9)


def test_nothing_is_left_behind() -> None:
    weight = tt.ones((2, 2), requires_grad=True)
    inputs = tt.ones((1, 3, 2), requires_grad=True)
    norms = input_gradients(lambda x: (x @ weight)[:, -1], inputs)
    np.testing.assert_allclose(norms, [[0.0, 0.0, 2.0]])
    assert weight.grad is None
    assert inputs.grad is None
