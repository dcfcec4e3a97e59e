"""Loops over arrays in Python, compiled by Numba when they are first called, and cached on disk. Read this file first.

A compiled loop makes one pass over memory where NumPy makes one for each operation, and other threads run meanwhile. ``loop``,
``exact_loop`` and ``reduction`` declare one. It is compiled for float32 and float64 as needed. In its code ``real`` is the
dtype of its arrays, and the module's float constants have that dtype, too. So ``real(0.5) * x`` stays in float32.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import os
import pickle
import shutil
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy

from tinytensor.device.backend import BackendError
from tinytensor.device.caches import make_private, of_this_run, user_cache
from tinytensor.device.forks import held_by_forks

real = numpy.float64  # for editors; ``Loop`` replaces it by the arrays' dtype

_COMPILED = ("float32", "float64")
_compiling = held_by_forks(threading.RLock())
_loops: list[Loop] = []
_is_caching = True  # whether compiled code is cached on disk
_OF_FILES = (OSError, EOFError, pickle.PickleError)


def loop(function: Callable[..., Any]) -> Loop:
    """Declare a function of arrays and numbers for compiling. A product and a sum may become one instruction, rounded once."""
    return Loop(function, {"contract"})


def inlined(function: Callable[..., Any]) -> Loop:
    """``loop`` for a function of numbers that is inlined into its callers: loops with a call are not vectorised."""
    made = Loop(function, {"contract"})
    made.options = {"forceinline": True}
    return made


def exact_loop(function: Callable[..., Any]) -> Loop:
    """``loop``, with every operation rounded as NumPy rounds it."""
    return Loop(function, set())


def reduction(function: Callable[..., Any]) -> Loop:
    """``loop``, with sums in any order, as NumPy's are: otherwise they are not vectorised."""
    return Loop(function, {"contract", "reassoc"})


# --------------------------------------------------------------------------------------- what the text of a loop may name


class Compilable:
    """An object that a loop's code may call."""

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """Return the function that Numba calls in its place, in loops over arrays of this dtype."""
        raise TypeError(f"{type(self).__name__} has no compile method: write one")

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError("only loops call this function")


