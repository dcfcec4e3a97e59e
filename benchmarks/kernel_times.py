"""Hooks round the kernels of tinytensor's slot (``tinytensor/kernels``): which are called, and how long a GPU works on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tinytensor import kernels
from tinytensor.autograd.fused import FusedOp
from tinytensor.autograd.op import all_ops
from tinytensor.device import backend

NAMES = [*kernels.functions_of(backend.name)]  # of what the slot holds


@contextmanager
def watched(before: Callable[[str], Any], after: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """A context in which ``before(name)`` and ``after()`` are called round every call of a kernel."""
    places: list[tuple[Any, str]] = [(kernels, name) for name in NAMES]
    places += [(op, f"kernel_{way}") for op in all_ops.values() if isinstance(op, FusedOp) for way in ("forward", "backward")]

    def hooked(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            before(kernel.__name__)
            try:
                return kernel(*arguments, **named)
            finally:
                after()

        return run

    with ExitStack() as stack:
        for place, name in places:
            stack.enter_context(mock.patch.object(place, name, hooked(getattr(place, name))))
        yield


Times = dict[str, tuple[int, float]]  # by a kernel's name: its calls, and the GPU's milliseconds for all of them
ELSEWHERE = "everything else"
SHORTEST, LONGEST = 0.5, 16.0  # milliseconds for which the GPU is held


class _Stopwatch:
    """Times the GPU's work in stretches, cut where kernels begin and end. While the GPU is held, a stretch is queued."""

    def __init__(self, cuda: Any, hold: Callable[[float], None]):
        self.cuda, self.hold = cuda, hold
        self.milliseconds = SHORTEST
        self.running: list[str] = []  # the kernel, and those that it calls, which count as part of it
        self.reset()

    def reset(self) -> None:
        """Forget what was timed."""
        self.times: Times = {}
        self.early = 0  # stretches that the GPU began before all was queued
        self.start = self._begin()

    def _moment(self) -> Any:
        event = self.cuda.Event()
        event.record()
        return event

    def _begin(self) -> Any:
        self.hold(self.milliseconds)
        return self._moment()

    def cut(self, name: str) -> None:
        """End the stretch, which is of this name, and begin another."""
        end = self._moment()
        if self.start.done:
            self.early += 1
            self.milliseconds = min(2.0 * self.milliseconds, LONGEST)
        end.synchronize()
        count, milliseconds = self.times.get(name, (0, 0.0))
        self.times[name] = (count + 1, milliseconds + self.cuda.get_elapsed_time(self.start, end))
        self.start = self._begin()

    def before(self, name: str) -> None:
        """A kernel is called."""
        if not self.running:
            self.cut(ELSEWHERE)
        self.running.append(name)

    def after(self) -> None:
        """The kernel returns."""
        name = self.running.pop()
        if not self.running:
            self.cut(name)


def measured(step: Callable[[], Any], steps: int, cuda: Any, hold: Callable[[float], None]) -> tuple[Times, int]:
    """How long the GPU works in so many steps: for each kernel, and for everything else. The times are the GPU's own.

    ``cuda`` is CuPy's module, and ``hold`` what ``hold.holder`` makes. Before each call of a kernel the GPU is held, until
    Python has queued all that the call launches, between two events. So the time is the same however slow Python is. What a
    kernel calls counts as part of it. A step in training takes longer than all of them where the GPU waits for Python.

    Also returned is in how many stretches the GPU began before all was queued. Their times include waiting for Python. First
    there are steps that are not counted: they find out for how long the GPU must be held, of which ``LONGEST`` is the most.
    """
    watch = _Stopwatch(cuda, hold)
    with watched(watch.before, watch.after):
        enough = False
        while not enough:
            watch.early = 0
            step()
            enough = not watch.early or watch.milliseconds == LONGEST
        watch.reset()
        for _ in range(steps):
            step()
        watch.cut(ELSEWHERE)
    return watch.times, watch.early
