"""``RawModule``: compiles the CUDA source as C++ for the CPU (``cuda_on_cpu.hpp``) and runs it on the arrays' memory
(``cuda_runtime.cpp``).

``kernel_launches`` sets how, and CuPy has nothing of the kind:
- ``order``: in which order blocks, and the threads of a block, take turns: "forward", "reversed" (where threads also run
  as far ahead of others as they can) or "shuffled". What a kernel computes must not depend on it. Copies to shared memory
  beside the work (cp.async) end when their thread waits for them, at once, or either by chance.
  CUPY_STANDIN_ORDER in the environment sets it from outside.
- ``guarded``: each array is copied to memory that ends where reading is a fault, shared memory starts as NaN, and a write
  beside an array is found. CUPY_STANDIN_GUARDED=1 in the environment sets it from outside.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy

from ._array import Address, launched, ndarray
from ._graphs import place_of

HARNESS = Path(__file__).with_name("cuda_on_cpu.hpp").read_text()
RUNTIME = Path(__file__).with_name("cuda_runtime.cpp").read_text().replace('#include "cuda_on_cpu.hpp"\n', HARNESS)
FLAGS = """
    -fPIC -O2 -w -fvisibility=hidden -fno-strict-aliasing -ffp-contract=off -U_FORTIFY_SOURCE
    -fsanitize=undefined -fno-sanitize=vptr -fsanitize-undefined-trap-on-error
""".split()
KERNEL = re.compile(r'^extern\s+"C"\s+__global__\s+void\s+(?:__launch_bounds__\(([^),]*)[^)]*\)\s*)?(\w+)\s*\(', re.MULTILINE)
CODES = {"f": "float32", "d": "float64", "e": "bfloat16", "?": "bool", "b": "int8", "B": "uint8", "h": "int16", "H": "uint16",
         "i": "int32", "I": "uint32", "q": "int64", "Q": "uint64"}  # fmt: skip
ORDERS = ["forward", "reversed", "shuffled"]

kernel_launches = SimpleNamespace(
    order=os.environ.get("CUPY_STANDIN_ORDER", "forward"), guarded=os.environ.get("CUPY_STANDIN_GUARDED") == "1"
)


# --------------------------------------------------------------------------------------------------------- compiling


@functools.cache
def _library(code, options):
    """The compiled source."""
    options = [o for o in options if o != "--fmad=false"]  # as it is here in any case
    unknown = [o for o in options if not o.startswith(("--std=", "-D"))]
    if unknown:
        raise ValueError(f"the fake CuPy knows no option {unknown[0]} of NVRTC: see cupy/_raw.py")
    lines = "".join(f"CUDA_KERNEL({name}, {bound or 1024})\n" for bound, name in KERNEL.findall(code))
    text = f'{HARNESS}\n#line 1 "kernel.cu"\n{code}\n{lines}'
    runtime = compiled(RUNTIME, (*FLAGS, "-c"))  # once for all: it takes longer than most kernels
    options = [o.replace("--std=", "-std=") for o in options]
    path = compiled(text, (*FLAGS, "-shared", *options), runtime)
    library = ctypes.PyDLL(str(path))  # which keeps Python's lock: one launch at a time
    library.cuda_launch.restype = ctypes.c_char_p
    library.cuda_guard.restype = ctypes.c_void_p
    library.cuda_intact.restype = ctypes.c_bool
    return library


def compiled(text, arguments, *objects):
    """The path of what g++ makes of this C++ and these objects, in the user's cache: perhaps by an earlier process."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cupy-standin"
    known_by = repr((text, [*arguments], [o.name for o in objects]))  # an object's name tells what it was made of
    path = folder / f"{hashlib.sha256(known_by.encode()).hexdigest()}{'.o' if '-c' in arguments else '.so'}"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _compile(text, arguments, objects, path)
    return path


def _compile(text, arguments, objects, path):
    if not shutil.which("g++"):
        raise RuntimeError("the fake CuPy runs CUDA kernels as C++ and needs g++, which is not installed: apt install g++")
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        built = Path(folder) / path.name
        command = ["g++", *arguments, "-x", "c++", "-", "-x", "none", *map(str, objects), "-o", str(built)]
        process = subprocess.run(command, input=text, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"g++ refuses the CUDA source:\n{process.stderr}")
        built.replace(path)  # at once, as other processes may be doing the same


# ----------------------------------------------------------------------------------------------------------- launching


class RawModule:
    """CUDA source. Like CuPy's, it is compiled when a kernel is asked for."""

    def __init__(self, *, code, options=()):
        if not isinstance(options, tuple):
            raise TypeError(f"Argument 'options' has incorrect type (expected tuple, got {type(options).__name__})")
        self.code = code
        self.options = options

    def get_function(self, name):
        library = _library(self.code, self.options)
        if not hasattr(library, f"cuda_call_{name}"):
            raise RuntimeError(f"CUDA_ERROR_NOT_FOUND: named symbol not found: {name}")
        return RawKernel(library, name)


