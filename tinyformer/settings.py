"""Settings as typed dataclasses: a field with its help text, and the checks that several of them share."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from tinyformer.errors import SettingError

Settings = TypeVar("Settings")


def setting(default: Any, help: str, changeable: bool = False) -> Any:
    """A dataclass field that ``add_settings`` turns into a flag with this help text. A ``changeable`` one may be another when a
    run is resumed with --resume-changed."""
    return dataclasses.field(default=default, metadata={"help": help, "changeable": changeable})


def settings_from(kind: type[Settings], values: Mapping[str, Any], **more: Any) -> Settings:
    """The dataclass from a mapping (such as ``vars(arguments)``) that may hold other things, too."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names}, **more)


def changed_settings(kind: type, values: Mapping[str, Any], saved: Any) -> list[str]:
    """The settings of ``kind`` in ``values`` (such as ``vars(arguments)``) that are not what ``saved`` says."""
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if name in values and values[name] != getattr(saved, name)]


def is_changeable(kind: type, name: str) -> bool:
    """Whether a resumed run may have another value of this setting."""
    return any(field.name == name and field.metadata.get("changeable", False) for field in dataclasses.fields(kind))


def check_counts(**counts: Any) -> None:
    """Raise SettingError unless all of these settings, given by name, are integers of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise SettingError(f"{name} must be an integer, not {value!r}")
        if int(value) < 1:
            raise SettingError(f"{name} must be at least 1, not {value}")


def at_least_one(config: object, *names: str) -> None:
    """Raise SettingError where one of these settings is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise SettingError(f"{name} must be at least 1, not {getattr(config, name)}")


def at_least(config: object, **least: float) -> None:
    """Raise SettingError where a setting is below what its keyword says."""
    for name, smallest in least.items():
        if getattr(config, name) < smallest:
            raise SettingError(f"{name} must be at least {smallest}, not {getattr(config, name)}")


def one_of(config: object, name: str, choices: Iterable[str]) -> None:
    """Raise SettingError where this setting is none of the choices."""
    if getattr(config, name) not in choices:
        raise SettingError(f"{name} must be one of {', '.join(choices)}, not {getattr(config, name)!r}")
