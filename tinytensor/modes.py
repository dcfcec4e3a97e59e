"""Modes: switches that each thread has for itself.

They say whether calls are recorded, checked for NaN, traced, and multiplied in full float32.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ContextDecorator, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from tinytensor.backend import no_warnings
from tinytensor.precision import precision

if TYPE_CHECKING:
    from tinytensor.trace import Tracer


class _Modes(threading.local):
    """The switches of one thread."""

    recording = True
    initialising = True  # False inside ``nn.init.skipped``
    detecting_anomalies = False
    keeping_values = False
    warnings_off = False  # True inside ``without_warnings``
    tracer: Tracer | None = None  # if there is one, it writes down every call of an op

    @property
    def full_precision(self) -> bool:  # stored where the kernels can read it
        return precision.is_full

    @full_precision.setter
    def full_precision(self, value: bool) -> None:
        precision.is_full = value


modes = _Modes()


class Switched(ContextDecorator):
    """A context (or decorator) that gives one of the switches another value.

    This is a class because it is entered often: a context made from a generator takes three times as long.
    """

    __slots__ = ("before", "name", "value")

    def __init__(self, name: str, value: Any):
        self.name = name
        self.value = value
        self.before: list[Any] = []  # a list, because a context may be entered again inside itself

    def _recreate_cm(self) -> Switched:
        return Switched(self.name, self.value)  # one for each call: a decorated function may run in several threads at once

    def __call__(self, function: Any) -> Any:
        """The function, with this mode inside it. A generator function has the mode only while it runs, not between items."""
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
                except BaseException as error:  # the caller threw it in, or closed the generator (GeneratorExit)
                    resume, given = items.throw, error

        return generate

    def __enter__(self) -> None:
        self.before.append(getattr(modes, self.name))
        setattr(modes, self.name, self.value)

    def __exit__(self, *error: object) -> None:
        setattr(modes, self.name, self.before.pop())


def no_grad() -> Any:
    """A context (or decorator) in which this thread records nothing, so results do not require gradients.

    >>> x = tt.tensor([1.0, 2.0], requires_grad=True)
    >>> with tt.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    return Switched("recording", False)


def enable_grad() -> Any:
    """A context (or decorator) in which this thread records again, inside ``no_grad``."""
    return Switched("recording", True)


def detect_anomaly() -> Any:
    """A context in which the first NaN or infinity in an op's output or in a gradient raises FloatingPointError.

    The error names the op and the line that called it. This is slow, because every result is checked: use it to find a
    fault, not to train.

    >>> with tt.detect_anomaly():
    ...     tt.tensor([1.0, 0.0]).log()
    Traceback (most recent call last):
        ...
    FloatingPointError: the output of 'log', called at ..., is infinite: ...
    """
    return Switched("detecting_anomalies", True)


def keep_values() -> Any:
    """A context in which the recorded graph keeps the result of every op, so that ``draw_graph`` can show it.

    So memory that would be free after the forward pass is in use until the graph is gone. Each thread has its own setting.

    >>> x = tt.tensor(3.0, requires_grad=True)
    >>> with tt.keep_values():
    ...     y = x * x + 1
    >>> "data 9" in tt.draw_graph(y).source
    True
    """
    return Switched("keeping_values", True)


def full_precision() -> Any:
    """A context in which this thread computes float32 matrix products in full float32.

    By default a GPU computes them in TF32, as is usual in training. TF32 is several times as fast: it keeps 10 of the 23
    mantissa bits of each factor and adds up in float32. The environment variable TINYTENSOR_TF32=0 has the effect of this
    context everywhere. On NumPy, and for other dtypes, this context changes nothing.
    """
    return Switched("full_precision", True)


@contextmanager
def without_warnings() -> Iterator[None]:
    """A context without floating-point warnings, to put around many ops: entering it costs as much as a small op."""
    with no_warnings(), Switched("warnings_off", True):
        yield


def tracing(tracer: Tracer | None) -> Any:
    """A context in which this tracer writes down this thread's calls of ops; with None, nobody does."""
    return Switched("tracer", tracer)


def read_values(values: Any) -> Any:
    """Return ``values``, an array or tensor or a tuple of them, whose numbers are about to be read outside of ops.

    Raises TypeError while a function is being traced, if that function computed them.
    """
    if modes.tracer is not None:
        modes.tracer.refuse_values_of(values)
    return values


def capture_modes() -> Callable[[], Any]:
    """Remember this thread's modes. The result makes contexts in which another thread has the same modes."""
    values = {name: getattr(modes, name) for name in ("recording", "detecting_anomalies", "keeping_values", "full_precision")}

    @contextmanager
    def entered() -> Iterator[None]:
        with ExitStack() as stack:
            for name, value in values.items():
                stack.enter_context(Switched(name, value))
            yield

    return entered
