"""Functions that launch the kernels in a ``.cu`` file of this folder. ``common.cuh`` says how to write a kernel.

CuPy compiles a file once for each dtype, when it is first used, and caches the result on disk (``~/.cupy/kernel_cache``) under
a hash of the source text and the options, but not of included files. So our headers are inlined here. Macros choose the dtype,
because older versions of CuPy compile C++ templates (``name_expressions``) again in every process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy

from tinytensor.device.backend import xp

_FOLDER = Path(__file__).parent
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)

# For each dtype: the C++ type of arrays, the C++ type to compute in, and the type of a Python float argument.
_TYPES = {
    "float32": ("float", "float", numpy.float32),
    "float64": ("double", "double", numpy.float64),
    "bfloat16": ("bfloat16", "float", numpy.float32),
}

# Files whose products are rounded before anything is added. Otherwise NVRTC may fuse both, and the bits of an optimizer's step
# would depend on its dtype, and on whether the gradients were scaled before it or in it.
_EXACT = ("optimizers.cu",)

_FLOATS = (float, numpy.float16, numpy.float32, numpy.float64)
_INTEGERS = (bool, numpy.bool_, numpy.int8, numpy.int16, numpy.int32, numpy.int64, numpy.uint8, numpy.uint16, numpy.uint32)


def source(file: str) -> str:
    """Return the text of a file of this folder with its headers inlined, each once."""
    return _inlined(file, set())


def _inlined(file: str, included: set[str]) -> str:
    def header(match: re.Match[str]) -> str:
        if match[1] in included:
            return ""
        included.add(match[1])
        return _inlined(match[1], included)

    return _INCLUDE.sub(header, (_FOLDER / file).read_text().replace("#pragma once\n", ""))


def options(file: str, dtype: str, **constants: int) -> tuple[str, ...]:
    """Return the options of NVRTC, the compiler, for kernels on arrays of this dtype. The constants become macros."""
    scalar, accumulator, _ = _TYPES[dtype]
    macros = {"Scalar": scalar, "Accumulator": accumulator, **constants}
    exact = ("--fmad=false",) if file in _EXACT else ()
    return ("--std=c++17", *exact, *[f"-D{name}={value}" for name, value in macros.items()])


def _type(dtype: Any) -> tuple[str, str, Any]:
    if dtype.name not in _TYPES:
        raise TypeError(f"GPU kernels take {', '.join(_TYPES)}, got {dtype}: convert with x.astype('float32')")
    return _TYPES[dtype.name]


@functools.cache
def _module(file: str, dtype: str, **constants: int) -> Any:
    return xp.RawModule(code=source(file), options=options(file, dtype, **constants))


@functools.cache
def kernel(file: str, name: str, dtype: Any, **constants: int) -> Callable[..., None]:
    """Compile a kernel for arrays of this dtype with these macros, and return ``launch(grid, block, *arguments)``.

    ``grid`` is the number of blocks and ``block`` the number of threads in each: an int, or a tuple of up to three. A grid with
    a 0 launches nothing. An argument is a C-contiguous array, None (a null pointer), an int (``long long``), a float
    (``Accumulator``), or NumPy's uint64 (``unsigned long long``). Other NumPy numbers are passed like Python's. Raises
    TypeError for a dtype without kernels.
    """
    # CuPy would pass a float as a double and a NumPy number with its own size, and it refuses None.
    convert = {**dict.fromkeys(_FLOATS, _type(dtype)[2]), **dict.fromkeys(_INTEGERS, int), type(None): lambda none: 0}
    function = _module(file, dtype.name, **constants).get_function(name)

    def launch(grid: int | tuple[int, ...], block: int | tuple[int, ...], *arguments: Any) -> None:
        blocks = grid if isinstance(grid, tuple) else (grid,)
        if 0 in blocks:
            return
        passed = tuple([convert[type(a)](a) if type(a) in convert else a for a in arguments])
        function(blocks, block if isinstance(block, tuple) else (block,), passed)

    return launch


def accumulator(dtype: Any) -> Any:
    """Return the dtype in which kernels on arrays of this dtype compute and save sums."""
    return numpy.dtype(_type(dtype)[2])


def computed(array: Any) -> Any:
    """Convert the array to a dtype that has kernels: float16 becomes float32."""
    return array.astype(numpy.float32) if array.dtype == numpy.float16 else array


def contiguous(array: Any) -> Any:
    """Return the array if it is C-contiguous, as kernels need it, else a contiguous copy."""
    return array if array.flags.c_contiguous else xp.ascontiguousarray(array)


_THREADS = 256
_MOST_BLOCKS = 1 << 16  # with more elements than these threads take, each thread takes further ones


def elementwise_grid(size: int) -> tuple[int, int]:
    """Return the grid and block of ``for_each_pack`` over this many elements: about four for each thread."""
    return min(-(-size // (4 * _THREADS)), _MOST_BLOCKS), _THREADS
