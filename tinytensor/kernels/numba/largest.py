"""The largest number of a row, as ``numpy.max``, for loops that subtract it before exp."""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import ByDtype, loop, real

_SIZE_BITS = numpy.int32(0x7FFFFFFF)  # all but the sign


@loop
def largest32(row: Any) -> Any:
    """By comparing integers, which a compiler vectorises. The bits of floats, read as integers, are in the order of the floats,
    once all bits but the sign of negative ones are inverted. NaN then comes after infinity, or if its sign is set, before
    -infinity. Which of both does not matter: the exp of the NaN is NaN in any case."""
    found = numpy.int32(-0x80000000)
    for j in range(row.size):
        bits = real(row[j]).view(numpy.int32)
        ordered = bits ^ ((bits >> numpy.int32(31)) & _SIZE_BITS)
        found = ordered if ordered > found else found
    return numpy.int32(found ^ ((found >> numpy.int32(31)) & _SIZE_BITS)).view(real)


@loop
def largest64(row: Any) -> Any:
    """By comparing the numbers. NaN is never larger; only if it comes first, it is the result."""
    found = row[0]
    for j in range(row.size):
        found = row[j] if row[j] > found else found
    return found


largest = ByDtype(float32=largest32, float64=largest64)
