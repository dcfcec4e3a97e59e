"""The largest number of a row."""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import ByDtype, loop, real

_SIZE_BITS = numpy.int32(0x7FFFFFFF)  # all but the sign


@loop
def largest32(row: Any) -> Any:
    """By comparing integers, which a compiler vectorises: the bits of floats, those of the size turned over where the sign is
    negative, are in the order of the floats. NaN is above infinity, or with its sign set below -infinity."""
    found = numpy.int32(-0x80000000)
    for j in range(row.size):
        bits = real(row[j]).view(numpy.int32)
        ordered = bits ^ ((bits >> numpy.int32(31)) & _SIZE_BITS)
        found = ordered if ordered > found else found
    return numpy.int32(found ^ ((found >> numpy.int32(31)) & _SIZE_BITS)).view(real)


@loop
def largest64(row: Any) -> Any:
    """By comparing the numbers. NaN is left out, unless it comes first."""
    found = row[0]
    for j in range(row.size):
        found = row[j] if row[j] > found else found
    return found


largest = ByDtype(float32=largest32, float64=largest64)
