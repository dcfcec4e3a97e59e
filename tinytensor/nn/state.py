"""Loading the values of a ``state_dict()`` into the parameters and buffers of a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tinytensor.autograd.inputs import as_array
from tinytensor.autograd.tensor import Tensor
from tinytensor.device.backend import Array, is_array
from tinytensor.nn.leaves import overwrite, replace_data


class IncompatibleKeys(NamedTuple):
    """The names that only a module or only a state has; ``load_state_dict`` returns them."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load(
    own: Mapping[str, Tensor], tensor_at: Callable[[str], Tensor | None], state: Mapping[str, Any], strict: bool, assign: bool,
    whose: str,
) -> IncompatibleKeys:  # fmt: skip
    """What ``Module.load_state_dict`` does, for its ``own`` tensors, each by its first name; ``tensor_at`` knows all names, and
    ``whose`` they are is told in errors."""
    names = {id(tensor): name for name, tensor in own.items()}
    found: dict[str, tuple[str, Array]] = {}  # by a tensor's first name: its name in the state, and its values
    unexpected, problems = [], []
    check_state(state)
    for key, values in state.items():
        tensor = own[key] if key in own else tensor_at(key)
        if tensor is None:
            unexpected.append(key)
            continue
        array = _array_for(tensor, values, assign)
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
        raise ValueError(f"the state does not fit {whose}: " + "; ".join(problems))
    for name, (_, array) in found.items():
        (replace_data if assign else overwrite)(own[name], array)
    return IncompatibleKeys(missing, unexpected)


def check_state(state: Any) -> None:
    """Raise TypeError unless everything that is to be loaded has a name."""
    for key in state:
        if not isinstance(key, str):
            raise TypeError(f"a state has tensors by name, and {key!r} cannot be a name")


def _array_for(tensor: Tensor, values: Any, assign: bool) -> Array:
    """The values in the tensor's dtype; with ``assign`` the very array that was given, if its dtype is right."""
    given = values.data if isinstance(values, Tensor) else values
    fits = assign and is_array(given) and given.dtype == tensor.dtype
    return given if fits else as_array(values, tensor.dtype)


def _same_values(a: Array, b: Array) -> bool:
    return a is b or bool(((a == b) | ((a != a) & (b != b))).all())  # here NaN equals NaN


def _listed(kind: str, names: list[str]) -> list[str]:
    return [f"{kind}: {', '.join(names)}"] if names else []
