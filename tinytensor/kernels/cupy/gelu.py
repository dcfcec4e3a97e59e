"""The Gaussian error linear unit, in its exact and its tanh form. The formulas are in ``kernels/numpy/gelu.py``.

The backward pass computes cdf again: on a GPU that costs less than storing and loading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.cupy.loader import contiguous, elementwise_grid, kernel


def _forward(name: str, x: Any) -> tuple[Any, None]:
    x = contiguous(x)
    out = xp.empty(x.shape, x.dtype)
    kernel("gelu.cu", name, x.dtype)(*elementwise_grid(x.size), x, out, x.size)
    return out, None


def _backward(name: str, g: Any, x: Any) -> Sequence[Any]:
    g, x = contiguous(g), contiguous(x)
    d_x = xp.empty(x.shape, x.dtype)
    kernel("gelu.cu", name, x.dtype)(*elementwise_grid(x.size), g, x, d_x, x.size)
    return (d_x,)


def gelu_exact_forward(needed: Sequence[bool], x: Any) -> tuple[Any, None]:
    """x cdf. Saves nothing."""
    return _forward("exact_forward", x)


def gelu_exact_backward(g: Any, cdf: None, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g (cdf + x exp(-x^2 / 2) / sqrt(2 pi))."""
    return _backward("exact_backward", g, x)


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, None]:
    """x cdf in the tanh form. Saves nothing."""
    return _forward("tanh_forward", x)


def gelu_tanh_backward(g: Any, cdf: None, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g cdf (1 + 2 x (1 - cdf) u'), with u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)."""
    return _backward("tanh_backward", g, x)
