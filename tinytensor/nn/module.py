"""The base class of layers and models."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar

from tinytensor.autograd.engine import note_change
from tinytensor.autograd.inputs import as_array
from tinytensor.autograd.replaying import Replacements
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked, shown
from tinytensor.common.missing import missing
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import is_floating
from tinytensor.nn.hooks import HookHandle, Hooks
from tinytensor.nn.leaves import clear_gradients, convert_, overwrite
from tinytensor.nn.state import IncompatibleKeys, load

Self = TypeVar("Self", bound="Module")
Inputs = ParamSpec("Inputs")
Result = TypeVar("Result", covariant=True)


class HasForward(Protocol[Inputs, Result]):
    """A module whose ``forward`` has a known signature, for type checkers."""

    _forward_hooks: Hooks | None

    def forward(self, *args: Inputs.args, **kwargs: Inputs.kwargs) -> Result: ...


class Parameter(Tensor):
    """A tensor that a module learns. It requires gradients. ``parameters()`` includes it if it is an attribute of a module."""

    __slots__ = ()

    @checked
    def __init__(self, data: Any, requires_grad: bool = True):
        super().__init__(data, requires_grad=requires_grad)

    def assign(self, values: Any) -> None:
        """Replace the values in place. Raises ValueError if the shapes differ."""
        array = as_array(values, self.dtype)
        if array.shape != self.shape:
            raise ValueError(f"values of shape {array.shape} do not fit a parameter of shape {self.shape}")
        overwrite(self, array)

    def mark_changed(self) -> None:
        """Record that the values were changed in place. A graph that used the old values then refuses to run backward."""
        note_change(self.data)

    def __repr__(self) -> str:
        return "Parameter " + super().__repr__()


class Module:
    """The base class of all layers and models.

    Subclasses set ``Parameter``s, modules and ``ModuleList``s as attributes in ``__init__`` and define ``forward``. Calling the
    module calls ``forward``. Parameters inside a plain list, dict or tuple are not registered.
    """

    training = True
    _buffer_names: tuple[str, ...] = ()
    _forward_hooks: Hooks | None = None
    _repr_html_: ClassVar[Callable[[Any], str]]  # set by display/, for notebooks

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute. Raises TypeError if the value would replace a module or tensor, and ValueError for an invalid
        name."""
        self._check_replacement(name, value)
        if isinstance(value, (Parameter, Module)):
            self._check_name(name)
        elif isinstance(value, bool):
            self._check_flag(name, value)
        parts = (value, self.__dict__.get(name))
        object.__setattr__(self, name, value)
        if name in self._buffer_names or any(isinstance(part, (Parameter, Module)) for part in parts):
            Replacements.note()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        Replacements.note()
        self._buffer_names = tuple([buffer for buffer in self._buffer_names if buffer != name])

    def _check_replacement(self, name: str, value: Any) -> None:
        held = self.__dict__.get(name)
        path = f"{type(self).__name__}.{name}"
        if name in self._buffer_names and not (value is None or isinstance(value, Tensor)):
            raise TypeError(f"{path} is a buffer: set it to a tensor, not {shown(value)}")
        if value is None or isinstance(value, (Parameter, Module)):
            return
        if isinstance(held, Parameter):
            raise TypeError(
                f"{path} is a Parameter, and {shown(value)} in its place would not be learned: "
                f"change its values with .{name}.assign(...), or set it to another nn.Parameter(...) or to None"
            )
        if isinstance(held, Module):
            raise TypeError(
                f"{path} is {a_or_an(type(held).__name__)}, and {shown(value)} in its place would be no part of the model: "
                "set it to another module or to None"
            )

    def _check_flag(self, name: str, value: bool) -> None:
        """Raise TypeError for a flag assigned to a method, as in ``model.train = False``, because it would have no effect."""
        method = "requires_grad_" if name == "requires_grad" and not hasattr(type(self), name) else name
        if callable(getattr(Module, method, None)):
            raise TypeError(f"{type(self).__name__}.{name} = {value} would change nothing: call .{method}(...)")

    def _check_name(self, name: str) -> None:
        if name == "" or "." in name or not name.isprintable():
            raise ValueError(f"{name!r} cannot name a part of {type(self).__name__}: names are printable and without dots")
        of_class = getattr(type(self), name, None)  # attributes in slots are not registered
        if hasattr(Module, name) or inspect.isroutine(of_class) or inspect.ismemberdescriptor(of_class):
            raise ValueError(f"{name!r} cannot name a part of {type(self).__name__}: the class has {a_or_an(name)} of its own")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing("Module", name, self, type(self).__name__)

    def __call__(self: HasForward[Inputs, Result], *args: Inputs.args, **kwargs: Inputs.kwargs) -> Result:
        output = self.forward(*args, **kwargs)
        return output if self._forward_hooks is None else self._forward_hooks.show("forward", self, args, output)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the output of the module. Every subclass defines this method."""
        raise TypeError(f"{type(self).__name__} has no forward method: write one")

    @checked
    def register_forward_hook(self, hook: Callable[[Any, tuple[Any, ...], Any], Any]) -> HookHandle:
        """Run ``hook(module, inputs, output)`` after each call of this module. ``inputs`` holds the positional arguments.

        If the hook returns a value other than None, it replaces the output. Remove the hook with ``handle.remove()``, or
        register it in ``with module.register_forward_hook(hook):``. Calling ``forward`` directly runs no hooks. While a module
        has hooks, traced functions run untraced, and captured steps raise CaptureError.

        >>> linear = tt.nn.Linear(3, 2)
        >>> with linear.register_forward_hook(lambda module, inputs, output: print(inputs[0].shape, output.shape)):
        ...     _ = linear(tt.ones((5, 3)))
        (5, 3) (5, 2)
        """
        return HookHandle(self, "forward", hook)

    # ------------------------------------------------------------------------------------- submodules and parameters

    def children(self) -> Iterator[Module]:
        """Iterate over the direct submodules, each once."""
        for _, module in self.named_children():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Iterate over the direct submodules, each once, with its first attribute name."""
        seen: set[int] = set()
        for name, module in self._own_modules():
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def _own_modules(self) -> Iterator[tuple[str, Module]]:
        """Iterate over the direct submodules under each of their attribute names."""
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    @checked
    def get_submodule(self, target: str) -> Module:
        """Return the module with this dotted name ('' for this one). Raises AttributeError if there is none."""
        module = self._module_at(target.split(".") if target else [])
        if module is None:
            raise AttributeError(f"{type(self).__name__} has no module {target!r}: named_modules() lists them")
        return module

    def _module_at(self, path: list[str]) -> Module | None:
        module: Module | None = self
        for name in path:
            module = None if module is None else dict(module._own_modules()).get(name)
        return module

    @checked
    def add_module(self, name: str, module: Any) -> None:
        """Set an attribute with this name to a module or None.

        Raises TypeError for any other value, and ValueError if the name is invalid or already taken by another attribute.
        """
        if not (module is None or isinstance(module, Module)):
            raise TypeError(f"the part {name!r} must be a module, such as nn.ReLU(), got {shown(module)}")
        self._check_name(name)
        if not isinstance(getattr(self, name, None), (Module, type(None))):
            raise ValueError(f"{type(self).__name__} has an attribute {name!r} already: give the module another name")
        setattr(self, name, module)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Iterate over this module and all its submodules, depth first, with their dotted names ('' for this module).

        Each module appears once, under its first name.
        """
        return self._walk(prefix, set())

    def _walk(self, path: str, seen: set[int]) -> Iterator[tuple[str, Module]]:
        seen.add(id(self))
        yield path, self
        for name, child in self._own_modules():
            if id(child) not in seen:
                yield from child._walk(f"{path}.{name}" if path else name, seen)

    def modules(self) -> Iterator[Module]:
        """Iterate over this module and all its submodules."""
        for _, module in self.named_modules():
            yield module

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Iterate over all parameters, each once, with its first dotted name."""
        for name, value in self._named_tensors():
            if isinstance(value, Parameter):
                yield name, value

    def parameters(self) -> Iterator[Parameter]:
        """Iterate over all parameters, each once."""
        for _, parameter in self.named_parameters():
            yield parameter

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over all buffers, each once, with its first dotted name. Buffers are tensors that are stored but not
        learned."""
        for name, value in self._named_tensors():
            if not isinstance(value, Parameter):
                yield name, value

    def buffers(self) -> Iterator[Tensor]:
        """Iterate over all buffers, each once."""
        for _, buffer in self.named_buffers():
            yield buffer

    def register_buffer(self, name: str, value: Tensor | None) -> None:
        """Register a tensor that is not learned but belongs to the ``state_dict``.

        To inform type checkers, declare it in the class, as in ``mask: tt.Tensor``. Raises TypeError for any other value, and
        ValueError if the name is invalid or already taken by another attribute.
        """
        if not isinstance(name, str):
            raise TypeError(f"the name of a buffer must be text, got {name!r}")
        if isinstance(value, Parameter) or not (value is None or isinstance(value, Tensor)):
            raise TypeError(f"the buffer {name!r} must be a tensor that is not learned, got {shown(value)}")
        self._check_replacement(name, value)
        self._check_name(name)
        held = getattr(self, name, None)
        if not (held is None or isinstance(held, Tensor)):
            raise ValueError(f"{type(self).__name__} has an attribute {name!r} already: give the buffer another name")
        if name not in self._buffer_names:
            self._buffer_names = (*self._buffer_names, name)
        setattr(self, name, value)

    def _own_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over the parameters and buffers set directly on this module, with their attribute names."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and (isinstance(value, Parameter) or name in self._buffer_names):
                yield name, value

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Iterate over all parameters and buffers, each once, with its first dotted name."""
        seen: set[int] = set()
        for path, module in self.named_modules():
            for name, value in module._own_tensors():
                if id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def _tensor_at(self, dotted: str) -> Tensor | None:
        """Return the parameter or buffer with this name (any of its names), or None."""
        *path, name = dotted.split(".")
        module = self._module_at(path)
        return None if module is None else dict(module._own_tensors()).get(name)

    def num_parameters(self) -> int:
        """Return the number of values in all parameters."""
        return sum(p.size for p in self.parameters())

    # --------------------------------------------------------------------------------------------- changing the mode

    @checked
    def train(self: Self, mode: bool = True) -> Self:
        """Set this module and all submodules to training mode (dropout on) or, if ``mode`` is False, to evaluation mode."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: Self) -> Self:
        """Set this module and all submodules to evaluation mode (dropout off)."""
        return self.train(False)

    def astype(self: Self, dtype: Any) -> Self:
        """Convert all floating-point tensors of this module and its submodules in place.

        After conversion to "bfloat16", the module computes in bfloat16, which requires a GPU. Gradients are discarded, and
        existing graphs no longer backpropagate to the parameters.
        """
        for module in self.modules():
            for value in vars(module).values():
                if isinstance(value, Tensor) and is_floating(value.dtype) and value.dtype != dtype:
                    convert_(value, dtype)
        return self

    @checked
    def apply(self: Self, function: Callable[[Module], Any]) -> Self:
        """Call the function on every submodule, then on this module."""
        for module in self._inside_out(set()):
            function(module)
        return self

    def _inside_out(self, seen: set[int]) -> Iterator[Module]:
        """Iterate over all submodules, each once, then this module."""
        seen.add(id(self))
        for child in self.children():
            if id(child) not in seen:
                yield from child._inside_out(seen)
        yield self

    @checked
    def requires_grad_(self: Self, requires_grad: bool = True) -> Self:
        """Set whether the parameters require gradients. False freezes them."""
        for p in self.parameters():
            p.requires_grad = requires_grad
        return self

    @checked
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard all gradients. If ``set_to_none`` is False, set them to zero instead."""
        clear_gradients(self.parameters(), set_to_none)

    # ---------------------------------------------------------------------------------------------- saving and loading

    def state_dict(self) -> dict[str, Tensor]:
        """Return the values of all parameters and buffers by name. A tied tensor appears once, under its first name.

        The values share memory with the module, so save or copy them before you train further.
        """
        return {name: value.detach() for name, value in self._named_tensors()}

    @checked
    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True, assign: bool = False) -> IncompatibleKeys:
        """Load the tensors or arrays of a ``state_dict()``. Return the missing and unexpected names.

        Raises ValueError, before any change, listing all missing names, unexpected names and wrong shapes. If ``strict`` is
        False, only wrong shapes are errors. A tied tensor may appear under any of its names. Several names with different
        values are an error.

        If ``assign`` is set, each parameter uses its array without a copy where the dtypes match. This avoids a second copy of
        a memory-mapped file.
        """
        return load(dict(self._named_tensors()), self._tensor_at, state, strict, assign, f"this {type(self).__name__}")

    # --------------------------------------------------------------------------------------------------------- printing

    def extra_repr(self) -> str:
        """Return the string between the parentheses of the repr, for a layer without submodules."""
        return ""

    def __repr__(self) -> str:
        lines = self._tree("", "", ())
        width = max(len(text) for text, _ in lines)
        return "\n".join(f"{text:<{width}}  {count:>12,}" if count else text for text, count in lines)

    def _tree(self, name: str, indent: str, above: tuple[Module, ...]) -> list[tuple[str, int]]:
        """Return one line for each module: its name, class and number of parameters.

        A module that contains itself (listed in ``above``) gets one line without its submodules.
        """
        label = f"{indent}{name}: " if name else indent
        if any(self is module for module in above):
            return [(f"{label}{type(self).__name__}, as above", 0)]
        lines = [(f"{label}{type(self).__name__}({self.extra_repr()})", self.num_parameters())]
        for child_name, child in self._own_modules():
            lines += child._tree(child_name, indent + "  ", (*above, self))
        return lines
