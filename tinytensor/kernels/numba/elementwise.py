"""Elementwise ops and their gradients as loops, compiled from the ops' own code, in float32 and float16.

NumPy computes ``x * sigmoid(-y)`` in three passes over memory. Here the same code is compiled as a function of numbers, with
the loops' own ``sigmoid``, and called in one loop over the arrays. So no formula is written twice. Loops over float16 arrays
read and write their bits as 16-bit integers, compute in float32, and round once.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import math
import types
from collections.abc import Callable
from typing import Any

import numpy

from tinytensor.kernels.numba import functions
from tinytensor.kernels.numba.activations import erf_of, sigmoid_of
from tinytensor.kernels.numba.compiling import ByDtype, Compilable, Loop, globals_in, inlined, loop, real, where

_UP = 2.0**112  # the factor between the exponents of the two dtypes
_FEWEST_CONVERTED = 1024  # elements
_FLOAT32, _FLOAT16 = numpy.dtype(numpy.float32), numpy.dtype(numpy.float16)


@inlined
def widened(bits: Any) -> Any:
    """Convert float16's bits to a float32 number: move them into position and correct the exponent, also of subnormals."""
    wide = numpy.uint32(bits)
    size = numpy.uint32((wide & numpy.uint32(0x7FFF)) << numpy.uint32(13)).view(numpy.float32) * _UP
    is_finite = (wide & numpy.uint32(0x7C00)) != numpy.uint32(0x7C00)
    special = numpy.uint32(((wide & numpy.uint32(0x7FFF)) << numpy.uint32(13)) | numpy.uint32(0x7F800000)).view(numpy.float32)
    size = where(is_finite, size, special)
    return where((wide & numpy.uint32(0x8000)) != numpy.uint32(0), -size, size)


@inlined
def narrowed(x: Any) -> Any:
    """Convert a float32 number to the bits of float16, rounded to the nearest, ties to even."""
    bits = numpy.float32(x).view(numpy.uint32)
    sign = (bits >> numpy.uint32(16)) & numpy.uint32(0x8000)
    size = bits & numpy.uint32(0x7FFFFFFF)
    # Normal: the exponent is corrected, and the cut-off bits round. Subnormal: adding 1/2 moves the bits into position.
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
    """Convert an array of float16 to float32. NumPy converts element by element."""
    return _converted(x, _FLOAT32, lambda out: _widen(out.reshape(-1), x.reshape(-1).view(numpy.uint16)))


def to_float16(x: Any) -> Any:
    """Convert an array of float32 to float16."""
    return _converted(x, _FLOAT16, lambda out: _narrow(x.reshape(-1), out.reshape(-1).view(numpy.uint16)))


def _converted(x: Any, dtype: Any, write: Callable[[Any], None]) -> Any:
    if x.size < _FEWEST_CONVERTED or not x.flags.c_contiguous:
        return x.astype(dtype)
    out = numpy.empty(x.shape, dtype)
    write(out)
    return out


CONVERSIONS = {(_FLOAT16, _FLOAT32): to_float32, (_FLOAT32, _FLOAT16): to_float16}


_FEWEST = 2048  # elements: with fewer, NumPy's passes over the cache take no longer than a call
_FLOAT32, _FLOAT16 = numpy.dtype(numpy.float32), numpy.dtype(numpy.float16)
# Functions that are slow in NumPy's float32: some with scalars, most without AVX-512.
_SLOW = set("arctan arctan2 erf exp2 expm1 hypot log1p logaddexp maximum minimum sigmoid sign".split())
_TYPES = {_FLOAT32: "float", _FLOAT16: "half", numpy.dtype(bool): "mask"}


@loop
def _itself(x: Any) -> Any:
    return x


@loop
def _false(x: Any) -> Any:
    return False


@loop
def _unchecked(x: Any, y: Any) -> Any:
    return False


FUNCTIONS: dict[str, Compilable] = {
    **{name: value for name, value in vars(functions).items() if isinstance(value, (Loop, ByDtype))},
    **{"where": where, "sigmoid": sigmoid_of, "erf": erf_of, "abs": functions.absolute, "isinf": functions.is_infinite},
    # Elements of arrays are neither Python's numbers nor integers or booleans.
    **{"is_number": _false, "check_divisor": _unchecked, "_booleans_as_integers": _itself},
}
CONSTANTS = ("inf", "nan", "pi")


