"""A context in which a model is evaluated: dropout is off."""

from __future__ import annotations

import threading
from typing import ClassVar
from weakref import WeakKeyDictionary

import tinytensor as tt


def evaluating(model: tt.nn.Module) -> EvaluationMode:
    """A context in which the model is in evaluation mode: ``with evaluating(model): ...``."""
    return EvaluationMode(model)


class EvaluationMode:
    """The context that ``evaluating`` returns. It may be entered many times, and by several threads at once.

    When the last thread has left, each module is in the mode again that it was in before. The modules are looked up once, when
    the context is made.
    """

    _lock = threading.Lock()
    # Of each model that is being evaluated: how many contexts are open, and the modules that were in training mode before.
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
        # Written past Module.__setattr__, which checks every value: decoding one text sets the mode hundreds of times.
        vars(module)["training"] = mode
