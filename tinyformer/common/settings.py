"""Settings as fields of typed dataclasses: help texts, checks against type hints, and old names.

Files and command lines of earlier versions still work: code that reads a run's settings, a checkpoint or a flag gets the new
names here.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import math
import numbers
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tinyformer.common.errors import SettingError, UnknownField, UserError, shortened

Settings = TypeVar("Settings")


def setting(default: Any, help: str, changeable: bool = False, unless: Mapping[str, Sequence[Any]] | None = None) -> Any:
    """Return a dataclass field that ``add_settings`` turns into a flag with this help. If ``changeable``, --resume-changed may
    change it. ``unless`` lists values of other fields that make this one useless, such as ``unless={"schedule":
    ["constant"]}``. In that case, ``check_effects`` rejects its flag.

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
    """Return a setting's flag: --batch-size for batch_size."""
    return "--" + name.replace("_", "-")


def settings_from(kind: type[Settings], values: Mapping[str, Any], **more: Any) -> Settings:
    """Build a dataclass of type ``kind`` from its fields in ``values``, such as ``vars(arguments)``, and from ``more``."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names}, **more)


def check_effects(config: Any, given: Iterable[str]) -> None:
    """Raise SettingError if a ``given`` setting (such as the names in ``vars(arguments)``) has no effect because of other
    settings.

    For rules beyond ``unless``, ``config.without_effect()``, if defined, yields the name of each setting without effect, with
    those that it depends on, and a message.
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
    """Return the names of settings that differ between ``values``, such as ``vars(arguments)``, and ``saved``."""
    names = [field.name for field in dataclasses.fields(kind)]
    return [name for name in names if name in values and values[name] != getattr(saved, name)]


def is_changeable(kind: type, name: str) -> bool:
    """Return True if a resumed run may change this setting."""
    return any(field.name == name and field.metadata.get("changeable", False) for field in dataclasses.fields(kind))


def check_counts(**counts: Any) -> None:
    """Raise SettingError unless every setting is an integer of at least 1."""
    for name, value in counts.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool):
            raise SettingError(f"{name} must be an integer, got {value!r}")
        if int(value) < 1:
            raise SettingError(f"{name} must be at least 1, got {value}")


def at_least(config: object, **least: float) -> None:
    """Raise SettingError if a setting is below its keyword's value."""
    for name, smallest in least.items():
        if getattr(config, name) < smallest:
            raise SettingError(f"{name} must be at least {smallest}, got {getattr(config, name)}")


def one_of(config: object, name: str, choices: Iterable[str]) -> None:
    """Raise SettingError if this setting is not one of the choices."""
    if getattr(config, name) not in choices:
        raise SettingError(f"{name} must be one of {', '.join(choices)}, got {getattr(config, name)!r}")


