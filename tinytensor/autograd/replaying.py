"""The seam between the core and ``replay/``: what differs while a function is being traced, or a step is being captured.

A tracer writes down the ops that a function calls, and a captured step what a GPU gets to do, so that both can be repeated
without Python's part. The core knows of them only what this file says. (``op.py`` reads the tracer itself, at every call.)
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tinytensor.autograd.modes import Switched, modes
from tinytensor.device.backend import Array, DType, from_numpy

if TYPE_CHECKING:
    from tinytensor.autograd.op import Op
    from tinytensor.autograd.tensor import Tensor


# ---------------------------------------------------------------------------------------------------------- tracing


class Tracer(Protocol):
    """Whoever writes down what a function does. ``replay/trace.py`` has the one that there is."""

    def call(self, op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Call the op, and write the call down."""

    def write_check(self, check: Callable[..., None], arguments: Any) -> None:
        """Write down that this check is called with these arguments."""

    def slot(self, value: Any) -> int:
        """The number of a value, which is a constant if it is new."""

    def refuse_values_of(self, value: Any) -> None:
        """Raise TypeError if the function that is being traced computed this array or tensor, or part of it."""


class Replacements:
    """When a part of a module, or a tensor's array, was last replaced: a traced program has the parts and arrays of before."""

    latest = 0
    _next = itertools.count(1).__next__

    @classmethod
    def note(cls) -> None:
        """Note a replacement, after it was made. No two threads note the same number."""
        cls.latest = cls._next()


def tracing(tracer: Tracer | None) -> Switched:
    """A context in which this tracer writes down the calls of ops; with None, nobody does."""
    return Switched("tracer", tracer)


def is_traced() -> bool:
    """Whether a tracer writes down what this thread does."""
    return modes().tracer is not None


def refuse_in_trace(why: str) -> None:
    """Raise RuntimeError, which says ``why``, if a tracer writes down what this thread does."""
    if is_traced():
        raise RuntimeError(why)


def array_of(x: Tensor) -> Array:
    """The array of a tensor, which is to be an argument of an op in its place: who traces knows it from now on."""
    if (tracer := modes().tracer) is not None:
        tracer.slot(x)
    return x.data


def read_values(values: Any) -> Any:
    """Return ``values``, an array or tensor or a tuple of them, whose numbers are about to be read outside of ops.

    Raises TypeError while a function is being traced, if that function computed them.
    """
    if (tracer := modes().tracer) is not None:
        tracer.refuse_values_of(values)
    return values


def value_check(check: Callable[..., None]) -> Callable[..., None]:
    """Declare a function that checks the values of arrays. A traced function repeats such a check in every call.

    (Every other check, such as one of shapes, runs only while the function is traced.)
    """

    @functools.wraps(check)
    def check_and_trace(*given: Any) -> None:
        check(*given)
        if (tracer := modes().tracer) is not None:
            tracer.write_check(check, given)

    return check_and_trace


# -------------------------------------------------------------------------------------------------------- capturing


class Step:
    """A step that runs once: it does what it is asked at once. ``replay/capture.py`` has the captured one.

    In a captured step Python runs once, and then a GPU repeats what it got to do, with the same memory and numbers. What must
    be done anew for each replay, or cannot be replayed, goes through these methods.
    """

    is_captured = False  # True while this thread captures a step, or prepares to

    def numbers(self, compute: Callable[[], Sequence[float]], dtype: DType) -> Any:
        """Return the numbers of ``compute()``. In a captured step a GPU's array has them, which each replay fills anew."""
        return compute()

    def changing(self, compute: Callable[[], float]) -> Any:
        """Return the number of ``compute()``. In a captured step it is an object that ``numbers`` and ``repeat`` read anew."""
        return compute()

    def repeat(self, work: Callable[[], None]) -> None:
        """Call ``work()``, also before each replay. The order is that of all calls of ``repeat`` and ``numbers``."""
        work()

    def table(self, values: Any) -> Array:
        """Return a NumPy array on the GPU. While a step is captured, the values are copied at its end."""
        return from_numpy(values)

    def constant(self, make: Callable[..., Any], *arguments: Any) -> Array:
        """Return ``make(*arguments)``, a table from a cache. Replays read it even when the cache has forgotten it."""
        return make(*arguments)

    def before_replays(self, check: Callable[[], str]) -> None:
        """Call ``check()`` before each replay. It says what a replay would not notice, such as "a parameter was replaced"."""

    def before_gradient(self, tensor: Tensor, is_set: bool) -> None:
        """Note that the ``.grad`` of a tensor will be set, or that a gradient will be added to it. Replays do the same to it.
        Raises CaptureError if the step adds to a gradient of the step before."""

    def refuse(self, what: str, remedy: str, before: bool = True) -> None:
        """Raise CaptureError, as replays would repeat ``what``. With ``before`` calls that prepare a capture raise it, too."""


_ordinary = Step()


def current_step() -> Step:
    """Return the step that this thread runs: one that is being captured, or else an ordinary one."""
    return modes().step or _ordinary
