"""Comparing what two backends found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

# By dtype: how far an element may be off, as a share of the largest one, and how far all are, as a share of their root mean
# square. Bfloat16 has 8 bits: storing a number rounds it by up to 2^-9. Sums of thousands of terms in float32 lose some digits.
TOLERANCE = {"float64": (1e-12, 1e-12), "float32": (1e-5, 3e-6), "bfloat16": (2.0**-7, 2.0**-8)}


def assert_close(found: Mapping[str, Any], expected: Mapping[str, Any], dtype: str = "float32", slack: float = 1.0) -> None:
    """The same names and shapes, and numbers as close as those of this dtype, with arithmetic in float32 or wider, can be."""
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        got = found[name]
        assert got.shape == want.shape, name
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want, err_msg=name)
            continue
        got, want = got.astype("float64"), want.astype("float64")
        assert np.isfinite(got).all(), f"{name}: {np.count_nonzero(~np.isfinite(got))} numbers are not finite"
        most, typical = [slack * share for share in TOLERANCE[dtype]]
        error = np.abs(got - want)
        allowed = most * np.abs(want).max(initial=0.0)
        assert error.max(initial=0.0) <= allowed, f"{name}: off by {error.max():.3g}, allowed {allowed:.3g}"
        root, size = [float(np.sqrt((x**2).mean())) if x.size else 0.0 for x in (error, want)]
        assert root <= typical * size, f"{name}: off by {root:.3g} on average, allowed {typical * size:.3g}"


def assert_same_bits(found: Mapping[str, Any], again: Mapping[str, Any]) -> None:
    """Not one bit differs."""
    assert found.keys() == again.keys()
    different = [name for name in found if found[name].tobytes() != again[name].tobytes()]
    assert not different, f"not the same bits the second time: {', '.join(different)}"
