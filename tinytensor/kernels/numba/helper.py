"""A second thread that helps with the products of a program with large weights: two cores read memory faster than one.

The rows of a weight are cut into parts, and each thread takes the next part that is free. So a helper that starts late, or not
at all because other programs use the core, only does less; and who computes a part changes no bit of it.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from tinytensor.device.cores import cores


@functools.cache
def has_second_core() -> bool:
    """Whether a second thread may run. As for BLAS, OPENBLAS_NUM_THREADS=1 and OMP_NUM_THREADS=1 forbid it."""
    if "1" in (os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("OMP_NUM_THREADS")):
        return False
    return cores() > 1


class Helper:
    """A thread that calls one function after the other."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], Any]] = SimpleQueue()
        threading.Thread(target=self._work, name="tinytensor-helper", daemon=True).start()

    def call(self, function: Callable[[], Any]) -> None:
        """Let the thread call the function soon. It is not called if an earlier one still waits: then no core is free."""
        if self._calls.empty():
            self._calls.put(function)

    def _work(self) -> None:
        while True:
            self._calls.get()()


@functools.cache
def helper() -> Helper:
    """The helper of this process."""
    return Helper()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=helper.cache_clear)  # a child has none of its parent's threads
