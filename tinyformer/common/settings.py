"""Settings as fields of typed dataclasses: their help texts, how they are read, and checks that several dataclasses share."""

from __future__ import annotations

import dataclasses
import json
import numbers
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tinyformer.common.errors import SettingError, shortened

Settings = TypeVar("Settings")


def setting(default: Any, help: str, changeable: bool = False, unless: Mapping[str, Sequence[Any]] | None = None) -> Any:
    """A field of a dataclass that ``add_settings`` turns into a flag with this help text. --resume-changed may change a
    ``changeable`` one when a run is resumed. ``unless`` has the values of other fields beside which this one has no effect, as
    in ``unless={"schedule": ["constant"]}``: then ``check_effects`` refuses its flag.

    >>> from dataclasses import dataclass
    >>> from tinyformer import setting
    >>> @dataclass
    ... class Tuning:
    ...     rate: float = setting(0.1, "how fast it learns")
    >>> Tuning().rate
    0.1
    """
    return dataclasses.field(default=default, metadata={"help": help, "changeable": changeable, "unless": unless or {}})


def as_flag(name: str) -> str:
    """Return the flag of a setting: --batch-size for batch_size."""
    return "--" + name.replace("_", "-")


def settings_from(kind: type[Settings], values: Mapping[str, Any], **more: Any) -> Settings:
    """A dataclass of this ``kind`` from the values that are for it, and from ``more``. ``values``, such as ``vars(arguments)``,
    may hold others, which are left out."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names}, **more)


def check_effects(config: Any, given: Iterable[str]) -> None:
    """Raise SettingError for a setting among those that were ``given``, such as the names of ``vars(arguments)``, if it has no
    effect beside the others.

    What no list of values can say, ``config.without_effect()`` does, if there is such a method: it yields the name of a setting
    that has no effect, followed by those of the settings that it depends on, and the message.
    """
    names = set(given)
    for (name, *others), message in getattr(config, "without_effect", tuple)():
        if name in names:
            raise SettingError(message, name, *others)
    for field in dataclasses.fields(config):
        for other, values in field.metadata.get("unless", {}).items() if field.name in names else ():
            value = getattr(config, other)
            if value in values:
                message = f"{field.name} has no effect with {other} {value}: leave it out, or choose another {other}"
                raise SettingError(message, field.name, other)


def changed_settings(kind: type, values: Mapping[str, Any], saved: Any) -> list[str]:
    """The names of the settings of ``kind`` that differ between ``values``, such as ``vars(arguments)``, and ``saved``."""
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if name in values and values[name] != getattr(saved, name)]


def is_changeable(kind: type, name: str) -> bool:
    """Whether a resumed run may change this setting."""
    return any(field.name == name and field.metadata.get("changeable", False) for field in dataclasses.fields(kind))


def check_counts(**counts: Any) -> None:
    """Raise SettingError unless every given setting is an integer of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise SettingError(f"{name} must be an integer, not {value!r}")
        if int(value) < 1:
            raise SettingError(f"{name} must be at least 1, not {value}")


def at_least(config: object, **least: float) -> None:
    """Raise SettingError if a setting is below the value that its keyword gives."""
    for name, smallest in least.items():
        if getattr(config, name) < smallest:
            raise SettingError(f"{name} must be at least {smallest}, not {getattr(config, name)}")


def one_of(config: object, name: str, choices: Iterable[str]) -> None:
    """Raise SettingError if this setting is not among the choices."""
    if getattr(config, name) not in choices:
        raise SettingError(f"{name} must be one of {', '.join(choices)}, not {getattr(config, name)!r}")


def differences(trained: Any, found: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """The settings in ``trained`` that are missing or different in ``found``: (a key such as model.num_heads, the value in
    ``trained``, the value in ``found``)."""
    if isinstance(trained, Mapping) and isinstance(found, Mapping):
        for name, value in trained.items():
            yield from differences(value, found.get(name), f"{key}.{name}" if key else name)
    elif type(trained) is not type(found) or trained != found:
        yield key, shortened(json.dumps(trained), 80), shortened(json.dumps(found), 80)
