"""What the tests of the CUDA kernels share: a kernel's results in each order of threads, and how close they must be."""

import numpy as np
import pytest

from tinytensor.device.backend import is_floating, xp

# What an element may differ by, times 1 + its size: the rounding of what is stored, and of sums of a few thousand terms.
TOLERANCE = {"float64": 1e-12, "float32": 4e-6, "bfloat16": 2.0**-8}
dtypes = pytest.mark.parametrize("dtype", TOLERANCE)


def numbers(shape, dtype, seed=0):
    return xp.array(np.random.default_rng(seed).standard_normal(shape).astype(dtype))


def wide(value):
    """The same in float64, also inside a tuple."""
    return value.astype("float64") if isinstance(value, xp.ndarray) and is_floating(value.dtype) else value


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


def assert_close(got, want, dtype, slack=1):
    """Arrays of this dtype, or None, against what they should be in float64."""
    for a, b in zip(got, want, strict=True):
        if b is None:
            assert a is None
            continue
        assert (a.shape, a.dtype.name) == (b.shape, dtype)
        a, b = wide(a).get(), b.get() if isinstance(b, xp.ndarray) else b
        error = np.abs(a - b) / (1 + np.abs(b))
        assert (error <= slack * TOLERANCE[dtype]).all(), f"off by {error.max():.2e}"
