"""Changes in place: when was which memory changed?

With the answer, backward can refuse to use saved values that have been overwritten.
"""

from __future__ import annotations

import copy
import itertools
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from tinytensor.device.backend import Array, host, owner, xp
from tinytensor.device.forks import held_by_forks

if TYPE_CHECKING:
    from tinytensor.autograd.engine import Node

# The next number of one count, which nodes and changes in place share: the larger of two numbers came later.
next_number = itertools.count(1).__next__


class Replacements:
    """When a part of a module, or a tensor's array, was last replaced: a traced program has the parts and arrays of before."""

    latest = 0

    @classmethod
    def note(cls) -> None:
        """Note a replacement, after it was made. No two threads note the same number."""
        cls.latest = next_number()


class _Change:
    """When some memory was last changed in place: its number is larger than those of all nodes recorded before."""

    __slots__ = ("memory", "number")
    latest = 0  # the number of the latest change of any memory

    def __init__(self, memory: Array):
        key = id(memory)
        self.memory = weakref.ref(memory, lambda _: _changes.pop(key, None))
        self.number = 0


_changes: dict[int, _Change] = {}  # by the id() of the array that owns the memory
_changing = held_by_forks(threading.RLock())  # several threads of an optimizer's step may note changes at the same time


def note_change(array: Array) -> None:
    """Note that an array's memory was changed in place, and with it every view of that memory.

    A graph that was recorded before, and that saved this memory, then refuses to run backward.
    """
    memory = owner(array)
    with _changing:
        change = _changes.get(id(memory))
        if change is None:
            change = _changes[id(memory)] = _Change(memory)
        change.number = _Change.latest = next_number()


def check_unchanged(node: Node, saved: Any) -> None:
    """Raise RuntimeError if one of the saved arrays was changed in place after the node was recorded."""
    if node.number > _Change.latest:  # true of all nodes in a training step
        return
    for array in arrays_in(saved):
        change = _changes.get(id(owner(array)))
        if change is not None and change.number > node.number:
            assert node.op is not None
            raise RuntimeError(
                f"backward through {node.op.name!r}, but values that it used were changed in place since then (by an "
                "optimizer's step, assign, load_state_dict or an initialiser): run the forward pass again"
            )


PLAIN = {type(None), bool, int, float, str}


def owned(value: Any) -> Any:
    """The value, with copies of the arrays, lists, dicts and sets in it, which its owner may change later. Tensors, and objects
    of other classes, stay the same."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, (xp.ndarray, host.ndarray)):
        return value.copy()
    if isinstance(value, tuple):
        if PLAIN.issuperset(map(type, value)):
            return value
        return getattr(type(value), "_make", type(value))([owned(item) for item in value])
    if isinstance(value, (list, deque, dict)):
        value = copy.copy(value)
        for place in value if isinstance(value, dict) else range(len(value)):
            value[place] = owned(value[place])
    return copy.copy(value) if isinstance(value, (set, bytearray)) else value


def arrays_in(value: Any) -> list[Array]:
    """The arrays in a value and in the dicts, tuples and lists in it."""
    return arrays_and_plain_in(value)[0]


def arrays_and_plain_in(value: Any) -> tuple[list[Array], list[Any]]:
    """The arrays, and the numbers, texts and Nones, in a value and in the dicts, tuples and lists in it."""
    arrays, plain, waiting = [], [], [value]
    for value in waiting:  # the list grows meanwhile
        kind = type(value)
        if kind is xp.ndarray:
            arrays.append(value)
        elif kind in PLAIN:  # most values are plain, and this test is quick
            plain.append(value)
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (tuple, list)):
            waiting.extend(value)
    return arrays, plain
