"""The likeliest tokens, against a full sort."""

from __future__ import annotations

import numpy as np
import pytest

from tinyformer.decoding.sampling import likeliest


@pytest.mark.parametrize("size", [1, 5, 1000, 2047, 2048, 5000])
@pytest.mark.parametrize("count", [1, 8, 256, 257, 5000])
@pytest.mark.parametrize("values", [3, 10**9])
def test_the_highest_come_first_and_equal_ones_in_their_order(size: int, count: int, values: int) -> None:
    scores = np.random.default_rng(size).integers(0, values, size).astype(np.float32)
    np.testing.assert_array_equal(likeliest(scores, count), np.argsort(-scores, kind="stable")[:count])
    np.testing.assert_array_equal(likeliest(np.sort(scores), 1), [np.sort(scores).argmax()])


def test_impossible_values_are_skipped() -> None:
    scores = np.full(5000, -np.inf)
    scores[[4999, 17]] = 0.5, 2.0
    assert likeliest(scores, 4).tolist() == [17, 4999]
