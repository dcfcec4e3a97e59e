"""Loops of single instructions that only programs need."""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop, real, reduction
from tinytensor.kernels.numba.functions import copy_row, exp
from tinytensor.kernels.numba.pointers import array_at, bytes_at
from tinytensor.kernels.numba.rotation import norm_heads, rotate_heads


@loop
def add(x: Any, y: Any, out: Any) -> None:
    """x + y, for rows of x of the size of y."""
    for i in range(x.shape[0]):
        for j in range(y.size):
            out[i, j] = x[i, j] + y[j]


@loop
def multiply(x: Any, y: Any, out: Any) -> None:
    """x * y, for rows of x of the size of y."""
    for i in range(x.shape[0]):
        for j in range(y.size):
            out[i, j] = x[i, j] * y[j]


@loop
def relu(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = real(0) if x[i] <= real(0) else x[i]  # written so that NaN stays NaN and -0.0 becomes 0.0


@reduction
def attend(query: Any, keys: Any, values: Any, scale: float, weights: Any, out: Any) -> None:
    """softmax(query keysᵀ scale) values of one query."""
    length, width = keys.shape
    largest = real(-math.inf)
    for s in range(length):
        score = real(0)
        for j in range(width):
            score += query[j] * keys[s, j]
        weights[s] = score * scale
        largest = weights[s] if weights[s] > largest else largest
    total = real(0)
    for s in range(length):
        weights[s] = exp(weights[s] - largest)
        total += weights[s]
    for j in range(width):
        out[j] = real(0)
    for s in range(length):
        for j in range(width):
            out[j] += weights[s] * values[s, j]
    for j in range(width):
        out[j] /= total


@loop
def attend_to_memory(
    x: Any, heads: int, stored: int, rows: int, length: int, capacity: int, mask: int, scale: float, out: Any
) -> None:
    """Attention of x (texts, heads * width) to a memory.

    ``stored`` is the address of the memory's keys (rows, heads, capacity, width), followed by the values, and ``mask`` that of
    bytes (rows, length). Consecutive texts share a row of the memory, and see its keys whose byte is not 0.
    """
    texts, width = x.shape[0], x.shape[1] // heads
    memory = array_at(stored, 2 * rows * heads * capacity * width).reshape(2, rows, heads, capacity, width)
    seen = bytes_at(mask, rows * length).reshape(rows, length)
    queries, mixed = x.reshape(texts, heads, width), out.reshape(texts, heads, width)
    keys, values = numpy.empty((length, width), numpy.float32), numpy.empty((length, width), numpy.float32)
    weights = numpy.empty(length, numpy.float32)
    for row in range(rows):
        for h in range(heads):
            count = 0
            for s in range(length):
                if seen[row, s] != 0:
                    copy_row(memory[0, row, h, s], keys[count])
                    copy_row(memory[1, row, h, s], values[count])
                    count += 1
            for text in range(row * texts // rows, (row + 1) * texts // rows):
                mixed[text, h] = real(0)
                if count > 0:
                    attend(queries[text, h], keys[:count], values[:count], scale, weights, mixed[text, h])


@loop
def norm_rows_of_heads(x: Any, query_weight: int, key_weight: int, heads: int, keys: int, eps: float, out: Any) -> None:
    """Norm the heads of queries and keys in x (rows, (heads + 2 * keys) * width), which also has those of the values. The
    weights are addresses."""
    width = x.shape[1] // (heads + 2 * keys)
    query, key, unused = array_at(query_weight, width), array_at(key_weight, width), numpy.empty(heads + keys, numpy.float32)
    for i in range(x.shape[0]):
        copy_row(x[i], out[i])
        norm_heads(out[i], query, key, heads, eps, unused)


@loop
def rotate_rows_of_heads(x: Any, rotation: int, heads: int, keys: int, out: Any) -> None:
    """Rotate the heads of queries and keys in such x, all by the same angles."""
    angles = array_at(rotation, x.shape[1] // (heads + 2 * keys))
    for i in range(x.shape[0]):
        copy_row(x[i], out[i])
        rotate_heads(out[i], angles, real(1), heads + keys)
