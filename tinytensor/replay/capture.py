"""Capture a training step as one CUDA graph: Python runs the step a few times, then a GPU repeats it without Python.

A step launches hundreds of kernels. Python takes microseconds for each, often longer than the GPU. A CUDA graph records all
launches, with their addresses and numbers, and one call starts them all.

A replay therefore repeats the Python decisions, memory and numbers of the captured step. Values that must change go through the
methods of ``CapturedStep``; see ``autograd/replaying.py``.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from tinytensor.autograd.modes import Switched
from tinytensor.autograd.replaying import TrainingStep, current_step
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.common.wording import counted
from tinytensor.device import backend
from tinytensor.device.backend import Array, BackendError, DType, from_numpy, host, is_host_array, xp
from tinytensor.nn.hooks import any_hooks

Result = TypeVar("Result")  # of a step
_WARM_UPS = 3  # steps before the capture: they compile kernels, choose algorithms, and create the optimizer state


def _is_wanted() -> bool:
    value = os.environ.get("TINYTENSOR_CAPTURE", "") or "0"
    if value not in ("0", "1"):
        raise BackendError(f"TINYTENSOR_CAPTURE={value!r} must be '0' (the default) or '1' (capture training steps)")
    if value == "1" and backend.name != "cupy":
        raise BackendError("TINYTENSOR_CAPTURE=1 needs a GPU: set TINYTENSOR_BACKEND=cupy, too")
    return value == "1"


is_wanted = _is_wanted()  # if True, trainers capture their steps

_NUMBERS = 1 << 16  # bytes for the numbers of a step: enough for thousands of random keys
_ALIGNMENT = 16


class CaptureError(RuntimeError):
    """A step cannot be captured, or a captured step is used incorrectly."""


class capture(Generic[Result]):
    """A faster version of ``function``, a training step on a GPU: forward, backward, clipping and the optimizer.

    It takes tensors, NumPy arrays and Python numbers, and returns tensors. The first three calls run the function. The fourth
    records its launches. Later calls copy their inputs into the recorded memory and launch all kernels in one call. The results
    equal those of ``function`` bit for bit. The next call overwrites them, so copy any you keep.

    Inputs must have the same shapes and dtypes in each call. The function receives a NumPy array as a tensor and a Python
    number as a ``Number``, which ``optimizer.step`` accepts as its ``scale``. Each step draws new random keys for dropout and
    rereads the learning rates of ``param_groups``. Everything else in Python happens once: a module's mode, an ``if``, a number
    in a formula. After each call, ``.grad`` holds the gradients of that step in the memory of the fourth call.

    Raises CaptureError

    * if any module has forward hooks;
    * if the function reads a value from the GPU (``.item()``, ``float(x)``, ``if x``), creates a tensor from numbers
      (``tt.tensor``, or a list as an index), draws random numbers other than for dropout (as ``tt.checkpoint`` does), splits a
      batch into shards, adds to gradients of an earlier call, or uses an optimizer that reads a learning rate, as SGD does;
    * if the shapes of the inputs change;
    * if a parameter was replaced, frozen or unfrozen (its values may change in place), or if an optimizer setting other than a
      learning rate changed;
    * if there is no GPU.

    ::

        def step(ids, targets, scale):
            optimizer.zero_grad()
            loss = model.loss(ids, targets)
            loss.backward()
            optimizer.step(scale)
            return loss.detach()

        fast = tt.capture(step)
        for i in range(1000):
            loss = fast(*batch(), schedule(i))
    """

    @checked
    def __init__(self, function: Callable[..., Result]):
        if backend.name != "cupy":
            raise CaptureError("only a GPU can capture a step: set TINYTENSOR_BACKEND=cupy")
        self.function = function
        self._runs = 0
        self._step: CapturedStep | None = None
        self._inputs: list[_Input] = []
        self._graph: Any = None
        self._memory: Any = None  # the graph's memory pool, which must live as long as the graph
        self._results: Any = None

    def __call__(self, *inputs: Any) -> Result:
        """Run one step."""
        if any_hooks():
            raise CaptureError("a captured step would call no forward hooks: remove them, or call the function itself")
        if self._step is None:
            self._step = self._prepare(inputs)
        self._step.begin()
        self._take(inputs)
        if self._graph is not None:
            self._step.work()
        elif self._runs < _WARM_UPS:
            self._runs += 1
            with self._step.running(is_capturing=False):
                self._step.copy()
                return self.function(*[each.passed for each in self._inputs])
        else:
            self._capture(self._step)
        self._step.copy()
        self._graph.launch()
        return self._results

    @property
    def is_captured(self) -> bool:
        """True once the GPU replays the step."""
        return self._graph is not None

    def _prepare(self, inputs: tuple[Any, ...]) -> CapturedStep:
        arrays = [x for x in inputs if _is_array(x)]
        step = CapturedStep(sum(array.nbytes + 16 for array in arrays))
        self._inputs = [_Input(x, step) for x in inputs]
        step.end_inputs()
        return step

    def _take(self, inputs: tuple[Any, ...]) -> None:
        if len(inputs) != len(self._inputs):
            raise CaptureError(f"the captured step takes {counted(len(self._inputs), 'input')}, not {len(inputs)}")
        for i, (value, each) in enumerate(zip(inputs, self._inputs)):
            each.take(value, i)

    def _capture(self, step: CapturedStep) -> None:
        xp.get_default_memory_pool().free_all_blocks()  # the graph can reuse memory of the first steps
        self._memory, stream = xp.cuda.MemoryPool(), xp.cuda.Stream(non_blocking=True)
        with step.running(is_capturing=True), xp.cuda.using_allocator(self._memory.malloc), stream:
            stream.begin_capture()
            try:
                results = self.function(*[each.passed for each in self._inputs])
                graph = stream.end_capture()
            except BaseException as error:
                with contextlib.suppress(Exception):  # raises, because the capture has failed
                    stream.end_capture()
                if isinstance(error, xp.cuda.runtime.CUDARuntimeError) or "is capturing" in str(error):  # CUDA or CuPy refuses
                    raise CaptureError(
                        f"a captured step can only do GPU work, and here it did something else ({error}), such as reading a "
                        "value by .item(), float(x) or `if x`: do that outside of the step"
                    ) from error
                raise
        self._graph, self._results = graph, results


class _Input:
    """An input of a captured step: the memory for its values, and the object passed to the function."""

    def __init__(self, value: Any, step: CapturedStep):
        self.type = _described(value)
        self.passed: Any
        if isinstance(value, Tensor):
            self._memory: Any = xp.empty(value.shape, value.dtype)
            self.passed = Tensor._wrap(self._memory)
        elif _is_array(value):
            self._memory, on_device = step.slot(value.shape, value.dtype)
            self.passed = Tensor._wrap(on_device)
        else:
            self._memory = memory = [value]
            self.passed = Number(lambda: memory[0])

    def take(self, value: Any, number: int) -> None:
        """Copy the values for the next step. ``number`` is the input's index."""
        if _described(value) != self.type:
            raise CaptureError(
                f"input {number} of the captured step was {self.type}, and now it is {_described(value)}: it cannot change"
            )
        if isinstance(value, Tensor):
            self._memory[...] = value.data
        elif _is_array(value):
            self._memory[...] = value
        else:
            self._memory[0] = value