class RawKernel:
    """A kernel, which ``kernel(grid, block, arguments)`` launches."""

    def __init__(self, library, name):
        self.name = name
        self._library = library
        self._call = getattr(library, f"cuda_call_{name}")
        signature = getattr(library, f"cuda_signature_{name}")
        signature.restype = ctypes.c_char_p
        self._codes = signature().decode().split()
        self._most_threads = getattr(library, f"cuda_bound_{name}")()

    def __call__(self, grid, block, args):
        grid, block = _three(grid, "grid"), _three(block, "block")
        if block[0] * block[1] * block[2] > 1024 or block[2] > 64:
            raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: {self.name}: a block of {block} threads; 1024 are the most")
        if block[0] * block[1] * block[2] > self._most_threads:
            raise RuntimeError(
                f"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: {self.name}: a block of {block} threads; its __launch_bounds__ allow "
                f"{self._most_threads}"
            )
        if 0 in grid + block:
            raise ValueError(f"{self.name}: a grid of {grid} blocks of {block} threads, where CuPy makes 1 of a 0")
        if grid[0] >= 1 << 31 or max(grid[1:]) >= 1 << 16:
            raise RuntimeError(f"CUDA_ERROR_INVALID_VALUE: {self.name}: a grid of {grid} blocks is too large")
        if len(args) != len(self._codes):
            raise TypeError(f"{self.name} takes {len(self._codes)} arguments and was given {len(args)}: undefined on a GPU")
        arrays = {}  # argument number: NumPy array
        values = [self._value(i, code, arg, arrays) for i, (code, arg) in enumerate(zip(self._codes, args))]

        def prepare():
            given = {i: place_of(array) for i, array in arrays.items()}
            return lambda: self._run(grid, block, values, {i: place.array() for i, place in given.items()})

        if launched(self.name, prepare, (grid, block, [arg for i, arg in enumerate(args) if i not in arrays])):
            self._run(grid, block, values, arrays)

    def _run(self, grid, block, values, arrays):
        pointers = {i: ctypes.c_void_p(array.__array_interface__["data"][0]) for i, array in arrays.items()}
        launch = _guarded if kernel_launches.guarded else _direct
        launch(self, grid, block, [pointers.get(i, value) for i, value in enumerate(values)], arrays)

    def _value(self, i, code, arg, arrays):
        """The argument as ctypes passes it, if its type is the parameter's: on a GPU another one is read as nonsense."""
        if isinstance(arg, (Address, ndarray)):
            array = arg.array if isinstance(arg, Address) else arg
            if array is arg and not arg._host.flags.c_contiguous:
                raise ValueError(f"{self.name}: argument {i} is not C-contiguous; if strides are meant, pass x.data.ptr")
            if len(code) == 1 or (code[1] != "v" and CODES[code[1]] != _name(array.dtype)):
                raise self._mismatch(i, f"an array of {array.dtype}", code)
            arrays[i] = array._host
            return ctypes.c_void_p(array._host.ctypes.data)
        if len(code) == 2 and type(arg) is int and arg == 0:
            return ctypes.c_void_p(None)
        if type(arg) is int:
            given, held = ("int64", "uint64"), ctypes.c_int64(arg)
        elif type(arg) is float:
            given, held = ("float64",), ctypes.c_double(arg)
        elif isinstance(arg, (numpy.number, numpy.bool_)):
            given, held = (arg.dtype.name,), _several(ctypes.c_char, arg.nbytes)(*arg.tobytes())
        else:
            raise TypeError(f"Unsupported type {type(arg)}")
        if CODES.get(code) not in given:
            raise self._mismatch(i, given[0], code)
        return held

    def _mismatch(self, i, given, code):
        return TypeError(f"{self.name}: argument {i} is {given}, but the kernel takes {_spelled(code)}: undefined on a GPU")


@functools.cache
def _name(dtype):
    """Return a dtype's name, cached because NumPy rebuilds it each time."""
    return dtype.name


@functools.cache
def _several(kind, count):
    """An array type of ctypes, kept: one that is let go is garbage that refers to itself, and tests look for such."""
    return kind * count


def _spelled(code):
    pointer = {"c": "a pointer to const ", "m": "a pointer to "}.get(code[0], "") if len(code) > 1 else ""
    return pointer + CODES.get(code[-1], "void")


def _three(numbers, name):
    if not isinstance(numbers, tuple):
        raise TypeError(f"Argument '{name}' has incorrect type (expected tuple, got {type(numbers).__name__})")
    return (*numbers, 1, 1)[:3]


def _direct(kernel, grid, block, values, arrays):
    addresses = _several(ctypes.c_void_p, len(values))(*map(ctypes.addressof, values))
    dimensions, order = _several(ctypes.c_uint, 3), ORDERS.index(kernel_launches.order)
    error = kernel._library.cuda_launch(
        kernel._call, addresses, dimensions(*grid), dimensions(*block), order, 1, kernel_launches.guarded
    )
    if error:
        raise RuntimeError(f"{kernel.name}: {error.decode()}")


def _guarded(kernel, grid, block, values, arrays):
    """Run on copies between guard pages; arrays that overlap share theirs."""
    spans = []  # [first byte, end, numbers of the arguments in it]
    for i, (first, end) in sorted(((i, numpy.lib.array_utils.byte_bounds(a)) for i, a in arrays.items()), key=lambda s: s[1]):
        if spans and first < spans[-1][1]:
            spans[-1][1] = max(spans[-1][1], end)
            spans[-1][2].append(i)
        else:
            spans.append([first, end, [i]])
    library = kernel._library
    copies = []
    try:
        for first, end, numbers in spans:
            # NaN beside what is read; beside what is written another number, as NaN computed from it would not show.
            filler = 0xFE if any(kernel._codes[i][0] == "m" for i in numbers) else 0xFF
            copy = library.cuda_guard(ctypes.c_size_t(end - first), ctypes.c_size_t(first % 16), filler)
            ctypes.memmove(copy, first, end - first)
            copies.append(copy)
            for i in numbers:
                values[i].value += copy - first
        _direct(kernel, grid, block, values, arrays)
        for number, ((first, end, numbers), copy) in enumerate(zip(spans, copies)):
            if not library.cuda_intact(ctypes.c_size_t(number)):
                raise RuntimeError(f"{kernel.name}: wrote beside the array that is argument {' and '.join(map(str, numbers))}")
            if any(kernel._codes[i][0] == "m" for i in numbers):
                ctypes.memmove(first, copy, end - first)
    finally:
        library.cuda_release()