class Loop(Compilable):
    """A function that is compiled at its first call for a dtype, together with the loops that it calls."""

    def __init__(self, function: Callable[..., Any], liberties: set[str], left_out: frozenset[Loop] = frozenset()):
        self.function = function
        self.liberties = liberties  # optimizations of floating-point arithmetic for LLVM; none loses NaN, infinity or -0.0
        self.left_out = left_out
        self.options: dict[str, bool] = {}  # of calls from other loops
        self.compiled: dict[Any, Callable[..., Any]] = {}  # for calls from Python
        self.called: dict[Any, Callable[..., Any]] = {}  # for calls from other loops
        _loops.append(self)

    def without(self, *loops: Loop) -> Loop:
        """Return the loop compiled without ``loops``, for arguments with which none of them is called. It compiles faster."""
        return Loop(self.function, self.liberties, frozenset(loops))

    @functools.cached_property
    def reached(self) -> frozenset[Loop]:
        """All loops that it calls, directly or indirectly."""
        called = [each for each in map(self.function.__globals__.get, globals_in(self.function)) if isinstance(each, Loop)]
        return frozenset(called).union(*[each.reached for each in called])

    def __call__(self, *arguments: Any) -> Any:
        """Call it with arrays and numbers. The first argument is an array, whose dtype all floating-point numbers get.

        Raises as ``for_python``.
        """
        dtype = arguments[0].dtype
        return self.call(dtype, [dtype.type(x) if type(x) is float else x for x in arguments])

    def call(self, dtype: Any, arguments: Sequence[Any]) -> Any:
        """Call it for this dtype, which all floating-point arguments have."""
        try:
            return (self.compiled.get(dtype) or self.for_python(dtype))(*arguments)
        except _OF_FILES:  # loops raise none of these, so the cache folder is at fault
            _stop_caching()
        return self.for_python(dtype)(*arguments)

    def for_python(self, dtype: Any) -> Callable[..., Any]:
        """Return the function compiled for arrays of this dtype, which Numba caches on disk.

        Raises TypeError for any dtype but float32 and float64, and BackendError if Numba cannot be imported.
        """
        if not dtype.isnative or dtype.name not in _COMPILED:
            remedy = "use x.astype('float64'), or TINYTENSOR_KERNELS=numpy"
            raise TypeError(f"compiled kernels take {' and '.join(_COMPILED)}, got {dtype}: {remedy}")
        load_numba()
        with _compiling:
            if dtype not in self.compiled:
                with in_folder():
                    self.compiled[dtype] = self._declare(dtype, cache=_is_caching)
        return self.compiled[dtype]

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """Return the function for loops over arrays of this dtype, without a wrapper for Python. It is not cached, as it
        becomes a part of its caller."""
        with _compiling:
            if dtype not in self.called:
                self.called[dtype] = self._declare(dtype, no_cpython_wrapper=True, **self.options)
        return self.called[dtype]

    def _declare(self, dtype: Any, **options: bool) -> Callable[..., Any]:
        usual = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "fastmath": self.liberties}
        compiled: Callable[..., Any] = load_numba().njit(**usual, **options)(self._for(dtype))
        return compiled

    def _for(self, dtype: Any) -> Callable[..., Any]:
        """Return the function with constants and loops for this dtype as globals, which Numba compiles as constants."""
        replaced: dict[str, Any] = {"real": dtype.type}
        for name in globals_in(self.function):
            value = self.function.__globals__.get(name)
            if value in self.left_out:
                replaced[name] = _nothing.compile(dtype)
            elif isinstance(value, Loop) and not self.left_out.isdisjoint(value.reached):
                replaced[name] = value.without(*self.left_out & value.reached).compile(dtype)
            elif isinstance(value, Compilable):
                replaced[name] = value.compile(dtype)
            elif type(value) is float:
                replaced[name] = dtype.type(value)
            elif type(value) is tuple:
                replaced[name] = tuple([dtype.type(x) for x in value])
            elif isinstance(value, Later):
                made = value.compute()
                replaced[name] = made if isinstance(made, int) else tuple([dtype.type(x) for x in made])
        function = types.FunctionType(self.function.__code__, {**self.function.__globals__, **replaced}, self.function.__name__)
        function.__qualname__, function.__module__ = self._cache_name(), self.function.__module__
        return function

    def _cache_name(self) -> str:
        """Return the name of the cached files. A hash of the left-out loops keeps it short, as paths may have a limit."""
        name = self.function.__qualname__
        if not self.left_out:
            return name
        left_out = " ".join(sorted([each.function.__qualname__ for each in self.left_out]))
        return f"{name}-{hashlib.sha256(left_out.encode()).hexdigest()[:8]}"


def globals_in(function: Callable[..., Any]) -> set[str]:
    """Return the names of globals in a function's code."""
    return {step.argval for step in dis.get_instructions(function) if step.opname == "LOAD_GLOBAL"}


class ByDtype(Compilable):
    """A function for loops with different code for each dtype: ``ByDtype(float32=one, float64=other)``."""

    def __init__(self, **choices: Loop):
        self.choices = choices

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """Return the choice for this dtype, compiled."""
        return self.choices[dtype.name].compile(dtype)


class ByNumba(Compilable):
    """A function for loops that is written with Numba's or LLVM's own means. ``make`` returns it for a dtype. It is called when
    a loop first needs it, because Numba is not imported earlier."""

    def __init__(self, make: Callable[[Any], Callable[..., Any]]):
        self.make = functools.cache(make)

    def compile(self, dtype: Any) -> Callable[..., Any]:
        """Return the function for this dtype."""
        return self.make(dtype)


@ByNumba
def _nothing(dtype: Any) -> Callable[..., Any]:
    """Take any arguments and do nothing."""
    from numba import types
    from numba.extending import intrinsic

    def do_nothing(context: Any, *arguments: Any) -> Any:
        return types.void(types.StarArgTuple(arguments)), lambda context, *arguments: context.get_dummy_value()

    return intrinsic(do_nothing)


