"""Switches that hold for one thread: whether calls are recorded, checked for NaN, traced, multiplied in full precision."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tinytensor.backend import quiet
from tinytensor.precision import precision

if TYPE_CHECKING:
    from tinytensor.trace import Tracer


class _Modes(threading.local):
    """Switches that hold for one thread."""

    recording = True
    detecting_anomalies = False
    quiet = False  # inside ``quietly``
    tracer: Tracer | None = None  # what ``trace`` lets write down the calls of ops

    @property
    def full_precision(self) -> bool:  # stored where the kernels can read it
        return precision.is_full

    @full_precision.setter
    def full_precision(self, value: bool) -> None:
        precision.is_full = value


modes = _Modes()


class switched(ContextDecorator):
    """A context, or decorator, in which one of the switches has another value. A class, as it is entered at each op or token
    and a generator takes three times as long."""

    __slots__ = ("before", "name", "value")

    def __init__(self, name: str, value: Any):
        self.name = name
        self.value = value
        self.before: list[Any] = []  # a list, as one context may be entered inside itself

    def _recreate_cm(self) -> switched:
        return switched(self.name, self.value)  # a decorated function may call itself, or run in several threads

    def __call__(self, function: Any) -> Any:
        """The function with this mode inside. A generator has it while it runs, and its caller not between two items."""
        return self._around_items(function) if inspect.isgeneratorfunction(function) else super().__call__(function)

    def _around_items(self, function: Any) -> Any:
        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            items = function(*args, **kwargs)
            resume, given = items.send, None
            while True:
                with self._recreate_cm():
                    try:
                        item = resume(given)
                    except StopIteration as end:
                        return end.value
                try:
                    resume, given = items.send, (yield item)
                except BaseException as error:  # thrown in by the caller, or GeneratorExit as it closes this
                    resume, given = items.throw, error

        return generate

    def __enter__(self) -> None:
        self.before.append(getattr(modes, self.name))
        setattr(modes, self.name, self.value)

    def __exit__(self, *error: object) -> None:
        setattr(modes, self.name, self.before.pop())


def no_grad() -> Any:
    """A context (or decorator) in which this thread records nothing: results do not require gradients."""
    return switched("recording", False)


def enable_grad() -> Any:
    """A context (or decorator) that records again inside ``no_grad``."""
    return switched("recording", True)


def detect_anomaly() -> Any:
    """A context in which the first NaN or infinity, in an op's output or in a gradient, raises FloatingPointError.

    The error names the op and the line that called it. Every result is checked, so this is slow: use it to find a
    fault, not to train.
    """
    return switched("detecting_anomalies", True)


def full_precision() -> Any:
    """A context in which this thread's float32 products are computed in float32.

    On a GPU they are by default computed in TF32, as the field does to train: several times as fast, with 10 bits of the
    factors' mantissas in place of 23, added up in float32. TINYTENSOR_TF32=0 has the effect of this context everywhere. On
    NumPy, and for other dtypes, there is no difference.
    """
    return switched("full_precision", True)


@contextmanager
def quietly() -> Iterator[None]:
    """A context without floating-point warnings, for many ops together: entering it costs as much as a small op."""
    with quiet(), switched("quiet", True):
        yield


def tracing(tracer: Tracer | None) -> Any:
    """A context in which this tracer, or none, writes down this thread's calls of ops."""
    return switched("tracer", tracer)


def leaving(values: Any) -> Any:
    """Arrays or tensors, one or a tuple of them, whose values are about to leave the ops. Raises TypeError where a function
    that is being traced computed them."""
    if modes.tracer is not None:
        modes.tracer.refuse_values_of(values)
    return values


def same_modes() -> Callable[[], Any]:
    """A maker of contexts in which another thread has the modes that this thread has now."""
    values = {name: getattr(modes, name) for name in ("recording", "detecting_anomalies", "full_precision")}

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for name, value in values.items():
                stack.enter_context(switched(name, value))
            yield

    return entered
