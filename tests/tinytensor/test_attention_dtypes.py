"""Attention: inputs of all dtypes and unusual shapes, both kinds of masks, and what its caches hold."""

import math

import numpy as np
import pytest

import tinytensor as tt
from tinytensor.functional.attention import attention_of_arrays
from tinytensor.kernels.attention import causal_array
from tinytensor.kernels.numpy import attention as numpy_attention

attention = tt.scaled_dot_product_attention


def draw(*shape, dtype="float32", requires_grad=False):
    return tt.tensor(np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype), requires_grad=requires_grad)


NOTHING_SEEN = {
    "padding": lambda: (tt.tensor(np.arange(6)[:, None] > 1), False),
    "added": lambda: (tt.tensor(np.where(np.arange(6)[:, None] > 1, 0.0, -np.inf).astype("float16")), False),
    "causal": lambda: (None, True),
}


@pytest.mark.parametrize("make", NOTHING_SEEN.values(), ids=NOTHING_SEEN)
def test_float16_rows_that_see_nothing_give_zeros(make):
    mask, is_causal = make()
    xs = [draw(2, n, 4, dtype="float16", requires_grad=True) for n in (6, 4, 4)]
    wide = [tt.tensor(x.numpy().astype("float64"), requires_grad=True) for x in xs]
    outs = [attention(*three, mask, is_causal) for three in (xs, wide)]
    assert outs[0].dtype == "float16" and not outs[0].numpy()[:, :2].any()
    for out, inputs in zip(outs, (xs, wide)):
        out.sum().backward()
        assert all(x.grad.dtype == x.dtype for x in inputs)
    for got, want in zip([outs[0], *[x.grad for x in xs]], [outs[1], *[x.grad for x in wide]]):
        np.testing.assert_allclose(got.numpy().astype("float64"), want.numpy(), rtol=4e-3, atol=4e-3)


def test_float16_scores_do_not_overflow_and_long_rows_add_up():
    query, key = [tt.tensor(np.full((1, n, 64), 60.0, "float16")) for n in (1, 4)]
    value = tt.tensor(np.ones((1, 4, 2), "float16"))
    np.testing.assert_array_equal(attention(query, key, value).numpy(), 1.0)  # scores of 230,400 / 8
    many = tt.zeros((1, 70_000, 1), "float16")
    np.testing.assert_allclose(attention(many[:, :1], many, many + 1.0).numpy(), 1.0, rtol=1e-3)


DTYPES = [("float32", "float64"), ("float16", "float32"), ("float64", "float16"), ("int64", "float32"), ("bool", "float64")]


@pytest.mark.parametrize(("one", "other"), DTYPES)
@pytest.mark.parametrize("place", range(4))
def test_mixed_dtypes_are_promoted(one, other, place):
    dtypes = [other if i == place else one for i in range(4)]
    arrays = [np.random.default_rng(i).integers(0, 2, shape) for i, shape in enumerate([(3, 4), (5, 4), (5, 2), (3, 5)])]
    xs = [tt.tensor(a.astype(d if i < 3 or d[0] == "f" else "bool")) for i, (a, d) in enumerate(zip(arrays, dtypes))]
    floats = [x.dtype for x in xs if x.dtype.kind == "f"]
    for x in xs:
        x.requires_grad = x.dtype.kind == "f"
    out = attention(*xs)
    assert out.dtype == (np.result_type(*floats) if floats else "float32")
    if out.requires_grad:
        out.sum().backward()
        assert all(x.grad.dtype == x.dtype for x in xs if x.requires_grad)
    mask = xs[3].numpy() if xs[3].dtype == bool else True
    bias = 0.0 if xs[3].dtype == bool else arrays[3]
    e = np.where(mask, np.exp(arrays[0] @ arrays[1].T / 2 + bias), 0.0)
    weights = e / np.maximum(e.sum(-1, keepdims=True), 1e-30)
    half = out.dtype == "float16"
    np.testing.assert_allclose(out.numpy(), weights @ arrays[2], rtol=2e-3 if half else 1e-5, atol=1e-3 if half else 1e-6)
    arrays_in = [x.data for x in xs]
    found = attention_of_arrays(*arrays_in, False, 0.0)
    assert found.dtype == out.dtype
    np.testing.assert_allclose(tt.tensor(found).numpy(), out.detach().numpy())


