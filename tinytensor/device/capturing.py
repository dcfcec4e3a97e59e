"""What a captured step does on the CPU, and what it reads on the GPU that the CPU computes anew in each step.

A captured step (see ``capture.py``) runs as Python once. After that, only what it gave the GPU to do is repeated, in the same
memory and with the same numbers. So what has to be another in each step must be named when it is captured:

* ``numbers``: numbers that the CPU computes, such as a random key, or factors that depend on the learning rate;
* ``repeat``: work of the CPU, such as counting the step;
* ``constant``: a table that is the same in all steps, but must be copied to the GPU once (``table``);
* ``before_gradient``: a tensor whose ``.grad`` changes;
* ``before_replays``: a check that something else has not changed.

Anywhere else these functions just do what is asked. Kernels call them, so this file imports nothing that lies above kernels.
"""

from __future__ import annotations

import operator
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinytensor.device.backend import Array, BackendError, DType, from_numpy, host, name, xp


def _is_wanted() -> bool:
    value = os.environ.get("TINYTENSOR_CAPTURE", "") or "0"
    if value not in ("0", "1"):
        raise BackendError(f"TINYTENSOR_CAPTURE={value!r} must be '0' (the default) or '1' (capture training steps)")
    if value == "1" and name != "cupy":
        raise BackendError("TINYTENSOR_CAPTURE=1 needs a GPU: set TINYTENSOR_BACKEND=cupy, too")
    return value == "1"


is_wanted = _is_wanted()  # for trainers, which ask for it before they capture their steps

_NUMBERS = 1 << 16  # bytes of numbers in a step: those of thousands of random keys
_ALIGNMENT = 16


class CaptureError(RuntimeError):
    """A step does something that cannot be captured, or is used in a way that does not fit what was captured."""


class _Here(threading.local):
    step: Step | None = None  # what this thread captures or prepares to capture


_here = _Here()


def numbers(compute: Callable[[], Sequence[float]], dtype: DType) -> Any:
    """The numbers that ``compute()`` returns. In a captured step they are an array on the GPU, which each step fills anew."""
    return compute() if _here.step is None else _here.step.numbers(compute, dtype)


def repeat(work: Callable[[], None]) -> None:
    """Call ``work()``, and in a captured step again before each replay. The order is that of all ``repeat`` and ``numbers``."""
    work() if _here.step is None else _here.step.repeat(work)


def constant(make: Callable[..., Any], *arguments: Any) -> Array:
    """What ``make(*arguments)`` returns, which keeps its latest results: an array on the GPU that ``table`` made. A captured
    step keeps it, too, as replays still read it when ``make`` has forgotten it."""
    array = make(*arguments)
    if _here.step is not None:
        _here.step.kept.append(array)
    return array


def table(values: Any) -> Array:
    """A NumPy array on the GPU. While a step is captured, its values are copied at the end, before the first replay."""
    return from_numpy(values) if _here.step is None else _here.step.table(values)


def before_replays(check: Callable[[], None]) -> None:
    """Call ``check()`` before each replay, and before anything is done for it. It raises CaptureError if something that the
    step took as it was has changed since."""
    if _here.step is not None:
        _here.step.checks.append(check)


def before_gradient(tensor: Any, is_set: bool) -> None:
    """Note that the ``.grad`` of a tensor will be set, or that a gradient will be added to it. After each replay it is what it
    was after the captured step. Raises CaptureError if the step adds to a gradient of the step before."""
    if _here.step is not None:
        _here.step.before_gradient(tensor, is_set)


def changing(compute: Callable[[], float]) -> Any:
    """The number that ``compute()`` returns; in a captured step a ``Number``, which computes it anew in each step."""
    return compute() if _here.step is None else Number(compute)


def is_on() -> bool:
    """Whether this thread is capturing a step, or preparing to."""
    return _here.step is not None


def refuse(what: str, remedy: str, before: bool = True) -> None:
    """Raise CaptureError for something that replays would not do again, unless it is work that they repeat. With ``before`` the
    calls that prepare for a capture may not do it either."""
    if _here.step is not None and not _here.step.is_on_host and (before or _here.step.is_capturing):
        raise CaptureError(f"a captured step would repeat {what}: {remedy}")


