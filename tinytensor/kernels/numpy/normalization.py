"""Layer norm and RMS norm over the last axis. They save up to three values for each row.

If the elements of a row are large and alike, rounding their mean costs digits that the differences from it have. Layer norm
detects this rare case, a mean of many standard deviations, and corrects the differences.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import root_of_squares, sum_of_products, sum_over
from tinytensor.kernels.numpy.products import LONG, as_rows, matmul

TINY = 1e-30  # squares of float32 are less accurate below
ALIKE = 8.0  # a mean of more standard deviations than this needs the correction


def _rows_or_vector(x: Any) -> Any:
    """x as a matrix of rows, but a single row as a vector.

    Its mean is then a scalar, several times faster than an array of one element, which matters in decoding.
    """
    return x.reshape(-1) if 0 < x.size == x.shape[-1] <= LONG else as_rows(x)


# Means are computed as products: for short rows several times faster than NumPy's sum and mean.


@functools.lru_cache(maxsize=64)
def _evenly(width: int, dtype: Any) -> Any:
    """Return the vector whose product with a row is the row's mean."""
    return xp.full(width, 1.0 / max(width, 1), dtype)


def _row_mean(a: Any, weight: Any = None) -> Any:
    """Return the mean of each row, or of a * weight along each, as a column."""
    share = _evenly(a.shape[-1], a.dtype)
    share = share if weight is None else weight * share
    return a.dot(share) if a.ndim == 1 else matmul(a, share[:, None])


def _row_mean_of_product(a: Any, b: Any) -> Any:
    """Return the mean of a * b along each row, as a column. Only for long rows is the product stored."""
    fraction = 1.0 / max(a.shape[-1], 1)
    if a.shape[-1] > LONG:
        return sum_over(a * b, (1,), keepdims=True) * fraction
    return a.dot(b) * fraction if a.ndim == 1 else xp.vecdot(a, b)[:, None] * fraction


def _rstd(rows: Any, eps: float) -> Any:
    """1 / sqrt(mean(x^2) + eps) of each row, as a column."""
    rstd = 1.0 / xp.sqrt(_row_mean_of_product(rows, rows) + eps)
    is_inside = rstd if rows.ndim == 1 else xp.count_nonzero(rstd) == rstd.size
    if eps < TINY or not is_inside:  # squares may be 0 or infinite
        length = root_of_squares(rows, (rows.ndim - 1,), keepdims=True) / max(rows.shape[-1], 1) ** 0.5
        bound = abs(eps) ** 0.5
        root = xp.hypot(length, bound) if eps >= 0 else xp.sqrt(length - bound) * xp.sqrt(length + bound)
        rstd = (1.0 / root).astype(rows.dtype)
    return rstd


def _plus(d_x: Any, before: Any) -> Any:
    """Add ``before`` to d_x in place, unless it is None. Returns d_x."""
    if before is not None:
        d_x += before
    return d_x


def layer_norm_forward(needed: Sequence[bool], x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any]:
    """(x - mean) / sqrt(var + eps) * weight + bias with the biased variance.

    Saves the rounded mean, its correction (or None), and rstd = 1 / sqrt(var + eps).
    """
    rows = _rows_or_vector(x)
    mean, correction = _row_mean(rows), None
    out = rows - mean
    rstd = _rstd(out, eps)
    alike = abs(mean) * rstd > ALIKE
    if alike.any() if rows.ndim > 1 else alike:
        first = out[..., :1]
        correction = first + _row_mean(out - first)  # equal elements are all 0 after it, as the first is subtracted
        out -= correction
        rstd = _rstd(out, eps)
    out *= rstd
    if weight is not None:
        out *= weight
    if bias is not None:
        out += bias
    return out.reshape(x.shape), (mean, correction, rstd)


def layer_norm_backward(
    g: Any, residuals: tuple[Any, ...], needed: Sequence[bool], x: Any, weight: Any, before: Any = None
) -> Sequence[Any]:
    """With n the normalised x and h = g * weight: dx = (h - mean(h) - n mean(h n)) rstd, dweight = sum(g n), dbias = sum(g).

    ``before`` is added to dx, unless it is None.
    """
    mean, correction, rstd = residuals
    g_rows = as_rows(g)
    normalized = as_rows(x) - mean
    if correction is not None:
        normalized -= correction
    normalized *= rstd
    product = g_rows * normalized
    d_weight = matmul(xp.ones((1, len(product)), product.dtype), product)[0] if needed[1] else None
    d_bias = sum_over(g_rows, (0,)) if needed[2] else None
    d_x = None
    if needed[0]:
        d_x = g_rows.copy() if weight is None else g_rows * weight  # h
        d_x -= _row_mean(d_x)
        normalized *= _row_mean(product, weight)
        d_x -= normalized
        d_x *= rstd
        d_x = _plus(d_x.reshape(x.shape), before)
    return d_x, d_weight, d_bias


def rms_norm_forward(needed: Sequence[bool], x: Any, weight: Any, eps: float) -> tuple[Any, Any]:
    """x / sqrt(mean(x^2) + eps) * weight. Saves rstd = 1 / sqrt(mean(x^2) + eps)."""
    rows = _rows_or_vector(x)
    rstd = _rstd(rows, eps)
    out = rows * rstd
    if weight is not None:
        out *= weight
    return out.reshape(x.shape), rstd


def rms_norm_backward(g: Any, rstd: Any, needed: Sequence[bool], x: Any, weight: Any, before: Any = None) -> Sequence[Any]:
    """With n the normalised x and h = g * weight: dx = (h - n mean(h n)) rstd, dweight = sum(g n).

    ``before`` is added to dx, unless it is None.
    """
    g_rows = as_rows(g)
    normalized = as_rows(x) * rstd
    d_weight = sum_of_products(("ij", "ij"), "j", g_rows, normalized) if needed[1] else None
    d_x = None
    if needed[0]:
        h = g_rows if weight is None else g_rows * weight
        normalized *= _row_mean_of_product(h, normalized)
        d_x = h - normalized
        d_x *= rstd
        d_x = _plus(d_x.reshape(x.shape), before)
    return d_x, d_weight