def test_mixed_dtypes_of_projections_and_linear():
    projected, memory = draw(2, 3, 4, requires_grad=True), draw(2, 5, 8, dtype="float64", requires_grad=True)
    out = tt.multi_head_attention(projected, 2, memory)
    out.sum().backward()
    assert (out.dtype, projected.grad.dtype, memory.grad.dtype) == ("float64", "float32", "float64")
    for dtypes in (("float32", "float32", "float64"), ("float16", "float16", "float32"), ("float32", "float64", "float32")):
        for rows in (1, 3):
            x, weight, bias = [draw(*s, dtype=d, requires_grad=True) for s, d in zip([(rows, 4), (5, 4), (5,)], dtypes)]
            out = tt.linear(x, weight, bias)
            assert out.dtype == np.result_type(*dtypes)
            np.testing.assert_allclose(out.numpy(), x.numpy() @ weight.numpy().T + bias.numpy(), rtol=1e-3, atol=1e-3)
            out.sum().backward()
            assert [v.grad.dtype for v in (x, weight, bias)] == list(dtypes)


def test_a_causal_mask_is_ones_own():
    tt.causal_mask(3).data[...] = True
    np.testing.assert_array_equal(tt.causal_mask(3).numpy(), np.tri(3, dtype=bool))


def test_what_is_kept_of_causal_masks_is_bounded_in_bytes():
    kept = {}
    original = numpy_attention._triangle.__wrapped__
    numpy_attention._triangle.cache_clear()
    for length in range(2, 2000, 37):
        query = tt.zeros((1, length, 1))
        attention(query, query, query, is_causal=True)
    for length in range(1, numpy_attention._SQUARE + 1):
        kept[length] = original(length, np.dtype("float64")).nbytes
    assert numpy_attention._triangle.cache_info().maxsize * max(kept.values()) <= 1 << 23
    assert not hasattr(causal_array, "cache_info")


@pytest.mark.parametrize("lengths", [(130, 130), (300, 320), (255, 255)], ids=str)
def test_causal_squares(lengths):
    queries, keys = lengths
    xs = [draw(2, n, 3, dtype="float64") for n in (queries, keys, keys)]
    want = attention(*xs, tt.causal_mask(queries, keys))
    np.testing.assert_allclose(attention(*xs, is_causal=True).numpy(), want.numpy(), atol=1e-12)


MASKS = {
    "0-d": np.array(True),
    "0-d bias": np.array(0.5, "float32"),
    "1-d": np.array([True, False, True]),
    "column": np.array([[True], [False]]),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_that_broadcast(mask):
    xs = [draw(2, n, 4) for n in (2, 3, 3)]
    whole = np.broadcast_to(mask, (2, 2, 3)).copy()
    np.testing.assert_array_equal(attention(*xs, tt.tensor(mask)).numpy(), attention(*xs, tt.tensor(whole)).numpy())


@pytest.mark.parametrize("shape", [(4,), (3, 3), (3, 2, 3), (1, 2, 2, 3)], ids=str)
@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_masks_that_do_not_fit(shape, dtype):
    with pytest.raises(ValueError, match="broadcast"):
        attention(*[draw(2, n, 4) for n in (2, 3, 3)], tt.ones(shape, dtype))


def test_nothing_seen_warns_of_nothing():
    x = draw(1, 2, 4).data
    with np.errstate(all="raise"):
        out = attention_of_arrays(x, x, x, tt.zeros((2, 2), "bool").data, False, 0.0)
    assert not tt.tensor(out).numpy().any() and math.prod(out.shape) == 8
