"""The seam between the core and ``replay``: what is asked while a function is being traced, and where it may not go.

A tracer writes down what a function does, so that it can be repeated without Python's part. The core knows of it only what
``Tracer`` says, and asks only here (``op.py`` reads the mode itself, as it is asked at every call).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tinytensor.autograd.modes import Switched, modes

if TYPE_CHECKING:
    from tinytensor.autograd.op import Op
    from tinytensor.autograd.tensor import Tensor
    from tinytensor.device.backend import Array


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
