"""Registry of arrays in memory that processes share: ``distributed`` adds arrays, and optimizers look them up."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by their id()


def note_shared(array: Any) -> None:
    """Record that all ranks share this array's memory."""
    _arrays[id(array)] = array


def is_shared(array: Any) -> bool:
    """Return True if all ranks share this array's memory. Views of the array do not count."""
    return _arrays.get(id(array)) is array


_working: list[None] = []  # one item for each working group of ranks; several threads may start groups


@contextmanager
def working() -> Iterator[None]:
    """Return a context in which other processes use the shared arrays."""
    _working.append(None)
    try:
        yield
    finally:
        _working.pop()


def is_in_use(array: Any) -> bool:
    """Return True if other processes may use this array now."""
    return bool(_working) and is_shared(array)
