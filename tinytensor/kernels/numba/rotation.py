"""The rotation of pairs of elements, and the norm and rotation of queries and keys. kernels/numpy/rotation.py has the formulas.

A row holds the heads of queries, keys and values of one position side by side, and stays in the processor's cache while its
heads are normed and rotated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy

from tinytensor.device.backend import default_dtype
from tinytensor.kernels import numpy as in_numpy
from tinytensor.kernels.numba.compiling import loop, real, reduction
from tinytensor.kernels.numba.functions import copy_row
from tinytensor.kernels.numba.normalization import contiguous_rows, row_scale
from tinytensor.kernels.numpy.normalization import TINY


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
    """``rotate_pairs`` of kernels/numpy."""
    table = (*x.shape[-2:-1], x.shape[-1] // 2)  # a row for each position
    are_tables = all(a.shape == table and a.dtype == x.dtype == default_dtype for a in (cosine, sine))
    if x.ndim < 2 or not x.size or not are_tables:
        return in_numpy.rotate_pairs(x, cosine, sine)
    out = numpy.empty(x.shape, x.dtype)
    rows, cosine, sine = (numpy.ascontiguousarray(a) for a in (x, cosine, sine))
    _rotate(rows.reshape(-1, *x.shape[-2:]), cosine, sine, out.reshape(-1, *x.shape[-2:]))
    return out


# ----------------------------------------------------------------------------------------------------- one row of heads


@reduction
def norm_heads(x: Any, query_weight: Any, key_weight: Any, queries: int, eps: float, rstd: Any) -> None:
    """RMS norm of the heads of queries and keys in x; the first ``queries`` heads are queries. Writes 1 / sqrt(mean(x^2) + eps)
    of each to rstd (heads,)."""
    width = query_weight.size
    for h in range(rstd.size):
        head, weight = x[h * width : (h + 1) * width], query_weight if h < queries else key_weight
        squares = real(0)
        for i in range(width):
            squares += head[i] * head[i]
        scale = real(1) / math.sqrt(squares / real(width) + eps)
        if eps < TINY or not scale > real(0):
            scale = row_scale(head.reshape(1, width), 0, real(0), real(0), eps)
        rstd[h] = scale
        for i in range(width):
            head[i] = head[i] * scale * weight[i]


@reduction
def _norm_gradients(x: Any, query_weight: Any, key_weight: Any, queries: int, rstd: Any, g: Any, d_weights: Any) -> None:
    """Replace the gradient g of the normed heads by that of x, and add the weights' gradients to d_weights (2, width)."""
    width = query_weight.size
    for h in range(rstd.size):
        head, gradient = x[h * width : (h + 1) * width], g[h * width : (h + 1) * width]
        weight, d_weight = (query_weight, d_weights[0]) if h < queries else (key_weight, d_weights[1])
        scale, of_hn = rstd[h], real(0)
        for i in range(width):
            product = gradient[i] * (head[i] * scale)
            of_hn += product * weight[i]
            d_weight[i] += product
        of_hn = of_hn / real(width)
        for i in range(width):
            gradient[i] = (gradient[i] * weight[i] - head[i] * scale * of_hn) * scale


@loop
def rotate_heads(x: Any, angles: Any, direction: float, heads: int) -> None:
    """Rotate the first ``heads`` heads in x by ``angles``, their cosines then their sines; with ``direction`` -1 back."""
    half = angles.size // 2
    cosine, sine = angles[:half], angles[half:]
    for start in range(0, heads * angles.size, angles.size):
        first, second = x[start : start + half], x[start + half : start + angles.size]
        for i in range(half):
            a, b = first[i], second[i]
            first[i] = a * cosine[i] - b * sine[i] * direction
            second[i] = b * cosine[i] + a * sine[i] * direction


# ----------------------------------------------------------------------------------------------------------- all rows
# Without a norm, the weights are empty. Without a rotation, ``rotation`` is empty.


@loop
def norm_and_rotate_rows(
    x: Any, query_weight: Any, key_weight: Any, rotation: Any, queries: int, eps: float, out: Any, rstd: Any
) -> None:
    """x and out (rows, width), rotation (length, d_head), rstd (rows, heads of queries and keys)."""
    for row in range(x.shape[0]):
        copy_row(x[row], out[row])
        if query_weight.size:
            norm_heads(out[row], query_weight, key_weight, queries, eps, rstd[row])
        if rotation.size:
            rotate_heads(out[row], rotation[row % rotation.shape[0]], real(1), rstd.shape[1])


@loop
def _gradients(
    x: Any, query_weight: Any, key_weight: Any, rotation: Any, queries: int, rstd: Any, g: Any, d_x: Any, d_weights: Any
) -> None:
    """g and d_x (rows, width), d_weights (2, d_head)."""
    for row in range(x.shape[0]):
        copy_row(g[row], d_x[row])
        if rotation.size:
            rotate_heads(d_x[row], rotation[row % rotation.shape[0]], real(-1), rstd.shape[1])
        if query_weight.size:
            _norm_gradients(x[row], query_weight, key_weight, queries, rstd[row], d_x[row], d_weights)


def _settings(x: Any, query_weight: Any, key_weight: Any, rotation: Any) -> list[Any]:
    """Return the weights and the rotation as the loops take them."""
    vectors = [numpy.empty(0, x.dtype) if weight is None else weight for weight in (query_weight, key_weight)]
    table = numpy.empty((0, 0), x.dtype) if rotation is None else rotation.astype(x.dtype, copy=False)
    return [numpy.ascontiguousarray(array) for array in (*vectors, table)]


def norm_and_rotate_forward(
    needed: Sequence[bool],
    projected: Any,
    query_weight: Any,
    key_weight: Any,
    num_heads: int,
    num_key_value_heads: int,
    eps: float,
    rotation: Any,
) -> tuple[Any, Any]:
    """Norm and rotate each head of queries and keys. Saves 1 / sqrt(mean(x^2) + eps) of each, (rows, heads)."""
    rows = contiguous_rows(projected)
    out = numpy.empty_like(rows)
    rstd = numpy.empty((len(rows), num_heads + num_key_value_heads), rows.dtype)
    settings = _settings(rows, query_weight, key_weight, rotation)
    norm_and_rotate_rows(rows, *settings, num_heads, float(eps), out, rstd)
    return out.reshape(projected.shape), rstd


def norm_and_rotate_backward(
    g: Any,
    residuals: Any,
    needed: Sequence[bool],
    projected: Any,
    query_weight: Any,
    key_weight: Any,
    num_heads: int,
    num_key_value_heads: int,
    rotation: Any,
) -> Sequence[Any]:
    """``norm_and_rotate_backward`` of kernels/numpy."""
    rows = contiguous_rows(projected)
    d_projected = numpy.empty_like(rows)
    settings = _settings(rows, query_weight, key_weight, rotation)
    d_weights = numpy.zeros((2, settings[0].size))  # float64, for there may be many rows
    _gradients(rows, *settings, num_heads, residuals, contiguous_rows(g), d_projected, d_weights)
    of_query, of_key = (gradient.astype(rows.dtype) if n else None for gradient, n in zip(d_weights, needed[1:]))
    return d_projected.reshape(projected.shape), of_query, of_key
