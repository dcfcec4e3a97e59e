"""The one function of CuPy's companion package that the library uses; see the ``cupy`` beside it."""

import numpy
from cupy import ndarray
from cupy._array import index_parts, launched, numbers_in, numpys_index, operand
from cupy._graphs import later

# What the GPU can add atomically.
ATOMIC = (numpy.float16, numpy.float32, numpy.float64, numpy.int32, numpy.uint32, numpy.uint64)


def scatter_add(a, slices, value):
    """a[slices] += value, where repeated indices add up. Integer indices need a dtype that the GPU adds atomically."""
    target, parts = operand(a, scalars=False), index_parts(slices)
    by_integers = any(isinstance(part, numpy.ndarray) and part.dtype != bool for part in parts)
    if by_integers and target.dtype not in ATOMIC:
        raise TypeError(f"Unsupported dtype {target.dtype}: scatter_add only adds floats, int32, uint32 and uint64")
    value = operand(value.astype(a.dtype) if isinstance(value, ndarray) else value)
    given = (target, parts, value)
    size = target[numpys_index(target, parts)].size
    if size and launched("scatter_add", lambda: later(_add, given), numbers_in((parts, value))):
        _add(*given)


def _add(target, parts, value):
    numpy.add.at(target, numpys_index(target, parts), value)
