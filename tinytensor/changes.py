"""Changes in place: which memory was changed when, so that no graph goes backward through values that are no longer there."""

from __future__ import annotations

import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any

from tinytensor.backend import Array, owner, xp

if TYPE_CHECKING:
    from tinytensor.engine import Node

_counter = itertools.count(1)


def next_number() -> int:
    """The next number of the one count that all nodes and all changes in place share: of two, the larger came later."""
    return next(_counter)


class _Change:
    """When some memory was last changed in place: after all nodes of lower numbers were recorded."""

    __slots__ = ("memory", "number")
    latest = 0  # of all

    def __init__(self, memory: Array):
        key = id(memory)
        self.memory = weakref.ref(memory, lambda _: _changes.pop(key, None))
        self.number = 0


_changes: dict[int, _Change] = {}  # by the identity of the array whose memory it is
_changing = threading.Lock()  # the threads of an optimizer's step note their changes at once


def note_change(array: Array) -> None:
    """Note that the memory of an array, and so what every view of it shows, was changed in place: a graph recorded before
    refuses to run backward through what it saved there."""
    memory = owner(array)
    with _changing:
        change = _changes.get(id(memory))
        if change is None:
            change = _changes[id(memory)] = _Change(memory)
        change.number = _Change.latest = next_number()


def check_unchanged(node: Node, saved: Any) -> None:
    """Raises RuntimeError where an array of those saved was changed in place since the node was recorded."""
    if node.number > _Change.latest:  # as all nodes of a training step are
        return
    for array in arrays_in(saved):
        change = _changes.get(id(owner(array)))
        if change is not None and change.number > node.number:
            assert node.op is not None
            raise RuntimeError(
                f"backward through {node.op.name!r}, but values that it used were changed in place since (by an optimizer's "
                "step, assign, load_state_dict or an initialiser): run the forward pass again"
            )


_PLAIN = {type(None), bool, int, float, str}


def arrays_in(value: Any) -> list[Array]:
    """The arrays in a value and in the dicts, tuples and lists in it."""
    found, waiting = [], [value]
    for value in waiting:  # which grows
        kind = type(value)
        if kind is xp.ndarray:
            found.append(value)
        elif kind in _PLAIN:  # what most values are, and quick to know
            continue
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, (tuple, list)):
            waiting.extend(value)
    return found
