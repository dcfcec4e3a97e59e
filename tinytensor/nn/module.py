"""Module: a container that finds its parameters by looking at its own attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from tinytensor import ops
from tinytensor.backend import Array, is_floating
from tinytensor.changes import note_change
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
        overwrite(self, array)

    def mark_changed(self) -> None:
        """Note that the values were changed in place: a graph recorded before refuses to run backward."""
        note_change(self.data)

    def __repr__(self) -> str:
        return "Parameter " + super().__repr__()


class IncompatibleKeys(NamedTuple):
    """The names that a module and a state do not have in common, as ``load_state_dict`` returns them."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """The base of all layers and models.

    Write a subclass with its ``Parameter``s, modules and ``ModuleList``s set as attributes in ``__init__``, and ``forward``;
    calling the module calls that. What stands in a plain list, dict or tuple is not found.
    """

    training = True
    _buffer_names: tuple[str, ...] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises TypeError where a parameter, or a buffer, would silently stop being one."""
        held = self.__dict__.get(name)
        if isinstance(held, Tensor) and not (value is None or isinstance(value, (Parameter, Module))):
            self._check_replacement(name, held, value)
        object.__setattr__(self, name, value)

    def _check_replacement(self, name: str, held: Tensor, value: Any) -> None:
        if isinstance(held, Parameter):
            raise TypeError(
                f"{type(self).__name__}.{name} is a Parameter, and a {type(value).__name__} in its place would not be learned: "
                f"change its values with .{name}.assign(...), or set another nn.Parameter(...), or None"
            )
        if name in self._buffer_names and not isinstance(value, Tensor):
            raise TypeError(f"{type(self).__name__}.{name} is a buffer: set it to a tensor, not a {type(value).__name__}")

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
        """This module and all inside it, each once, depth first, with dotted names ('' for itself): the first where one stands
        in several places."""
        return self._walk(prefix, set())

    def _walk(self, path: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
        seen.add(id(self))
        yield path, self
        for name, child in self.children():
            if id(child) not in seen:
                yield from child._walk(f"{path}.{name}" if path else name, seen)

    def modules(self) -> Iterator[Module]:
        """This module and all inside it."""
        for _, module in self.named_modules():
            yield module

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, with its dotted name: the first where it stands in several places."""
        for name, value in self._named_tensors():
            if isinstance(value, Parameter):
                yield name, value

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are kept with the module but not learned, each once, with their dotted names."""
        for name, value in self._named_tensors():
            if not isinstance(value, Parameter):
                yield name, value

    def buffers(self) -> Iterator[Tensor]:
        """The tensors that are kept with the module but not learned."""
        for _, buffer in self.named_buffers():
            yield buffer

    def register_buffer(self, name: str, value: Tensor) -> None:
        """Keep a tensor with the module and in its ``state_dict``, without learning it."""
        setattr(self, name, value)
        self._buffer_names = (*self._buffer_names, name)

    def _own_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters and buffers of this module itself, with their attribute names."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and (isinstance(value, Parameter) or name in self._buffer_names):
                yield name, value

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every parameter and buffer once, with its dotted name: the first where it stands in several places."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, value in module._own_tensors():
                if id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def _tensor_at(self, dotted: str) -> Tensor | None:
        """The parameter or buffer of this name, which may be one of several that it has; None where there is none."""
        module: Module | None = self
        *path, name = dotted.split(".")
        for part in path:
            module = None if module is None else dict(module.children()).get(part)
        return None if module is None else dict(module._own_tensors()).get(name)

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
        for module in self._inside_out(set()):
            function(module)
        return self

    def _inside_out(self, seen: set[int]) -> Iterator[Module]:
        """All modules inside this one and then itself, each once."""
        seen.add(id(self))
        for _, child in self.children():
            if id(child) not in seen:
                yield from child._inside_out(seen)
        yield self

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.parameters():
            if p.grad is not None:  # a frozen one has none
                p.grad = None

    # ---------------------------------------------------------------------------------------------- saving and loading

    def state_dict(self) -> dict[str, Tensor]:
        """The values of all parameters and buffers by name, each once: tied ones have the first of their names. They share
        memory with the module: save or copy them."""
        return {name: value.detach() for name, value in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Take over the values of ``state_dict()``, as tensors or arrays; return the names that are missing, or unexpected.

        Raises ValueError, before anything is changed, that lists every missing name, every unexpected one, and every
        wrong shape. With ``strict=False`` only wrong shapes count. A tied tensor may come under any of its names; under
        several, with different values, it is refused, too.
        """
        own = dict(self._named_tensors())
        names = {id(tensor): name for name, tensor in own.items()}
        found: dict[str, tuple[str, Array]] = {}  # by the first name: the name in the state, and the values
        unexpected, problems = [], []
        for key, values in state.items():
            tensor = own[key] if key in own else self._tensor_at(key)
            if tensor is None:
                unexpected.append(key)
                continue
            array = as_array(values, tensor.dtype)
            if array.shape != tensor.shape:
                problems.append(f"{key}: shape {array.shape} instead of {tensor.shape}")
                continue
            other, others = found.setdefault(names[id(tensor)], (key, array))
            if not _same_values(array, others):
                problems.append(f"{key} and {other} are one tied tensor, but have different values")
        missing = [name for name in own if name not in found and name not in state]
        if strict:
            problems += _listed("missing", missing) + _listed("unexpected", unexpected)
        if problems:
            raise ValueError(f"the state does not fit this {type(self).__name__}: " + "; ".join(problems))
        for name, (_, array) in found.items():
            overwrite(own[name], array)
        return IncompatibleKeys(missing, unexpected)

    # --------------------------------------------------------------------------------------------------------- printing

    def extra_repr(self) -> str:
        """What stands between the parentheses of the repr, for a layer without modules inside."""
        return ""

    def __repr__(self) -> str:
        lines = self._tree("", "", ())
        width = max(len(text) for text, _ in lines)
        return "\n".join(f"{text:<{width}}  {count:>12,}" if count else text for text, count in lines)

    def _tree(self, name: str, indent: str, above: tuple[Module, ...]) -> list[tuple[str, int]]:
        """A line for each module: its name and kind, and how many parameters it has. One that refers back to a module
        ``above`` it shows that one's name and kind alone."""
        label = f"{indent}{name}: " if name else indent
        if any(self is module for module in above):
            return [(f"{label}{type(self).__name__}, as above", 0)]
        lines = [(f"{label}{type(self).__name__}({self.extra_repr()})", self.num_parameters())]
        for child_name, child in self.children():
            lines += child._tree(child_name, indent + "  ", (*above, self))
        return lines


def _same_values(a: Array, b: Array) -> bool:
    return a is b or bool(((a == b) | ((a != a) & (b != b))).all())  # NaN is the same as NaN here


def _listed(kind: str, names: list[str]) -> list[str]:
    return [f"{kind}: {', '.join(names)}"] if names else []


def overwrite(tensor: Tensor, values: Any) -> None:
    """Replace the values of a parameter or a buffer, in place."""
    tensor.data[...] = values
    note_change(tensor.data)


def convert_(tensor: Tensor, dtype: Any) -> None:
    """Change a leaf's dtype in place; it stays the same parameter to its module and its optimizer. Raises TypeError, and
    changes nothing, for a dtype that there is not, or in which it could not learn."""
    data = ops.astype(tensor, dtype).data
    requires_grad = tensor.requires_grad
    if requires_grad and not is_floating(data.dtype):
        raise TypeError(f"a parameter of {data.dtype} cannot learn: convert it to a floating-point dtype")
    tensor.requires_grad = False  # refuses a tensor that is no leaf
    tensor.grad = None
    tensor.data = data
    tensor.requires_grad = requires_grad


class ModuleList(Module):
    """Modules in a list, found like attributes, under the names 0, 1, 2, ..."""

    def __init__(self, modules: Iterable[Module] = ()):
        self._items: list[Module] = []
        for module in modules:
            self.append(module)

    def children(self) -> Iterator[tuple[str, Module]]:
        """The modules, named by their positions."""
        return ((str(i), module) for i, module in enumerate(self._items))

    def append(self, module: Module) -> None:
        """Add a module at the end. Raises TypeError for anything else."""
        if not isinstance(module, Module):
            raise TypeError(f"{type(self).__name__} holds modules, such as nn.ReLU(), not a {type(module).__name__}")
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
