"""Delayed recall: what the rows and batches of the task are."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tinyformer.common.errors import SettingError
from tinyformer.tasks.recall import VALIDATED, VALIDATION_ROWS, RecallBatches, RecallTask, recall_batch


def test_the_first_token_is_the_target_and_all_have_the_same_kinds() -> None:
    task = RecallTask(distance=9, symbols=5)
    batch = recall_batch(task, 7, 2000, np.random.default_rng(0))
    ids = batch.inputs.numpy()
    assert ids.shape == (2000, 8)
    assert batch.num_targets == 2000
    np.testing.assert_array_equal(batch.targets.numpy(), ids[:, 0])
    for column in ids.T:  # every token is any of the five, equally often
        assert np.bincount(column, minlength=5) == pytest.approx(np.full(5, 400), abs=100)


def test_noise_may_have_kinds_of_its_own() -> None:
    task = RecallTask(distance=9, symbols=5, noise=3)
    assert task.vocab_size == 8
    ids = recall_batch(task, 9, 500, np.random.default_rng(0)).inputs.numpy()
    assert set(ids[:, 0].tolist()) == {0, 1, 2, 3, 4}
    assert set(ids[:, 1:].ravel().tolist()) == {5, 6, 7}


def test_each_batch_has_one_distance_and_all_are_equally_likely() -> None:
    batches = RecallBatches(RecallTask(distance=4), 3)
    lengths = [batches.sample().inputs.shape for _ in range(2000)]
    assert {rows for rows, _ in lengths} == {3}
    assert np.bincount([length - 1 for _, length in lengths], minlength=5) == pytest.approx([0, 500, 500, 500, 500], abs=100)
    assert batches.largest_batch() == 15


def test_a_seed_repeats_the_batches_and_a_state_continues_them() -> None:
    task = RecallTask(distance=20)
    one, two, other = RecallBatches(task, 4, seed=1), RecallBatches(task, 4, seed=1), RecallBatches(task, 4, seed=2)
    assert same(one.sample(), two.sample())
    assert not same(one.sample(), other.sample())
    other.set_state(json.loads(json.dumps(one.get_state())))
    assert same(one.sample(), other.sample())


def same(one: object, two: object) -> bool:
    return one.inputs.tolist() == two.inputs.tolist() and one.targets.tolist() == two.targets.tolist()


@pytest.mark.parametrize(("distance", "distances"), [(100, VALIDATED), (7, 7), (1, 1)])
def test_validation_takes_the_same_rows_each_time(distance: int, distances: int) -> None:
    batches = RecallBatches(RecallTask(distance=distance), 4)
    first = list(batches.validation_batches())
    batches.sample()
    again = list(batches.validation_batches())
    assert all(same(a, b) for a, b in zip(first, again))
    found = [batch.inputs.shape[1] - 1 for batch in first]
    assert len(found) == len(again) == distances
    assert (min(found), max(found)) == (1, distance)
    assert {batch.num_targets for batch in first} == {VALIDATION_ROWS}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"distance": 0}, "distance must be at least 1, not 0"),
        ({"symbols": 1}, "symbols must be at least 2, not 1"),
        ({"noise": -1}, "noise must be at least 0, not -1"),
    ],
)
def test_mistakes(settings: dict[str, int], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        RecallTask(**settings)


def test_batches_that_do_not_fit_in_memory() -> None:
    with pytest.raises(SettingError, match="batch_size must be at least 1, not 0"):
        RecallBatches(RecallTask(), 0)
    for task, batch_size in ((RecallTask(), 10**15), (RecallTask(distance=10**15), 1)):
        with pytest.raises(SettingError, match="needs at least"):
            RecallBatches(task, batch_size)
