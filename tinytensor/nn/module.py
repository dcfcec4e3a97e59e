"""Module: a container that finds its parameters by looking at its own attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from tinytensor import ops
from tinytensor.backend import Array, is_floating
from tinytensor.engine import leaf
from tinytensor.tensor import Tensor, as_array

Self = TypeVar("Self", bound="Module")


class Parameter(Tensor):
    """A tensor that a module learns: set as an attribute, it is found by ``parameters()``. It requires gradients."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True):
        super().__init__(data, requires_grad=requires_grad)

    def assign(self, values: Any) -> None:
        """Replace the values, in place. Raises ValueError for another shape."""
        array = as_array(values, self.dtype)
        if array.shape != self.shape:
            raise ValueError(f"values of shape {array.shape} do not fit a parameter of shape {self.shape}")
        self.data[...] = array
        self.mark_changed()

    def mark_changed(self) -> None:
        """Note that the values were changed in place: a graph recorded before refuses to run backward."""
        if self.node is not None:
            self.node.version += 1

    def __repr__(self) -> str:
        return "Parameter " + super().__repr__()


class Module:
    """The base of all layers and models.

    Write a subclass with its ``Parameter``s, modules and ``ModuleList``s set as attributes in ``__init__``, and ``forward``;
    calling the module calls that.
    """

    training = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes. Every subclass writes its own."""
        raise TypeError(f"{type(self).__name__} has no forward method: write one")

    # ------------------------------------------------------------------------------------------- finding the parts

    def children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly inside, with their attribute names."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module and all inside it, depth first, with dotted names ('' for itself)."""
        yield prefix, self
        for name, child in self.children():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all inside it."""
        for _, module in self.named_modules():
            yield module

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, with its dotted name: the first where it stands in several places."""
        seen: set[int] = set()
        for name, value in self._named_tensors():
            if isinstance(value, Parameter) and id(value) not in seen:
                seen.add(id(value))
                yield name, value

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are kept with the module but not learned, with their dotted names."""
        for name, value in self._named_tensors():
            if not isinstance(value, Parameter):
                yield name, value

    def buffers(self) -> Iterator[Tensor]:
        """The tensors that are kept with the module but not learned."""
        for _, buffer in self.named_buffers():
            yield buffer

    def register_buffer(self, name: str, value: Tensor) -> None:
        """Keep a tensor with the module and in its ``state_dict``, without learning it."""
        self.__dict__.setdefault("_buffer_names", []).append(name)
        setattr(self, name, value)

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        for prefix, module in self.named_modules():
            buffers = vars(module).get("_buffer_names", [])
            for name, value in vars(module).items():
                if isinstance(value, Parameter) or name in buffers:
                    yield f"{prefix}.{name}" if prefix else name, value

    def num_parameters(self) -> int:
        """The number of learned numbers."""
        return sum(p.size for p in self.parameters())

    # --------------------------------------------------------------------------------------------- changing the mode

    def train(self: Self, mode: bool = True) -> Self:
        """Switch this module and all inside it to training (dropout on) or, with False, to evaluation."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: Self) -> Self:
        """Switch to evaluation (dropout off)."""
        return self.train(False)

    def astype(self: Self, dtype: Any) -> Self:
        """Convert all floating parameters, buffers and tables of this module and all inside it, in place: with "bfloat16", on
        a GPU, it computes in that from then on. Gradients are forgotten, and graphs recorded before no longer reach the
        parameters."""
        for module in self.modules():
            for value in vars(module).values():
                if isinstance(value, Tensor) and is_floating(value.dtype) and value.dtype != dtype:
                    convert_(value, dtype)
        return self

    def apply(self: Self, function: Callable[[Module], Any]) -> Self:
        """Call the function on every module inside and then on this one."""
        for _, child in self.children():
            child.apply(function)
        function(self)
        return self

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters():
            p.grad = None

    # ---------------------------------------------------------------------------------------------- saving and loading

    def state_dict(self) -> dict[str, Tensor]:
        """The values of all parameters and buffers by name. They share memory with the module: save or copy them."""
        return {name: value.detach() for name, value in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Take over the values of ``state_dict()``, as tensors or arrays.

        Raises ValueError, before anything is changed, that lists every missing name, every unexpected one, and every
        wrong shape. With ``strict=False`` only wrong shapes count.
        """
        own = dict(self._named_tensors())
        problems = [
            f"{name}: shape {state[name].shape} instead of {value.shape}"
            for name, value in own.items()
            if name in state and state[name].shape != value.shape
        ]
        if strict:
            problems += _listed("missing", [n for n in own if n not in state])
            problems += _listed("unexpected", [n for n in state if n not in own])
        if problems:
            raise ValueError(f"the state does not fit this {type(self).__name__}: " + "; ".join(problems))
        arrays = [(value, as_array(state[name], value.dtype)) for name, value in own.items() if name in state]
        for value, array in arrays:
            _overwrite(value, array)

    # --------------------------------------------------------------------------------------------------------- printing

    def extra_repr(self) -> str:
        """What stands between the parentheses of the repr, for a layer without modules inside."""
        return ""

    def __repr__(self) -> str:
        lines = self._tree("", "")
        width = max(len(text) for text, _ in lines)
        return "\n".join(f"{text:<{width}}  {count:>12,}" if count else text for text, count in lines)

    def _tree(self, name: str, indent: str) -> list[tuple[str, int]]:
        """A line for each module: its name and kind, and how many parameters it has."""
        label = f"{indent}{name}: " if name else indent
        lines = [(f"{label}{type(self).__name__}({self.extra_repr()})", self.num_parameters())]
        for child_name, child in self.children():
            lines += child._tree(child_name, indent + "  ")
        return lines


def _listed(kind: str, names: list[str]) -> list[str]:
    return [f"{kind}: {', '.join(names)}"] if names else []


def convert_(tensor: Tensor, dtype: Any) -> None:
    """Change a leaf's dtype in place; it stays the same parameter to its module and its optimizer. Raises TypeError, and
    changes nothing, for a dtype that there is not, or in which it could not learn."""
    data = ops.astype(tensor, dtype).data
    node = leaf(data) if tensor.requires_grad else None
    tensor.requires_grad = False  # refuses a tensor that is no leaf
    tensor.data, tensor.node = data, node


def _overwrite(target: Tensor, array: Array) -> None:
    target.data[...] = array
    if isinstance(target, Parameter):
        target.mark_changed()


class ModuleList(Module):
    """Modules in a list, found like attributes, under the names 0, 1, 2, ..."""

    def __init__(self, modules: Iterable[Module] = ()):
        self._items = list(modules)

    def children(self) -> Iterator[tuple[str, Module]]:
        """The modules, named by their positions."""
        return ((str(i), module) for i, module in enumerate(self._items))

    def append(self, module: Module) -> None:
        """Add a module at the end."""
        self._items.append(module)

    def __getitem__(self, index: int) -> Module:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items)


class Sequential(ModuleList):
    """Modules called one after the other, each on what the last returned."""

    def __init__(self, *modules: Module):
        super().__init__(modules)

    def forward(self, x: Any) -> Any:
        """The last module's output."""
        for module in self:
            x = module(x)
        return x
