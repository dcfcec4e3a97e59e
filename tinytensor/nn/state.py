"""Load a ``state_dict()`` into the parameters and buffers of a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tinytensor.autograd.inputs import as_array
from tinytensor.autograd.tensor import Tensor
from tinytensor.device.backend import Array, is_array
from tinytensor.nn.leaves import overwrite, replace_data


class IncompatibleKeys(NamedTuple):
    """The missing and unexpected names that ``load_state_dict`` returns."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load(
    tensors: Mapping[str, Tensor], tensor_at: Callable[[str], Tensor | None], state: Mapping[str, Any], strict: bool,
    assign: bool, whose: str,
) -> IncompatibleKeys:  # fmt: skip
    """Load a state into ``tensors``, each under its first name; see ``Module.load_state_dict``.

    ``tensor_at`` looks up any name. ``whose`` describes the tensors' owner in error messages.
    """
    names = {id(tensor): name for name, tensor in tensors.items()}
    loaded: dict[str, tuple[str, Array]] = {}  # first name of a tensor -> its name in the state, and its values
    unexpected, problems = [], []
    check_state(state)
    for key, values in state.items():
        tensor = tensors[key] if key in tensors else tensor_at(key)
        if tensor is None:
            unexpected.append(key)
            continue
        array = _array_for(tensor, values, assign)
        if array.shape != tensor.shape:
            problems.append(f"{key}: shape {array.shape} instead of {tensor.shape}")
            continue
        first_key, first_array = loaded.setdefault(names[id(tensor)], (key, array))
        if not _same_values(array, first_array):
            problems.append(f"{key} and {first_key} are one tied tensor, but have different values")
    missing = [name for name in tensors if name not in loaded and name not in state]
    if strict:
        listed = {"missing": missing, "unexpected": unexpected}
        problems += [f"{problem}: {', '.join(names)}" for problem, names in listed.items() if names]
    if problems:
        raise ValueError(f"the state does not fit {whose}: " + "; ".join(problems))
    for name, (_, array) in loaded.items():
        (replace_data if assign else overwrite)(tensors[name], array)
    return IncompatibleKeys(missing, unexpected)


def check_state(state: Any) -> None:
    """Raise TypeError unless every key of the state is a string."""
    for key in state:
        if not isinstance(key, str):
            raise TypeError(f"a state has tensors by name, and {key!r} cannot be a name")


def _array_for(tensor: Tensor, values: Any, assign: bool) -> Array:
    """Convert the values to the tensor's dtype. If ``assign`` is set, an array of this dtype is not copied."""
    array = values.data if isinstance(values, Tensor) else values
    fits = assign and is_array(array) and array.dtype == tensor.dtype
    return array if fits else as_array(values, tensor.dtype)


def _same_values(a: Array, b: Array) -> bool:
    return a is b or bool(((a == b) | ((a != a) & (b != b))).all())  # NaN equals NaN here
