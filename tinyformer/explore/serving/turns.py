"""A fair lock for the models: threads get it in turn."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Turns:
    """A reentrant lock that threads acquire in the order in which they ask.

    A ``threading.Lock`` is unordered: a thread that releases and immediately reacquires it usually beats those that wait. Long
    work calls ``let_others`` from time to time, so that waiting threads get a turn.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: deque[tuple[int, threading.Lock]] = deque()  # waiting threads, each with its gate
        self._owner: int | None = None
        self._depth = 0  # how often the owner has acquired it
        self._own = threading.local()

    def acquire(self) -> None:
        """Acquire the lock after all threads that asked earlier."""
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
        """Release the lock to the thread that has waited longest."""
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
        """Give all waiting threads a turn, then continue. Call it only where no work is half done. Raises errors from the check
        set in ``unless``."""
        if self._waiting:
            depth, self._depth = self._depth, 1
            self.release()
            self.acquire()
            self._depth = depth
        self._check()

    @contextmanager
    def unless(self, check: Callable[[], None]) -> Iterator[None]:
        """Context manager in which this thread calls ``check`` at each of its turns. An exception from it ends the work, for
        example if nobody waits for the result any more."""
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
        """Reset the lock in a forked child, where the forking thread is alone: no other thread owns it or waits for it."""
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
