"""Modes: switches that each thread and each asyncio task sets for itself.

Modes control whether calls are recorded, checked for NaN or traced, whether products use full float32, and which random
generator is used. Kernels read the modes, so this file imports nothing above kernels.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast, overload

from tinytensor.common.contexts import around
from tinytensor.device.backend import BackendError


def _is_full_everywhere() -> bool:
    value = os.environ.get("TINYTENSOR_TF32", "") or "1"
    if value not in ("0", "1"):
        raise BackendError(f"TINYTENSOR_TF32={value!r} must be '1' (the default) or '0' (products in full float32)")
    return value == "0"


class Modes:
    """The values of all switches. Modes are immutable: a context creates new modes that refer to the outer ones."""

    __slots__ = (
        "detecting_anomalies",
        "full_precision",
        "generator",
        "gradients",
        "initialising",
        "keeping_values",
        "outer",
        "recording",
        "step",
        "switch",
        "tracer",
    )

    def __init__(self) -> None:
        self.recording = True
        self.initialising = True  # False inside ``nn.init.skipped``
        self.detecting_anomalies = False
        self.keeping_values = False
        self.full_precision = _is_full_everywhere()  # how a GPU computes float32 products
        self.tracer: Any = None  # if set, records every call of an op: see replaying.py
        self.gradients: Any = None  # if set, ``backward`` adds gradients to this dict, by leaf, instead of to ``.grad``
        self.step: Any = None  # the step that is being captured, if any: see replaying.py
        self.generator: Any = None  # the random generator, inside ``random.using``
        self.switch: Switched | None = None  # the innermost context
        self.outer: Modes | None = None  # the modes outside the innermost context

    def inside(self, switch: Switched) -> Modes:
        """Return the modes after entering this context."""
        modes = object.__new__(Modes)
        modes.recording = self.recording  # three times as fast as a loop
        modes.initialising = self.initialising
        modes.detecting_anomalies = self.detecting_anomalies
        modes.keeping_values = self.keeping_values
        modes.full_precision = self.full_precision
        modes.tracer = self.tracer
        modes.gradients = self.gradients
        modes.step = self.step
        modes.generator = self.generator
        modes.switch, modes.outer = switch, self
        setattr(modes, switch.name, switch.value)
        return modes

    def without(self, switch: Switched) -> Modes:
        """Return the modes after leaving this context. It need not be the innermost: generators exit in any order."""
        if self.switch is switch and self.outer is not None:  # the usual exit from a ``with``
            return self.outer
        inner: list[Switched] = []
        modes: Modes | None = self
        while modes is not None and modes.switch is not None and modes.switch is not switch:
            inner.append(modes.switch)
            modes = modes.outer
        if modes is None or modes.outer is None:  # the context was entered in another thread or task
            return self
        return functools.reduce(Modes.inside, reversed(inner), modes.outer)


# A context variable, because asyncio tasks share a thread. A new thread starts with the default.
_current: ContextVar[Modes] = ContextVar("modes", default=Modes())  # noqa: B039 (they never change)
modes = _current.get  # used as ``modes().recording`` and so on
Function = TypeVar("Function", bound=Callable[..., Any])


class Switched:
    """A context or decorator that sets one switch. It can be entered repeatedly and by several threads.

    A context built from a generator would take three times as long.
    """

    __slots__ = ("name", "value")

    def __init__(self, name: str, value: Any):
        self.name = name
        self.value = value

    def __call__(self, function: Function) -> Function:
        """Decorate a function so that it runs in this mode. A generator has the mode only while it runs, not between items.

        Raises TypeError for a class, because its methods would not change.
        """
        if isinstance(function, type) or not callable(function):
            raise TypeError(
                f"no_grad() and the like decorate functions and methods, not {getattr(function, '__name__', function)}"
            )
        return cast(Function, around(self, function))

    def __enter__(self) -> None:
        _current.set(_current.get().inside(self))

    def __exit__(self, *error: object) -> None:
        _current.set(_current.get().without(self))


@overload
def no_grad() -> Switched: ...
@overload
def no_grad(function: Function) -> Function: ...
def no_grad(function: Any = None) -> Any:
    """Return a context in which no graph is recorded, so results do not require gradients. Also works as a decorator:
    ``@tt.no_grad()`` or ``@tt.no_grad``.

    >>> x = tt.tensor([1.0, 2.0], requires_grad=True)
    >>> with tt.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    return _around(function, Switched("recording", False))


@overload
def enable_grad() -> Switched: ...
@overload
def enable_grad(function: Function) -> Function: ...
def enable_grad(function: Any = None) -> Any:
    """Return a context that resumes recording inside ``no_grad``. Also works as a decorator."""
    return _around(function, Switched("recording", True))


def _around(function: Any, switched: Switched) -> Any:
    return switched if function is None else switched(function)


def detect_anomaly() -> Switched:
    """Return a context in which the first NaN or infinity in an op's output or a gradient raises FloatingPointError.

    The error names the op and the line that called it. Checking every result is slow, so use it only for debugging.

    >>> with tt.detect_anomaly():
    ...     tt.tensor([1.0, 0.0]).log()
    Traceback (most recent call last):
        ...
    FloatingPointError: the output of 'log', called at ..., is infinite: ...
    """
    return Switched("detecting_anomalies", True)


def keep_values() -> Any:
    """Return a context in which the graph stores the result of every op, for ``draw_graph``.

    This uses more memory until the graph is freed.

    >>> x = tt.tensor(3.0, requires_grad=True)
    >>> with tt.keep_values():
    ...     y = x * x + 1
    >>> "data 9" in tt.draw_graph(y).source
    True
    """
    return Switched("keeping_values", True)


def full_precision() -> Any:
    """Return a context that computes float32 matrix products in full float32.

    By default a GPU uses TF32, as is common in training. TF32 is several times faster: it keeps 10 of the 23 mantissa bits of
    each factor and accumulates in float32. Set the environment variable TINYTENSOR_TF32=0 to turn it off everywhere. This
    context has no effect on NumPy or on other dtypes.
    """
    return Switched("full_precision", True)


@contextmanager
def restored(before: Modes) -> Iterator[None]:
    """Return a context with modes that ``modes()`` returned earlier, perhaps in another thread."""
    now = _current.set(before)
    try:
        yield
    finally:
        _current.reset(now)
