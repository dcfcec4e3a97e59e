"""A context in which a model evaluates: dropout is off."""

from __future__ import annotations

import threading
from typing import ClassVar
from weakref import WeakKeyDictionary

import tinytensor as tt


class evaluating:
    """A context in which the model is in evaluation mode; the mode that each of its modules was in comes back afterwards, when
    the last of several threads has left it. It can be entered again and again: so it looks for the modules only once."""

    _lock = threading.Lock()
    _inside: ClassVar[WeakKeyDictionary[tt.nn.Module, tuple[int, list[tt.nn.Module]]]] = WeakKeyDictionary()

    def __init__(self, model: tt.nn.Module):
        self.model = model
        self.modules = list(model.modules())

    def __enter__(self) -> None:
        with self._lock:
            times, trained = self._inside.get(self.model, (0, []))
            found = [module for module in self.modules if module.training]
            _set_training(found, False)
            self._inside[self.model] = times + 1, trained + found

    def __exit__(self, *error: object) -> None:
        with self._lock:
            times, trained = self._inside.pop(self.model)
            if times > 1:
                self._inside[self.model] = times - 1, trained
                return
            _set_training(trained, True)


def _set_training(modules: list[tt.nn.Module], mode: bool) -> None:
    for module in modules:
        vars(module)["training"] = mode  # a text sets it hundreds of times, and a module looks at what it is to hold
