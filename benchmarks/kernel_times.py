"""Hooks round the kernels of tinytensor's slot (``tinytensor/kernels``): which are called, and how long each takes on a GPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tinytensor import backend, kernels
from tinytensor.fused import FusedOp
from tinytensor.op import all_ops

NAMES: list[str] = importlib.import_module(f"tinytensor.kernels.{backend.name}").__all__  # of what the slot holds


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


Times = dict[str, tuple[int, float]]  # by a kernel's name: its calls, and the milliseconds of all of them


def measured(step: Callable[[], Any], steps: int, cuda: Any) -> tuple[Times, float]:
    """The kernels' calls in so many steps, and the milliseconds between the steps' first and last moment on the GPU.

    ``cuda`` is CuPy's module. An event is recorded before and after every call; between them lies the kernel's own work, and
    where the CPU is too slow to keep the GPU busy, its waiting, too. What a kernel calls counts as part of it.
    """
    calls: list[tuple[str, Any, Any]] = []
    running: list[tuple[str, Any]] = []

    def moment() -> Any:
        event = cuda.Event()
        event.record()
        return event

    def after() -> None:
        name, start = running.pop()
        if not running:
            calls.append((name, start, moment()))

    first = moment()
    with watched(lambda name: running.append((name, moment())), after):
        for _ in range(steps):
            step()
    last = moment()
    last.synchronize()
    found: Times = {}
    for name, start, end in calls:
        count, milliseconds = found.get(name, (0, 0.0))
        found[name] = (count + 1, milliseconds + cuda.get_elapsed_time(start, end))
    return found, cuda.get_elapsed_time(first, last)
