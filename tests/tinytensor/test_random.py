"""Random numbers: what repeats, and what the distributions are."""

import json
import threading

import numpy as np

import tinytensor as tt


def test_a_seed_repeats_everything():
    def draw():
        tt.seed(7)
        return [
            tt.random.normal((2, 3)).tolist(),
            tt.random.uniform(4).tolist(),
            tt.random.integers(0, 100, (5,)).tolist(),
            tt.random.permutation(6).tolist(),
            tt.random.random_key(),
            tt.dropout(tt.ones(20)).tolist(),
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
    assert tt.random.normal(3).tolist() == expected  # the shared generator did not advance


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


def test_random_keys_are_two_words_of_64_bits():
    tt.seed(2)
    keys = np.array([tt.random.random_key() for _ in range(1000)], np.uint64)
    assert keys.shape == (1000, 2)
    assert len(np.unique(keys)) == 2000
    bits = np.unpackbits(keys.view(np.uint8).reshape(1000, 16), axis=1).mean(axis=0)
    assert np.abs(bits - 0.5).max() < 5 * 0.5 / np.sqrt(1000)
    assert all(type(word) is int for word in tt.random.random_key())