def differences(trained: Any, current: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield settings in ``trained`` that are missing or different in ``current``: (key such as model.num_heads, value in
    ``trained``, value in ``current``)."""
    if isinstance(trained, Mapping) and isinstance(current, Mapping):
        for name, value in trained.items():
            yield from differences(value, current.get(name), f"{key}.{name}" if key else name)
    elif type(trained) is not type(current) or trained != current:
        yield key, shortened(json.dumps(trained), 80), shortened(json.dumps(current), 80)


Made = TypeVar("Made")

_OFF: tuple[Any, ...] = (None, False, "", "none", [], {})  # values that mean "off"; False also covers 0
_WORDS = {int: "an integer", float: "a finite number", bool: "true or false", str: "text", type(None): "null"}


def read_value(hint: Any, value: Any, name: str) -> Any:
    """Convert a JSON value to its type ``hint``: an object to a dataclass, a list to a tuple, any finite number to a float.

    The hint may be int, float, bool, str, None, Any, a union of these, list[...], tuple[...], dict[str, ...], or a dataclass
    with such fields. Raises UserError with the value's ``name`` for any other type.
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        fitting = [part for part in parts if _fits(part, value) or (dataclasses.is_dataclass(part) and isinstance(value, dict))]
        if fitting:
            return read_value(fitting[0], value, name)
    elif dataclasses.is_dataclass(hint):
        return read_dataclass(hint, value, name)  # type: ignore[arg-type]
    elif origin is list and isinstance(value, list):
        if parts[0] in (str, int) and set(map(type, value)) <= {parts[0]}:  # a vocabulary with a million items
            return list(value)
        return [read_value(parts[0], item, f"{name}[{i}]") for i, item in enumerate(value)]
    elif origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(read_value(part, item, f"{name}[{i}]") for i, (part, item) in enumerate(zip(parts, value)))
    elif origin is dict and isinstance(value, dict):
        if parts[1] in (str, int) and set(map(type, value.values())) <= {parts[1]}:
            return dict(value)
        return {key: read_value(parts[1], item, f"{name}[{key!r}]") for key, item in value.items()}
    elif origin is None and _fits(hint, value):
        return float(value) if hint is float else value
    raise UserError(f"{name} must be {_in_words(hint)}, got {_shown(value)}")


def read_dataclass(kind: type[Made], value: Any, name: str = "") -> Made:
    """Build a dataclass from a JSON object, which must have a value for each field without a default.

    Unknown keys from another version are ignored if they are off, such as null or false. Raises UserError for the first key
    that is missing, of the wrong type, or unknown and not off. Also raises errors of the dataclass itself.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"{name or 'it'} must be an object of settings, got {_shown(value)}")
    hints = _hints(kind)  # type: ignore[arg-type]
    check_known(value, hints, name)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in value:
            raise UserError(f"{_joined(name, field.name)} is missing")
    values = {key: read_value(hints[key], item, _joined(name, key)) for key, item in value.items() if key in hints}
    return kind(**values)


def check_known(value: Mapping[str, Any], known: Collection[str], name: str = "") -> None:
    """Raise UnknownField for the first unknown key of a JSON object that is not off. The message suggests a similar field."""
    for key, item in value.items():
        if key not in known and item not in _OFF:
            near = difflib.get_close_matches(str(key)[:40], known, 1, 0.75)
            meant = f" (was {_joined(name, near[0])} meant?)" if near else ""
            raise UnknownField(
                f"{_joined(name, shortened(str(key), 40))} is {_shown(item)}, a field that this version does not know{meant}: "
                "remove it if you added it, or use the version that wrote it, or a later one"
            )


def check_fields(config: Any) -> None:
    """Raise SettingError if a dataclass field does not match its type hint, for example text for a number, 1.5 for an integer,
    or an infinite float. Call it first in ``__post_init__``, so that later checks can compare numbers."""
    hints = _hints(type(config))  # type: ignore[arg-type]
    for field in dataclasses.fields(config):
        hint, value = hints[field.name], getattr(config, field.name)
        choices = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        if not any(_fits(choice, value) for choice in choices):
            raise SettingError(f"{field.name} must be {_in_words(hint)}, got {_shown(value)}")


def _fits(hint: Any, value: Any) -> bool:
    """Return True if a value has the type of this hint. Items of lists and objects are not checked."""
    if hint is Any:
        return True
    if hint is bool:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if hint is int:
        return isinstance(value, numbers.Integral)
    if hint is float:
        return isinstance(value, numbers.Real) and _is_finite(value)
    if hint is None or hint is type(None):
        return value is None
    outer = typing.get_origin(hint) or hint
    return isinstance(value, (list, tuple) if outer is tuple else outer)


def _is_finite(value: numbers.Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _in_words(hint: Any) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, typing.get_args(hint)))
    if hint is None or hint in _WORDS:
        return _WORDS[type(None) if hint is None else hint]
    if dataclasses.is_dataclass(hint):
        return "an object of settings"
    return {list: "a list", tuple: f"a list of {len(typing.get_args(hint))}", dict: "an object"}.get(
        typing.get_origin(hint) or hint, str(hint)
    )


def _shown(value: Any, limit: int = 40) -> str:
    """Return a shortened value for a message."""
    try:
        shown = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or an integer with too many digits
        from tinytensor.common.wording import a_or_an  # parsing a command line must not load tinytensor

        shown = f"{a_or_an(type(value).__name__)} that is too large to show"
    return shortened(shown, limit)


# Maps a setting's old name to its new name.
SETTINGS = {"d_inner": "d_ff", "accumulation": "gradient_accumulation_steps"}

# Maps a setting's new name to its old values and their new values. "gelu" was always the tanh form.
VALUES = {"activation": {"gelu": "gelu_tanh"}}

# Maps a layer's old name to its new name, as in weight names such as blocks.0.feed_forward.expand.weight.
LAYERS = {"expand": "up", "contract": "down"}


def with_new_names(settings: Any) -> Any:
    """Return a run's JSON settings with new names and values in every section. Raises ValueError if a section has a setting
    under both names."""
    if not isinstance(settings, Mapping):
        return settings
    return {name: _renamed(part) if isinstance(part, Mapping) else part for name, part in settings.items()}


def _renamed(part: Mapping[str, Any]) -> dict[str, Any]:
    for old, new in SETTINGS.items():
        if old in part and new in part:
            raise ValueError(f"it has both {new} and {old}, which is the old name of the same setting")
    if "muon_learning_rate" in part and "optimizer" not in part:  # it selected the optimizer
        part = {**part, "optimizer": "muon" if part["muon_learning_rate"] else "adamw"}
    names = {old: SETTINGS.get(old, old) for old in part}
    renamed = {names[old]: new_value(names[old], value) for old, value in part.items()}
    if renamed.get("d_ff") == 0 and isinstance(renamed.get("d_model"), int):  # with any activation, 0 used to mean this
        renamed["d_ff"] = 4 * renamed["d_model"]
    return renamed


def old_names(name: str) -> list[str]:
    """Return the old names of a setting."""
    return [old for old, new in SETTINGS.items() if new == name]


def new_value(name: str, value: Any) -> Any:
    """Return the new value of the setting ``name`` for an old value. Other values are unchanged."""
    return VALUES.get(name, {}).get(value, value) if isinstance(value, str) else value


def new_weight_name(name: str) -> str:
    """Return a weight's name with new layer names."""
    return ".".join(LAYERS.get(layer, layer) for layer in name.split("."))