def _is_array(value: Any) -> bool:
    """Return True for a NumPy array, but not for a NumPy number."""
    return is_host_array(value) and not isinstance(value, host.generic)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}{value.shape}"
    if _is_array(value):
        return f"a NumPy array of {value.dtype}{value.shape}"
    if isinstance(value, (int, float, host.number)):
        return "a number"
    raise TypeError(f"a captured step takes tensors, NumPy arrays and numbers, not {type(value).__name__}")


class CapturedStep(TrainingStep):
    """A captured step: its work on the CPU and its numbers on the GPU."""

    is_captured = True

    def __init__(self, bytes_of_inputs: int):
        size = bytes_of_inputs + _NUMBERS
        pinned = xp.cuda.alloc_pinned_memory(size)  # the GPU copies from it while the CPU continues
        self._host = host.frombuffer(pinned, host.uint8, size)
        self._pinned = pinned
        self._device = xp.empty(size, host.uint8)
        self._tables = xp.cuda.MemoryPool()  # not the graph's pool, which reuses memory within a step
        self._copied = xp.cuda.Event(disable_timing=True)
        self._end = 0  # the end of the memory in use
        self._inputs_end = 0
        self._work: list[Callable[[], None]] = []
        self._constants: list[tuple[Array, Any]] = []
        self._gradients: dict[int, _Gradient] = {}
        self._checks: list[Callable[[], str]] = []  # called before each replay
        self._kept: list[Array] = []
        self.is_capturing = False
        self.is_on_host = False  # True while CPU work runs, which may read numbers and draw random ones

    # ------------------------------------------------------------------------------------------------ while it runs

    @contextlib.contextmanager
    def running(self, is_capturing: bool) -> Iterator[None]:
        """Return a context in which this is the current step of this thread."""
        if current_step().is_captured:
            raise CaptureError("a captured step cannot capture another")
        self._work, self._kept, self._end, self.is_capturing = [], [], self._inputs_end, is_capturing
        self._gradients, self._checks = {}, []
        try:
            with Switched("step", self):
                yield
            for gradient in self._gradients.values() if is_capturing else ():
                gradient.remember()
        finally:
            for array, values in self._constants:  # even after an error, because caches may hold these arrays
                array[...] = from_numpy(values)
            self._constants = []

    def numbers(self, compute: Callable[[], Sequence[float]], dtype: DType) -> Array:
        """Return a GPU array that each step refills with the numbers that ``compute`` returns."""
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

    def changing(self, compute: Callable[[], float]) -> Number:
        """Return a number that may change in each step."""
        return Number(compute)

    def repeat(self, work: Callable[[], None]) -> None:
        """Do CPU work and record it for replays."""
        with self._on_host():
            work()
        self._work.append(work)

    def table(self, values: Any) -> Array:
        """Return a NumPy array on the GPU."""
        if not self.is_capturing:
            return from_numpy(values)
        with xp.cuda.using_allocator(self._tables.malloc):
            array = xp.empty(values.shape, values.dtype)
        self._constants.append((array, values))
        return array

    def constant(self, make: Callable[..., Any], *arguments: Any) -> Array:
        """Return a table that lives as long as the step."""
        self._kept.append(make(*arguments))
        return self._kept[-1]

    def before_replays(self, check: Callable[[], str]) -> None:
        """Register a check to run before each replay."""
        self._checks.append(check)

    def before_gradient(self, tensor: Any, is_set: bool) -> None:
        """Record that a tensor's ``.grad`` will change."""
        if id(tensor) not in self._gradients:
            gradient = self._gradients[id(tensor)] = _Gradient(tensor, is_set)
            self._checks.append(gradient.changed)

    def refuse(self, action: str, remedy: str, before: bool = True) -> None:
        """Raise CaptureError, except during CPU work, which replays repeat."""
        if not self.is_on_host and (before or self.is_capturing):
            raise CaptureError(f"a captured step would repeat {action}: {remedy}")

    # ------------------------------------------------------------------------------------------------ its numbers

    def slot(self, shape: tuple[int, ...], dtype: DType) -> tuple[Any, Array]:
        """Return the next free memory of this shape on the CPU and GPU."""
        dtype = host.dtype(dtype)
        first = -(-self._end // _ALIGNMENT) * _ALIGNMENT
        self._end = first + int(host.prod(shape)) * dtype.itemsize
        if self._end > self._host.size:
            raise CaptureError(f"the step has more than {_NUMBERS} bytes of numbers that change: capture a part of it")
        parts = [memory[first : self._end].view(dtype).reshape(shape) for memory in (self._host, self._device)]
        return parts[0], parts[1]

    def end_inputs(self) -> None:
        """Keep the slots allocated so far (the inputs) when the step runs again."""
        self._inputs_end = self._end

    def begin(self) -> None:
        """Wait until the GPU has read the numbers of the last step, so that they can be overwritten."""
        if not self._copied.done:
            self._copied.synchronize()

    def copy(self) -> None:
        """Copy all numbers to the GPU while the CPU continues."""
        self._device.data.copy_from_host_async(self._pinned.ptr, self._end)
        self._copied.record()

    def work(self) -> None:
        """Do the CPU work of a replay."""
        for check in self._checks:
            if changed := check():
                raise CaptureError(f"{changed} since the step was captured: capture the step again")
        for work in self._work:
            work()
        for gradient in self._gradients.values():
            gradient.tensor.grad = gradient.after

    @contextlib.contextmanager
    def _on_host(self) -> Iterator[None]:
        before, self.is_on_host = self.is_on_host, True
        try:
            yield
        finally:
            self.is_on_host = before


class Number:
    """A number that may change in each step, such as a learning rate. Only ``numbers`` and ``repeat`` may read it.

    Arithmetic returns another ``Number``. Arithmetic with an array returns an array, and the GPU reads the number's value.
    """

    __array_ufunc__ = None  # makes arrays defer to the operators of this class

    def __init__(self, compute: Callable[[], float]):
        self._compute = compute

    def _combined(self, operation: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
        if not isinstance(left, xp.ndarray) and not isinstance(right, xp.ndarray):
            return Number(lambda: operation(float(left), float(right)))
        (value,) = current_step().numbers(lambda: [float(self)], (right if left is self else left).dtype)
        return operation(value, right) if left is self else operation(left, value)

    def __float__(self) -> float:
        current_step().refuse(
            "the current value of a number, such as a learning rate",
            "read it in the function passed to current_step().numbers(...), as Adam, AdamW and Muon do",
        )
        return float(self._compute())


for _operation in (operator.add, operator.sub, operator.mul, operator.truediv, operator.pow):
    setattr(Number, f"__{_operation.__name__}__", lambda self, other, f=_operation: self._combined(f, self, other))
    setattr(Number, f"__r{_operation.__name__}__", lambda self, other, f=_operation: self._combined(f, other, self))


class _Gradient:
    """A ``.grad`` that a captured step changes."""

    def __init__(self, tensor: Any, is_set: bool):
        self.tensor = tensor
        self.is_set = is_set  # set by the step before anything is added to it
        self.check_before()
        self.after, self.is_frozen = None, False  # after the step

    def remember(self) -> None:
        """Store the gradient after the capture."""
        self.after, self.is_frozen = self.tensor.grad, not self.tensor.requires_grad

    def check_before(self) -> None:
        """Raise CaptureError if the step would add to an earlier gradient."""
        if not self.is_set and self.tensor.grad is not None:
            raise CaptureError(
                f"a captured step cannot add to the gradient that a tensor of shape {self.tensor.shape} already has: begin the "
                "step with zero_grad()"
            )

    def changed(self) -> str:
        """Return a description of the change since the capture, or ""."""
        self.check_before()
        verb = "" if self.tensor.requires_grad != self.is_frozen else "unfrozen" if self.is_frozen else "frozen"
        return verb and f"a tensor of shape {self.tensor.shape} was {verb}"
