"""Dropout and the residual in one pass; kernels/numpy/dropout.py has the contracts and makes the mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import exact_loop, real
from tinytensor.kernels.numpy.dropout import RandomKey, keep_mask, survivors_scale


@exact_loop
def _drop(x: Any, keep: Any, scale: float, out: Any) -> None:
    for i in range(x.size):
        out[i] = x[i] * scale if keep[i] else real(0)  # not a product: infinity times 0 is NaN


@exact_loop
def _drop_and_add(x: Any, residual: Any, keep: Any, scale: float, out: Any) -> None:
    for i in range(x.size):
        out[i] = (x[i] * scale if keep[i] else real(0)) + residual[i]


def dropout_forward(
    needed: Sequence[bool], x: Any, residual: Any, random_key: RandomKey, keep_probability: float
) -> tuple[Any, Any]:
    """``dropout_forward`` of kernels/numpy."""
    keep = keep_mask(random_key, x.shape, keep_probability)
    out = numpy.empty(x.shape, x.dtype)
    operands = (x,) if residual is None else (x, residual)
    run = _drop if residual is None else _drop_and_add
    run(*[a.reshape(-1) for a in operands], keep.reshape(-1), survivors_scale(keep_probability), out.reshape(-1))
    return out, keep


def dropout_backward(
    g: Any, keep: Any, needed: Sequence[bool], random_key: RandomKey, keep_probability: float
) -> Sequence[Any]:
    """``dropout_backward`` of kernels/numpy."""
    d_x = None
    if needed[0]:
        d_x = numpy.empty(g.shape, g.dtype)
        _drop(g.reshape(-1), keep.reshape(-1), survivors_scale(keep_probability), d_x.reshape(-1))
    return d_x, g if needed[1] else None
