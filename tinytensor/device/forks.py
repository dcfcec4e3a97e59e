"""Locks in forked child processes. A child has only the thread that forked, but copies of all locks. A lock held by another
thread would stay locked forever.

Use ``held_by_forks`` for locks that are held briefly, or while their data is inconsistent: the forking thread acquires them
first. Use ``free_in_forks`` for locks that may be held for long, or whose data is always consistent: the child gets them
unlocked.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any, Protocol, TypeVar
from weakref import WeakSet


class Lock(Protocol):
    """A lock from the threading module, or an object with the same methods."""

    def acquire(self) -> Any: ...
    def release(self) -> Any: ...


AnyLock = TypeVar("AnyLock", bound=Any)

_held: list[Lock] = []  # in the order of acquisition
_free: WeakSet[Any] = WeakSet()


class _Here(threading.local):
    """The locks that this thread has acquired for a fork."""

    def __init__(self) -> None:
        self.taken: list[Lock] = []


_here = _Here()


def held_by_forks(lock: AnyLock) -> AnyLock:
    """Register a lock that threads acquire before they fork, and return it.

    It must be reentrant, because a signal handler may fork. Its holder must not acquire other locks of this type, except locks
    that were declared later.
    """
    _held.append(lock)
    return lock


def free_in_forks(lock: AnyLock) -> AnyLock:
    """Register a lock (from the threading module) to be unlocked in children that another thread forks, and return it."""
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
        if not getattr(lock, "_is_owned", bool)():  # the thread that forked may hold an RLock
            lock._at_fork_reinit()  # as the threading and logging modules do


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_take, after_in_parent=_release, after_in_child=_free_all)


if sys.version_info >= (3, 12):
    cached_property = functools.cached_property
else:

    class cached_property(functools.cached_property):  # type: ignore[type-arg]
        """``functools.cached_property``, with a lock that is free in a forked child. Since Python 3.12 it has no lock."""

        def __init__(self, function: Any):
            super().__init__(function)
            free_in_forks(self.lock)  # type: ignore[attr-defined]
