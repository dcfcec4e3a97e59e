"""Loops over weights in blocks of a few bits: what ``kernels/numpy/quantized.py`` says in matrices.

Rounded inputs lie in one piece, as block_dots.py reads them: for each 32 of them 32 high bytes and 32 low ones, after all these
a float32 scale for each 32, and then for each row three times a sum for each 32. Rows have the width of whole blocks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.block_dots import INPUTS, block_dots, unpack_block
from tinytensor.kernels.numba.compiling import Later, exact_loop, real
from tinytensor.kernels.numba.pointers import array_at, bytes_at
from tinytensor.kernels.numba.processor import reads_several_rows
from tinytensor.kernels.numpy.blocks import BLOCK_TYPES

_SIZE_BITS = numpy.int32(0x7FFFFFFF)  # all but the sign
_LARGEST = 127 * 256  # of the integers that inputs become
_LEAST = 1e-30  # blocks without larger values count as zeros: the inverse of such a value may be infinite
_INFINITY = math.inf
_SEVERAL: Any = Later(lambda: 4 if reads_several_rows() else 1)  # rows of a weight that are read at once
_FOUR, _ONE = 4, 1

_dots, _dots_by_fours, _unpack = block_dots(1), block_dots(_FOUR), unpack_block()


def whole_width(width: int, block_type: str) -> int:
    """The width of inputs that end with a whole block."""
    return -(-width // BLOCK_TYPES[block_type].size) * BLOCK_TYPES[block_type].size


def rounded_size(rows: int, width: int) -> int:
    """The room that rounded inputs of this whole width take, in numbers of 4 bytes."""
    return rows * (width // 2 + 4 * (width // INPUTS))


@exact_loop
def round_inputs(x: Any, width: int, address: int) -> None:
    """Write the rows x (rows, inputs), rounded and padded with zeros to the ``width`` of whole blocks, to an address."""
    rows, inputs = x.shape
    blocks = width // INPUTS
    integers = bytes_at(address, 2 * rows * width).reshape(rows * blocks, 2, INPUTS)
    factors = array_at(address + 2 * rows * width, rows * blocks)
    sums = array_at(address + 2 * rows * width + 4 * rows * blocks, 3 * rows * blocks).reshape(rows, 3, blocks)
    padded = numpy.zeros(INPUTS, numpy.float32)
    for i in range(rows):
        for block in range(blocks):
            start = block * INPUTS
            each = i * blocks + block
            if start + INPUTS <= inputs:
                factors[each] = _round_block(x[i, start : start + INPUTS], integers[each])
            else:
                padded[:] = 0.0
                for k in range(start, inputs):
                    padded[k - start] = x[i, k]
                factors[each] = _round_block(padded, integers[each])
            first, second = _sum(integers[each], 0), _sum(integers[each], 16)
            sums[i, 0, block] = factors[each] * real(first + second)
            sums[i, 1, block], sums[i, 2, block] = factors[each] * real(first), factors[each] * real(second)


@exact_loop
def _round_block(x: Any, out: Any) -> Any:
    """The bytes of 32 inputs. Returns their scale."""
    bits = numpy.int32(0)  # the bits of sizes are in the order of the sizes, and NaN comes last
    for k in range(INPUTS):
        size = real(x[k]).view(numpy.int32) & _SIZE_BITS
        bits = size if size > bits else bits
    largest = numpy.int32(bits).view(real)
    is_usual = _LEAST < largest < _INFINITY
    factor = real(_LARGEST) / largest if is_usual else real(0)
    for k in range(INPUTS):
        integer = numpy.int32(numpy.rint(x[k] * factor)) if is_usual else numpy.int32(0)
        high = (integer + numpy.int32(128)) >> numpy.int32(8)
        low = max(integer - (high << numpy.int32(8)), numpy.int32(-127))  # whose sign can be changed
        out[0, k], out[1, k] = numpy.int8(high), numpy.int8(low)
    return largest / real(_LARGEST)


@exact_loop
def _sum(bytes_: Any, first: int) -> Any:
    """The sum of 16 of the 16-bit integers."""
    total = numpy.int32(0)
    for k in range(first, first + 16):
        total += numpy.int32(bytes_[0, k]) * numpy.int32(256) + numpy.int32(bytes_[1, k])
    return total


@exact_loop
def block_part(code: int, x: int, width: int, weight: int, row: int, bias: Any, out: Any) -> None:
    """Some outputs of a linear layer: out (rows, count) of rounded inputs of this whole width, and of ``count`` rows of the
    weight in blocks of the type with this code, ``row`` bytes each. x and the weight are addresses."""
    rows, count = out.shape
    blocks, sums = width // INPUTS, numpy.empty(_FOUR, numpy.float32)
    factors = x + 2 * rows * width
    of_sums, j = factors + 4 * rows * blocks, 0
    while j < count:
        together = _FOUR if (_SEVERAL == _FOUR or rows > 1) and j + _FOUR <= count else _ONE
        own = weight + j * row
        for i in range(rows):
            of_x, factor, total = x + 2 * i * width, factors + 4 * i * blocks, of_sums + 12 * i * blocks
            if together == _FOUR:
                _dots_by_fours(code, of_x, factor, total, own, row, width, sums.ctypes.data)
            else:
                _dots(code, of_x, factor, total, own, row, width, sums.ctypes.data)
            for each in range(together):
                out[i, j + each] = sums[each] + bias[j + each]
        j += together


@exact_loop
def unpack_all(out: Any, code: int, blocks: Any, bytes_: int) -> None:
    """Write the weights (blocks, weights of a block) of blocks of the type with this code, ``bytes_`` each."""
    for i in range(len(out)):
        _unpack(code, blocks.ctypes.data + i * bytes_, out.ctypes.data + i * out.strides[0])


@exact_loop
def unpack_bfloat16(out: Any, bits: Any) -> None:
    """Write the numbers whose upper halves are these uint16."""
    for i in range(out.size):
        out[i] = real(numpy.uint32(numpy.uint32(bits[i]) << numpy.uint32(16)).view(numpy.float32))
