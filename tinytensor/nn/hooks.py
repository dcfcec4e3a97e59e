"""Forward hooks: functions that are told what a module computed, and may look at it or replace it.

A module shows what ``forward`` returned, and some show more, each thing under a name of its own.
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
_living: WeakSet[Hooks] = WeakSet()  # those of all modules


class Hooks:
    """The hooks of one module, by the name of what they look at, in the order in which they were registered."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[HookHandle, Hook]] = {}
        _living.add(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hooks:
        copy = Hooks()
        copy._by_name = {name: dict(hooks) for name, hooks in self._by_name.items()}
        return copy

    def look_at(self, name: str) -> bool:
        """Whether there is a hook for what has this name."""
        return name in self._by_name

    def show(self, name: str, module: Any, inputs: tuple[Any, ...], output: Any) -> Any:
        """Tell the hooks of this name what the module got and computed. Return the output: theirs, if they replace it."""
        for hook in list(self._by_name.get(name, {}).values()):
            replaced = hook(module, inputs, output)
            output = output if replaced is None else replaced
        return output

    def add(self, name: str, handle: HookHandle, hook: Hook) -> None:
        self._by_name.setdefault(name, {})[handle] = hook

    def remove(self, name: str, handle: HookHandle) -> bool:
        """Take the hook away, if it is there. True if none is left."""
        hooks = self._by_name.get(name, {})
        hooks.pop(handle, None)
        if not hooks:
            self._by_name.pop(name, None)
        return not self._by_name


class HookHandle:
    """A hook that was registered. ``remove()`` takes it away, and so does the end of a ``with``."""

    def __init__(self, module: Module, name: str, hook: Hook):
        self._module, self._name = module, name
        with _lock:
            hooks = vars(module).setdefault("_forward_hooks", Hooks())
            hooks.add(name, self, hook)

    def remove(self) -> None:
        """Take the hook away. Once is enough; again does nothing."""
        with _lock:
            hooks = vars(self._module).get("_forward_hooks")
            if hooks is not None and hooks.remove(self._name, self):
                del vars(self._module)["_forward_hooks"]

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def show(module: Any, name: str, output: Any) -> Any:
    """Show the hooks of a module what has this name. Returns it, or what a hook gives in its place."""
    return output if module._forward_hooks is None else module._forward_hooks.show(name, module, (), output)


def any_hooks() -> bool:
    """Whether any module has hooks. A program that runs only the kernels of a module would not call them."""
    return bool(_living)


@contextmanager
def hooked(hooks: list[tuple[Module, str, Hook]]) -> Iterator[None]:
    """A context in which modules have these hooks, each for what has this name."""
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
    """A context that records what every module of these kinds returns, in one list for each module, with an entry for each
    call. Without ``kinds`` it records those of all modules.

    The dict that it yields has the names of the modules as keys ('' is the model itself). The outputs are not copied, so
    gradients flow through them as ever: open ``tt.no_grad()``, too, if they are only looked at. Several recordings may be
    open at once, of one model, too. Raises TypeError for kinds that are no classes.

    >>> model = tt.nn.Sequential(tt.nn.Linear(3, 8), tt.nn.Tanh(), tt.nn.Linear(8, 2))
    >>> with tt.no_grad(), tt.nn.recording_outputs(model, tt.nn.Linear) as recorded:
    ...     _ = model(tt.ones((5, 3)))
    >>> {name: outputs[0].shape for name, outputs in recorded.items()}
    {'0': (5, 8), '2': (5, 2)}
    """
    classes = kinds if isinstance(kinds, tuple) else (object if kinds is None else kinds,)
    if not all(isinstance(each, type) for each in classes):
        raise TypeError(
            f"recording_outputs: kinds must be a class of modules, such as tt.nn.Linear, or a tuple of them, not {shown(kinds)}"
        )
    modules = {name: module for name, module in model.named_modules() if isinstance(module, classes)}
    recorded: dict[str, list[Any]] = {name: [] for name in modules}

    def keep(name: str) -> Hook:
        return lambda module, inputs, output: recorded[name].append(output)

    with hooked([(module, "forward", keep(name)) for name, module in modules.items()]):
        yield recorded
