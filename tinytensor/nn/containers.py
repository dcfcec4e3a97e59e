"""Containers: modules that hold a list or a dict of modules."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex, TypeVar, overload

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked, shown
from tinytensor.common.wording import counted
from tinytensor.nn.module import Module

__all__ = ["ModuleDict", "ModuleList", "Sequential"]

Self = TypeVar("Self", bound="ModuleList")


class ModuleList(Module):
    """A list of modules, stored as attributes named 0, 1, 2, ... A subclass may have other attributes.

    ``layers[i]`` is one module (i may be negative), and ``layers[i:j]`` is a ModuleList. Both may be set and deleted.
    """

    _count: int | None = None  # the names are 0 to _count - 1; None: a module may have been set or deleted by name

    def __init__(self, modules: Iterable[Module] = ()):
        self.extend(modules)

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        vars(self)["_count"] = None

    def _check_replacement(self, name: str, value: Any) -> None:
        super()._check_replacement(name, value)
        if name.isdecimal():
            vars(self)["_count"] = None
            if value is not None:
                self._check_module(value)

    def _check_module(self, value: Any) -> None:
        if not isinstance(value, Module):
            raise TypeError(f"{type(self).__name__} takes modules, such as nn.ReLU(), not {shown(value)}")

    def append(self: Self, module: Module) -> Self:
        """Append a module and return this list. Raises TypeError for any other value."""
        return self.extend([module])

    @checked
    def insert(self: Self, index: int, module: Module) -> Self:
        """Insert a module before ``index`` and return this list. Raises TypeError for any other value."""
        modules = list(self)
        modules.insert(index, module)
        return self._hold(modules)

    def extend(self: Self, modules: Iterable[Module]) -> Self:
        """Append several modules and return this list. Raises TypeError for any other value."""
        if not isinstance(modules, Iterable):
            raise TypeError(f"{type(self).__name__} takes several modules, as in a list, not {shown(modules)}")
        return self._hold([*self, *modules]) if self._count is None else self._hold(list(modules), self._count)

    def _hold(self: Self, modules: list[Module], start: int = 0) -> Self:
        """Replace all modules from index ``start`` on with these."""
        for module in modules:
            self._check_module(module)
        named = {str(i): module for i, module in enumerate(modules, start)}
        held = {} if start else self._named_items()
        for name in held.keys() - named.keys():
            delattr(self, name)
        for name, module in named.items():
            if held.get(name) is not module:
                setattr(self, name, module)
        self._count = start + len(modules)
        return self

    def _named_items(self) -> dict[str, Module]:
        """Return the modules by name, in numerical order."""
        if self._count is not None:
            return {name: vars(self)[name] for name in map(str, range(self._count))}
        named = [(name, module) for name, module in self._own_modules() if name.isdecimal()]
        return dict(sorted(named, key=lambda item: int(item[0])))

    def _checked(self, index: Any) -> Any:
        """Return the index. Raises IndexError if it is out of range, and TypeError if it is not an integer or slice."""
        if isinstance(index, slice):
            return index
        if not hasattr(index, "__index__"):
            raise TypeError(f"{type(self).__name__} takes an integer or a slice as its index, not {index!r}")
        if not -len(self) <= operator.index(index) < len(self):
            raise IndexError(f"{type(self).__name__} of {counted(len(self), 'module')} has no index {operator.index(index)}")
        return index

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...

    @overload
    def __getitem__(self: Self, index: slice) -> Self: ...

    def __getitem__(self, index: Any) -> Any:
        index = self._checked(index)
        if self._count is not None and not isinstance(index, slice):
            return vars(self)[str(operator.index(index) % self._count)]
        modules = list(self)[index]
        return self._of(modules) if isinstance(modules, list) else modules

    def _of(self, modules: list[Module]) -> ModuleList:
        """Return a plain container, because a subclass may take other arguments."""
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
        return len(self._named_items()) if self._count is None else self._count

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._named_items().values()))


class Sequential(ModuleList):
    """A container that calls its modules in order, passing each result to the next module."""

    def __init__(self, *modules: Module):
        super().__init__(modules)

    def _of(self, modules: list[Module]) -> ModuleList:
        return Sequential(*modules)

    def forward(self, x: Tensor) -> Tensor:
        for module in self:
            x = module(x)
        return x


class ModuleDict(Module):
    """A dict of modules, stored as attributes named by their keys.

    >>> heads = tt.nn.ModuleDict({"start": tt.nn.Linear(4, 2), "end": tt.nn.Linear(4, 3)})
    >>> list(heads), heads["end"](tt.ones(4)).shape
    (['start', 'end'], (3,))
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()):
        self.update(modules)

    def update(self, modules: Any) -> None:
        """Set several modules from a mapping or from (name, module) pairs."""
        for name, module in dict(modules).items():
            self[name] = module

    def __setitem__(self, name: str, module: Module) -> None:
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} takes modules, such as nn.ReLU(), not {shown(module)}")
        self.add_module(name, module)

    def __getitem__(self, name: str) -> Module:
        return dict(self._own_modules())[name]

    def __delitem__(self, name: str) -> None:
        self.pop(name)

    def pop(self, name: str) -> Module:
        """Remove a module and return it. Raises KeyError if there is no module with this name."""
        module = self[name]
        delattr(self, name)
        return module

    def clear(self) -> None:
        """Remove all modules."""
        for name in self.keys():
            delattr(self, name)

    def keys(self) -> list[str]:
        """Return the names in the order in which they were first set."""
        return [name for name, _ in self._own_modules()]

    def values(self) -> list[Module]:
        """Return the modules."""
        return [module for _, module in self._own_modules()]

    def items(self) -> list[tuple[str, Module]]:
        """Return (name, module) pairs."""
        return list(self._own_modules())

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()
