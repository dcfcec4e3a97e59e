"""Loops over arrays in Python, compiled by Numba when they are first called. Read this file before the others of this folder.

A compiled loop makes one pass over memory where NumPy makes one for each operation, and other threads run meanwhile. ``loop``,
``exact_loop`` and ``reduction`` declare one. It is compiled once for float32 and once for float64, if it is called with both:
in its text ``real`` is the type of its arrays' numbers, and the file's own constants have that type, too. So ``real(0.5) * x``
stays in float32.
"""

from __future__ import annotations

import dis
import functools
import hashlib
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

    def __init__(self, function: Callable[..., Any], liberties: set[str], left_out: frozenset[Loop] = frozenset()):
        self.function = function
        self.liberties = liberties  # what LLVM may do to floating-point arithmetic; none of them loses NaN, infinity or -0.0
        self.left_out = left_out
        self.compiled: dict[Any, Callable[..., Any]] = {}  # for calls from Python
        self.called: dict[Any, Callable[..., Any]] = {}  # for calls from other loops
        _loops.append(self)

    def without(self, *loops: Loop) -> Loop:
        """The same loop for arguments with which neither it nor what it calls calls one of these: it is compiled without them,
        which takes less time."""
        return Loop(self.function, self.liberties, frozenset(loops))

    @functools.cached_property
    def reached(self) -> frozenset[Loop]:
        """All loops that it calls, or that these call."""
        called = [each for each in map(self.function.__globals__.get, _globals_in(self.function)) if isinstance(each, Loop)]
        return frozenset(called).union(*[each.reached for each in called])

    def __call__(self, *arguments: Any) -> Any:
        """Call it with arrays and numbers. The first argument is an array; its dtype is that of all floating-point numbers.

        Raises as ``for_python``.
        """
        dtype = arguments[0].dtype
        given = [dtype.type(x) if type(x) is float else x for x in arguments]
        try:
            return (self.compiled.get(dtype) or self.for_python(dtype))(*given)
        except _OF_FILES:  # a loop raises none of them, so the folder of compiled code is at fault
            _keep_nothing()
        return self.for_python(dtype)(*given)

    def for_python(self, dtype: Any) -> Callable[..., Any]:
        """The function as Numba compiles it for arrays of this dtype. Its compiled code is kept.

        Raises TypeError for any dtype but float32 and float64, and BackendError if Numba cannot be imported.
        """
        if not dtype.isnative or dtype.name not in _COMPILED:
            remedy = "use x.astype('float64'), or TINYTENSOR_KERNELS=numpy"
            raise TypeError(f"the compiled kernels take {' and '.join(_COMPILED)}, not {dtype}: {remedy}")
        load_numba()
        with _compiling:
            if dtype not in self.compiled:
                with in_folder():
                    self.compiled[dtype] = self._declare(dtype, cache=_keeping)
        return self.compiled[dtype]

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """What Numba calls in its place, in loops over arrays of this dtype: the function without what a call from Python
        needs. It is not kept, as it becomes a part of what calls it."""
        with _compiling:
            if dtype not in self.called:
                self.called[dtype] = self._declare(dtype, no_cpython_wrapper=True)
        return self.called[dtype]

    def _declare(self, dtype: Any, **options: bool) -> Callable[..., Any]:
        usual = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "fastmath": self.liberties}
        compiled: Callable[..., Any] = load_numba().njit(**usual, **options)(self._for(dtype))
        return compiled

    def _for(self, dtype: Any) -> Callable[..., Any]:
        """The function with this dtype's constants and loops for its globals: Numba compiles globals as constants."""
        own: dict[str, Any] = {"real": dtype.type}
        for name in _globals_in(self.function):
            value = self.function.__globals__.get(name)
            if value in self.left_out:
                own[name] = _nothing.compile(dtype)
            elif isinstance(value, Loop) and not self.left_out.isdisjoint(value.reached):
                own[name] = value.without(*self.left_out & value.reached).compile(dtype)
            elif isinstance(value, Compilable):
                own[name] = value.compile(dtype)
            elif type(value) is float:
                own[name] = dtype.type(value)
            elif type(value) is tuple:
                own[name] = tuple([dtype.type(x) for x in value])
            elif isinstance(value, Later):
                made = value.compute()
                own[name] = made if isinstance(made, int) else tuple([dtype.type(x) for x in made])
        function = types.FunctionType(self.function.__code__, {**self.function.__globals__, **own}, self.function.__name__)
        function.__qualname__, function.__module__ = self._kept_as(), self.function.__module__
        return function

    def _kept_as(self) -> str:
        """The name of the files with its compiled code. It is short also if much is left out, as paths may have a limit."""
        name = self.function.__qualname__
        if not self.left_out:
            return name
        left_out = " ".join(sorted([each.function.__qualname__ for each in self.left_out]))
        return f"{name}-{hashlib.sha256(left_out.encode()).hexdigest()[:8]}"


def _globals_in(function: Callable[..., Any]) -> set[str]:
    """The names of globals in the text of a function."""
    return {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}


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


@ByNumba
def _nothing(dtype: Any) -> Callable[..., Any]:
    """Takes any arguments, and does nothing."""
    from numba import types
    from numba.extending import intrinsic

    def do_nothing(context: Any, *arguments: Any) -> Any:
        return types.void(types.StarArgTuple(arguments)), lambda context, *rest: context.get_dummy_value()

    return intrinsic(do_nothing)


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
