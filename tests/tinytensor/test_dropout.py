"""Dropout's masks are the documented function of random key, index and probability, and random enough; the residual form."""

import itertools
import threading

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import kernels
from tinytensor.kernels.numpy import dropout as kernel

WORD = (1 << 64) - 1
RANDOM_KEYS = [(0, 0), (1, 2), (WORD, WORD), (0x0123456789ABCDEF, 0xFEDCBA9876543210)]


def mask(random_key, shape, keep_probability):
    return tt.tensor(kernels.keep_mask(random_key, shape, keep_probability)).numpy()


# ------------------------------------------------------------------------------------- the definition, in Python's integers


def philox(counter, random_key):
    """Four words of Philox 4x64-10 (Salmon et al. 2011, section 3.3)."""
    a, b, c, d = counter
    first, second = random_key
    for _ in range(10):
        left, right = a * 0xD2E7470EE14C6C93, c * 0xCA5A826395121157
        a, b, c, d = (right >> 64) ^ b ^ first, right & WORD, (left >> 64) ^ d ^ second, left & WORD
        first, second = (first + 0x9E3779B97F4A7C15) & WORD, (second + 0xBB67AE8584CAA73B) & WORD
    return a, b, c, d


def split_mix(seed, index):
    """Output ``index`` of SplitMix64 (Steele, Lea and Flood 2014, figure 17)."""
    z = seed + (index + 1) * 0x9E3779B97F4A7C15 & WORD
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & WORD
    return z ^ z >> 31


def is_kept(random_key, index, keep_probability):
    """One element of a mask, from nothing else: what a GPU's thread computes."""
    word, place = divmod(index, 8)
    block, lane = divmod(word, 4)
    byte = philox((block + 1, 0, 0, 0), random_key)[lane] >> 8 * place & 255
    whole, part = divmod(keep_probability * 256, 1)
    return byte < whole or (byte == whole and split_mix(random_key[1], index) < int(part * 2**64))


def test_the_published_numbers_of_split_mix():
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert [split_mix(1234567, i) for i in range(5)] == expected
    assert kernel._split_mix(1234567, np.arange(5)).tolist() == expected


@pytest.mark.parametrize("random_key", RANDOM_KEYS)
def test_the_stream_is_that_of_numpy_at_any_block(random_key):
    stream = kernel._stream(random_key, 4 * 1000 + 3).tolist()
    for block in (0, 1, 77, 999, 1000):
        # NumPy counts up before it makes a block: so the counter given here is one less than the block's own.
        numpys = np.random.Philox(key=np.array(random_key, np.uint64), counter=[block, 0, 0, 0]).random_raw(4).tolist()
        assert list(philox((block + 1, 0, 0, 0), random_key)) == numpys
        assert stream[4 * block : 4 * block + 4] == numpys[: 3 if block == 1000 else 4]


@pytest.mark.parametrize("random_key", RANDOM_KEYS)
@pytest.mark.parametrize("keep_probability", [0.8, 0.3, 0.5, 1 / 512, 1 / 3])
def test_every_element_follows_from_the_key_and_its_index_alone(random_key, keep_probability):
    n = 3001
    assert mask(random_key, (n,), keep_probability).tolist() == [is_kept(random_key, i, keep_probability) for i in range(n)]


def test_the_shape_only_arranges_the_elements():
    flat = mask((3, 4), (60,), 0.4)
    np.testing.assert_array_equal(mask((3, 4), (3, 4, 5), 0.4), flat.reshape(3, 4, 5))
    np.testing.assert_array_equal(mask((3, 4), (7,), 0.4), flat[:7])
    assert mask((3, 4), (2, 0, 3), 0.5).shape == (2, 0, 3)
    assert mask((3, 4), (), 0.4).shape == ()
    assert mask((3, 4), (), 0.4) == flat[0]
    assert flat.dtype == bool


