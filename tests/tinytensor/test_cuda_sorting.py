"""The CUDA kernel that sorts ids, run on the CPU by the fake CuPy: the order is that of a stable sort."""

import numpy as np
import pytest
from cuda_checks import in_each_order

from tinytensor.autograd.replaying import TrainingStep
from tinytensor.device.backend import xp
from tinytensor.kernels.cupy.embedding import order_of

rng = np.random.default_rng(0)
IDS = {
    "one": [3],
    "a tile": rng.integers(0, 9, 256),
    "a tile and one": rng.integers(0, 9, 257),
    "all equal": [5] * 600,
    "all different": rng.permutation(700),
    "sorted backwards": np.arange(300)[::-1],
    "many": rng.integers(0, 65, 1500),
    "large ones": rng.integers(2**31 - 100, 2**31, 300),
}


@pytest.mark.parametrize("name", IDS)
def test_the_order_is_that_of_a_stable_sort(monkeypatch, name):
    ids = xp.array(np.array(IDS[name], np.int64))
    want = np.argsort(ids.get(), kind="stable")
    limit = int(ids.get().max()) + 1
    assert (order_of(ids, limit).get() == want).all()  # CuPy's
    monkeypatch.setattr(TrainingStep, "is_captured", True)
    (got,) = in_each_order(monkeypatch, lambda: [order_of(ids, limit)])
    assert got.dtype == np.int64 and (got.get() == want).all()


def test_ids_outside_of_the_limit_disturb_no_others(monkeypatch):
    monkeypatch.setattr(TrainingStep, "is_captured", True)
    ids = xp.array(np.array([4, -1, 2, 2**40, 2, 0, 7]))
    order = order_of(ids, 5).get()
    assert sorted(order) == list(range(7)) and [i for i in order if 0 <= ids.get()[i] < 5] == [5, 2, 4, 0]
