"""The Gaussian error linear unit, x p, exactly and in its tanh form; the formulas stand in ``kernels/numpy/gelu.py``.

The backward pass computes p again: on a GPU that costs less than to store and load it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp
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
    """x p, and nothing for the backward pass."""
    return _forward("exact_forward", x)


def gelu_exact_backward(g: Any, p: None, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g (p + x exp(-x^2 / 2) / sqrt(2 pi))."""
    return _backward("exact_backward", g, x)


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, None]:
    """x p in the tanh form, and nothing for the backward pass."""
    return _forward("tanh_forward", x)


def gelu_tanh_backward(g: Any, p: None, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g p (1 + 2 (1 - p) x u'), with u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)."""
    return _backward("tanh_backward", g, x)
