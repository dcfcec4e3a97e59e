"""The one function of CuPy's companion package that the library uses; see the ``cupy`` beside it."""

import numpy
from cupy import ndarray
from cupy._array import launched, operand

# What the GPU can add atomically.
ATOMIC = (numpy.float16, numpy.float32, numpy.float64, numpy.int32, numpy.uint32, numpy.uint64)


def scatter_add(a, slices, value):
    """a[slices] += value, where repeated indices add up. Integer indices need a dtype that the GPU adds atomically."""
    target = operand(a, scalars=False)
    index = a._index(slices)
    by_integers = any(isinstance(part, numpy.ndarray) and part.dtype != bool for part in index)
    if by_integers and target.dtype not in ATOMIC:
        raise TypeError(f"Unsupported dtype {target.dtype}: scatter_add only adds floats, int32, uint32 and uint64")
    value = value.astype(a.dtype) if isinstance(value, ndarray) else value
    numpy.add.at(target, index, operand(value))
    launched("scatter_add", target[index].size)
