"""Forward hooks: functions that inspect or replace the output of a module.

Every module shows its hooks the output of ``forward``. Some modules also show other values, each under its own name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from tinytensor.common.arguments import shown
from tinytensor.device.forks import held_by_forks

if TYPE_CHECKING:
    from tinytensor.nn.module import Module

Hook = Callable[[Any, tuple[Any, ...], Any], Any]

_lock = held_by_forks(threading.RLock())
_living: WeakSet[Hooks] = WeakSet()  # the hooks of all modules


class Hooks:
    """The hooks of one module, by the name of the value that they receive, in the order of registration."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[HookHandle, Hook]] = {}
        _living.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hooks:
        copy = Hooks()
        copy._by_name = {name: dict(hooks) for name, hooks in self._by_name.items()}
        return copy

    def look_at(self, name: str) -> bool:
        """Return True if there is a hook for the value with this name."""
        return name in self._by_name

    def show(self, name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Call the hooks registered for this name. Return the output or its replacement."""
        for hook in list(self._by_name.get(name, {}).values()):
            replaced = hook(module, inputs, output)
            output = output if replaced is None else replaced
        return output

    def add(self, name: str, handle: HookHandle, hook: Hook) -> None:
        self._by_name.setdefault(name, {})[handle] = hook

    def remove(self, name: str, handle: HookHandle) -> bool:
        """Remove the hook if it is registered. Return True if no hooks are left."""
        hooks = self._by_name.get(name, {})
        hooks.pop(handle, None)
        if not hooks:
            self._by_name.pop(name, None)
        return not self._by_name


class HookHandle:
    """A registered hook. Remove it with ``remove()`` or by leaving a ``with`` block."""

    def __init__(self, module: Module, name: str, hook: Hook):
        self._module, self._name = module, name
        with _lock:
            hooks = vars(module).setdefault("_forward_hooks", Hooks())
            hooks.add(name, self, hook)

    def remove(self) -> None:
        """Remove the hook. Calling this again does nothing."""
        with _lock:
            hooks = vars(self._module).get("_forward_hooks")
            if hooks is not None and hooks.remove(self._name, self):
                del vars(self._module)["_forward_hooks"]

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def show(module: Any, name: str, output: Any) -> Any:
    """Pass a value to the module's hooks for this name. Return the value or its replacement."""
    return output if module._forward_hooks is None else module._forward_hooks.show(name, module, (), output)


def any_hooks() -> bool:
    """Return True if any module has hooks. A program that calls only a module's kernels would skip them."""
    return bool(_living)


@contextmanager
def hooked(hooks: list[tuple[Module, str, Hook]]) -> Iterator[None]:
    """Return a context in which each hook is registered for the value with this name."""
    handles: list[HookHandle] = []
    try:
        for module, name, hook in hooks:
            handles.append(HookHandle(module, name, hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def recording_outputs(
    model: Module, kinds: type[Module] | tuple[type[Module], ...] | None = None
) -> Iterator[dict[str, list[Any]]]:
    """Return a context that records the outputs of all modules whose class is in ``kinds`` (None: all modules).

    The context yields a dict from module names ('' is the model itself) to lists with one output per call. Outputs are not
    copied, and gradients flow through them. If you only inspect them, also use ``tt.no_grad()``. Several recordings may be open
    simultaneously. Raises TypeError if ``kinds`` are not classes.

    >>> model = tt.nn.Sequential(tt.nn.Linear(3, 8), tt.nn.Tanh(), tt.nn.Linear(8, 2))
    >>> with tt.no_grad(), tt.nn.recording_outputs(model, tt.nn.Linear) as recorded:
    ...     _ = model(tt.ones((5, 3)))
    >>> {name: outputs[0].shape for name, outputs in recorded.items()}
    {'0': (5, 8), '2': (5, 2)}
    """
    classes = kinds if isinstance(kinds, tuple) else (object if kinds is None else kinds,)
    if not all(isinstance(each, type) for each in classes):
        raise TypeError(
            f"recording_outputs: kinds must be a class of modules, such as tt.nn.Linear, or a tuple of them, got {shown(kinds)}"
        )
    modules = {name: module for name, module in model.named_modules() if isinstance(module, classes)}
    recorded: dict[str, list[Any]] = {name: [] for name in modules}

    def keep(name: str) -> Hook:
        return lambda module, inputs, output: recorded[name].append(output)

    with hooked([(module, "forward", keep(name)) for name, module in modules.items()]):
        yield recorded
