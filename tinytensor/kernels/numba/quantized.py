"""Linear layers with weights in blocks of a few bits: ``kernels/numpy/quantized.py`` as loops that two threads share."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy

from tinytensor.device import cores
from tinytensor.kernels.numba.block_dots import CODES
from tinytensor.kernels.numba.compiling import exact_loop
from tinytensor.kernels.numba.helper import has_second_core, helper
from tinytensor.kernels.numba.pointers import atomic_add
from tinytensor.kernels.numba.quantized_loops import (
    block_part,
    round_inputs,
    rounded_size,
    unpack_all,
    unpack_bfloat16,
    whole_width,
)
from tinytensor.kernels.numpy import quantized
from tinytensor.kernels.numpy.blocks import BLOCK_TYPES
from tinytensor.kernels.numpy.quantized import cut, num_rows
from tinytensor.kernels.rows import as_rows

_MOST_ROWS = 64  # with more, products of float32 are faster
_PART = 1 << 17  # bytes of a weight that one thread takes at a time: they stay in a core's own cache
_SHARED = 1 << 22  # bytes, times rows, from which two threads share a product
_PAUSE = 2e-5  # seconds between looks at whether the other thread is done


def linear_blocks(x: Any, weight: Any, bias: Any, parts: Any) -> Any:
    """``kernels.numpy.linear_blocks``."""
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
    """``kernels.numpy.blocks.unpack_rows``."""
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
    taken = numpy.zeros(9, numpy.int64)  # the pieces that were taken, and on a cache line of its own, that are done
    pieces = min(len(blocks), blocks.nbytes // _PART + 1)
    work = functools.partial(_take_pieces, x, width, code, blocks, bias, out, taken, pieces)
    if len(out) * blocks.nbytes >= _SHARED and has_second_core() and not cores.are_shared_out:
        helper().call(work)
    work()
    while taken[8] < pieces:
        time.sleep(_PAUSE)


@exact_loop
def _take_pieces(x: Any, width: int, code: int, blocks: Any, bias: Any, out: Any, taken: Any, pieces: int) -> None:
    """Take some outputs after the other, until all are taken."""
    outputs, row = blocks.shape
    while True:
        piece = atomic_add(taken.ctypes.data, 1)
        if piece >= pieces:
            return
        first, last = piece * outputs // pieces, (piece + 1) * outputs // pieces
        own = blocks.ctypes.data + first * row
        block_part(code, x.ctypes.data, width, own, row, bias[first:last], out[:, first:last])
        atomic_add(taken.ctypes.data + 64, 1)
