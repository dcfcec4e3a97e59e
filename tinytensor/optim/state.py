"""What an optimizer remembers of one parameter from step to step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinytensor.device.backend import DType, default_dtype, xp


def is_narrow(parameter: Any) -> bool:
    """Whether a parameter is narrower than float32, so that its state holds a float32 copy of it, the master."""
    return bool(parameter.dtype.itemsize < default_dtype.itemsize)


def state_dtype(parameter: Any) -> DType:
    """The dtype of the arrays in the state of a parameter."""
    return default_dtype if is_narrow(parameter) else parameter.dtype


class State(dict[str, Any]):
    """The state of one parameter: arrays and the number of steps, by name.

    ``memory`` holds arrays that the state is to use, instead of new ones, when it first needs an array of that name. They are
    zeros.
    """

    def __init__(self, values: Mapping[str, Any] | None = None):
        super().__init__(values or {})
        self.memory: dict[str, Any] = {}
        self.is_shared = False  # whether all ranks of this machine see its arrays

    def __reduce__(self) -> Any:
        return State, (dict(self),)  # memory is not sent: a process that shares it attaches it by itself

    def new(self, name: str, like: Any) -> Any:
        """An array of zeros, of the shape and dtype of ``like``."""
        return self.memory[name] if name in self.memory else xp.zeros_like(like)

    def add_master(self, parameter: Any) -> bool:
        """Add the master of a narrow parameter, whose values are still to be set. Returns False if there is one already."""
        if "master" in self:
            return False
        self["master"] = self.memory["master"] if "master" in self.memory else xp.empty(parameter.shape, default_dtype)
        return True
