"""silu in float32, one pass each way; kernels/numpy/silu.py has the contracts, and the other dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.device.backend import default_dtype
from tinytensor.kernels import numpy as in_numpy
from tinytensor.kernels.numba.compiling import inlined, loop, real
from tinytensor.kernels.numba.functions import exp
from tinytensor.kernels.numpy.silu import FAR


@inlined
def sigmoid_of(x: Any) -> Any:
    """1 / (1 + exp(-x)) of a number."""
    e = exp(-abs(x))
    return (e if x < real(0) else real(1)) / (real(1) + e)


@loop
def from_below(x: Any) -> Any:
    """x, but -FAR where it is below: the product of 0 and -infinity would be NaN."""
    return -FAR if x < -FAR else x


@loop
def near(x: Any) -> Any:
    """x from -FAR to FAR, for slopes, which are 0 or 1 beyond."""
    return FAR if x > FAR else from_below(x)


@loop
def _silu(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = from_below(x[i]) * sigmoid_of(x[i])


@loop
def _silu_gradient(g: Any, x: Any, d_x: Any) -> None:
    for i in range(x.size):
        s = sigmoid_of(x[i])
        d_x[i] = g[i] * (s + near(x[i]) * s * (real(1) - s))


@loop
def silu_product(x: Any, factor: Any, out: Any) -> None:
    """silu(x) * factor, written to out; all three are (n,)."""
    for i in range(x.size):
        out[i] = from_below(x[i]) * sigmoid_of(x[i]) * factor[i]


@loop
def _silu_product_gradients(g: Any, x: Any, factor: Any, d_x: Any, d_factor: Any) -> None:
    for i in range(x.size):
        s = sigmoid_of(x[i])
        d_x[i] = g[i] * factor[i] * (s + near(x[i]) * s * (real(1) - s))
        d_factor[i] = g[i] * from_below(x[i]) * s


def silu_forward(needed: Sequence[bool], x: Any, factor: Any) -> tuple[Any, Any]:
    """x sigmoid(x), times the factor if there is one. Saves nothing: the sigmoid costs less than memory for it."""
    if x.dtype != default_dtype:
        return in_numpy.silu_forward(needed, x, factor)
    out = numpy.empty(x.shape, x.dtype)
    run, given = (_silu, [x]) if factor is None else (silu_product, [x, factor])
    run(*[a.reshape(-1) for a in given], out.reshape(-1))
    return out, None


def silu_backward(g: Any, s: Any, needed: Sequence[bool], x: Any, factor: Any) -> Sequence[Any]:
    """With h = g * factor: dx = h (s + x s (1 - s)), dfactor = g x s."""
    if s is not None:
        return in_numpy.silu_backward(g, s, needed, x, factor)
    d_x = numpy.empty(x.shape, x.dtype)
    if factor is None:
        _silu_gradient(g.reshape(-1), x.reshape(-1), d_x.reshape(-1))
        return d_x, None
    d_factor = numpy.empty(x.shape, x.dtype)
    _silu_product_gradients(*[a.reshape(-1) for a in (g, x, factor, d_x, d_factor)])
    return d_x if needed[0] else None, d_factor if needed[1] else None
