"""Attention's CUDA kernels and the products around them, run on the CPU by the fake CuPy, against NumPy's in float64."""

import itertools
import math

import numpy as np
import pytest
from cuda_checks import assert_close, dtypes, in_each_order, numbers, wide

from tinytensor import kernels
from tinytensor.device.backend import xp
from tinytensor.kernels import numpy as reference
from tinytensor.kernels.cupy import attention
from tinytensor.kernels.cupy.products import matmul

pytest.importorskip("ml_dtypes")


@pytest.fixture(autouse=True)
def numpy_kernels_multiply_with_cublas(monkeypatch):
    """CuPy's own product of a batch is refused by the fake CuPy."""
    monkeypatch.setattr("tinytensor.kernels.numpy.attention.matmul", matmul)


RANDOM_KEY = (0x0123456789ABCDEF, 0xFEDCBA9876543210)
ALL = [True, True, True, False]  # but not of a bias

# query, key, value, mask: lengths that do and do not divide into packs, tiles and warps, leading axes that differ, a mask whose
# heads lie in no even order, and nothing at all.
SHAPES = {
    "40": ((2, 3, 40, 8), (2, 3, 40, 8), (2, 3, 40, 5), (2, 1, 1, 40)),
    "64 after 100": ((2, 2, 64, 16), (2, 2, 100, 16), (2, 2, 100, 8), (64, 100)),
    "33 of 130": ((3, 33, 4), (3, 130, 4), (3, 130, 4), (3, 33, 130)),
    "more queries": ((2, 70, 8), (2, 24, 8), (2, 24, 8), (70, 1)),
    "one query": ((2, 3, 1, 8), (2, 3, 72, 8), (2, 3, 72, 8), (2, 3, 1, 72)),
    "one key": ((2, 3, 5, 8), (2, 3, 1, 8), (2, 3, 1, 8), (1, 1)),
    "matrices": ((7, 4), (9, 4), (9, 4), (7, 9)),
    "shared keys": ((2, 3, 9, 4), (2, 1, 16, 4), (2, 1, 16, 4), (2, 1, 9, 16)),
    "more heads of values": ((3, 1, 9, 4), (16, 4), (3, 2, 16, 4), (3, 2, 9, 16)),
    "more sequences of values": ((2, 9, 4), (2, 16, 4), (3, 2, 16, 4), (2, 1, 16)),
    "many leading axes": ((2, 3, 2, 5, 4), (2, 3, 2, 8, 4), (2, 3, 2, 8, 4), (2, 1, 2, 5, 8)),
    "no queries": ((2, 0, 4), (2, 8, 4), (2, 8, 4), (8,)),
    "no sequences": ((0, 2, 8, 4), (0, 2, 8, 4), (0, 2, 8, 4), (8, 8)),
}


def inputs(query, key, value, dtype):
    """query, key, value, and a gradient of the output."""
    lead = np.broadcast_shapes(query[:-2], key[:-2], value[:-2])
    shapes = (query, key, value, (*lead, query[-2], value[-1]))
    return [numbers(shape, dtype, seed) for seed, shape in enumerate(shapes)]


def results(module, arrays, mask=None, is_causal=False, scale=0.4, random_key=None, bias=None, needed=None):
    """The output and the gradients, by default all of them."""
    *three, g = arrays
    needed = [*ALL[:3], bias is not None] if needed is None else needed
    settings = (bias, mask, is_causal, scale, random_key, 0.7 if random_key else 1.0)
    out, kept = module.attention_forward(needed, *three, *settings)
    if not any(needed):
        return [out]
    *gradients, d_bias = module.attention_backward(g, kept, needed, *three, *settings)
    return [out, *gradients, *([d_bias] if needed[3] else [])]


def masked(shape):
    return xp.array(np.random.default_rng(5).random(shape) < 0.7)


def added(shape, dtype):
    """A bias that hides some keys, and all of them from some queries."""
    bias = np.random.default_rng(6).standard_normal(shape).astype(dtype)
    bias[np.random.default_rng(7).random(shape) < 0.2] = -np.inf
    bias[(0,) * (len(shape) - 1)] = -np.inf
    return xp.array(bias)


@dtypes
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_attention(monkeypatch, shapes, dtype):
    arrays = inputs(*shapes[:3], dtype)
    for mask, is_causal, random_key in itertools.product((None, masked(shapes[3])), (False, True), (None, RANDOM_KEY)):
        weights_are_kept = (mask is not None) ^ is_causal ^ (random_key is not None)  # with any two of the settings, and not
        monkeypatch.setattr(attention, "_KEPT", 1 << 18 if weights_are_kept else 0)
        settings = {"mask": mask, "is_causal": is_causal, "random_key": random_key}
        got = in_each_order(monkeypatch, lambda settings=settings: results(kernels, arrays, **settings))
        assert_close(got, results(reference, [wide(x) for x in arrays], **settings), dtype, slack=4)


