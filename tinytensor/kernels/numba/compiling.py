"""Loops over arrays in Python, compiled by Numba when they are first called. Read this file before the others of this folder.

A compiled loop makes one pass over memory where NumPy makes one for each operation, and other threads run meanwhile. ``loop``,
``exact_loop`` and ``reduction`` declare one. It is compiled once for float32 and once for float64, if it is called with both:
in its text ``real`` is the type of its arrays' numbers, and the file's own constants have that type, too. So ``real(0.5) * x``
stays in float32.
"""

from __future__ import annotations

import dis
import functools
import pickle
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy

from tinytensor.device.backend import BackendError
from tinytensor.device.forks import held_by_forks
from tinytensor.kernels.numba.cache import in_folder
from tinytensor.kernels.numba.display import show_compiling

real = numpy.float64  # what a reader's editor sees; ``Loop`` puts the arrays' own type in its place

_COMPILED = ("float32", "float64")
_compiling = held_by_forks(threading.RLock())
_loops: list[Loop] = []
_keeping = True  # whether compiled code is kept between runs
_OF_FILES = (OSError, EOFError, pickle.PickleError)


def loop(function: Callable[..., Any]) -> Loop:
    """Declare a function of arrays, numbers and loops over them as one to compile. A product and a sum may be one instruction,
    which rounds once."""
    return Loop(function, {"contract"})


def exact_loop(function: Callable[..., Any]) -> Loop:
    """``loop``, with every operation rounded as NumPy rounds it."""
    return Loop(function, set())


def reduction(function: Callable[..., Any]) -> Loop:
    """``loop``, with sums that may be added up in any order, as NumPy's are: only so can they be vectorised."""
    return Loop(function, {"contract", "reassoc"})


# --------------------------------------------------------------------------------------- what the text of a loop may name


class Compilable:
    """What the text of a loop may call."""

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """What Numba calls in its place, in loops over arrays of this dtype."""
        raise TypeError(f"{type(self).__name__} has no compile method: write one")

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError("only loops call this function")


class Loop(Compilable):
    """A function that is compiled at its first call for a dtype, together with the loops that it calls."""

    def __init__(self, function: Callable[..., Any], liberties: set[str]):
        self.function = function
        self.liberties = liberties  # what LLVM may do to floating-point arithmetic; none of them loses NaN, infinity or -0.0
        self.compiled: dict[Any, Callable[..., Any]] = {}
        _loops.append(self)

    def __call__(self, *arguments: Any) -> Any:
        """Call it with arrays and numbers. The first argument is an array; its dtype is that of all floating-point numbers.

        Raises as ``compile``.
        """
        dtype = arguments[0].dtype
        given = [dtype.type(x) if type(x) is float else x for x in arguments]
        try:
            return (self.compiled.get(dtype) or self.compile(dtype))(*given)
        except _OF_FILES:  # a loop raises none of them, so the folder of compiled code is at fault
            _keep_nothing()
        return self.compile(dtype)(*given)

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """The function as Numba compiles it for arrays of this dtype.

        Raises TypeError for any dtype but float32 and float64, and BackendError if Numba cannot be imported.
        """
        if not dtype.isnative or dtype.name not in _COMPILED:
            remedy = "use x.astype('float64'), or TINYTENSOR_KERNELS=numpy"
            raise TypeError(f"the compiled kernels take {' and '.join(_COMPILED)}, not {dtype}: {remedy}")
        numba = load_numba()
        with _compiling:
            if dtype not in self.compiled:
                options = {"nogil": True, "cache": _keeping, "error_model": "numpy", "fastmath": self.liberties}
                function = self._for(dtype)
                with in_folder():
                    self.compiled[dtype] = numba.njit(**options)(function)
        return self.compiled[dtype]

    def _for(self, dtype: Any) -> Callable[..., Any]:
        """The function with this dtype's constants and loops for its globals: Numba compiles globals as constants."""
        own: dict[str, Any] = {"real": dtype.type}
        for name in {step.argval for step in dis.get_instructions(self.function) if step.opname == "LOAD_GLOBAL"}:
            value = self.function.__globals__.get(name)
            if isinstance(value, Compilable):
                own[name] = value.compile(dtype)
            elif type(value) is float:
                own[name] = dtype.type(value)
            elif type(value) is tuple:
                own[name] = tuple([dtype.type(x) for x in value])
            elif isinstance(value, Later):
                made = value.compute()
                own[name] = made if isinstance(made, int) else tuple([dtype.type(x) for x in made])
        function = types.FunctionType(self.function.__code__, {**self.function.__globals__, **own}, self.function.__name__)
        function.__qualname__, function.__module__ = self.function.__qualname__, self.function.__module__
        return function


class ByDtype(Compilable):
    """A function for loops that has another text for each dtype: ``ByDtype(float32=one, float64=other)``."""

    def __init__(self, **choices: Loop):
        self.choices = choices

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """The one for this dtype, compiled."""
        return self.choices[dtype.name].compile(dtype)


class ByNumba(Compilable):
    """A function for loops that is no loop, but written with Numba's or LLVM's own means. ``make`` returns it for a dtype; it
    is called when a loop first needs that, because Numba is imported no earlier."""

    def __init__(self, make: Callable[[Any], Callable[..., Any]]):
        self.make = functools.cache(make)

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """The function for this dtype."""
        return self.make(dtype)


class Later:
    """Constants of a loop that are computed when it is compiled, because ``import tinytensor`` must not take long: an integer,
    or numbers of the arrays' type."""

    def __init__(self, compute: Callable[[], int | Sequence[float]]):
        self.compute = compute

    def __iter__(self) -> Iterator[float]:
        raise TypeError("only loops read these constants")


# ------------------------------------------------------------------------------------------------------------------ Numba


@functools.cache
def load_numba() -> Any:
    """Numba, imported. Raises BackendError where it is installed and does not run, as with a NumPy that it does not know, or
    where it may not compile."""
    try:
        import numba
    except ImportError as error:
        raise BackendError(f"Numba cannot be imported ({error}): with TINYTENSOR_KERNELS=numpy it is not used") from None
    if numba.config.DISABLE_JIT:
        raise BackendError("NUMBA_DISABLE_JIT is set, but the kernels must be compiled: with TINYTENSOR_KERNELS=numpy none are")
    from numba.core.compiler_lock import global_compiler_lock

    held_by_forks(global_compiler_lock)  # else a child would have what another thread has half compiled
    show_compiling()
    return numba


def _keep_nothing() -> None:
    """Forget all compiled code, and compile it again without the folder: its disk is full, or its files are broken."""
    global _keeping
    with _compiling:
        _keeping = False
        for each in _loops:
            each.compiled.clear()
