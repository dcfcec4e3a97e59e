"""Elementwise ops and their gradients as loops, compiled from the text of the ops themselves.

NumPy computes ``x * sigmoid(-y)`` in three passes over memory. Here the same text is compiled as a function of numbers, in
which ``sigmoid`` stands for the loops' own function, and is called in one loop over the arrays. So there is no second formula.
The loop of float16 arrays computes in float32, and rounds once.
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
from tinytensor.kernels.numba.compiling import ByDtype, Compilable, Loop, globals_in, loop, where
from tinytensor.kernels.numba.erf import erf_of
from tinytensor.kernels.numba.half import narrowed, widened
from tinytensor.kernels.numba.silu import sigmoid_of

_FEWEST = 2048  # elements: of fewer, the passes over the cache take no longer than a call
_FLOAT32, _FLOAT16 = numpy.dtype(numpy.float32), numpy.dtype(numpy.float16)
# What takes NumPy long in float32: some of it next to a number, most of it without AVX-512.
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
    # Numbers of arrays are neither Python's, nor integers or booleans.
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
        """What is compiled: this changes with the formula, and with those that it calls."""
        code = self.function.__code__
        called = [part.text for part in self._parts.values() if isinstance(part, Formula)]
        return repr((code.co_code, [c for c in code.co_consts if not isinstance(c, str)], code.co_names, called))

    @functools.cached_property
    def passes(self) -> int:
        """How often NumPy goes over memory: a single operation it does as fast as a loop does."""
        names = [step.opname for step in dis.get_instructions(self.function)]
        own = sum(name.startswith(("BINARY_", "COMPARE_", "CALL")) for name in names)
        return own + sum(
            -1 if part in (_itself, _false, _unchecked) else getattr(part, "passes", 0) for part in self._parts.values()
        )

    @functools.cached_property
    def is_known(self) -> bool:
        """Whether there is a function of numbers for all that it calls."""
        attributes = {
            step.argval for step in dis.get_instructions(self.function) if step.opname in ("LOAD_ATTR", "LOAD_METHOD")
        }
        known = attributes.issubset({*FUNCTIONS, *CONSTANTS})
        return known and all(getattr(part, "is_known", True) for part in self._parts.values())

    @functools.cached_property
    def _parts(self) -> dict[str, Any]:
        """What the names of its globals stand for."""
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
        """The function with numbers of this dtype for its constants, as in float64 they would make float64 of all."""

        def meaning(value: Any) -> Any:
            if isinstance(value, types.ModuleType):
                return _package(dtype)
            return value.compile(dtype) if isinstance(value, Compilable) else dtype.type(value)

        constants = [dtype.type(c) if type(c) in (int, float) else c for c in self.function.__code__.co_consts]
        code = self.function.__code__.replace(co_consts=tuple(constants))
        own = {name: meaning(value) for name, value in self._parts.items()}
        return types.FunctionType(code, {**self.function.__globals__, **own}, self.function.__name__)


@functools.cache
def _package(dtype: Any) -> types.ModuleType:
    """What stands for NumPy, and for Python's ``math``, in a formula."""
    package = types.ModuleType("numbers")
    vars(package).update({name: value.compile(dtype) for name, value in FUNCTIONS.items()})
    vars(package).update({name: dtype.type(getattr(math, name)) for name in CONSTANTS})
    return package


def elementwise(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of arrays that computes each element by itself, as one pass over memory. The name is its own among all."""
    return Elementwise(function, name)


class Elementwise:
    """A function of arrays, compiled where that is faster: for many elements, in float32 or float16, of arrays of one shape
    beside numbers. Elsewhere it is the function itself."""

    def __init__(self, function: Callable[..., Any], name: str):
        functools.update_wrapper(self, function)
        self.function, self.name = function, name
        self.formula = Formula(function)
        self.loops: dict[tuple[str, ...], Loop] = {}

    @functools.cached_property
    def in_float32(self) -> bool:
        """Whether the loop is faster than NumPy also in float32."""
        return self.formula.passes > 1 or not _SLOW.isdisjoint(self.function.__code__.co_names)

    def __call__(self, *arguments: Any) -> Any:
        for x in arguments:
            if type(x) is numpy.ndarray and x.size >= _FEWEST and x.dtype in (_FLOAT32, _FLOAT16) and self.formula.is_known:
                out = self._compiled(arguments, x.shape)
                return self.function(*arguments) if out is None else out
        return self.function(*arguments)

    def _compiled(self, arguments: tuple[Any, ...], shape: tuple[int, ...]) -> Any:
        """The result of the loop; None where there is none for such arguments."""
        pattern, given, dtypes = [], [], set()
        for x in arguments:
            if type(x) is numpy.ndarray:
                dtypes.add(x.dtype)
                if x.shape == shape and x.flags.c_contiguous and x.dtype in _TYPES:
                    pattern.append(_TYPES[x.dtype])
                    given.append(_bits(x))
                    continue
                if any(x.strides) or x.shape not in ((), shape) or x.dtype not in (_FLOAT32, _FLOAT16):
                    return None
                x = x.reshape(-1)[0] if x.shape == () else x[(0,) * x.ndim]  # a gradient that is the same everywhere
            elif type(x) not in (float, int, numpy.float32):
                return None
            pattern.append("number")
            given.append(numpy.float32(x))
        floating = dtypes - {numpy.dtype(bool)}
        if len(floating) != 1 or (floating == {_FLOAT32} and not self.in_float32):
            return None
        out = numpy.empty(shape, floating.pop())
        key = tuple(pattern)
        if key not in self.loops:
            self.loops[key] = _loop(self.formula, self.name, key, out.dtype == _FLOAT16)
        self.loops[key].call(_FLOAT32, [*given, _bits(out)])
        return out


def _bits(x: Any) -> Any:
    """The numbers of an array one after the other, of float16 as integers: Numba does not know it."""
    return (x.view(numpy.uint16) if x.dtype == _FLOAT16 else x).reshape(-1)


_ELEMENT = {"float": "{}[i]", "mask": "{}[i]", "half": "widened({}[i])", "number": "{}"}


def _loop(formula: Formula, name: str, pattern: tuple[str, ...], is_half: bool) -> Loop:
    """The loop over arrays and numbers in this order that calls the formula for each element."""
    names = [f"x{i}" for i in range(len(pattern))]
    call = f"formula({', '.join(_ELEMENT[kind].format(x) for x, kind in zip(names, pattern))})"
    text = f"def loop({', '.join(names)}, out):\n    for i in range(out.size):\n        out[i] = "
    text += f"narrowed({call})" if is_half else call
    own: dict[str, Any] = {"formula": formula, "widened": widened, "narrowed": narrowed}
    exec(compile(text, __file__, "exec"), own)
    own["loop"].__module__ = __name__
    own["loop"].__qualname__ = f"{name}-{hashlib.sha256(repr((formula.text, pattern)).encode()).hexdigest()[:12]}"
    return Loop(own["loop"], {"contract"})