@dtypes
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_a_bias(monkeypatch, shapes, dtype):
    arrays, bias = inputs(*shapes[:3], dtype), added(shapes[3], dtype)
    for mask, is_causal, random_key in itertools.product((None, masked(shapes[3])), (False, True), (None, RANDOM_KEY)):
        weights_are_kept = (mask is not None) ^ is_causal ^ (random_key is not None)  # with any two of the settings, and not
        monkeypatch.setattr(attention, "_KEPT", 1 << 18 if weights_are_kept else 0)
        settings = {"mask": mask, "is_causal": is_causal, "random_key": random_key}
        *got, d_bias = in_each_order(monkeypatch, lambda settings=settings: results(kernels, arrays, bias=bias, **settings))
        *want, wanted = results(reference, [wide(x) for x in arrays], bias=wide(bias), **settings)
        assert_close(got, want, dtype, slack=4)
        # What is added up over heads and sequences is float32, of gradients that were rounded.
        assert d_bias.dtype == ("float64" if dtype == "float64" else "float32")
        terms = math.prod(wanted.shape) and got[0].size / wanted.size
        assert_close([d_bias.astype(dtype)], [wanted], dtype, slack=8 + terms)


@pytest.mark.parametrize("needed", [n for n in itertools.product([False, True], repeat=4) if any(n)], ids=str)
def test_only_the_gradients_that_are_needed_beside_a_bias(needed):
    arrays, bias = inputs((2, 9, 4), (2, 14, 4), (2, 14, 4), "float64"), added((9, 14), "float64")
    got, want = [results(module, arrays, bias=bias, needed=needed) for module in (kernels, reference)]
    assert [x is not None for x in got[1:]] == list(needed[: 3 + needed[3]])
    assert_close(got, want, "float64")


@dtypes
@pytest.mark.parametrize("lengths", [(9, 14), (40, 40)], ids=str)
def test_blocks(monkeypatch, lengths, dtype):
    for name, value in (("_KEPT", 0), ("_QUERIES", 2), ("_BLOCK", 1)):
        monkeypatch.setattr(attention, name, value)
    arrays = inputs((2, 2, lengths[0], 4), (2, 2, lengths[1], 4), (2, 2, lengths[1], 4), dtype)
    for mask, random_key in itertools.product((None, masked((2, 1, *lengths))), (None, RANDOM_KEY)):
        got = results(kernels, arrays, mask=mask, is_causal=True, random_key=random_key)
        # What several blocks add up is float32, so that it is rounded once.
        summed = ["float32" if dtype == "bfloat16" else dtype] * 2
        assert [x.dtype.name for x in got] == [dtype, dtype, *summed]
        want = results(reference, [wide(x) for x in arrays], mask=mask, is_causal=True, random_key=random_key)
        assert_close([x.astype(dtype) for x in got], want, dtype, slack=4)


@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)), ids=str)
@pytest.mark.parametrize("random_key", [None, RANDOM_KEY])
def test_only_the_gradients_that_are_needed(needed, random_key):
    arrays, needed = inputs((2, 9, 4), (2, 14, 4), (2, 14, 4), "float64"), (*needed, False)
    got = results(kernels, arrays, needed=needed, random_key=random_key)
    want = results(reference, arrays, needed=needed, random_key=random_key)
    assert [x is not None for x in got[1:]] == (list(needed[:3]) if any(needed) else [])
    assert_close(got, want, "float64")


def test_views_of_one_projection_are_copied_so_that_a_product_is_one_call():
    packed = numbers((2, 24, 3, 4, 8), "float32")
    views = [packed[:, :, i].swapaxes(1, 2) for i in range(3)]
    views.append(numbers((2, 24, 4, 8), "float32", 1).swapaxes(1, 2))
    copies = [xp.ascontiguousarray(x) for x in views]
    before = len(xp.launches)
    got = results(kernels, views, is_causal=True)
    launched = xp.launches[before:]
    assert launched.count("gemmStridedBatchedEx") == 6 and launched.count("ascontiguousarray") == 4 + 3  # three of them again
    assert_close(got, results(reference, [wide(x) for x in copies], is_causal=True), "float32", slack=4)


def test_a_broadcast_input_is_not_copied():
    query, key = numbers((2, 3, 9, 4), "float32"), numbers((2, 1, 16, 4), "float32", 1)
    before = len(xp.launches)
    results(kernels, [query, key, key, query], needed=[False] * 4)
    assert "ascontiguousarray" not in xp.launches[before:]


def test_no_keys_give_zeros():
    out, d_query, d_key, _ = results(kernels, inputs((2, 8, 4), (2, 0, 4), (2, 0, 4), "float32"), random_key=RANDOM_KEY)
    assert not out.get().any() and not d_query.get().any()
    assert (out.shape, d_query.shape, d_key.shape) == ((2, 8, 4), (2, 8, 4), (2, 0, 4))


