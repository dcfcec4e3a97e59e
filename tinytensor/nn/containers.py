"""Containers: modules that hold a list or a dict of modules."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, SupportsIndex, TypeVar, overload

from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked, shown
from tinytensor.common.wording import counted
from tinytensor.nn.module import Module

Self = TypeVar("Self", bound="ModuleList")


class ModuleList(Module):
    """A list of modules. They are attributes with the names 0, 1, 2, ..., and a subclass may have other attributes besides.

    ``layers[i]``, also with negative i, is one of them, and ``layers[i:j]`` a ModuleList of some. Both may be set and deleted.
    """

    _count: int | None = None  # with n the names are 0 to n - 1; None: a module may have been set or deleted by its name

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
        """Add a module at the end. Raises TypeError for anything else. Returns this list."""
        return self.extend([module])

    @checked
    def insert(self: Self, index: int, module: Module) -> Self:
        """Add a module before the one at this index. Raises TypeError for anything else. Returns this list."""
        modules = list(self)
        modules.insert(index, module)
        return self._hold(modules)

    def extend(self: Self, modules: Iterable[Module]) -> Self:
        """Add several modules at the end. Raises TypeError for anything else. Returns this list."""
        if not isinstance(modules, Iterable):
            raise TypeError(f"{type(self).__name__} takes several modules, as in a list, not {shown(modules)}")
        return self._hold([*self, *modules]) if self._count is None else self._hold(list(modules), self._count)

    def _hold(self: Self, modules: list[Module], start: int = 0) -> Self:
        """Hold these modules, in this order, after the first ``start`` ones, and no others."""
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
        """The modules by their names, in the order of their numbers."""
        if self._count is not None:
            return {name: vars(self)[name] for name in map(str, range(self._count))}
        named = [(name, module) for name, module in self._own_modules() if name.isdecimal()]
        return dict(sorted(named, key=lambda item: int(item[0])))

    def _checked(self, index: Any) -> Any:
        """The index. Raises IndexError if there is no such module, and TypeError unless it is an integer or a slice."""
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
        found = list(self)[index]
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
        return len(self._named_items()) if self._count is None else self._count

    def __iter__(self) -> Iterator[Module]:
        return iter(list(self._named_items().values()))


class Sequential(ModuleList):
    """Modules that are called one after the other, each with the result of the one before."""

    def __init__(self, *modules: Module):
        super().__init__(modules)

    def _of(self, modules: list[Module]) -> ModuleList:
        return Sequential(*modules)

    def forward(self, x: Tensor) -> Tensor:
        """The result of the last module."""
        for module in self:
            x = module(x)
        return x


class ModuleDict(Module):
    """Modules by name, as in a dict. They are attributes with these names.

    >>> heads = tt.nn.ModuleDict({"start": tt.nn.Linear(4, 2), "end": tt.nn.Linear(4, 3)})
    >>> list(heads), heads["end"](tt.ones(4)).shape
    (['start', 'end'], (3,))
    """

    def __init__(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] = ()):
        self.update(modules)

    def update(self, modules: Any) -> None:
        """Set several modules: those of a mapping, or of pairs of a name and a module."""
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
        """Take out a module, and return it. Raises KeyError if there is none of this name."""
        module = self[name]
        delattr(self, name)
        return module

    def clear(self) -> None:
        """Take out all modules."""
        for name in self.keys():
            delattr(self, name)

    def keys(self) -> list[str]:
        """The names, in the order in which they were set first."""
        return [name for name, _ in self._own_modules()]

    def values(self) -> list[Module]:
        """The modules."""
        return [module for _, module in self._own_modules()]

    def items(self) -> list[tuple[str, Module]]:
        """Pairs of a name and its module."""
        return list(self._own_modules())

    def __len__(self) -> int:
        return len(self.keys())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()
