"""Which arrays lie in memory that several processes see? ``distributed`` puts them there; an optimizer's step asks."""

from __future__ import annotations

import weakref
from typing import Any

_arrays: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()  # by their id()


def note_shared(array: Any) -> None:
    """Remember that this array is the same memory in all ranks."""
    _arrays[id(array)] = array


def is_shared(array: Any) -> bool:
    """Whether this very array (not a view of it) is the same memory in all ranks."""
    return _arrays.get(id(array)) is array
