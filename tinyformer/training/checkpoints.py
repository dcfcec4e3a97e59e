"""Checkpoints: named tensors and a JSON state in a single file, replaced atomically so that it is never half-written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

UNFINISHED = ".tinyformer.new"  # in a run's folder: its files before the first step


def save_checkpoint(path: Path, groups: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Save named groups of tensors and a JSON ``state`` to a single file.

    Raises UserError if the file cannot be written (for example, the disk is full) or a value is NaN or infinite. In that case,
    the previous file is unchanged.
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
    """Return the part of a message about the previous file, or "" if there is none or it will be removed with its new run."""
    return f"{which} before it stays as it was" if path.exists() and path.parent.name != UNFINISHED else ""


def load_checkpoint(path: Path, kind: str) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """Load the tensor groups and the state written by ``save_checkpoint``. Old names are replaced by new ones.

    Raises UserError if the file is missing or damaged, its state is not of this ``kind``, or a value is NaN or infinite.
    """
    with _as_checkpoint(path):
        tensors, metadata = load_with_metadata(path)
        state = parse_json(metadata["state"])
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
    """Return the state without reading the weights. Raises UserError if the file is missing or damaged."""
    with _as_checkpoint(path):
        return parse_json(read_metadata(path)["state"])


@contextmanager
def _as_checkpoint(path: Path) -> Iterator[None]:
    """Context manager in which a file that is not a checkpoint raises UserError."""
    try:
        yield
    except FileError as error:
        raise UserError(str(error)) from None
    except (KeyError, ValueError):
        raise UserError(f"{path} is not a checkpoint of tinyformer: it holds tensors, but no training state") from None


def class_of(model: Module) -> dict[str, str]:
    """Return the checkpoint entry for a model's class: its name, or nothing for tinyformer classes."""
    is_of_library = type(model).__module__.startswith("tinyformer.")
    return {} if is_of_library else {"model_class": type(model).__name__}


def class_in(path: Path, base: type[Any]) -> type[Any]:
    """Return the class of a checkpoint's model: ``base`` or a subclass. Raises UserError if no imported module defines it."""
    name: Any = read_state(path).get("model_class", base.__name__)
    classes = [base]
    for each in classes:
        if each.__name__ == name:
            return each
        classes += each.__subclasses__()
    raise UserError(
        f"{path.parent} holds {a_or_an(shortened(str(name), 60))}, not a model of tinyformer: name its file with --code FILE.py"
    )


def check_class(model: Module, state: Mapping[str, Any], path: Path) -> None:
    """Raise UserError if the model's class differs from the one in the checkpoint's ``state``."""
    saved, actual = state.get("model_class"), type(model).__name__
    if saved not in (None, actual):
        raise UserError(f"{path} holds the weights of {a_or_an(shortened(str(saved), 60))}, not of {a_or_an(actual)}")


def _not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a NaN or infinite value, or None."""
    floating = [name for name, tensor in tensors.items() if is_floating(tensor.dtype)]
    if not floating:
        return None
    with tt.no_grad():
        finite = tt.stack([tensors[name].isfinite().all() for name in floating]).tolist()  # synchronizes with a GPU only once
    return next((name for name, good in zip(floating, finite) if not good), None)


def learned_state(model: Module) -> dict[str, Tensor]:
    """Return the values that checkpoints store for a model: all, or only the adapter's (``tt.nn.add_lora``)."""
    return lora_state(model) if any(lora_weights(model)) else model.state_dict()


def put_weights(model: Module, weights: Mapping[str, Tensor], path: Path) -> None:
    """Load checkpoint weights into a model. Raises UserError if names, shapes or dtypes do not match, for example integers for
    weights or float64 for float32."""
    learned = learned_state(model)
    for name, tensor in learned.items():
        saved = weights.get(name)
        if saved is not None and not _holds(tensor.dtype, saved.dtype):
            raise UserError(f"{path} is damaged: {name} is of {saved.dtype}, but the model's is of {tensor.dtype}")
    has_additions = any(lora_weights(model))
    if has_additions and learned.keys() != weights.keys():
        raise UserError(f"{path} does not fit the model in {path.parent}: it has other additions to the weights")
    try:
        model.load_state_dict(weights, strict=not has_additions)
    except ValueError as error:
        raise UserError(f"{path} does not fit the model in {path.parent}: {shortened(str(error))}") from None


def _holds(dtype: Any, saved: Any) -> bool:
    """Return True if this dtype can store values of the saved dtype, either exactly or rounded from float32 to bfloat16."""
    if is_floating(dtype):
        return is_floating(saved) and saved.itemsize <= max(dtype.itemsize, 4)
    return bool(saved == dtype)
