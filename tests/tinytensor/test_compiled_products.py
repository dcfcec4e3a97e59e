"""Products of matrices in compiled loops, beside those of NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

import tinytensor as tt

pytestmark = pytest.mark.needs("numba")
layouts = st.sampled_from(["rows", "columns"])


def random(rng, *shape, layout="rows"):
    x = rng.standard_normal(shape).astype("float32")
    return x if layout == "rows" else np.asfortranarray(x)


def assert_rounded(got, a, b, bias):
    """Each number is off by at most one rounding of each term: (terms + 1) * 2**-24 of the sum of their absolute values."""
    a, b, bias = [x.astype("float64") for x in (a, b, bias)]
    bound = (abs(a) @ abs(b) + abs(bias)) * (a.shape[1] + 1) * 2.0**-24
    assert (abs(got - (a @ b + bias)) <= bound).all()


sizes = st.one_of(st.integers(16, 100), st.sampled_from([384, 385, 480, 500, 800]))


@given(st.tuples(sizes, sizes, sizes), layouts, layouts, st.integers(0, 9))
def test_products_of_any_size_and_layout(size, layout_of_a, layout_of_b, seed):
    from tinytensor.kernels.numba.products import _product

    rng, (rows, inner, columns) = np.random.default_rng(seed), size
    a, b = random(rng, rows, inner, layout=layout_of_a), random(rng, inner, columns, layout=layout_of_b)
    bias, out = random(rng, columns), np.full((rows, columns), np.nan, "float32")
    assert_rounded(_product(a, b, bias, out), a, b, bias)
    np.testing.assert_array_equal(_product(a, b, bias, np.empty_like(out)), out)  # the same bits again


@pytest.fixture
def ours(monkeypatch):
    """The module, in a thread that has one core of a processor for which its products are."""
    from tinytensor.kernels.numba import products

    monkeypatch.setattr(products, "has", lambda feature: True)
    with tt.parallel.one_blas_thread():
        yield products


@pytest.fixture
def calls(ours, monkeypatch):
    """The shapes of the products that were computed by the compiled loops."""
    found = []
    monkeypatch.setattr(ours, "multiply", lambda *given, real=ours.multiply: found.append(given[3].shape) or real(*given))
    return found


@pytest.mark.parametrize(
    "rows, inputs, outputs", [(9, 200, 200), (16, 1024, 17), (64, 200, 101), (65, 200, 101), (300, 128, 128)]
)
def test_linear_layers(ours, calls, rows, inputs, outputs):
    rng = np.random.default_rng(0)
    x, weight, bias = random(rng, rows, inputs), random(rng, outputs, inputs), random(rng, outputs)
    assert_rounded(ours.linear(x[:, None], weight, bias)[:, 0], x, weight.T, bias)
    assert_rounded(ours.linear(x, weight, None), x, weight.T, np.zeros(1))
    x[3, 5] = np.inf  # stays in its row
    assert np.isinf(ours.linear(x, weight, None)).all(axis=1).tolist() == [row == 3 for row in range(rows)]
    assert len(calls) == 3


def test_products_into_an_array(ours, calls):
    rng = np.random.default_rng(0)
    a, b, out = random(rng, 100, 90), random(rng, 90, 80, layout="columns"), np.empty((100, 80), "float32")
    assert ours.matmul(a, b, out=out) is out
    assert_rounded(out, a, b, np.zeros(1))
    assert ours.matmul(a, b, out=out, accumulate=True) is out
    assert_rounded(out / 2, a, b, np.zeros(1))
    assert calls == [(100, 80)] * 2
    halves = np.zeros((100, 160), "float32")
    ours.matmul(a, b, out=halves[:, ::2])
    ours.matmul(a, b, out=halves[:, ::2], accumulate=True)
    np.testing.assert_allclose(halves[:, ::2], out, rtol=1e-4, atol=1e-4)
    assert not halves[:, 1::2].any()


def test_what_does_not_fit_into_an_array_is_left_to_numpy(ours, calls):
    a, b, wide = np.ones((100, 90), "float32"), np.ones((90, 80), "float32"), np.empty((100, 80))
    assert ours.matmul(a, b, out=wide) is wide
    np.testing.assert_array_equal(wide, 90.0)
    with pytest.raises(ValueError, match="mismatch"):
        ours.matmul(a, b, out=np.empty((100, 79), "float32"))
    assert calls == []


def test_what_blas_computes(ours, calls, monkeypatch):
    rng = np.random.default_rng(0)
    x, weight = random(rng, 100, 96), random(rng, 96, 96)
    for a, b in (
        (x.astype("float64"), weight.astype("float64")),
        (x[:8], weight),  # few rows: as many as a beam has
        (x[:, :8], weight[:8]),
        (x, weight[:, :8]),
        (x[:, ::2], weight[:48]),  # neither in rows nor in columns
        (x[:20, :20], weight[:20]),  # small
        (np.stack([x, x]), weight),
        (x, weight[:, 0]),
    ):
        np.testing.assert_allclose(ours.matmul(a, b), np.matmul(a, b), rtol=1e-6)
    for layer in ((x[:8], weight, None), (x, weight, np.zeros(96)), (x[0], weight, None), (x[:0], weight, None)):
        np.testing.assert_allclose(ours.linear(*layer), layer[0] @ weight.T, rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(ours, "has", lambda feature: False)  # as on a processor without AVX-512
    ours.matmul(x, weight)
    assert calls == []


def test_a_product_of_matrices_that_do_not_fit_is_an_error_as_in_numpy(ours):
    with pytest.raises(ValueError, match="mismatch"):
        ours.matmul(np.ones((100, 90), "float32"), np.ones((100, 90), "float32"))


def test_all_products_of_a_shard_are_computed_in_loops(ours, calls):
    """Forward and backward, and those of the loss that is fused with the output layer."""
    tt.seed(0)
    x = tt.random.normal((80, 64), requires_grad=True)
    weight, outputs = (tt.random.normal((96, 64), requires_grad=True), tt.random.normal((48, 96), requires_grad=True))
    targets = tt.arange(80) % 48
    loss = tt.linear_cross_entropy(tt.linear(x, weight), outputs, targets)
    loss.backward()
    assert sorted(calls) == sorted([(80, 96), (80, 48), (80, 96), (48, 96), (80, 64), (96, 64)])
