"""Random numbers: what repeats, and what the distributions are."""

import json
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tinytensor as tt


def test_a_seed_repeats_everything():
    def draw():
        tt.seed(7)
        return [
            tt.random.normal((2, 3)).tolist(),
            tt.random.uniform(4).tolist(),
            tt.random.integers(0, 100, (5,)).tolist(),
            tt.random.permutation(6).tolist(),
            tt.random.bernoulli(tt.full((20,), 0.5)).tolist(),
            tt.random.multinomial(tt.ones(20), 3).tolist(),
            tt.random.multinomial(tt.ones(20), 3, replacement=True).tolist(),
            tt.nn.init.trunc_normal_(parameter()).tolist(),
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


def test_bernoulli_has_the_shape_the_dtype_and_the_means_of_its_probabilities():
    p = np.linspace(0, 1, 5).astype("float64").repeat(40_000).reshape(5, -1)
    drawn = tt.random.bernoulli(tt.tensor(p))
    assert drawn.dtype == "float64"
    assert set(np.unique(drawn.numpy())) == {0.0, 1.0}
    np.testing.assert_allclose(drawn.numpy().mean(-1), [0, 0.25, 0.5, 0.75, 1], atol=0.01)
    assert tt.random.bernoulli(tt.tensor(1.0)).tolist() == 1.0
    assert not tt.random.bernoulli(tt.tensor([0.5], requires_grad=True)).requires_grad
    with pytest.raises(TypeError, match="bernoulli: p must be floating-point, got int64"):
        tt.random.bernoulli(tt.tensor([1]))


WEIGHTS = np.array([[0.0, 1.0, 3.0, 0.0], [2.0, 0.0, 1.0, 1.0]])


def test_multinomial_with_replacement_draws_in_proportion():
    drawn = tt.random.multinomial(tt.tensor(WEIGHTS), 40_000, replacement=True)
    assert drawn.dtype == "int64"
    shares = [[(row == place).mean() for place in range(4)] for row in drawn.numpy()]
    np.testing.assert_allclose(shares, WEIGHTS / 4, atol=0.012)
    assert not (np.array(shares)[WEIGHTS == 0]).any()


def test_multinomial_without_replacement_draws_from_what_is_left():
    """Two of three: the first in proportion to all weights, and the second to the two others."""
    weights = np.array([1.0, 2.0, 5.0, 0.0])
    drawn = tt.random.multinomial(tt.tensor(np.tile(weights, (40_000, 1))), 2).numpy()
    for first, second in [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]:
        expected = weights[first] / 8 * weights[second] / (8 - weights[first])
        assert ((drawn == [first, second]).all(-1)).mean() == pytest.approx(expected, abs=0.012)


@pytest.mark.parametrize("replacement", [False, True])
def test_multinomial_of_any_shape_and_size_of_weights(replacement):
    def draw(weights, count):
        return tt.random.multinomial(tt.tensor(weights), count, replacement)

    assert draw(np.ones((2, 3, 5), "float32"), 4).shape == (2, 3, 4)
    assert draw(np.ones((0, 5)), 4).shape == (0, 4)
    assert draw(np.array([1e-320, 0.0, 1e308, 1e308]), 2).shape == (2,)
    assert draw([0, 7, 0], 1).tolist() == [1]
    assert draw(np.array([0, 1], "float16"), 1).tolist() == [1]
    if not replacement:
        assert sorted(draw(np.array([1e-320, 0.0, 1e308, 1e308]), 3).tolist()) == [0, 2, 3]


@pytest.mark.parametrize(
    "low, high", [(-2.0, 2.0), (0.5, 0.6), (-math.inf, 1.0), (3.0, math.inf), (-60.0, -50.0), (-9.0, 20.0)], ids=str
)
def test_truncated_normal_numbers_have_the_moments_of_the_distribution(low, high):
    """The moments are sums over a fine grid of the density."""
    p = tt.nn.Parameter(np.zeros(40_000, "float32"))
    drawn = tt.nn.init.trunc_normal_(p, 1.0, 2.0, 1 + 2 * low, 1 + 2 * high).numpy().astype("float64")
    assert 1 + 2 * low <= drawn.min() < drawn.max() <= 1 + 2 * high
    grid = np.linspace(max(low, -61), min(high, 61), 2_000_001)
    peak = np.abs(grid).min()
    density = np.exp((peak * peak - grid * grid) / 2)
    mean = (grid * density).sum() / density.sum()
    std = math.sqrt(((grid - mean) ** 2 * density).sum() / density.sum())
    assert abs((drawn.mean() - 1) / 2 - mean) < 0.025 * std
    assert drawn.std() / 2 == pytest.approx(std, rel=0.03)


@pytest.mark.parametrize("low, high", [(-2.0, 2.0), (-1.0, 3.0), (1.0, 4.0), (-4.0, -1.0)])
def test_truncated_normal_numbers_are_densest_at_the_peak(low, high):
    drawn = tt.nn.init.trunc_normal_(tt.nn.Parameter(np.zeros(300_000, "float32")), low=low, high=high).numpy()
    peak = min(max(0.0, low), high)
    below = np.vectorize(lambda x: math.erf(min(max(x, low), high) / math.sqrt(2)))
    for width in (0.1, 0.3, 0.6):
        share = (below(peak + width) - below(peak - width)) / (below(high) - below(low))
        assert (np.abs(drawn - peak) < width).mean() == pytest.approx(share, rel=0.02)


def test_uniform_never_reaches_its_upper_end():
    class Highest(np.random.Generator):
        """A generator that draws the largest float32 below 1, which arithmetic would round up to the end."""

        def random(self, shape, dtype):
            return np.full(shape, np.nextafter(np.float32(1), np.float32(0)), dtype)

    with tt.random.using(Highest(np.random.PCG64(0))):
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


# ---------------------------------------------------------------------------------------------------------------- threads


def numbers():
    return tt.random.normal(4).tolist()


def test_each_thread_has_its_own_generator():
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as another:
        tt.seed(3)
        alone = [numbers(), numbers()]
        tt.seed(3)
        drawn = [numbers(), one.submit(numbers).result(), another.submit(numbers).result(), numbers()]
        assert [drawn[0], drawn[3]] == alone  # what other threads draw does not change what this one draws
        assert drawn[1] != drawn[2]
        assert drawn[1] not in alone
        tt.seed(3)
        assert [numbers(), one.submit(numbers).result(), another.submit(numbers).result(), numbers()] == drawn


def test_a_seed_in_another_thread_is_its_own():
    with ThreadPoolExecutor(1) as other:
        tt.seed(3)
        expected = numbers()
        tt.seed(3)
        other.submit(tt.seed, 3).result()
        assert other.submit(numbers).result() == expected
        assert numbers() == expected


def test_a_seed_inside_of_using_restarts_that_generator():
    tt.seed(4)
    expected = numbers()
    tt.seed(5)
    with tt.random.using(np.random.default_rng(99)):
        tt.seed(4)
        assert numbers() == expected
    with tt.random.using(np.random.Generator(np.random.MT19937(1))):
        tt.seed(2)
        assert numbers() == np.random.Generator(np.random.MT19937(2)).standard_normal(4, np.float32).tolist()
    drawn = numbers()
    tt.seed(5)
    assert numbers() == drawn


def test_a_state_does_not_change_with_the_generator():
    with tt.random.using(np.random.Generator(np.random.MT19937(1))):
        state = tt.random.get_state()
        drawn = [numbers() for _ in range(400)]  # more than one block of this generator
        tt.random.set_state(state)
        assert [numbers() for _ in range(400)] == drawn
        tt.random.set_state(state)
        assert [numbers() for _ in range(400)] == drawn


# ----------------------------------------------------------------------------------------------- arguments out of their range

nan, inf = math.nan, math.inf
IMPOSSIBLE = {
    "std": (lambda: tt.random.normal(3, std=-1.0), "normal: std must not be negative, got -1.0"),
    "std NaN": (lambda: tt.random.normal(3, std=nan), "normal: std must be finite in float32, got nan"),
    "mean": (lambda: tt.random.normal(3, mean=1e39), "normal: mean must be finite in float32"),
    "ends": (lambda: tt.random.uniform(3, 1.0, 0.0), "uniform: low must be below high, got 1.0 and 0.0"),
    "equal ends": (lambda: tt.random.uniform(3, 1.0, 1.0), "uniform: low must be below high"),
    "infinite end": (lambda: tt.random.uniform(3, 0.0, inf), "uniform: high must be finite"),
    "NaN end": (lambda: tt.random.uniform(3, nan, 1.0), "uniform: low must be finite"),
    "too wide": (lambda: tt.random.uniform(3, -3e38, 3e38), "uniform: high - low must be finite"),
    "integers": (lambda: tt.random.integers(3, 3, (2,)), "integers: low must be below high, got 3 and 3"),
    "shape": (lambda: tt.random.normal((2, -1)), r"normal: lengths must not be negative, got shape \(2, -1\)"),
    "length": (lambda: tt.random.uniform(-1), "uniform: lengths must not be negative"),
    "shape of integers": (lambda: tt.random.integers(0, 3, (-2,)), "integers: lengths must not be negative"),
    "permutation": (lambda: tt.random.permutation(-1), "permutation: n must not be negative, got -1"),
    "probability": (lambda: tt.random.bernoulli(tt.tensor([0.5, 1.5])), "bernoulli: all probabilities must be between 0 and 1"),
    "probability NaN": (lambda: tt.random.bernoulli(tt.tensor(nan)), "bernoulli: all probabilities"),
    "no samples": (lambda: tt.random.multinomial(tt.ones(3), 0), "num_samples must be at least 1, got 0"),
    "one weight": (lambda: tt.random.multinomial(tt.tensor(1.0), 1), r"multinomial: weights must be \(..., n\)"),
    "weight": (lambda: tt.random.multinomial(tt.tensor([1.0, -1.0]), 1), "weights must be finite and not negative"),
    "weight NaN": (lambda: tt.random.multinomial(tt.tensor([1.0, nan]), 1), "weights must be finite and not negative"),
    "weight infinite": (lambda: tt.random.multinomial(tt.tensor([1.0, inf]), 1), "weights must be finite and not negative"),
    "weights 0": (lambda: tt.random.multinomial(tt.zeros((2, 3)), 1, True), "needs 1 weight above 0 in each row"),
    "no weights": (lambda: tt.random.multinomial(tt.ones((2, 0)), 1), "needs 1 weight above 0 in each row, and a row has 0"),
    "samples": (lambda: tt.random.multinomial(tt.tensor([1.0, 1.0, 0.0]), 3), "a row has 2: draw fewer, or with replacement"),
    "truncated": (lambda: tt.nn.init.trunc_normal_(parameter(), low=1.0, high=1.0), "a std above 0 and low < high"),
    "truncated std": (lambda: tt.nn.init.trunc_normal_(parameter(), std=0.0), "a std above 0 and low < high"),
    "seed": (lambda: tt.seed(-1), "a seed must not be negative, got -1"),
    "normal_": (lambda: tt.nn.init.normal_(parameter(), std=-1.0), "std must not be negative"),
    "uniform_": (lambda: tt.nn.init.uniform_(parameter(), 1.0, 0.0), "low must be below high"),
    "gain": (lambda: tt.nn.init.xavier_uniform_(parameter(), gain=-1.0), "gain must be finite and not negative, got -1.0"),
    "gain NaN": (lambda: tt.nn.init.kaiming_normal_(parameter(), gain=nan), "gain must be finite"),
    "gain infinite": (lambda: tt.nn.init.xavier_normal_(parameter(), gain=inf), "gain must be finite"),
    "gain of He": (lambda: tt.nn.init.kaiming_uniform_(parameter(), gain=-0.5), "gain must be finite and not negative"),
}


def parameter():
    return tt.nn.Parameter(np.zeros((2, 3), "float32"))


@pytest.mark.parametrize("draw, message", IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_impossible_arguments(draw, message):
    before = tt.random.get_state()
    with pytest.raises(ValueError, match=message):
        draw()
    assert tt.random.get_state() == before


def test_an_initialiser_with_equal_ends():
    assert tt.nn.init.uniform_(parameter(), 2.0, 2.0).tolist() == [[2.0] * 3] * 2
    assert tt.nn.init.xavier_uniform_(parameter(), gain=0.0).tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize("state", [None, {}, {"bit_generator": "MT19937"}, {"bit_generator": "PCG64", "state": {"state": 1}}])
def test_an_invalid_state_changes_nothing(state):
    before = tt.random.get_state()
    with pytest.raises(ValueError, match="set_state needs what get_state returned for a PCG64: "):
        tt.random.set_state(state)
    assert tt.random.get_state() == before


def test_what_cannot_be_used_as_a_generator():
    with pytest.raises(TypeError, match=r"using: own must be a generator, .* got a numpy.RandomState"):
        tt.random.using(np.random.RandomState(0))


def test_integers_that_int64_cannot_hold():
    for low, high in ((0, 2**63 + 1), (-(2**63) - 1, 0)):
        with pytest.raises(ValueError, match=r"integers: low and high must be in the range of int64, got"):
            tt.random.integers(low, high, 3)
