"""Attention rollout against its definition."""

from __future__ import annotations

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import attention_rollout, recording_attention


def test_the_rollout_is_the_product_of_the_layers(make_gpt) -> None:
    model = make_gpt(num_layers=3).eval()
    with recording_attention(model) as recorded:
        model(tt.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]))
    weights = [calls[0] for calls in recorded.values()]
    found = attention_rollout(weights)
    expected = np.eye(4)[None]
    for layer, rollout in zip(weights, found):
        expected = (0.5 * layer.numpy().mean(1) + 0.5 * np.eye(4)) @ expected
        np.testing.assert_allclose(rollout.numpy(), expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(rollout.numpy().sum(-1), 1, rtol=1e-5)
    assert not np.triu(found[-1].numpy(), 1).any()  # no token comes from the future
    assert attention_rollout([]) == []


def test_rows_that_do_not_sum_to_one_are_normalised() -> None:
    (found,) = attention_rollout([tt.zeros((1, 2, 3, 3))])
    np.testing.assert_array_equal(found.numpy()[0], np.eye(3))


def test_only_self_attention_has_a_rollout() -> None:
    square = tt.ones((1, 2, 3, 3))
    for wrong in ([tt.ones((1, 2, 3, 4))], [square[0]], [square, tt.ones((1, 2, 4, 4))]):
        with pytest.raises(ValueError, match="weights must be"):
            attention_rollout(wrong)
