"""The lock of the models, which everybody who waits for it gets in turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """A lock that threads get in the order in which they ask for it, and that its owner may take again.

    A ``threading.Lock`` knows no order: a thread that gives it up and takes it again at once is mostly faster than those that
    wait. Long work calls ``let_others`` now and then, so that whoever waits has a turn in between.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[tuple[int, threading.Lock]] = deque()  # threads, each with the gate that it waits at
        self._owner: int | None = None
        self._depth = 0  # how often the owner has taken it
        self._own = threading.local()

    def acquire(self) -> None:
        """Take the lock, after all who have asked for it before."""
        me = threading.get_ident()
        with self._mutex:
            if self._owner in (None, me):
                self._owner, self._depth = me, self._depth + 1
                return
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append((me, gate))
        gate.acquire()

    def release(self) -> None:
        """Give the lock up: it goes to the thread that has waited for longest."""
        with self._mutex:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._waiting:
                self._owner, gate = self._waiting.popleft()
                self._depth = 1
                gate.release()

    def let_others(self) -> None:
        """Let all who wait have a turn, then go on. The owner calls this where it has left nothing half done. Raises what
        ``unless`` says."""
        if self._waiting:
            depth, self._depth = self._depth, 1
            self.release()
            self.acquire()
            self._depth = depth
        self._check()

    @contextmanager
    def unless(self, check: Callable[[], None]) -> Iterator[None]:
        """A context in which this thread calls ``check`` at each of its turns. What it raises ends the work, such as where
        nobody waits for it any more."""
        self._own.check = check
        try:
            yield
        finally:
            del self._own.check

    def _check(self) -> None:
        check = getattr(self._own, "check", None)
        if check is not None:
            check()

    def _at_fork_reinit(self) -> None:
        """In a forked child, where the thread that forked is alone: nobody else owns the lock or waits for it."""
        self._mutex = threading.Lock()
        self._waiting.clear()
        if self._owner != threading.get_ident():
            self._owner, self._depth = None, 0

    def __enter__(self) -> None:
        self.acquire()
        try:
            self._check()
        except BaseException:
            self.release()
            raise

    def __exit__(self, *error: object) -> None:
        self.release()
