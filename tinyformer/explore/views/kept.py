"""What was computed about models and is likely to be asked for again."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from tinytensor.device.forks import free_in_forks

Made = TypeVar("Made")


class Kept:
    """Answers about models, up to a number of bytes in all. The one that was not asked for the longest goes first. The newest
    stays, whatever its size. Nothing is kept of a model that is no longer in memory."""

    def __init__(self, most_bytes: int):
        self.most_bytes = most_bytes
        self._lock = free_in_forks(threading.Lock())
        self._found: OrderedDict[tuple[int, Hashable], tuple[weakref.ref[Any], Any, int]] = OrderedDict()

    def get(self, model: Any, key: Hashable, make: Callable[[], Made], size: Callable[[Made], int]) -> Made:
        """What ``make`` gave for this model and key, now or before. ``size`` tells its bytes."""
        place = id(model), key
        with self._lock:
            known = self._found.get(place)
            if known is not None and known[0]() is model:
                self._found.move_to_end(place)
                made: Made = known[1]
                return made
        made = make()
        with self._lock:
            self._found[place] = weakref.ref(model), made, size(made)
            self._found.move_to_end(place)
            for old in [name for name, (owner, _, _) in self._found.items() if owner() is None]:
                del self._found[old]
            while len(self._found) > 1 and self.num_bytes > self.most_bytes:
                self._found.popitem(last=False)
        return made

    @property
    def num_bytes(self) -> int:
        """The bytes of all that is kept."""
        return sum(size for _, _, size in self._found.values())

    def __len__(self) -> int:
        return len(self._found)