class Formula(Loop):
    """A function of arrays, compiled as a function of numbers."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__(function, {"contract"})
        self.options = {"forceinline": True}

    @functools.cached_property
    def text(self) -> str:
        """The code to compile, with that of the formulas it calls. It identifies the formula."""
        code = self.function.__code__
        called = [part.text for part in self._parts.values() if isinstance(part, Formula)]
        return repr((code.co_code, [c for c in code.co_consts if not isinstance(c, str)], code.co_names, called))

    @functools.cached_property
    def passes(self) -> int:
        """How many passes over memory NumPy makes. A single one is as fast as a loop."""
        names = [step.opname for step in dis.get_instructions(self.function)]
        operations = sum(name.startswith(("BINARY_", "COMPARE_", "CALL")) for name in names)
        return operations + sum(
            -1 if part in (_itself, _false, _unchecked) else getattr(part, "passes", 0) for part in self._parts.values()
        )

    @functools.cached_property
    def is_known(self) -> bool:
        """True if all functions that it calls exist for numbers."""
        attributes = {
            step.argval for step in dis.get_instructions(self.function) if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
        }
        known = attributes.issubset({*FUNCTIONS, *CONSTANTS})
        return known and all(getattr(part, "is_known", True) for part in self._parts.values())

    @functools.cached_property
    def _parts(self) -> dict[str, Any]:
        """The meanings of its global names."""
        parts: dict[str, Any] = {}
        for name in globals_in(self.function):
            value = self.function.__globals__.get(name)
            if name in FUNCTIONS:
                parts[name] = FUNCTIONS[name]
            elif isinstance(value, types.ModuleType):
                parts[name] = value
            elif callable(value):
                forward = getattr(value, "forward", value)  # of an op
                parts[name] = Formula(getattr(forward, "function", forward))
            elif isinstance(value, float):
                parts[name] = value
        return parts

    def _for(self, dtype: Any) -> Callable[..., Any]:
        """Return the function with constants of this dtype: float64 constants would make everything float64."""

        def meaning(value: Any) -> Any:
            if isinstance(value, types.ModuleType):
                return _package(dtype)
            return value.compile(dtype) if isinstance(value, Compilable) else dtype.type(value)

        constants = [dtype.type(c) if type(c) in (int, float) else c for c in self.function.__code__.co_consts]
        code = self.function.__code__.replace(co_consts=tuple(constants))
        meanings = {name: meaning(value) for name, value in self._parts.items()}
        return types.FunctionType(code, {**self.function.__globals__, **meanings}, self.function.__name__)


@functools.cache
def _package(dtype: Any) -> types.ModuleType:
    """Return the module that replaces NumPy, and Python's ``math``, in a formula."""
    package = types.ModuleType("numbers")
    vars(package).update({name: value.compile(dtype) for name, value in FUNCTIONS.items()})
    vars(package).update({name: dtype.type(getattr(math, name)) for name in CONSTANTS})
    return package


def elementwise(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``elementwise`` of kernels/steps.py, compiled."""
    return Elementwise(function, name)


class Elementwise:
    """A function of arrays, compiled where that is faster: for many elements in float32 or float16, in arrays of one shape and
    numbers. Otherwise it is the function itself."""

    def __init__(self, function: Callable[..., Any], name: str):
        functools.update_wrapper(self, function)
        self.function, self.name = function, name
        self.formula = Formula(function)
        self.loops: dict[tuple[str, ...], Loop] = {}

    @functools.cached_property
    def in_float32(self) -> bool:
        """True if the loop is faster than NumPy in float32, too."""
        return self.formula.passes > 1 or not _SLOW.isdisjoint(self.function.__code__.co_names)

    def __call__(self, *arguments: Any) -> Any:
        for x in arguments:
            if type(x) is numpy.ndarray and x.size >= _FEWEST and x.dtype in (_FLOAT32, _FLOAT16) and self.formula.is_known:
                out = self._compiled(arguments, x.shape)
                return self.function(*arguments) if out is None else out
        return self.function(*arguments)

    def _compiled(self, arguments: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
        """Return the loop's result, or None if there is no loop for such arguments."""
        pattern, operands, dtypes = [], [], set()
        for x in arguments:
            if type(x) is numpy.ndarray:
                dtypes.add(x.dtype)
                if x.shape == shape and x.flags.c_contiguous and x.dtype in _TYPES:
                    pattern.append(_TYPES[x.dtype])
                    operands.append(_bits(x))
                    continue
                if any(x.strides) or x.shape not in ((), shape) or x.dtype not in (_FLOAT32, _FLOAT16):
                    return None
                x = x.reshape(-1)[0] if x.shape == () else x[(0,) * x.ndim]  # a gradient that is the same everywhere
            elif type(x) not in (float, int, numpy.float32):
                return None
            pattern.append("number")
            operands.append(numpy.float32(x))
        floating = dtypes - {numpy.dtype(bool)}
        if len(floating) != 1 or (floating == {_FLOAT32} and not self.in_float32):
            return None
        out = numpy.empty(shape, floating.pop())
        key = tuple(pattern)
        if key not in self.loops:
            self.loops[key] = _loop(self.formula, self.name, key, out.dtype == _FLOAT16)
        self.loops[key].call(_FLOAT32, [*operands, _bits(out)])
        return out


def _bits(x: Any) -> Any:
    """Return the elements of an array, flat; of float16 as integers, as Numba does not know it."""
    return (x.view(numpy.uint16) if x.dtype == _FLOAT16 else x).reshape(-1)


_ELEMENT = {"float": "{}[i]", "mask": "{}[i]", "half": "widened({}[i])", "number": "{}"}


def _loop(formula: Formula, name: str, pattern: tuple[str, ...], is_half: bool) -> Loop:
    """Return the loop that calls the formula for each element of arguments in this order."""
    names = [f"x{i}" for i in range(len(pattern))]
    call = f"formula({', '.join(_ELEMENT[kind].format(x) for x, kind in zip(names, pattern))})"
    text = f"def loop({', '.join(names)}, out):\n    for i in range(out.size):\n        out[i] = "
    text += f"narrowed({call})" if is_half else call
    namespace: dict[str, Any] = {"formula": formula, "widened": widened, "narrowed": narrowed}
    exec(compile(text, __file__, "exec"), namespace)
    namespace["loop"].__module__ = __name__
    namespace["loop"].__qualname__ = f"{name}-{hashlib.sha256(repr((formula.text, pattern)).encode()).hexdigest()[:12]}"
    return Loop(namespace["loop"], {"contract"})
