"""float16 for the loops, which read and write its bits as 16-bit integers, and compute in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import inlined, loop, real, where

_UP = 2.0**112  # by which the exponents of the two dtypes differ
_FEWEST = 1024  # numbers
_FLOAT32, _FLOAT16 = numpy.dtype(numpy.float32), numpy.dtype(numpy.float16)


@inlined
def widened(bits: Any) -> Any:
    """The number in float32 of float16's bits: they are moved to where float32 has them, and the exponent is put right, for
    subnormal numbers, too."""
    wide = numpy.uint32(bits)
    size = numpy.uint32((wide & numpy.uint32(0x7FFF)) << numpy.uint32(13)).view(numpy.float32) * _UP
    is_finite = (wide & numpy.uint32(0x7C00)) != numpy.uint32(0x7C00)
    special = numpy.uint32(((wide & numpy.uint32(0x7FFF)) << numpy.uint32(13)) | numpy.uint32(0x7F800000)).view(numpy.float32)
    size = where(is_finite, size, special)
    return where((wide & numpy.uint32(0x8000)) != numpy.uint32(0), -size, size)


@inlined
def narrowed(x: Any) -> Any:
    """The bits of float16 of a number in float32, rounded to the nearest, halves to even."""
    bits = numpy.float32(x).view(numpy.uint32)
    sign = (bits >> numpy.uint32(16)) & numpy.uint32(0x8000)
    size = bits & numpy.uint32(0x7FFFFFFF)
    # Normal: the exponent is put right, and what is cut off rounds. Subnormal: adding 1/2 moves the bits to their places.
    normal = (size + numpy.uint32(0xC8000FFF) + ((size >> numpy.uint32(13)) & numpy.uint32(1))) >> numpy.uint32(13)
    moved = numpy.float32(numpy.uint32(size).view(numpy.float32) + real(0.5)).view(numpy.uint32) - numpy.uint32(0x3F000000)
    small = where(size >= numpy.uint32(0x38800000), normal, moved)
    large = where(size > numpy.uint32(0x7F800000), numpy.uint32(0x7E00), numpy.uint32(0x7C00))
    return numpy.uint16(where(size < numpy.uint32(0x477FF000), small, large) | sign)


@loop
def _widen(out: Any, bits: Any) -> None:
    for i in range(out.size):
        out[i] = widened(bits[i])


@loop
def _narrow(x: Any, bits: Any) -> None:
    for i in range(x.size):
        bits[i] = narrowed(x[i])


def to_float32(x: Any) -> Any:
    """Convert an array of float16 to float32. NumPy converts one number at a time."""
    return _converted(x, _FLOAT32, lambda out: _widen(out.reshape(-1), x.reshape(-1).view(numpy.uint16)))


def to_float16(x: Any) -> Any:
    """Convert an array of float32 to float16."""
    return _converted(x, _FLOAT16, lambda out: _narrow(x.reshape(-1), out.reshape(-1).view(numpy.uint16)))


def _converted(x: Any, dtype: Any, write: Callable[[Any], None]) -> Any:
    if x.size < _FEWEST or not x.flags.c_contiguous:
        return x.astype(dtype)
    out = numpy.empty(x.shape, dtype)
    write(out)
    return out


CONVERSIONS = {(_FLOAT16, _FLOAT32): to_float32, (_FLOAT32, _FLOAT16): to_float16}
