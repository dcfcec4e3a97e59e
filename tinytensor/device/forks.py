"""What a forked child needs: it has copies of all locks, but of the threads only the one that forked. A lock that another
thread held at that moment would stay held for ever.

So a lock is declared as one of two kinds. ``held_by_forks`` is for those that are held for a moment, or while what they guard
is not whole: the thread that forks takes them first. ``free_in_forks`` is for those that may be held for long, or that guard
what each line leaves whole: the child has them free.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any, Protocol, TypeVar
from weakref import WeakSet


class Lock(Protocol):
    """A lock of the module threading, or one that works alike."""

    def acquire(self) -> Any: ...
    def release(self) -> Any: ...


AnyLock = TypeVar("AnyLock", bound=Any)

_held: list[Lock] = []  # in the order in which they are taken
_free: WeakSet[Any] = WeakSet()


class _Here(threading.local):
    """The locks that this thread has taken because it forks."""

    def __init__(self) -> None:
        self.taken: list[Lock] = []


_here = _Here()


def held_by_forks(lock: AnyLock) -> AnyLock:
    """The lock, which a thread takes before it forks. It may be taken again by its holder, as a signal's handler may fork. Who
    holds it must take no other lock of this kind, unless that one was declared later."""
    _held.append(lock)
    return lock


def free_in_forks(lock: AnyLock) -> AnyLock:
    """The lock (of the module threading), which is free in a child that another thread forks."""
    _free.add(lock)
    return lock


def _take() -> None:
    for lock in list(_held):
        lock.acquire()
        _here.taken.append(lock)


def _release() -> None:
    while _here.taken:
        _here.taken.pop().release()


def _free_all() -> None:
    _release()
    for lock in list(_free):
        if not getattr(lock, "_is_owned", bool)():  # the thread that forked may hold an RLock, and goes on
            lock._at_fork_reinit()  # as the modules threading and logging do


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_take, after_in_parent=_release, after_in_child=_free_all)


if sys.version_info >= (3, 12):
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):  # type: ignore[type-arg]
        """The one of functools, whose lock here is free in a forked child. Newer versions of Python have it without a lock."""

        def __init__(self, function: Any):
            super().__init__(function)
            free_in_forks(self.lock)  # type: ignore[attr-defined]