class Number:
    """A number that may be another in each step, such as a learning rate. Only ``numbers`` and ``repeat`` may read it.

    Arithmetic with it gives other such numbers. With an array it gives an array, for which the GPU reads the number's value.
    """

    __array_ufunc__ = None  # arrays leave their operators to this class

    def __init__(self, compute: Callable[[], float]):
        self._compute = compute

    def _combined(self, operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        if not isinstance(left, xp.ndarray) and not isinstance(right, xp.ndarray):
            return Number(lambda: operation(float(left), float(right)))
        (value,) = numbers(lambda: [float(self)], (right if left is self else left).dtype)
        return operation(value, right) if left is self else operation(left, value)

    def __float__(self) -> float:
        refuse(
            "the value that a number has now, such as a learning rate",
            "read it in what tinytensor.device.capturing.numbers computes, as Adam, AdamW and Muon do",
        )
        return float(self._compute())


for _name in ("add", "sub", "mul", "truediv", "pow"):
    _operation = getattr(operator, _name)
    setattr(Number, f"__{_name}__", lambda self, other, f=_operation: self._combined(f, self, other))
    setattr(Number, f"__r{_name}__", lambda self, other, f=_operation: self._combined(f, other, self))


class _Gradient:
    """The ``.grad`` of a tensor, which a captured step changes."""

    def __init__(self, tensor: Any, is_set: bool):
        self.tensor = tensor
        self.is_set = is_set  # by the step, before anything is added to it
        self.check_before()
        self.after: Any = None  # what it is after the step
        self.is_frozen = False

    def remember(self) -> None:
        """The step has been captured."""
        self.after, self.is_frozen = self.tensor.grad, not self.tensor.requires_grad

    def check_before(self) -> None:
        """Raise CaptureError if the step would add to what is there."""
        if not self.is_set and self.tensor.grad is not None:
            raise CaptureError(
                f"a captured step cannot add to the gradient that a tensor of shape {self.tensor.shape} already has: let the "
                "step itself begin with zero_grad()"
            )

    def check(self) -> None:
        """Raise CaptureError if a replay would not do what the step does now."""
        self.check_before()
        if self.tensor.requires_grad == self.is_frozen:
            raise CaptureError(
                f"a tensor of shape {self.tensor.shape} was frozen since the step was captured, or is not frozen any more: "
                "capture the step anew"
            )


class Step:
    """A step that is being captured: its work on the CPU, and its numbers on the GPU."""

    def __init__(self, bytes_of_inputs: int):
        size = bytes_of_inputs + _NUMBERS
        pinned = xp.cuda.alloc_pinned_memory(size)  # only from such memory can the GPU copy while the CPU goes on
        self._host = host.frombuffer(pinned, host.uint8, size)
        self._pinned = pinned
        self._device = xp.empty(size, host.uint8)
        self._tables = xp.cuda.MemoryPool()  # not the graph's, which gives an array memory that others had earlier in a step
        self._copied = xp.cuda.Event(disable_timing=True)
        self._end = 0  # of what is in use
        self._inputs_end = 0
        self._work: list[Callable[[], None]] = []
        self._constants: list[tuple[Array, Any]] = []
        self._gradients: dict[int, _Gradient] = {}
        self.checks: list[Callable[[], None]] = []  # before each replay
        self.kept: list[Array] = []
        self.is_capturing = False
        self.is_on_host = False  # whether work of the CPU is being done, which may read numbers and draw random ones

    # ------------------------------------------------------------------------------------------------ while it runs

    @contextmanager
    def running(self, is_capturing: bool) -> Iterator[None]:
        """A context in which this thread's work is that of the step."""
        if _here.step is not None:
            raise CaptureError("a step that is captured cannot capture another")
        self._work, self.kept, self._end, self.is_capturing = [], [], self._inputs_end, is_capturing
        self._gradients, self.checks = {}, []
        _here.step = self
        try:
            yield
            for gradient in self._gradients.values() if is_capturing else ():
                gradient.remember()
        finally:
            _here.step = None
            for array, values in self._constants:  # also after an error, as caches may hold these arrays
                array[...] = from_numpy(values)
            self._constants = []

    def numbers(self, compute: Callable[[], Sequence[float]], dtype: DType) -> Array:
        """An array on the GPU with numbers that ``compute`` makes anew in each step."""
        with self._on_host():
            values = compute()
        on_host, on_device = self.slot((len(values),), dtype)

        def fill() -> None:
            on_host[...] = compute()

        on_host[...] = values
        self._work.append(fill)
        if not self.is_capturing:
            self.copy()
        return on_device

    def repeat(self, work: Callable[[], None]) -> None:
        """Do some work of the CPU, and keep it."""
        with self._on_host():
            work()
        self._work.append(work)

    def table(self, values: Any) -> Array:
        """A NumPy array on the GPU."""
        if not self.is_capturing:
            return from_numpy(values)
        with xp.cuda.using_allocator(self._tables.malloc):
            array = xp.empty(values.shape, values.dtype)
        self._constants.append((array, values))
        return array

    def before_gradient(self, tensor: Any, is_set: bool) -> None:
        """Note that the ``.grad`` of a tensor will change."""
        if id(tensor) not in self._gradients:
            self._gradients[id(tensor)] = _Gradient(tensor, is_set)

    # ------------------------------------------------------------------------------------------------ its numbers

    def slot(self, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Array]:
        """The next free memory of this shape: on the CPU, and on the GPU."""
        dtype = host.dtype(dtype)
        first = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._end = first + int(host.prod(shape)) * dtype.itemsize
        if self._end > self._host.size:
            raise CaptureError(f"the step has more than {_NUMBERS} bytes of numbers that change: capture a part of it")
        parts = [memory[first : self._end].view(dtype).reshape(shape) for memory in (self._host, self._device)]
        return parts[0], parts[1]

    def end_inputs(self) -> None:
        """What has a slot by now is an input, and stays when the step runs again."""
        self._inputs_end = self._end

    def begin(self) -> None:
        """Wait until the GPU has read the numbers of the step before, so that they can be overwritten."""
        if not self._copied.done:
            self._copied.synchronize()

    def copy(self) -> None:
        """Copy all numbers to the GPU, while the CPU goes on."""
        self._device.data.copy_from_host_async(self._pinned.ptr, self._end)
        self._copied.record()

    def work(self) -> None:
        """Do the CPU's work of one more step."""
        for check in self.checks:
            check()
        for gradient in self._gradients.values():
            gradient.check()
        for work in self._work:
            work()
        for gradient in self._gradients.values():
            gradient.tensor.grad = gradient.after

    @contextmanager
    def _on_host(self) -> Iterator[None]:
        before, self.is_on_host = self.is_on_host, True
        try:
            yield
        finally:
            self.is_on_host = before
