"""The state that an optimizer stores for one parameter between steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinytensor.device.backend import DType, default_dtype, xp


def is_narrow(parameter: Any) -> bool:
    """Return True if the optimizer keeps a float32 master copy of this low-precision parameter."""
    return bool(parameter.dtype.itemsize < default_dtype.itemsize)


def state_dtype(parameter: Any) -> DType:
    """Return the dtype of the arrays in a parameter's state."""
    return default_dtype if is_narrow(parameter) else parameter.dtype


class State(dict[str, Any]):
    """The state of one parameter: arrays and the number of steps, by name.

    ``memory`` maps names to arrays of zeros that the state uses instead of new arrays.
    """

    def __init__(self, values: Mapping[str, Any] | None = None):
        super().__init__(values or {})
        self.memory: dict[str, Any] = {}
        self.is_shared = False  # True: all ranks of this machine see its arrays

    def __reduce__(self) -> Any:
        return State, (dict(self),)  # without the memory: a process that shares it attaches it itself

    def new(self, name: str, like: Any) -> Any:
        """Return an array of zeros with the shape and dtype of ``like``."""
        return self.memory[name] if name in self.memory else xp.zeros_like(like)

    def add_master(self, parameter: Any) -> bool:
        """Add an uninitialized master for a low-precision parameter. Return False if one exists already."""
        if "master" in self:
            return False
        self["master"] = self.memory["master"] if "master" in self.memory else xp.empty(parameter.shape, default_dtype)
        return True
