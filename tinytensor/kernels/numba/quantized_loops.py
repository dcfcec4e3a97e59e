"""Loops over weights of 8 bits: what ``kernels/numpy/quantized.py`` says in matrices.

Quantized rows lie in one piece: their integers (rows, width) int8, to a multiple of 4 bytes, their scales (rows,) float32, and
what the sums of each begin with (rows,) int32; see ``dots``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import Later, exact_loop, loop, real
from tinytensor.kernels.numba.dots import BYTES, START, dots
from tinytensor.kernels.numba.pointers import array_at, bytes_at, integers_at
from tinytensor.kernels.numba.processor import reads_several_rows
from tinytensor.kernels.numpy.quantized import LARGEST, LEAST

_SIZE_BITS = numpy.int32(0x7FFFFFFF)  # all but the sign
_ROUNDER = 1.5 * 2**23  # a number of up to 22 bits, added to it and taken back, is rounded to an integer, as by rint
_LEAST, _INFINITY = float(LEAST), math.inf
_CACHED = 1 << 18  # bytes of a weight that stay in a core's own cache
_SEVERAL = Later(lambda: int(reads_several_rows()))

_dots_1_1, _dots_1_4, _dots_4_1, _dots_4_4 = dots(1, 1), dots(1, 4), dots(4, 1), dots(4, 4)


def quantized_size(rows: int, width: int) -> int:
    """The room that quantized rows take, in numbers of 4 bytes."""
    return -(-rows * width // 4) + 2 * rows


@exact_loop
def quantize(x: Any, address: int) -> None:
    """Write the rows x (rows, width) quantized to an address."""
    rows, width = x.shape
    integers, after = bytes_at(address, rows * width), address + (rows * width + 3) // 4 * 4
    scales, starts = array_at(after, rows), integers_at(after + 4 * rows, rows)
    for i in range(rows):
        scales[i] = _quantize_row(x[i], integers[i * width : (i + 1) * width])
        total: Any = numpy.int32(0)
        for k in range(i * width, i * width + width // BYTES * BYTES):
            total += numpy.int32(integers[k])
        starts[i] = START * total


@exact_loop
def _quantize_row(x: Any, out: Any) -> Any:
    """The integers of a row. Returns its scale."""
    bits = numpy.int32(0)  # the bits of sizes are in the order of the sizes, and NaN comes last
    for k in range(x.size):
        size = real(x[k]).view(numpy.int32) & _SIZE_BITS
        bits = size if size > bits else bits
    largest = numpy.int32(bits).view(real)
    if _LEAST < largest < _INFINITY:
        factor = real(LARGEST) / largest
        for k in range(x.size):
            out[k] = numpy.int8((x[k] * factor + _ROUNDER) - _ROUNDER)
    else:
        for k in range(x.size):
            out[k] = numpy.int8(0)
    return largest / real(LARGEST)


@loop
def int8_part(x: int, rows: int, width: int, weight: int, scale: Any, bias: Any, out: Any) -> None:
    """Some outputs of a linear layer: out (rows, count) of quantized rows, and of ``count`` rows of the weight. x and the
    weight are addresses. As many rows of the weight as a core's own cache holds are multiplied by all rows of x."""
    together = max(1, _CACHED // max(1, width))
    for first in range(0, scale.size, together):
        last = min(first + together, scale.size)
        _int8_block(x, rows, width, weight + first * width, scale[first:last], bias[first:last], out[:, first:last])


@exact_loop
def _int8_block(x: int, rows: int, width: int, weight: int, scale: Any, bias: Any, out: Any) -> None:
    count = scale.size
    scales = x + (rows * width + 3) // 4 * 4
    starts, row_scales = scales + 4 * rows, array_at(scales, rows)
    sums = numpy.empty(4 * count, numpy.int32)
    for first in range(0, rows, 4):
        together = 4 if first + 4 <= rows else 1
        for i in range(first, min(first + 4, rows), together):
            _sums(x + i * width, starts + 4 * i, together, weight, width, sums, _SEVERAL or i > 0)
            for each in range(together):
                own = sums[each * count : (each + 1) * count]
                for j in range(count):
                    out[i + each, j] = real(own[j]) * (row_scales[i + each] * scale[j]) + bias[j]


@loop
def _sums(x: int, starts: int, rows: int, weight: int, width: int, sums: Any, by_fours: Any) -> None:
    """The sums (rows, count) of one or four rows of x. ``by_fours`` says whether to read four rows of the weight at once. That
    is the fastest from a cache, and from memory on some processors; see ``reads_several_rows``."""
    count, out, j = sums.size // 4, sums.ctypes.data, 0
    if by_fours:
        while j + 4 <= count:
            if rows == 4:
                _dots_4_4(x, starts, weight + j * width, width, out + 4 * j, count)
            else:
                _dots_1_4(x, starts, weight + j * width, width, out + 4 * j, count)
            j += 4
    while j < count:
        if rows == 4:
            _dots_4_1(x, starts, weight + j * width, width, out + 4 * j, count)
        else:
            _dots_1_1(x, starts, weight + j * width, width, out + 4 * j, count)
        j += 1
