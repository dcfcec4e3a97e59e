"""The CUDA kernels, run on the CPU by the stand-in, against the NumPy kernels in float64: at each dtype, in each order of
threads and blocks, and between guard pages."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

import tinytensor as tt
from tinytensor import kernels
from tinytensor.backend import xp

if tt.backend_name != "cupy" or not hasattr(xp, "kernel_launches"):
    pytest.skip("CUDA kernels run on the stand-in for CuPy", allow_module_level=True)

from tinytensor.kernels import numpy as reference
from tinytensor.kernels.cupy import loader

pytest.importorskip("ml_dtypes")

# What an element may differ by, times 1 + its size: the rounding of what is stored, and of sums of a few thousand terms.
TOLERANCE = {"float64": 1e-12, "float32": 4e-6, "bfloat16": 2.0**-8}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


def numbers(shape, dtype, seed=0):
    return xp.array(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def wide(value):
    """The same in float64, also inside a tuple."""
    return value.astype("float64") if isinstance(value, xp.ndarray) and value.dtype.kind in "fV" else value


def in_each_order(monkeypatch, compute):
    """What compute() returns, the same bits whatever runs first, and whether the arrays lie between guard pages or not."""
    found = []
    for order, guarded in [("forward", True), ("reversed", True), ("shuffled", True), ("forward", False)]:
        monkeypatch.setattr(xp.kernel_launches, "order", order)
        monkeypatch.setattr(xp.kernel_launches, "guarded", guarded)
        found.append(compute())
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert (a is None) == (b is None)
            assert a is None or a.get().tobytes() == b.get().tobytes()
    return found[0]


def assert_close(got, want, dtype):
    """Arrays of this dtype, or None, against what they should be in float64."""
    for a, b in zip(got, want, strict=True):
        if b is None:
            assert a is None
            continue
        assert (a.shape, a.dtype.name) == (b.shape, dtype)
        a, b = wide(a).get(), b.get()
        error = np.abs(a - b) / (1 + np.abs(b))
        assert (error <= TOLERANCE[dtype]).all(), f"off by {error.max():.2e}"


# ----------------------------------------------------------------------------------------------------------- elementwise

SHAPES = [(), (0,), (1,), (3,), (8,), (5, 7), (2, 3, 64), (1000,), (2051,)]
shapes = pytest.mark.parametrize("shape", SHAPES, ids=str)


@dtypes
@shapes
def test_gelu(monkeypatch, shape, dtype):
    x, g = numbers(shape, dtype) * 3.0, numbers(shape, dtype, 1)
    x, g = x.astype(dtype), g.astype(dtype)
    _, statistics = kernels.gelu_forward([True], x)

    def compute():
        return kernels.gelu_forward([True], x)[0], *kernels.gelu_backward(g, statistics, [True], x)

    want, kept = reference.gelu_forward([True], wide(x))
    assert_close(in_each_order(monkeypatch, compute), [want, *reference.gelu_backward(wide(g), kept, [True], wide(x))], dtype)


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
    want, kept = reference.gelu_forward([True], wide(x))
    assert_close([kernels.gelu_forward([True], x)[0]], [want], dtype)
    assert_close(kernels.gelu_backward(x, None, [True], x), reference.gelu_backward(wide(x), kept, [True], wide(x)), dtype)


@dtypes
def test_more_elements_than_the_grid_has_threads(monkeypatch, dtype):
    monkeypatch.setattr(loader, "_MOST_BLOCKS", 2)
    x = numbers(5001, dtype)
    assert_close(in_each_order(monkeypatch, lambda: [kernels.erf(x)]), [reference.erf(wide(x))], dtype)


def test_gelu_keeps_its_digits_far_from_zero():
    x = xp.array([-8.0, -5.0, 5.0, 40.0, -math.inf, math.inf, math.nan], dtype="float32")
    out = kernels.gelu_forward([False], x)[0].get()
    far = -8.0 / (1 + math.exp(2 * 8 * 0.79788456 * (1 + 0.044715 * 64)))
    np.testing.assert_allclose(out[:4], [far, -2.2917961e-07, 5, 40], rtol=1e-4)
    assert out[5] == math.inf and np.isnan(out[6])


def test_erf_of_integers_is_float32():
    out = kernels.erf(xp.arange(3))
    assert out.dtype == "float32"
    np.testing.assert_allclose(out.get(), [math.erf(i) for i in range(3)], rtol=1e-6)


# ------------------------------------------------------------------------------------------------------- loader, bfloat16


def test_a_dtype_without_kernels():
    with pytest.raises(TypeError, match=r"gelu\.cu take float32, float64, bfloat16, not float16: .*astype"):
        kernels.gelu_forward([True], xp.zeros(3, "float16"))


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
    xp.RawModule(code=code, options=loader.options("bfloat16")).get_function("f")((64,), (256,), (x, y, z, x.size))
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