def test_a_row_that_sees_nothing_gives_zeros_and_nan_is_passed_on():
    arrays = inputs((2, 6, 8), (2, 8, 8), (2, 8, 8), "float32")
    mask = xp.ones((6, 8), bool)
    mask[2] = False
    out, d_query, d_key, _ = results(kernels, arrays, mask=mask)
    assert not out.get()[:, 2].any() and not d_query.get()[:, 2].any() and np.isfinite(d_key.get()).all()
    arrays[0][0, 1, 0], arrays[0][1, 4, 0] = math.nan, -math.inf
    found = np.isnan(results(kernels, arrays, mask=mask)[0].get()).all(-1)
    assert found[0].tolist() == [i == 1 for i in range(6)]
    assert found[1, 4] and not found[1, [0, 1, 2, 3, 5]].any()


def test_large_scores_keep_their_digits_in_bfloat16():
    arrays = inputs((4, 64, 64), (4, 64, 64), (4, 64, 64), "bfloat16")
    want = results(reference, [wide(x) for x in arrays], scale=1.0)[0].get()
    error = np.abs(wide(results(kernels, arrays, scale=1.0)[0]).get() - want)
    query, key, value, _ = arrays
    scores = wide(matmul(query, key.swapaxes(-1, -2))).get()  # in bfloat16, as they are not to be: wrong by 0.06 at 16
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    rounded = np.abs(weights / weights.sum(-1, keepdims=True) @ wide(value).get() - want)
    assert error.max() < 2.0**-6  # two roundings of 2 to 4: of the weights, and of the output
    assert rounded.max() > 4 * error.max()


@pytest.mark.parametrize("random_key", [None, RANDOM_KEY])
def test_few_launches_and_no_waiting(monkeypatch, random_key):
    launched = []
    for name in ("kernel", "matmul", "keep_bits_of_tiles"):
        original = getattr(attention, name)
        monkeypatch.setattr(
            attention, name, lambda *a, original=original, name=name, **k: launched.append(name) or original(*a, **k)
        )
    waited = xp.synchronizations
    arrays = inputs((2, 3, 40, 8), (2, 3, 40, 8), (2, 3, 40, 8), "float32")
    results(kernels, arrays, is_causal=True, random_key=random_key)
    assert (launched.count("kernel"), launched.count("matmul")) == (2, 2 + 4)
    assert launched.count("keep_bits_of_tiles") == (random_key is not None)
    launched.clear()
    results(kernels, inputs((2, 3, 1, 8), (2, 3, 72, 8), (2, 3, 72, 8), "float32"), needed=[False] * 4)
    assert launched == ["matmul", "kernel", "matmul"]
    assert xp.synchronizations == waited


@pytest.mark.parametrize("random_key", [None, RANDOM_KEY])
def test_a_second_backward_gives_the_same_gradients(random_key):
    *three, g = inputs((2, 40, 8), (2, 40, 8), (2, 40, 8), "float32")
    settings = (None, None, True, 0.4, random_key, 0.7 if random_key else 1.0)
    _, kept = kernels.attention_forward(ALL, *three, *settings)
    first, second = [kernels.attention_backward(g, kept, ALL, *three, *settings) for _ in range(2)]
    for a, b in zip(first[:3], second[:3], strict=True):
        assert a.get().tobytes() == b.get().tobytes()


def test_the_weights_are_kept_and_dropouts_bits_take_a_32nd_of_them():
    arrays = inputs((2, 64, 8), (2, 64, 8), (2, 64, 8), "float32")
    _, ((weights, bits),) = kernels.attention_forward(ALL, *arrays[:3], None, None, False, 0.4, RANDOM_KEY, 0.7)
    assert (weights.shape, weights.dtype, bits.nbytes) == ((2, 64, 64), "float32", weights.nbytes // 32)


def test_a_mask_that_does_not_fit():
    arrays = inputs((2, 6, 8), (2, 8, 8), (2, 8, 8), "float32")
    with pytest.raises(ValueError, match=r"\(3, 6, 8\) does not broadcast|broadcast"):
        results(kernels, arrays, mask=xp.ones((3, 6, 8), bool))
    with pytest.raises(ValueError, match=r"mask must broadcast to the scores \(2, 6, 8\), got shape \(1, 2, 6, 8\)"):
        results(kernels, arrays, bias=xp.ones((1, 2, 6, 8), "float32"))
    with pytest.raises(ValueError, match=r"mask must broadcast to the scores \(2, 6, 8\), got shape \(4, 2, 6, 8\)"):
        results(kernels, arrays, mask=xp.ones((4, 2, 6, 8), bool))
