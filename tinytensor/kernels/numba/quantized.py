"""Linear layers with weights of fewer bits: the kernels of ``kernels/numpy/quantized.py`` as loops that two threads share."""

from __future__ import annotations

import functools
import time
from typing import Any

import numpy

from tinytensor.device import cores
from tinytensor.kernels.numba.compiling import exact_loop
from tinytensor.kernels.numba.helper import has_second_core, helper
from tinytensor.kernels.numba.pointers import atomic_add
from tinytensor.kernels.numba.quantized_loops import int8_part, quantize, quantized_size
from tinytensor.kernels.rows import as_rows

_PART = 1 << 17  # bytes of a weight that one thread takes at a time: they stay in a core's own cache
_SHARED = 1 << 22  # products from which two threads share them
_PAUSE = 2e-5  # seconds between looks at whether the other thread is done


def linear_int8(x: Any, weight: Any, scale: Any, bias: Any) -> Any:
    """``kernels.numpy.linear_int8``."""
    rows = numpy.ascontiguousarray(as_rows(x), numpy.float32)
    weight, scale = numpy.ascontiguousarray(weight), numpy.ascontiguousarray(scale, numpy.float32)
    (count, width), outputs = rows.shape, len(weight)
    bias = numpy.zeros(outputs, numpy.float32) if bias is None else numpy.ascontiguousarray(bias, numpy.float32)
    out = numpy.empty((count, outputs), numpy.float32)
    if out.size:
        quantized = numpy.empty(quantized_size(count, width), numpy.float32)
        quantize(rows, quantized.ctypes.data)
        taken = numpy.zeros(9, numpy.int64)  # the parts that were taken, and on a cache line of its own, that are done
        parts = min(outputs, weight.nbytes // _PART + 1)
        work = functools.partial(_product, quantized, width, weight, scale, bias, out, taken, parts)
        if count * weight.size >= _SHARED and has_second_core() and not cores.are_shared_out:
            helper().call(work)
        work()
        while taken[8] < parts:
            time.sleep(_PAUSE)
    return out.reshape((*x.shape[:-1], outputs))


@exact_loop
def _product(x: Any, width: int, weight: Any, scale: Any, bias: Any, out: Any, taken: Any, parts: int) -> None:
    """Take one part of the outputs after the other, until all are taken."""
    outputs = scale.size
    while True:
        part = atomic_add(taken.ctypes.data, 1)
        if part >= parts:
            return
        first, last = part * outputs // parts, (part + 1) * outputs // parts
        own = weight.ctypes.data + first * width
        int8_part(x.ctypes.data, out.shape[0], width, own, scale[first:last], bias[first:last], out[:, first:last])
        atomic_add(taken.ctypes.data + 64, 1)
