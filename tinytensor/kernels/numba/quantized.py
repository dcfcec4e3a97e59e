"""Linear layers with weights in blocks of a few bits: ``kernels/numpy/quantized.py`` as loops that two threads share.

Rounded inputs are stored as block_dots.py reads them: for each 32 inputs 32 high bytes and 32 low ones; then a float32 scale
for each 32; then for each row three sums for each 32. Rows are padded to whole blocks.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import numpy

from tinytensor.device import cores
from tinytensor.kernels.numba.block_dots import CODES, INPUTS, block_dots, unpack_block
from tinytensor.kernels.numba.compiling import Later, exact_loop, real
from tinytensor.kernels.numba.pointers import array_at, atomic_add, bytes_at
from tinytensor.kernels.numba.processor import has_second_core, helper, reads_several_rows
from tinytensor.kernels.numpy import quantized
from tinytensor.kernels.numpy.products import as_rows
from tinytensor.kernels.numpy.quantized import BLOCK_TYPES, cut, num_rows

_MOST_ROWS = 64  # with more, products of float32 are faster
_PART = 1 << 17  # bytes of a weight that one thread takes at a time; they fit a core's cache
_SHARED = 1 << 22  # bytes, times rows, from which a product is shared by two threads
_PAUSE = 2e-5  # seconds between checks whether the other thread is done
_SIZE_BITS = numpy.int32(0x7FFFFFFF)  # all but the sign
_LARGEST = 127 * 256  # integer that inputs are rounded to
_LEAST = 1e-30  # blocks without larger values count as zeros: their inverse may be infinite
_INFINITY = math.inf
_SEVERAL: Any = Later(lambda: 4 if reads_several_rows() else 1)  # rows of a weight read at a time
_FOUR, _ONE = 4, 1

_dots, _dots_by_fours, _unpack = block_dots(1), block_dots(_FOUR), unpack_block()


def linear_blocks(x: Any, weight: Any, bias: Any, parts: Any) -> Any:
    """``linear_blocks`` of kernels/numpy."""
    rows = numpy.ascontiguousarray(as_rows(x), numpy.float32)
    count, inputs = rows.shape
    outputs = num_rows(parts)
    if count > _MOST_ROWS or not count * inputs * outputs or any(block_type not in CODES for block_type, _ in parts):
        return quantized.linear_blocks(x, weight, bias, parts, unpack_rows)
    weight = numpy.ascontiguousarray(weight)
    bias = numpy.zeros(outputs, numpy.float32) if bias is None else numpy.ascontiguousarray(bias, numpy.float32)
    out = numpy.empty((count, outputs), numpy.float32)
    rounded: dict[int, Any] = {}  # by width
    for block_type, part, blocks in cut(weight, parts, inputs):
        width = whole_width(inputs, block_type)
        if width not in rounded:
            rounded[width] = numpy.empty(rounded_size(count, width), numpy.float32)
            round_inputs(rows, width, rounded[width].ctypes.data)
        _share(rounded[width], width, CODES[block_type], blocks, bias[part], out[:, part])
    return out.reshape((*x.shape[:-1], outputs))


def unpack_rows(blocks: Any, block_type: str, width: int) -> Any:
    """``unpack_rows`` of kernels/numpy."""
    blocks, (size, bytes_, *_) = numpy.ascontiguousarray(blocks), BLOCK_TYPES[block_type]
    out = numpy.empty((blocks.size // bytes_, size), numpy.float32)
    if block_type in CODES:
        unpack_all(out, CODES[block_type], blocks, bytes_)
    else:
        unpack_bfloat16(out.reshape(-1), blocks.reshape(-1).view(numpy.uint16))
    return out.reshape(len(blocks), blocks.shape[1] // bytes_ * size)[:, :width]


block_rows = functools.partial(quantized.block_rows, unpack=unpack_rows)
times_quantized = functools.partial(quantized.times_quantized, unpack=unpack_rows)


def _share(x: Any, width: int, code: int, blocks: Any, bias: Any, out: Any) -> None:
    """Compute ``block_part``, with a second thread if it is large."""
    taken = numpy.zeros(9, numpy.int64)  # how many pieces are taken, and on another cache line, done
    pieces = min(len(blocks), blocks.nbytes // _PART + 1)
    work = functools.partial(_take_pieces, x, width, code, blocks, bias, out, taken, pieces)
    if len(out) * blocks.nbytes >= _SHARED and has_second_core() and not cores.are_shared_out:
        helper().call(work)
    work()
    while taken[8] < pieces:
        time.sleep(_PAUSE)


@exact_loop
def _take_pieces(x: Any, width: int, code: int, blocks: Any, bias: Any, out: Any, taken: Any, pieces: int) -> None:
    """Compute one piece of the outputs after another, until all are taken."""
    outputs, row = blocks.shape
    while True:
        piece = atomic_add(taken.ctypes.data, 1)
        if piece >= pieces:
            return
        first, last = piece * outputs // pieces, (piece + 1) * outputs // pieces
        address = blocks.ctypes.data + first * row
        block_part(code, x.ctypes.data, width, address, row, bias[first:last], out[:, first:last])
        atomic_add(taken.ctypes.data + 64, 1)


# ---------------------------------------------------------------------------------------------------- loops


def whole_width(width: int, block_type: str) -> int:
    """Round the width up to whole blocks."""
    return -(-width // BLOCK_TYPES[block_type].size) * BLOCK_TYPES[block_type].size


def rounded_size(rows: int, width: int) -> int:
    """Return the size of rounded inputs of this padded width, in units of 4 bytes."""
    return rows * (width // 2 + 4 * (width // INPUTS))


@exact_loop
def round_inputs(x: Any, width: int, address: int) -> None:
    """Write the rows x (rows, inputs), padded with zeros to ``width``, rounded, to an address."""
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
    """Write the bytes of 32 inputs. Returns their scale."""
    bits = numpy.int32(0)  # bit patterns are in the order of the magnitudes, NaN last
    for k in range(INPUTS):
        size = real(x[k]).view(numpy.int32) & _SIZE_BITS
        bits = size if size > bits else bits
    largest = numpy.int32(bits).view(real)
    is_usual = _LEAST < largest < _INFINITY
    factor = real(_LARGEST) / largest if is_usual else real(0)
    for k in range(INPUTS):
        integer = numpy.int32(numpy.rint(x[k] * factor)) if is_usual else numpy.int32(0)
        high = (integer + numpy.int32(128)) >> numpy.int32(8)
        low = max(integer - (high << numpy.int32(8)), numpy.int32(-127))  # can be negated
        out[0, k], out[1, k] = numpy.int8(high), numpy.int8(low)
    return largest / real(_LARGEST)


@exact_loop
def _sum(bytes_: Any, first: int) -> Any:
    """Return the sum of 16 of the 16-bit integers."""
    total = numpy.int32(0)
    for k in range(first, first + 16):
        total += numpy.int32(bytes_[0, k]) * numpy.int32(256) + numpy.int32(bytes_[1, k])
    return total


@exact_loop
def block_part(code: int, x: int, width: int, weight: int, row: int, bias: Any, out: Any) -> None:
    """Compute outputs of a linear layer, (rows, count), from rounded inputs of this width and ``count`` rows of the weight.

    ``code`` is the weight's block type, and ``row`` the bytes of its rows. x and weight are addresses.
    """
    rows, count = out.shape
    blocks, sums = width // INPUTS, numpy.empty(_FOUR, numpy.float32)
    factors = x + 2 * rows * width
    of_sums, j = factors + 4 * rows * blocks, 0
    while j < count:
        together = _FOUR if (_SEVERAL == _FOUR or rows > 1) and j + _FOUR <= count else _ONE
        address = weight + j * row
        for i in range(rows):
            of_x, factor, total = x + 2 * i * width, factors + 4 * i * blocks, of_sums + 12 * i * blocks
            if together == _FOUR:
                _dots_by_fours(code, of_x, factor, total, address, row, width, sums.ctypes.data)
            else:
                _dots(code, of_x, factor, total, address, row, width, sums.ctypes.data)
            for each in range(together):
                out[i, j + each] = sums[each] + bias[j + each]
        j += together


@exact_loop
def unpack_all(out: Any, code: int, blocks: Any, bytes_: int) -> None:
    """Unpack blocks of the type with this code, ``bytes_`` each, to out (blocks, weights of a block)."""
    for i in range(len(out)):
        _unpack(code, blocks.ctypes.data + i * bytes_, out.ctypes.data + i * out.strides[0])


@exact_loop
def unpack_bfloat16(out: Any, bits: Any) -> None:
    """Write the float32 numbers whose upper halves are these uint16."""
    for i in range(out.size):
        out[i] = real(numpy.uint32(numpy.uint32(bits[i]) << numpy.uint32(16)).view(numpy.float32))
