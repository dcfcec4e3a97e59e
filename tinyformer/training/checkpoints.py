"""Checkpoints: named tensors and a JSON state in one file. A file is always replaced as a whole, so it is never
half-written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import damaged, parse_json
from tinyformer.common.settings import new_weight_name, with_new_names
from tinytensor import FileError, Tensor, save
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import is_floating
from tinytensor.io import load_with_metadata, read_metadata
from tinytensor.nn import Module, lora_state
from tinytensor.nn.lora import lora_weights

UNFINISHED = ".tinyformer.new"  # the folder of a run's files before its first step, in the run's folder


def save_checkpoint(path: Path, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write named groups of tensors and a JSON ``state`` to one file.

    Raises UserError if the file cannot be written, as without space or permission, and if a value is NaN or infinite. Then the
    file that was there before stays.
    """
    tensors = {f"{group}/{name}": tensor for group, members in groups.items() for name, tensor in members.items()}
    if name := _not_finite(tensors):
        raise UserError(f"{name} became NaN or infinite: {path} is not written{_and_before(path, ', and the checkpoint')}")
    try:
        save(tensors, path, {"state": json.dumps(state)})
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"the checkpoint {path} could not be written ({reason}){_and_before(path, '; the one')}") from None


def _and_before(path: Path, which: str) -> str:
    """What a message says of the file that was there before: nothing if there was none, or if it is that of a new run which has
    not replaced another yet, and goes with it."""
    return f"{which} before it stays as it was" if path.exists() and path.parent.name != UNFINISHED else ""


def load_checkpoint(path: Path, kind: str) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """The groups of tensors and the state that ``save_checkpoint`` wrote. Old names in them are replaced by new ones.

    Raises UserError if the file is missing or damaged, if its state is not of this ``kind``, and if a value is NaN or infinite.
    """
    try:
        tensors, metadata = load_with_metadata(path)
        state = parse_json(metadata["state"])
    except FileError as error:
        raise UserError(str(error)) from None
    except (KeyError, ValueError):
        raise UserError(f"{path} is not a checkpoint of tinyformer: it holds tensors, but no training state") from None
    if state.get("kind") != kind:
        raise UserError(f"{path} is not a checkpoint of the kind {kind!r}")
    if "settings" in state:
        with damaged(path):
            state["settings"] = with_new_names(state["settings"])
    if name := _not_finite(tensors):
        raise UserError(f"{path} is damaged: {name} has values that are NaN or infinite")
    groups: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        group, _, member = name.partition("/")
        groups.setdefault(group, {})[new_weight_name(member)] = tensor
    return groups, state


def read_state(path: Path) -> dict[str, Any]:
    """The state alone, which takes little time also where the weights are large; nothing else is checked. Raises UserError if
    the file is missing or damaged."""
    try:
        return parse_json(read_metadata(path)["state"])
    except FileError as error:
        raise UserError(str(error)) from None
    except (KeyError, ValueError):
        raise UserError(f"{path} is not a checkpoint of tinyformer: it holds tensors, but no training state") from None


def class_of(model: Module) -> dict[str, str]:
    """The class of a model for the state of its checkpoint, if it is no class of tinyformer."""
    is_own = not type(model).__module__.startswith("tinyformer.")
    return {"model_class": type(model).__name__} if is_own else {}


def class_in(path: Path, base: type[Any]) -> type[Any]:
    """The class of the model in a checkpoint: ``base`` or a subclass. Raises UserError if no imported file defines it."""
    name: Any = read_state(path).get("model_class", base.__name__)
    classes = [base]
    for each in classes:
        if each.__name__ == name:
            return each
        classes += each.__subclasses__()
    own = a_or_an(shortened(str(name), 60))
    raise UserError(f"{path.parent} holds {own}, not a model of tinyformer: name its file with --code FILE.py")


def check_class(model: Module, state: Mapping[str, Any], path: Path) -> None:
    """Raise UserError if the model is not of the class that the checkpoint's ``state`` names."""
    name, own = state.get("model_class"), type(model).__name__
    if name not in (None, own):
        raise UserError(f"{path} holds the weights of {a_or_an(shortened(str(name), 60))}, not of {a_or_an(own)}")


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that has a NaN or infinite value; None if there is none."""
    floating = [name for name, tensor in tensors.items() if is_floating(tensor.dtype)]
    if not floating:
        return None
    with tt.no_grad():
        finite = tt.stack([tensors[name].isfinite().all() for name in floating]).tolist()  # a GPU is waited for only once
    return next((name for name, good in zip(floating, finite) if not good), None)


def learned_state(model: Module) -> dict[str, Tensor]:
    """What a checkpoint has of a model: all its values, or only those that training changes, where what is learned was added to
    frozen weights (``tt.nn.add_lora``)."""
    return lora_state(model) if any(lora_weights(model)) else model.state_dict()


def put_weights(model: Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Put the weights of a checkpoint into a model. Raises UserError if their names or shapes do not fit, or if their dtype
    does not: integers for weights, or float64 for float32."""
    learned = learned_state(model)
    for name, own in learned.items():
        given = weights.get(name)
        if given is not None and not _holds(own.dtype, given.dtype):
            raise UserError(f"{path} is damaged: {name} is of {given.dtype}, but the model's is of {own.dtype}")
    has_additions = any(lora_weights(model))
    if has_additions and learned.keys() != weights.keys():
        raise UserError(f"{path} does not fit the model in {path.parent}: it has other additions to the weights")
    try:
        model.load_state_dict(weights, strict=not has_additions)
    except ValueError as error:
        raise UserError(f"{path} does not fit the model in {path.parent}: {shortened(str(error))}") from None


def _holds(own: Any, given: Any) -> bool:
    """Whether a tensor of the dtype ``own`` can take values of the dtype ``given``. It can if no value changes; besides, a
    narrow float such as bfloat16 takes those of float32, which are rounded."""
    if is_floating(own):
        return is_floating(given) and given.itemsize <= max(own.itemsize, 4)
    return bool(given == own)
