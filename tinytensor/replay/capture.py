"""A step of training as one CUDA graph: Python runs it a few times, and then a GPU repeats it by itself.

A step launches hundreds of kernels. Python needs a few microseconds for each, which is longer than the GPU needs for many of
them. A CUDA graph holds all launches, with the addresses and numbers they got, and one call starts them all.

So everything stays as it was when the step was captured: what Python decided, the memory, and the numbers. What must change is
named in ``capturing.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.common.wording import counted
from tinytensor.device import backend
from tinytensor.device.backend import host, is_host_array, xp
from tinytensor.device.capturing import CaptureError, Number, Step
from tinytensor.nn.hooks import any_hooks

Result = TypeVar("Result")  # of a step
_WARM_UPS = 3  # steps that run before: they compile kernels, choose algorithms, and make the optimizer's state


class capture(Generic[Result]):
    """A faster version of ``function``, which does a step of training on a GPU: forward, backward, clipping and the optimizer.

    It takes tensors, NumPy arrays and Python numbers, and returns tensors. The first three calls just run it. The fourth writes
    down what it launches. Each later call copies its inputs to where those of the fourth were, and launches all of it at once.
    The results are those of the function, to the bit, and the next call overwrites them: copy what is to be kept.

    Inputs have the same shapes and dtypes in each call. The function gets a NumPy array as a tensor, and a Python number as a
    ``capturing.Number``, which ``optimizer.step`` takes as its ``scale``. Dropout draws other random keys in each step, and
    the learning rates of ``param_groups`` are read anew. All else that Python does happens once: a module's mode, an ``if``, a
    number in a formula. After each call ``.grad`` is what the step leaves there, in the memory that the fourth call made.

    Raises CaptureError

    * if any module has forward hooks;
    * if the function reads a value of the GPU (``.item()``, ``float(x)``, ``if x``), makes a tensor of numbers (``tt.tensor``,
      or an index in a list), draws random numbers except for dropout (``tt.checkpoint`` does, too), cuts a batch into shards,
      adds to gradients of the call before, or has another optimizer than Adam, AdamW and Muon;
    * for inputs of other shapes;
    * after a parameter was replaced, frozen or unfrozen (its values may change in place), or another setting of the optimizer
      than a learning rate;
    * without a GPU.

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
        self._step: Step | None = None
        self._inputs: list[_Input] = []
        self._graph: Any = None
        self._memory: Any = None  # a pool of the graph's own, which must live as long as the graph
        self._results: Any = None

    def __call__(self, *inputs: Any) -> Result:
        """Do one step."""
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
        """Whether the step is captured by now, so that the GPU repeats it."""
        return self._graph is not None

    def _prepare(self, inputs: tuple[Any, ...]) -> Step:
        arrays = [x for x in inputs if _is_array(x)]
        step = Step(sum(array.nbytes + 16 for array in arrays))
        self._inputs = [_Input(x, step) for x in inputs]
        step.end_inputs()
        return step

    def _take(self, inputs: tuple[Any, ...]) -> None:
        if len(inputs) != len(self._inputs):
            raise CaptureError(f"the captured step takes {counted(len(self._inputs), 'input')}, not {len(inputs)}")
        for i, (value, each) in enumerate(zip(inputs, self._inputs)):
            each.take(value, i)

    def _capture(self, step: Step) -> None:
        xp.get_default_memory_pool().free_all_blocks()  # what the first steps left, so that the graph can have it
        self._memory, stream = xp.cuda.MemoryPool(), xp.cuda.Stream(non_blocking=True)
        with step.running(is_capturing=True), xp.cuda.using_allocator(self._memory.malloc), stream:
            stream.begin_capture()
            try:
                results = self.function(*[each.passed for each in self._inputs])
                graph = stream.end_capture()
            except BaseException as error:
                with contextlib.suppress(Exception):  # which would say that the capture has failed
                    stream.end_capture()
                if isinstance(error, xp.cuda.runtime.CUDARuntimeError) or "is capturing" in str(error):  # CUDA or CuPy refuses
                    raise CaptureError(
                        f"a captured step can do only what the GPU does by itself, and here it did something else ({error}), "
                        "such as reading a value by .item(), float(x) or `if x`: do that outside of the step"
                    ) from error
                raise
        self._graph, self._results = graph, results


class _Input:
    """An input of a captured step: where its values are copied, and what the function gets for it."""

    def __init__(self, value: Any, step: Step):
        self.kind = _kind(value)
        self.passed: Any
        if isinstance(value, Tensor):
            self._place: Any = xp.empty(value.shape, value.dtype)
            self.passed = Tensor._wrap(self._place)
        elif _is_array(value):
            self._place, on_device = step.slot(value.shape, value.dtype)
            self.passed = Tensor._wrap(on_device)
        else:
            self._place = place = [value]
            self.passed = Number(lambda: place[0])

    def take(self, value: Any, place: int) -> None:
        """Copy the values of the next step."""
        if _kind(value) != self.kind:
            raise CaptureError(
                f"input {place} of the captured step was {self.kind}, and now it is {_kind(value)}: it cannot change"
            )
        if isinstance(value, Tensor):
            self._place[...] = value.data
        elif _is_array(value):
            self._place[...] = value
        else:
            self._place[0] = value


def _is_array(value: Any) -> bool:
    """True for a NumPy array, and not for one of NumPy's numbers."""
    return is_host_array(value) and not isinstance(value, host.generic)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {value.dtype}{value.shape}"
    if _is_array(value):
        return f"a NumPy array of {value.dtype}{value.shape}"
    if isinstance(value, (int, float, host.number)):
        return "a number"
    raise TypeError(f"a captured step takes tensors, NumPy arrays and numbers, not {type(value).__name__}")
