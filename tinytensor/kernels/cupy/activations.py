"""The error function and gelu. ``kernels/numpy/activations.py`` has the formulas.

The backward passes recompute cdf: on a GPU that is cheaper than storing and loading it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.cupy.loader import computed, contiguous, elementwise_grid, kernel


def erf(x: Any) -> Any:
    """erf(x) in the dtype of x, by CUDA's own function. float16 is computed in float32."""
    dtype, x = x.dtype, contiguous(computed(x))
    out = xp.empty(x.shape, x.dtype)
    kernel("erf.cu", "forward", x.dtype)(*elementwise_grid(x.size), x, out, x.size)
    return out.astype(dtype, copy=False)


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
    """``gelu_exact_forward`` of kernels/numpy. Saves nothing."""
    return _forward("exact_forward", x)


def gelu_exact_backward(g: Any, cdf: None, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """``gelu_exact_backward`` of kernels/numpy."""
    return _backward("exact_backward", g, x)


def gelu_tanh_forward(needed: Sequence[bool], x: Any) -> tuple[Any, None]:
    """``gelu_tanh_forward`` of kernels/numpy. Saves nothing."""
    return _forward("tanh_forward", x)


def gelu_tanh_backward(g: Any, cdf: None, needed: Sequence[bool], x: Any) -> Sequence[Any]:
    """``gelu_tanh_backward`` of kernels/numpy."""
    return _backward("tanh_backward", g, x)
