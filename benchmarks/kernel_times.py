"""Hooks around tinytensor's kernels (``tinytensor/kernels``): which are called, and how long the GPU works on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tinytensor import kernels
from tinytensor.autograd.fused import FusedOp
from tinytensor.autograd.op import all_ops
from tinytensor.device import backend

NAMES = [*kernels.functions_of(backend.name)]


@contextmanager
def watched(before: Callable[[str], Any], after: Callable[[], Any] = lambda: None) -> Iterator[None]:
    """Call ``before(name)`` and ``after()`` around every call of a kernel during the context."""
    hooks: list[tuple[Any, str]] = [(kernels, name) for name in NAMES]
    fused = [op for op in all_ops.values() if isinstance(op, FusedOp)]
    hooks += [(op, f"kernel_{direction}") for op in fused for direction in ("forward", "backward")]

    def hooked(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            before(kernel.__name__)
            try:
                return kernel(*arguments, **named)
            finally:
                after()

        return run

    with ExitStack() as stack:
        for owner, name in hooks:
            stack.enter_context(mock.patch.object(owner, name, hooked(getattr(owner, name))))
        yield


Times = dict[str, tuple[int, float]]  # by a kernel's name: the number of calls, and their milliseconds on the GPU
ELSEWHERE = "everything else"
SHORTEST, LONGEST = 0.5, 16.0  # milliseconds for which the GPU is kept waiting


class _Stopwatch:
    """A timer of the GPU's work in intervals that begin and end with kernels. Each interval is queued while the GPU waits."""

    def __init__(self, cuda: Any, hold: Callable[[float], None]):
        self.cuda, self.hold = cuda, hold
        self.milliseconds = SHORTEST
        self.running: list[str] = []  # the kernel and those it calls, which are counted with it
        self.reset()

    def reset(self) -> None:
        """Forget all times."""
        self.times: Times = {}
        self.early = 0  # intervals that the GPU began before all was queued
        self.start = self._begin()

    def _moment(self) -> Any:
        event = self.cuda.Event()
        event.record()
        return event

    def _begin(self) -> Any:
        self.hold(self.milliseconds)
        return self._moment()

    def cut(self, name: str) -> None:
        """End the interval, count it under this name, and begin another."""
        end = self._moment()
        if self.start.done:
            self.early += 1
            self.milliseconds = min(2.0 * self.milliseconds, LONGEST)
        end.synchronize()
        count, milliseconds = self.times.get(name, (0, 0.0))
        self.times[name] = (count + 1, milliseconds + self.cuda.get_elapsed_time(self.start, end))
        self.start = self._begin()

    def before(self, name: str) -> None:
        """Note that a kernel is called."""
        if not self.running:
            self.cut(ELSEWHERE)
        self.running.append(name)

    def after(self) -> None:
        """Note that the kernel returns."""
        name = self.running.pop()
        if not self.running:
            self.cut(name)


def measured(step: Callable[[], Any], steps: int, cuda: Any, hold: Callable[[float], None]) -> tuple[Times, int]:
    """Return how long the GPU works in ``steps`` steps, by kernel and for everything else.

    ``cuda`` is CuPy's module, and ``hold`` is made by ``hold.holder``. Before each call of a kernel the GPU waits until Python
    has queued all launches of the call between two events, so the time does not depend on Python's speed. The kernels that a
    kernel calls are counted with it. A training step takes longer than the sum wherever the GPU waits for Python.

    Also return the number of intervals that the GPU began before all was queued. Their times include waiting for Python.
    Uncounted steps come first to find how long the GPU must wait, at most ``LONGEST``.
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
