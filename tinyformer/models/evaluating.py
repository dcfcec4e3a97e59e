"""Temporary evaluation mode, with dropout disabled."""

from __future__ import annotations

import os
import threading
from typing import ClassVar
from weakref import WeakKeyDictionary

import tinytensor as tt
from tinytensor.device.forks import held_by_forks


def evaluating(model: tt.nn.Module) -> EvaluationMode:
    """Return a context manager that puts the model into evaluation mode: ``with evaluating(model): ...``."""
    return EvaluationMode(model)


class EvaluationMode:
    """Context manager returned by ``evaluating``. It is reentrant and thread-safe.

    When the last thread leaves, each module returns to its earlier mode. The list of modules is built only once.
    """

    _lock = held_by_forks(threading.RLock())
    # For each model in evaluation: the threads of the open contexts, and the modules that were in training mode.
    _inside: ClassVar[WeakKeyDictionary[tt.nn.Module, tuple[list[int], list[tt.nn.Module]]]] = WeakKeyDictionary()

    def __init__(self, model: tt.nn.Module):
        self.model = model
        self.modules = list(model.modules())

    def __enter__(self) -> None:
        with self._lock:
            threads, trained = self._inside.get(self.model, ([], []))
            in_training = [module for module in self.modules if module.training]
            _set_training(in_training, False)
            self._inside[self.model] = [*threads, threading.get_ident()], trained + in_training

    def __exit__(self, *error: object) -> None:
        with self._lock:
            threads, _ = self._inside[self.model]
            here = threading.get_ident()
            threads.remove(here if here in threads else threads[-1])  # a generator may be closed in another thread
            self._leave_if_last(self.model)

    @classmethod
    def _leave_if_last(cls, model: tt.nn.Module) -> None:
        threads, trained = cls._inside[model]
        if not threads:
            del cls._inside[model]
            _set_training(trained, True)

    @classmethod
    def after_fork(cls) -> None:
        """Leave contexts whose threads do not exist in a forked child."""
        for model, (threads, _) in list(cls._inside.items()):
            threads[:] = [thread for thread in threads if thread == threading.get_ident()]
            cls._leave_if_last(model)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=EvaluationMode.after_fork)


def _set_training(modules: list[tt.nn.Module], mode: bool) -> None:
    for module in modules:
        # Skip the checks of Module.__setattr__: decoding one sequence sets the mode hundreds of times.
        vars(module)["training"] = mode
