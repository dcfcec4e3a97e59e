"""Layer norm and RMS norm over the last axis. What is kept for the backward pass is one or two numbers a row."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from tinytensor.backend import xp


def _matrix(x: Any) -> Any:
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _rows(x: Any) -> Any:
    """x as a matrix of rows; a single row as a vector. What belongs to a row is then a number, and computing with numbers takes
    a fraction of the time that arrays of one take, which counts when a text is written token by token."""
    return x.reshape(-1) if x.size == x.shape[-1] else _matrix(x)


# Along short rows products are several times faster than sum and mean.


@functools.lru_cache(maxsize=64)
def _evenly(width: int, dtype: Any) -> Any:
    return xp.full(width, 1.0 / max(width, 1), dtype)


def _row_mean(a: Any) -> Any:
    """The mean of each row, as a column."""
    mean = a.dot(_evenly(a.shape[-1], a.dtype))
    return mean if a.ndim == 1 else mean[:, None]


def _row_dot(a: Any, b: Any) -> Any:
    """The mean of a * b along each row, as a column, without the product ever being stored."""
    share = 1.0 / max(a.shape[-1], 1)
    return a.dot(b) * share if a.ndim == 1 else xp.vecdot(a, b)[:, None] * share


def _rstd(rows: Any, eps: float) -> Any:
    """1 / sqrt(mean(x^2) + eps) of each row, as a column."""
    return 1.0 / xp.sqrt(_row_dot(rows, rows) + eps)


def _column_sum(a: Any, b: Any) -> Any:
    return xp.einsum("ij,ij->j", a, b)


def layer_norm_forward(needed: Sequence[bool], x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any]:
    """(x - mean) / sqrt(var + eps) * weight + bias with the biased variance; keeps mean and 1/sqrt(var + eps)."""
    rows = _rows(x)
    mean = _row_mean(rows)
    out = rows - mean
    rstd = _rstd(out, eps)
    out *= rstd
    if weight is not None:
        out *= weight
    if bias is not None:
        out += bias
    return out.reshape(x.shape), (mean, rstd)


def layer_norm_backward(
    g: Any, residuals: tuple[Any, Any], needed: Sequence[bool], x: Any, weight: Any, bias: Any, eps: float
) -> Sequence[Any]:
    """With n the normalised x and h = g * weight: dx = (h - mean(h) - n mean(h n)) rstd, dweight = sum(g n), dbias = sum(g)."""
    mean, rstd = residuals
    g_rows = _matrix(g)
    normalized = _matrix(x) - mean
    normalized *= rstd
    d_weight = _column_sum(g_rows, normalized) if needed[1] else None
    d_bias = g_rows.sum(axis=0) if needed[2] else None
    d_x = None
    if needed[0]:
        h = g_rows if weight is None else g_rows * weight
        d_x = h - _row_mean(h)
        normalized *= _row_dot(h, normalized)
        d_x -= normalized
        d_x *= rstd
        d_x = d_x.reshape(x.shape)
    return d_x, d_weight, d_bias


def rms_norm_forward(needed: Sequence[bool], x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """x / sqrt(mean(x^2) + eps) * weight; keeps 1/sqrt(mean(x^2) + eps)."""
    rows = _rows(x)
    rstd = _rstd(rows, eps)
    out = rows * rstd
    if weight is not None:
        out *= weight
    return out.reshape(x.shape), rstd


def rms_norm_backward(g: Any, rstd: Any, needed: Sequence[bool], x: Any, weight: Any, eps: float) -> Sequence[Any]:
    """With n the normalised x and h = g * weight: dx = (h - n mean(h n)) rstd, dweight = sum(g n)."""
    g_rows = _matrix(g)
    normalized = _matrix(x) * rstd
    d_weight = _column_sum(g_rows, normalized) if needed[1] else None
    d_x = None
    if needed[0]:
        h = g_rows if weight is None else g_rows * weight
        normalized *= _row_dot(h, normalized)
        d_x = h - normalized
        d_x *= rstd
        d_x = d_x.reshape(x.shape)
    return d_x, d_weight
