"""The tanh form of the Gaussian error linear unit; the formulas stand in ``kernels/numpy/gelu.py``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp
from tinytensor.kernels.cupy.loader import contiguous, elementwise_grid, kernel


def gelu_forward(needed: Sequence[bool], x: Any) -> tuple[Any, None]:
    """x p. The backward pass computes p again: on a GPU that costs less than to store and load it."""
    x = contiguous(x)
    out = xp.empty(x.shape, x.dtype)
    kernel("gelu.cu", "forward", x.dtype)(*elementwise_grid(x.size), x, out, x.size)
    return out, None


def gelu_backward(g: Any, p: None, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """g times the slope of x p, where p was not kept."""
    g, x = contiguous(g), contiguous(x)
    d_x = xp.empty(x.shape, x.dtype)
    kernel("gelu.cu", "backward", x.dtype)(*elementwise_grid(x.size), g, x, d_x, x.size)
    return (d_x,)