def test_threads_do_not_disturb_each_other():
    alone = {random_key: mask(random_key, (100_000,), 0.3).tobytes() for random_key in RANDOM_KEYS}
    together = {}

    def work(random_key):
        together[random_key] = {mask(random_key, (100_000,), 0.3).tobytes() for _ in range(10)}

    threads = [threading.Thread(target=work, args=(random_key,)) for random_key in RANDOM_KEYS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == {random_key: {expected} for random_key, expected in alone.items()}


# ------------------------------------------------------------------------------------------------------------ statistics


def test_certain_masks():
    assert not mask((1, 2), (100_000,), 0.0).any()
    assert mask((1, 2), (100_000,), 1.0).all()


@pytest.mark.parametrize("keep_probability", [0.5, 0.9, 0.3, 1 / 3, 0.001, 0.999, 1 / 256, 255 / 256, 1 / 512, 511 / 512, 1e-5])
def test_a_mask_has_its_probability(keep_probability):
    n = 4_000_000
    fraction = mask((11, 12), (n,), keep_probability).mean()
    assert abs(fraction - keep_probability) < 4 * np.sqrt(keep_probability * (1 - keep_probability) / n)


@pytest.mark.parametrize("keep_probability", [0.3, 1 / 3, 0.001, 0.999, 0.75, 1 / 512])
def test_a_masks_probability_is_exact(keep_probability, monkeypatch):
    # Each byte once: those below the split are kept and those above dropped, whatever the further bits are, and at the split
    # the further bits' limit makes up the rest.
    every_byte = np.arange(256, dtype=np.uint8).view(np.uint64)
    monkeypatch.setattr(kernel, "_stream", lambda random_key, count: every_byte[:count])

    def kept(further):
        monkeypatch.setattr(kernel, "_split_mix", lambda seed, index: np.full(len(index), further, np.uint64))
        return int(tt.tensor(kernel.keep_mask((1, 2), (256,), keep_probability)).numpy().sum())

    certain, limit = kept(WORD), int(keep_probability * 256 % 1 * 2**64)
    assert certain + limit / 2**64 == keep_probability * 256
    assert kept(limit) == certain
    if limit:
        assert kept(limit - 1) == kept(0) == certain + 1


def correlation(a, b):
    return np.corrcoef(a, b)[0, 1] * np.sqrt(len(a))  # in standard deviations


@pytest.mark.parametrize("keep_probability", [0.8, 0.5, 1 / 512])
def test_neighbours_are_independent(keep_probability):
    drawn = mask((5, 6), (1_000_000,), keep_probability)
    for distance in (1, 2, 7, 8, 32, 256):
        assert abs(correlation(drawn[:-distance], drawn[distance:])) < 4, distance


@pytest.mark.parametrize("keep_probability", [0.8, 1 / 512])
def test_keys_that_are_alike_are_independent(keep_probability):
    # No two have the same second word, nor do random ones: it alone seeds the further bits.
    keys = [(5, 6), (5, 7), (6, 8), (6, 5), (5 | 1 << 63, 6 | 1 << 62), (5, 6 | 1 << 63)]
    masks = [mask(random_key, (1_000_000,), keep_probability) for random_key in keys]
    for a, b in itertools.combinations(masks, 2):
        assert abs(correlation(a, b)) < 4


def test_what_decides_a_tie_is_independent_of_the_byte_before_and_of_the_keys_first_word():
    ties = mask((5, 6), (1_000_000,), 1 / 512)  # kept only where the byte is 0 and the further bits say so
    low = mask((5, 6), (1_000_000,), 128 / 256)
    assert abs(correlation(ties[1:], low[:-1])) < 4


# -------------------------------------------------------------------------------------------------------------- the op


def numbers(*shape, dtype="float32", seed=0):
    return tt.tensor(np.random.default_rng(seed).standard_normal(shape).astype(dtype), requires_grad=True)


def test_the_residual_form_is_dropout_and_the_add_bit_for_bit():
    x, residual, g = numbers(40, 50), numbers(40, 50, seed=1), numbers(40, 50, seed=2).detach()
    tt.seed(1)
    one = tt.dropout(x, 0.2, residual=residual)
    tt.seed(1)
    two = residual + tt.dropout(x, 0.2)
    for a, b in zip((one, *tt.grad(one, [x, residual], g)), (two, *tt.grad(two, [x, residual], g)), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("off", [{"p": 0.0}, {"p": 0.5, "training": False}])
def test_without_dropout_the_residual_form_is_the_plain_add_and_draws_nothing(off):
    x, residual, state = numbers(4, 5), numbers(4, 5, seed=1), tt.random.get_state()
    out = tt.dropout(x, residual=residual, **off)
    np.testing.assert_array_equal(out.numpy(), (residual + x).numpy())
    assert out.node.op.name == "add"
    assert tt.random.get_state() == state


@pytest.mark.parametrize(("x", "residual"), [("float32", "float64"), ("float64", "float32")])
def test_dtypes_go_together_as_in_the_plain_add(x, residual):
    x, residual = numbers(4, 5, dtype=x), numbers(4, 5, dtype=residual)
    out = tt.dropout(x, 0.5, residual=residual)
    assert out.dtype == (x + residual).dtype == "float64"
    out.sum().backward()
    assert (x.grad.dtype, residual.grad.dtype) == (x.dtype, residual.dtype)


def test_a_second_backward_has_the_same_mask():
    x = numbers(1000)
    out = tt.dropout(x, 0.4).sum()
    (first,), (second,) = tt.grad(out, [x], retain_graph=True), tt.grad(out, [x])
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    assert 500 < np.count_nonzero(first.numpy()) < 700
