"""The interface between the core and ``replay/``, for tracing functions and capturing training steps.

To repeat work without Python, a tracer records the ops that a function calls, and a captured step records the work of a GPU.
The core accesses both only through this file. (``op.py`` also reads the tracer at every call.)
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
    """A recorder of the ops that a function calls; see ``replay/trace.py``."""

    def call(self, op: Op, args: tuple[Any, ...], settings: dict[str, Any]) -> Any:
        """Call the op and record the call."""

    def write_check(self, check: Callable[..., None], arguments: Any) -> None:
        """Record the call of a check."""

    def slot(self, value: Any) -> int:
        """Return the slot number of a value. Treat a new value as a constant."""

    def refuse_values_of(self, value: Any) -> None:
        """Raise TypeError if the traced function computed this array or tensor, or any part of it."""


class Replacements:
    """A counter of replaced submodules, parameters and tensor arrays. Each replacement invalidates traced programs."""

    latest = 0
    _next = itertools.count(1).__next__

    @classmethod
    def note(cls) -> None:
        """Count one replacement. No two threads get the same number."""
        cls.latest = cls._next()


def tracing(tracer: Tracer | None) -> Switched:
    """Return a context in which this tracer, if any, records calls of ops."""
    return Switched("tracer", tracer)


def is_traced() -> bool:
    """Return True while this thread is traced."""
    return modes().tracer is not None


def refuse_in_trace(why: str) -> None:
    """Raise RuntimeError(why) while this thread is traced."""
    if is_traced():
        raise RuntimeError(why)


def array_of(x: Tensor) -> Array:
    """Return the array of a tensor, to pass to an op instead of the tensor. A tracer then recognizes the array."""
    if (tracer := modes().tracer) is not None:
        tracer.slot(x)
    return x.data


def read_values(values: Any) -> Any:
    """Return ``values`` (an array, a tensor or a tuple) for code that reads them outside of ops.

    Raises TypeError if they were computed by a function that is being traced.
    """
    if (tracer := modes().tracer) is not None:
        tracer.refuse_values_of(values)
    return values


def value_check(check: Callable[..., None]) -> Callable[..., None]:
    """Declare a function that checks the values of arrays. Traced functions repeat the check in every call.

    (Other checks, such as shape checks, run only while the function is traced.)
    """

    @functools.wraps(check)
    def check_and_trace(*arguments: Any) -> None:
        check(*arguments)
        if (tracer := modes().tracer) is not None:
            tracer.write_check(check, arguments)

    return check_and_trace


# -------------------------------------------------------------------------------------------------------- capturing


class TrainingStep:
    """A training step that Python runs each time. Its methods act immediately. See ``replay/capture.py`` for captured steps.

    In a captured step Python runs once, and a GPU then repeats its work with the same memory and numbers. Work that replays
    must redo, or cannot do, goes through these methods.
    """

    is_captured = False  # True while this thread captures a step, or prepares to

    def numbers(self, compute: Callable[[], Sequence[float]], dtype: DType) -> Any:
        """Return the numbers of ``compute()``. In a captured step, return a GPU array that each replay refills."""
        return compute()

    def changing(self, compute: Callable[[], float]) -> Any:
        """Return the number of ``compute()``. In a captured step, return an object that ``numbers`` and ``repeat`` reread."""
        return compute()

    def repeat(self, work: Callable[[], None]) -> None:
        """Call ``work()``, now and before each replay, in the order of the calls of ``repeat`` and ``numbers``."""
        work()

    def table(self, values: Any) -> Array:
        """Return a NumPy array on the GPU. A captured step copies the values at its end."""
        return from_numpy(values)

    def constant(self, make: Callable[..., Any], *arguments: Any) -> Array:
        """Return ``make(*arguments)``, a table from a cache. Replays keep the table even if the cache drops it."""
        return make(*arguments)

    def before_replays(self, check: Callable[[], str]) -> None:
        """Call ``check()`` before each replay. It returns a change that a replay would miss ("a parameter was replaced")."""

    def before_gradient(self, tensor: Tensor, is_set: bool) -> None:
        """Record that a tensor's ``.grad`` will be set or added to. Replays do the same.

        Raises CaptureError if the step adds to a gradient from before the step.
        """

    def refuse(self, action: str, remedy: str, before: bool = True) -> None:
        """Raise CaptureError, because replays would repeat ``action``. ``before``: also while preparing a capture."""


_ordinary = TrainingStep()


def current_step() -> TrainingStep:
    """Return this thread's step: the step that is being captured, or else an ordinary step."""
    return modes().step or _ordinary
