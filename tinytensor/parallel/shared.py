"""Which arrays lie in memory that several processes see? ``distributed`` puts them there; an optimizer's step asks."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by their id()


def note_shared(array: Any) -> None:
    """Remember that this array is the same memory in all ranks."""
    _arrays[id(array)] = array


def is_shared(array: Any) -> bool:
    """Whether this very array (not a view of it) is the same memory in all ranks."""
    return _arrays.get(id(array)) is array


_working: list[None] = []  # one for each group of ranks that is at work; several threads may start some


@contextmanager
def working() -> Iterator[None]:
    """A context in which other processes use the shared arrays, too."""
    _working.append(None)
    try:
        yield
    finally:
        _working.pop()


def is_in_use(array: Any) -> bool:
    """Whether other processes may use this array now."""
    return bool(_working) and is_shared(array)