@ByNumba
def where(dtype: Any) -> Callable[..., Any]:
    """x where the condition is true, else y, without a branch. ``x if condition else y`` may branch, and is not vectorised
    then."""
    from numba.extending import intrinsic

    def choose(context: Any, condition: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.select(*arguments)

        return x(condition, x, x), generate

    return intrinsic(choose)


class Later:
    """Constants of a loop, an integer or numbers, computed when it is compiled to keep ``import tinytensor`` fast."""

    def __init__(self, compute: Callable[[], int | Sequence[float]]):
        self.compute = compute

    def __iter__(self) -> Iterator[float]:
        raise TypeError("only loops read these constants")


# ------------------------------------------------------------------------------------------------------------------ Numba


@functools.cache
def load_numba() -> Any:
    """Import Numba. Raises BackendError if it does not run, for example with a NumPy that it does not know, or may not
    compile."""
    try:
        import numba
    except ImportError as error:
        raise BackendError(f"Numba cannot be imported ({error}): set TINYTENSOR_KERNELS=numpy to do without it") from None
    if numba.config.DISABLE_JIT:
        raise BackendError("NUMBA_DISABLE_JIT is set: unset it, or set TINYTENSOR_KERNELS=numpy to compile no kernels")
    from numba.core.compiler_lock import global_compiler_lock

    held_by_forks(global_compiler_lock)  # else a child would inherit another thread's half-compiled code
    show_compiling()
    return numba


def _stop_caching() -> None:
    """Forget all compiled code and stop caching: the disk is full, or cached files are broken."""
    global _is_caching
    with _compiling:
        _is_caching = False
        for each in _loops:
            each.compiled.clear()


@functools.cache
def folder() -> Path:
    """Return the cache folder of these sources: in their __pycache__, or if that is not writable, in the user's cache.

    Numba notices changes in the file of a loop, but not in files that the loop uses. So one folder belongs to all sources of
    the kernels, and folders of earlier sources are removed. As cached code is executed, the folder must belong to the user,
    closed to others. If none can be made, a temporary one serves this run, with a notice.
    """
    kernels = Path(__file__).parents[1]
    sources = sorted(kernels.rglob("*.py"))
    digest = hashlib.sha256(b"".join([path.read_bytes() for path in sources])).hexdigest()[:16]
    for parent in (Path(__file__).parent / "__pycache__", user_cache("tinytensor")):
        path = parent / f"compiled-{digest}" if parent is not None else None
        if path is not None and make_private(path):
            _remove_other_caches(path)
            return path
    print(
        "No folder can cache the compiled kernels, so each run compiles them again. Set XDG_CACHE_HOME to a writable folder.",
        file=sys.stderr,
    )
    return of_this_run()


def _remove_other_caches(current: Path) -> None:
    for other in current.parent.glob("compiled-*"):
        if other != current:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def in_folder() -> Iterator[None]:
    """A context in which declared functions are cached in ``folder``. Functions that the user compiles are not affected."""
    from numba import config

    before, config.CACHE_DIR = config.CACHE_DIR, str(folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before


_ONCE = "tinytensor compiles its kernels for this processor; this happens once"


@functools.cache
def show_compiling() -> None:
    """From now on, report compiling on standard error: once in a file, with each loop's name on a terminal.

    The terminal's line disappears when the loop is ready.
    """
    from numba.core import event

    class Display(event.Listener):  # type: ignore[misc]
        def __init__(self) -> None:
            self.done = self.depth = 0  # a loop compiles the loops that it calls

        def on_start(self, event: Any) -> None:
            function = event.data["dispatcher"].py_func
            if not function.__module__.startswith(__package__):
                return
            self.depth += 1
            if self.depth == 1:
                shown = f"{_ONCE}: {function.__name__.strip('_')} (ready: {self.done})"
                _show([shown, _ONCE, f"compiling (ready: {self.done})"], "" if self.done else _ONCE)

        def on_end(self, event: Any) -> None:
            if not event.data["dispatcher"].py_func.__module__.startswith(__package__):
                return
            self.depth -= 1
            self.done += 1
            if not self.depth:
                _show([""], "")

    event.register("numba:compile", Display())


def _show(on_terminal: Sequence[str], in_file: str) -> None:
    """Show the first of these texts that fits the terminal's width, or else the last; or ``in_file``, if not on a terminal."""
    with suppress(OSError, ValueError, AttributeError):  # standard error may be closed or None
        if sys.stderr.isatty():
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            text = next((text for text in on_terminal if len(text) < width), on_terminal[-1])
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
        elif in_file:
            print(in_file, file=sys.stderr, flush=True)
