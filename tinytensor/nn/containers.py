"""Containers: modules that hold a list of modules."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, SupportsIndex, TypeVar

from tinytensor.nn.module import Module

Self = TypeVar("Self", bound="ModuleList")


class ModuleList(Module):
    """A list of modules. They are attributes with the names 0, 1, 2, ..., and a subclass may have other attributes besides.

    ``layers[i]``, also with negative i, is one of them, and ``layers[i:j]`` a ModuleList of some. Both may be set and deleted.
    """

    def __init__(self, modules: Iterable[Module] = ()):
        self.extend(modules)

    def append(self: Self, module: Module) -> Self:
        """Add a module at the end. Raises TypeError for anything else. Returns this list."""
        return self._hold([*self, module])

    def insert(self: Self, index: int, module: Module) -> Self:
        """Add a module before the one at this index. Raises TypeError for anything else. Returns this list."""
        modules = list(self)
        modules.insert(index, module)
        return self._hold(modules)

    def extend(self: Self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end. Raises TypeError for anything else. Returns this list."""
        return self._hold([*self, *modules])

    def _hold(self: Self, modules: list[Module]) -> Self:
        """Hold these modules, in this order, and no others."""
        for module in modules:
            if not isinstance(module, Module):
                raise TypeError(f"{type(self).__name__} takes modules, such as nn.ReLU(), not a {type(module).__name__}")
        named = {str(i): module for i, module in enumerate(modules)}
        for name in [name for name, _ in self._own_modules() if name.isdecimal() and name not in named]:
            delattr(self, name)
        for name, module in named.items():
            setattr(self, name, module)
        return self

    def _checked(self, index: Any) -> Any:
        """The index. Raises IndexError if there is no such module, and TypeError unless it is an integer or a slice."""
        if isinstance(index, slice):
            return index
        if not isinstance(index, SupportsIndex):
            raise TypeError(f"{type(self).__name__} takes an integer or a slice as its index, not {index!r}")
        if not -len(self) <= operator.index(index) < len(self):
            raise IndexError(f"{type(self).__name__} of {len(self)} modules has no index {operator.index(index)}")
        return index

    def __getitem__(self, index: Any) -> Any:
        found = list(self)[self._checked(index)]
        return self._of(found) if isinstance(found, list) else found

    def _of(self, modules: list[Module]) -> ModuleList:
        """A container of the same kind. It is not of a subclass, whose own parts and arguments nobody knows."""
        return ModuleList(modules)

    def __setitem__(self, index: Any, value: Any) -> None:
        modules = list(self)
        modules[self._checked(index)] = value
        self._hold(modules)

    def __delitem__(self, index: Any) -> None:
        modules = list(self)
        del modules[self._checked(index)]
        self._hold(modules)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Module]:
        return (module for name, module in self._own_modules() if name.isdecimal())


class Sequential(ModuleList):
    """Modules that are called one after the other, each with the result of the one before."""

    def __init__(self, *modules: Module):
        super().__init__(modules)

    def _of(self, modules: list[Module]) -> ModuleList:
        return Sequential(*modules)

    def forward(self, x: Any) -> Any:
        """The result of the last module."""
        for module in self:
            x = module(x)
        return x
