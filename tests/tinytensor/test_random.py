"""Random numbers: what repeats, what the distributions are, and dropout's masks."""

import json
import threading

import numpy as np
import pytest

import tinytensor as tt


def mask(shape, probability):
    return tt.tensor(tt.random.keep_mask(shape, probability)).numpy()


def test_a_seed_repeats_everything():
    def draw():
        tt.seed(7)
        return [
            tt.random.normal((2, 3)).tolist(),
            tt.random.uniform(4).tolist(),
            tt.random.integers(0, 100, (5,)).tolist(),
            tt.random.permutation(6).tolist(),
            mask((20,), 0.3).tolist(),
        ]

    first = draw()
    assert draw() == first
    tt.seed(8)
    assert tt.random.normal((2, 3)).tolist() != first[0]


def test_the_state_can_be_kept_as_json_and_taken_up_again():
    tt.random.normal(5)
    state = json.dumps(tt.random.get_state())
    first = tt.random.normal(5).tolist()
    tt.random.set_state(json.loads(state))
    assert tt.random.normal(5).tolist() == first


def test_using_a_generator_of_ones_own():
    tt.seed(1)
    expected = tt.random.normal(3).tolist()
    tt.seed(1)
    with tt.random.using(np.random.default_rng(99)):
        own = tt.random.normal(3).tolist()
        with tt.random.using(np.random.default_rng(99)):
            assert tt.random.normal(3).tolist() == own
    assert tt.random.normal(3).tolist() == expected  # the shared generator did not move


def test_a_generator_of_ones_own_is_the_threads():
    drawn = {}

    def work(k):
        with tt.random.using(np.random.default_rng(k)):
            drawn[k] = [tt.random.uniform(50).tolist() for _ in range(20)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = dict(drawn)
    for k in range(3):
        work(k)
    assert drawn == together


def test_distributions():
    x = tt.random.normal((40_000,), mean=2.0, std=3.0).numpy()
    assert abs(x.mean() - 2) < 0.1
    assert abs(x.std() - 3) < 0.1
    u = tt.random.uniform((40_000,), -1.0, 3.0).numpy()
    assert u.min() >= -1
    assert u.max() < 3
    assert abs(u.mean() - 1) < 0.05
    assert abs(u.std() - 4 / np.sqrt(12)) < 0.05
    i = tt.random.integers(2, 5, (1000,))
    assert i.dtype == "int64"
    assert set(i.tolist()) == {2, 3, 4}
    assert sorted(tt.random.permutation(50).tolist()) == list(range(50))


def test_uniform_never_reaches_its_upper_end():
    class Highest:
        """A generator that draws the largest float32 below 1, which arithmetic would round up to the end."""

        def random(self, shape, dtype):
            return np.full(shape, np.nextafter(np.float32(1), np.float32(0)), dtype)

    with tt.random.using(Highest()):
        assert tt.random.uniform((2,), 1.0, 2.0).numpy().max() < 2


def test_requires_grad():
    assert tt.random.normal(2, requires_grad=True).requires_grad
    assert tt.random.uniform(2, requires_grad=True).requires_grad
    assert not tt.random.normal(2).requires_grad


# ------------------------------------------------------------------------------------------------------------ keep_mask


def test_certain_masks():
    assert not mask((1000,), 0.0).any()
    assert mask((1000,), 1.0).all()


@pytest.mark.parametrize("probability", [0.5, 0.9, 0.3, 1 / 3, 0.001, 0.999, 1 / 256, 255 / 256])
def test_a_mask_has_its_probability(probability):
    n = 400_000
    share = mask((n,), probability).mean()
    deviation = np.sqrt(probability * (1 - probability) / n)
    assert abs(share - probability) < 5 * deviation


@pytest.mark.parametrize("probability", [0.3, 1 / 3, 0.001, 0.999, 0.75])
def test_a_masks_probability_is_exact(probability):
    # One byte decides, but for the value that the probability splits. Feed every byte once: how many are kept for
    # certain, and what the one undecided byte asks for, add up to the probability exactly.
    asked = []

    class EveryByte:
        def bytes(self, count):
            return bytes(range(256))[:count]

        def random(self, count):
            asked.append(count)
            return np.ones(count)  # a number above any probability: undecided elements are dropped

    with tt.random.using(EveryByte()):
        certain = int(mask((256,), probability).sum())
    assert certain == int(probability * 256)
    split = probability * 256 > certain
    assert asked == [1] * split  # at most one of the 256 bytes needs a second number


def test_the_split_byte_decides_by_the_remainder():
    class Edge:
        def __init__(self, number):
            self.number = number

        def bytes(self, count):
            return bytes([76]) * count  # 0.3 * 256 = 76.8

        def random(self, count):
            return np.full(count, self.number)

    with tt.random.using(Edge(0.79)):
        assert mask((3,), 0.3).all()
    with tt.random.using(Edge(0.81)):
        assert not mask((3,), 0.3).any()


def test_masks_of_any_shape():
    assert mask((2, 0, 3), 0.5).shape == (2, 0, 3)
    assert mask((), 0.5).shape == ()
    assert mask((2, 3), 0.5).dtype == bool
