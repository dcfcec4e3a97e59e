"""The rotation of pairs of elements in float32, in one pass; kernels/numpy/rotation.py has the formula, and all other cases."""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.backend import default_dtype
from tinytensor.kernels import numpy as in_numpy
from tinytensor.kernels.numba.compiling import loop


@loop
def _rotate(x: Any, cosine: Any, sine: Any, out: Any) -> None:
    """x and out (n, length, 2 half), cosine and sine (length, half)."""
    length, half = cosine.shape
    for n in range(x.shape[0]):
        for t in range(length):
            for i in range(half):
                first, second = x[n, t, i], x[n, t, half + i]
                out[n, t, i] = first * cosine[t, i] - second * sine[t, i]
                out[n, t, half + i] = second * cosine[t, i] + first * sine[t, i]


def rotate_pairs(x: Any, cosine: Any, sine: Any) -> Any:
    """first cos - second sin, and second cos + first sin, where first and second are the halves of x's last axis."""
    table = (*x.shape[-2:-1], x.shape[-1] // 2)  # a row for each position
    are_tables = all(a.shape == table and a.dtype == x.dtype == default_dtype for a in (cosine, sine))
    if x.ndim < 2 or not x.size or not are_tables:
        return in_numpy.rotate_pairs(x, cosine, sine)
    out = numpy.empty(x.shape, x.dtype)
    given, cosine, sine = (numpy.ascontiguousarray(a) for a in (x, cosine, sine))
    _rotate(given.reshape(-1, *x.shape[-2:]), cosine, sine, out.reshape(-1, *x.shape[-2:]))
    return out
