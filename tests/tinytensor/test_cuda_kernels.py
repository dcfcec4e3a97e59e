"""The CUDA kernels, run on the CPU by the fake CuPy, against the NumPy kernels in float64: at each dtype, in each order of
threads and blocks, and between guard pages."""

import importlib
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from cuda_checks import assert_close, dtypes, in_each_order, numbers

from tinytensor import kernels
from tinytensor.device.backend import xp
from tinytensor.kernels import numpy as reference
from tinytensor.kernels.cupy import loader

pytest.importorskip("ml_dtypes")


def wide(array):
    """The same numbers for the NumPy kernels, in float64."""
    return None if array is None else array.get().astype("float64")


@pytest.fixture(autouse=True)
def numpy_kernels_compute_with_numpy(monkeypatch):
    for name in ("activations", "normalization", "products"):
        monkeypatch.setattr(importlib.import_module(f"tinytensor.kernels.numpy.{name}"), "xp", np)


# ----------------------------------------------------------------------------------------------------------- elementwise

SHAPES = [(), (0,), (1,), (3,), (8,), (5, 7), (2, 3, 64), (1000,), (2051,)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@dtypes
@shapes
@pytest.mark.parametrize("form", ["gelu_tanh", "gelu_exact"])
def test_gelu(monkeypatch, form, shape, dtype):
    x, g = (numbers(shape, dtype) * 3.0).astype(dtype), numbers(shape, dtype, 1)

    def results(module, x, g):
        out, kept = getattr(module, f"{form}_forward")([True], x)
        return [out, *getattr(module, f"{form}_backward")(g, kept, [True], x)]

    assert_close(in_each_order(monkeypatch, lambda: results(kernels, x, g)), results(reference, wide(x), wide(g)), dtype)


@dtypes
@shapes
def test_erf(monkeypatch, shape, dtype):
    x = (numbers(shape, dtype) * 3.0).astype(dtype)
    assert_close(in_each_order(monkeypatch, lambda: [kernels.erf(x)]), [reference.erf(wide(x))], dtype)


@dtypes
def test_elements_that_are_not_aligned_or_not_contiguous(monkeypatch, dtype):
    for start in range(1, 9):
        x = numbers(100, dtype)[start:]
        assert_close(in_each_order(monkeypatch, lambda x=x: [kernels.erf(x)]), [reference.erf(wide(x))], dtype)
    x = numbers((7, 8), dtype).T[::2]
    want, kept = reference.gelu_tanh_forward([True], wide(x))
    assert_close([kernels.gelu_tanh_forward([True], x)[0]], [want], dtype)
    assert_close(
        kernels.gelu_tanh_backward(x, None, [True], x), reference.gelu_tanh_backward(wide(x), kept, [True], wide(x)), dtype
    )


@dtypes
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_settings_may_be_numpys_numbers(kind, dtype):
    x, rows = numbers((2, 8), dtype), xp.asarray([1, 3])
    key, half, place = (1, 2), kind(0.5), np.int32(3)
    for compute in (
        lambda half, place: kernels.layer_norm_forward([False], x, None, None, half)[0],
        lambda half, place: kernels.dropout_forward([False], x, None, key, half)[0],
        lambda half, place: kernels.cross_entropy_forward([False], x, rows, place, half, "none")[0],
    ):
        np.testing.assert_array_equal(compute(half, place).get(), compute(0.5, 3).get())


@dtypes
def test_more_elements_than_the_grid_has_threads(monkeypatch, dtype):
    monkeypatch.setattr(loader, "_MOST_BLOCKS", 2)
    x = numbers(5001, dtype)
    assert_close(in_each_order(monkeypatch, lambda: [kernels.erf(x)]), [reference.erf(wide(x))], dtype)


def test_gelu_keeps_its_digits_far_from_zero():
    x = xp.array([-8.0, -5.0, 5.0, 40.0, -math.inf, math.inf, math.nan], dtype="float32")
    for forward, inner in [
        (kernels.gelu_tanh_forward, lambda x: 1 / (1 + math.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        (kernels.gelu_exact_forward, lambda x: math.erfc(-x / math.sqrt(2)) / 2),
    ]:
        out = forward([False], x)[0].get()
        np.testing.assert_allclose(out[:4], [v * inner(v) for v in (-8.0, -5.0, 5.0, 40.0)], rtol=2e-5)
        assert out[5] == math.inf and np.isnan(out[6])


def test_erf_of_float16_is_computed_in_float32():
    out = kernels.erf(xp.arange(3, dtype="float16"))
    assert out.dtype == "float16"
    np.testing.assert_allclose(out.get(), [math.erf(i) for i in range(3)], rtol=1e-3)


# -------------------------------------------------------------------------------------------------------- normalisation

# Rows that do and do not divide into packs and warps, an odd number of rows, enough of them for several shares, none, and wide.
ROWS = [
    (8,), (3, 5), (1, 1), (2, 3, 64), (7, 100), (131, 33), (150, 8), (9, 200), (70, 300), (0, 4), (3, 0),
    (2, 2052), (2, 2048), (3, 4099),
]  # fmt: skip
norms = pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])


def parameters(norm, width, dtype, given):
    """Return the weight, and for layer norm the bias, or None if missing."""
    made = [numbers(width, dtype, 2), numbers(width, dtype, 3)][: 2 if norm == "layer_norm" else 1]
    return [p if use else None for p, use in zip(made, given)]


def normalized(module, norm, needed, x, g, settings):
    """The output and the gradients."""
    forward, backward = getattr(module, f"{norm}_forward"), getattr(module, f"{norm}_backward")
    out, residuals = forward(needed, x, *settings, 1e-5)
    return [out, *(backward(g, residuals, needed, x, settings[0]) if any(needed) else [])]


@dtypes
@norms
@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize("given", [(True, True), (False, False)], ids=["weight and bias", "neither"])
def test_norms(monkeypatch, norm, shape, dtype, given):
    x, g = numbers(shape, dtype) + numbers((), dtype), numbers(shape, dtype, 1)
    settings = parameters(norm, shape[-1:], dtype, given)
    needed = [True, *given][: 1 + len(settings)]
    got = in_each_order(monkeypatch, lambda: normalized(kernels, norm, needed, x, g, settings))
    want = normalized(reference, norm, needed, wide(x), wide(g), [wide(p) for p in settings])
    assert_close(got, want, dtype, slack=20 if shape[-1] < 3 else 4 if dtype == "float32" else 1)


@norms
@pytest.mark.parametrize("needed", list(itertools.product([False, True], repeat=3)), ids=str)
def test_norms_compute_what_is_needed(norm, needed):
    x, g = numbers((40, 12), "float64"), numbers((40, 12), "float64", 1)
    settings = parameters(norm, (12,), "float64", (True, True))
    needed = needed[: 1 + len(settings)]
    got = normalized(kernels, norm, needed, x, g, settings)
    assert [gradient is not None for gradient in got[1:]] == (list(needed) if any(needed) else [])
    assert_close(got, normalized(reference, norm, needed, wide(x), wide(g), [wide(p) for p in settings]), "float64")


@dtypes
@norms
def test_norms_of_rows_that_are_not_aligned_or_not_contiguous(monkeypatch, norm, dtype):
    shifted = [numbers(1 + 5 * 16, dtype, seed)[1:].reshape(5, 16) for seed in (0, 1)]
    strided = [numbers((16, 10), dtype, seed).T[::2] for seed in (0, 1)]
    settings = parameters(norm, (16,), dtype, (True, True))
    for x, g in (shifted, strided):
        got = in_each_order(monkeypatch, lambda x=x, g=g: normalized(kernels, norm, [True] * 3, x, g, settings))
        want = normalized(reference, norm, [True] * 3, wide(x), wide(g), [wide(p) for p in settings])
        assert_close(got, want, dtype, slack=4 if dtype == "float32" else 1)


@dtypes
@norms
@pytest.mark.parametrize("shape", [(3, 5), (7, 100), (70, 300), (3, 0), (2, 2052)], ids=str)
def test_norms_add_to_a_gradient_that_has_arrived(monkeypatch, norm, shape, dtype):
    x, g, before = [numbers(shape, dtype, seed) for seed in range(3)]
    settings = parameters(norm, shape[-1:], dtype, (True, True))
    needed = [True] * (1 + len(settings))

    def gradients(module, before, *arrays):
        forward, backward = getattr(module, f"{norm}_forward"), getattr(module, f"{norm}_backward")
        x, g, *given = arrays
        _, residuals = forward(needed, x, *given, 1e-5)
        return backward(g, residuals, needed, x, given[0], before=before)

    got = in_each_order(monkeypatch, lambda: gradients(kernels, before, x, g, *settings))
    want = gradients(reference, wide(before), *[wide(a) for a in (x, g, *settings)])
    assert_close(got, want, dtype, slack=4 if dtype == "float32" else 1)
    strided = xp.concatenate([before, before], axis=-1)[..., : shape[-1]].T.copy().T  # another layout, and another dtype
    again = gradients(kernels, strided.astype("float64"), x, g, *settings)
    assert bits(again) == bits(got)


def bits(arrays):
    return [a.get().tobytes() for a in arrays]


def test_layer_norm_far_from_zero_keeps_its_digits():
    x = numbers((6, 300), "float32") + 1000.0
    out = kernels.layer_norm_forward([False] * 3, x, None, None, 1e-5)[0]
    want = reference.layer_norm_forward([False] * 3, wide(x), None, None, 1e-5)[0]
    assert np.abs(out.get() - want).max() < 5e-4  # E[x^2] - E[x]^2 would lose far more


# ------------------------------------------------------------------------------------------------------- loader, bfloat16


def test_a_dtype_without_kernels():
    with pytest.raises(TypeError, match=r"kernels take float32, float64, bfloat16, got float16: .*astype"):
        kernels.gelu_tanh_forward([True], xp.zeros(3, "float16"))


def test_every_header_is_inlined_once():
    for path in Path(loader.__file__).parent.glob("*.cu"):
        text = loader.source(path.name)
        assert not re.search('^(#include "|#pragma once)', text, re.MULTILINE)
        assert text.count("struct bfloat16 {") == 1


def converted(values):
    """float32 to bfloat16 and back, by the kernels' own conversion, on all of the values."""
    code = (
        loader.source("common.cuh")
        + """
    extern "C" __global__ void f(const float* x, Scalar* y, float* z, long long n) {
        for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            y[i] = Scalar(x[i]);
            z[i] = y[i];
        }
    }""".replace("\n    ", "\n")
    )
    x = xp.array(values)
    y, z = xp.empty(x.shape, "bfloat16"), xp.empty(x.shape, "float32")
    xp.RawModule(code=code, options=loader.options("", "bfloat16")).get_function("f")((64,), (256,), (x, y, z, x.size))
    return y.get(), z.get()


def test_bfloat16_rounds_to_nearest_even_and_keeps_nan():
    upper = np.arange(1 << 16, dtype="uint32")
    for lower in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (upper << 16 | lower).view("float32")
        y, z = converted(x)
        nan = np.isnan(x)
        assert np.isnan(z[nan]).all()
        want = x[~nan].astype("bfloat16")
        np.testing.assert_array_equal(y[~nan].view("uint16"), want.view("uint16"))
        np.testing.assert_array_equal(z[~nan].view("uint32"), want.astype("float32").view("uint32"))
