"""Names that settings, their values and weights had in earlier versions.

Files and command lines of that time still work: whatever reads a run's settings, a checkpoint or a flag asks this file for
the new names. No other file knows the old ones, and nothing writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A setting's old name -> its new name.
SETTINGS = {"d_inner": "d_ff", "accumulation": "gradient_accumulation_steps"}

# A setting's new name -> its old values -> the new ones. "gelu" always was the tanh form.
VALUES = {"activation": {"gelu": "gelu_tanh"}}

# A layer's old name -> its new name, in the names of weights such as blocks.0.feed_forward.expand.weight.
LAYERS = {"expand": "up", "contract": "down"}


def with_new_names(settings: Any) -> Any:
    """A run's settings as JSON has them, with new names and values in every part. Raises ValueError where a part has a setting
    under both names."""
    if not isinstance(settings, Mapping):
        return settings
    return {name: _renamed(part) if isinstance(part, Mapping) else part for name, part in settings.items()}


def _renamed(part: Mapping[str, Any]) -> dict[str, Any]:
    for old, new in SETTINGS.items():
        if old in part and new in part:
            raise ValueError(f"it has both {new} and {old}, which is the old name of the same setting")
    if "muon_learning_rate" in part and "optimizer" not in part:  # it decided which optimizer trained
        part = {**part, "optimizer": "muon" if part["muon_learning_rate"] else "adamw"}
    names = {old: SETTINGS.get(old, old) for old in part}
    renamed = {names[old]: new_value(names[old], value) for old, value in part.items()}
    if renamed.get("d_ff") == 0 and isinstance(renamed.get("d_model"), int):  # it stood for this with every activation
        renamed["d_ff"] = 4 * renamed["d_model"]
    return renamed


def old_names(name: str) -> list[str]:
    """The old names of a setting."""
    return [old for old, new in SETTINGS.items() if new == name]


def new_value(name: str, value: Any) -> Any:
    """The value of the setting ``name``: the new one for an old one, any other as it is."""
    return VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


def new_weight_name(name: str) -> str:
    """The name of a weight, with new names of its layers."""
    return ".".join(LAYERS.get(layer, layer) for layer in name.split("."))
