"""Checks of values against type hints: of the content of JSON files, and of what a dataclass is given."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import numbers
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from tinyformer.common.errors import SettingError, UnknownField, UserError, shortened
from tinytensor.common.wording import a_or_an

Made = TypeVar("Made")

_OFF: tuple[Any, ...] = (None, False, "", "none", [], {})  # values of what is switched off; False is 0, too
_WORDS = {int: "an integer", float: "a finite number", bool: "true or false", str: "text", type(None): "null"}


def read_value(kind: Any, value: Any, name: str) -> Any:
    """A value of a JSON file, converted to its type hint ``kind``: a dataclass from an object, a tuple from a list, a float
    from any finite number.

    ``kind`` may be int, float, bool, str, None, Any, a union of these, list[...], tuple[...], dict[str, ...], or a dataclass
    with such fields. Raises UserError, which calls the value by its ``name``, if the value has another type.
    """
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if origin in (typing.Union, types.UnionType):
        fitting = [part for part in parts if _fits(part, value) or (dataclasses.is_dataclass(part) and isinstance(value, dict))]
        if fitting:
            return read_value(fitting[0], value, name)
    elif dataclasses.is_dataclass(kind):
        return read_dataclass(kind, value, name)  # type: ignore[arg-type]
    elif origin is list and isinstance(value, list):
        if parts[0] in (str, int) and set(map(type, value)) <= {parts[0]}:  # a vocabulary, whose items are a million
            return list(value)
        return [read_value(parts[0], item, f"{name}[{i}]") for i, item in enumerate(value)]
    elif origin is tuple and isinstance(value, list) and len(value) == len(parts):
        return tuple(read_value(part, item, f"{name}[{i}]") for i, (part, item) in enumerate(zip(parts, value)))
    elif origin is dict and isinstance(value, dict):
        if parts[1] in (str, int) and set(map(type, value.values())) <= {parts[1]}:
            return dict(value)
        return {key: read_value(parts[1], item, f"{name}[{key!r}]") for key, item in value.items()}
    elif origin is None and _fits(kind, value):
        return float(value) if kind is float else value
    raise UserError(f"{name} must be {_in_words(kind)}, not {_shown(value)}")


def read_dataclass(kind: type[Made], value: Any, name: str = "") -> Made:
    """A dataclass from a JSON object. The object must have a value for each field without a default.

    Keys that the dataclass lacks are those of another version. They are ignored where they are switched off, as null or false.
    Raises UserError for the first key that is missing, is of another type, or is unknown and not switched off; and whatever the
    dataclass itself raises.
    """
    if not isinstance(value, Mapping):
        raise UserError(f"{name or 'it'} must be an object of settings, not {_shown(value)}")
    hints = _hints(kind)  # type: ignore[arg-type]
    check_known(value, hints, name)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in value:
            raise UserError(f"{_joined(name, field.name)} is missing")
    values = {key: read_value(hints[key], item, _joined(name, key)) for key, item in value.items() if key in hints}
    return kind(**values)


def check_known(value: Mapping[str, Any], known: Collection[str], name: str = "") -> None:
    """Raise UnknownField for the first key of a JSON object that is not known, unless it is switched off. It names the field
    that was meant, if there is one with almost this name."""
    for key, item in value.items():
        if key not in known and item not in _OFF:
            near = difflib.get_close_matches(str(key)[:40], known, 1, 0.75)
            meant = f" (was {_joined(name, near[0])} meant?)" if near else ""
            raise UnknownField(
                f"{_joined(name, shortened(str(key), 40))} is {_shown(item)}, a field that this version does not know{meant}: "
                "take it out if it was added by hand, or use the version that wrote it, or a later one"
            )


def check_fields(config: Any) -> None:
    """Raise SettingError if a field of a dataclass does not have the type of its hint, such as text for a number, 1.5 for an
    integer, or an infinite float. Call it first in ``__post_init__``, so that the checks after it can compare numbers."""
    hints = _hints(type(config))  # type: ignore[arg-type]
    for field in dataclasses.fields(config):
        kind, value = hints[field.name], getattr(config, field.name)
        kinds = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)
        if not any(_fits(one, value) for one in kinds):
            raise SettingError(f"{field.name} must be {_in_words(kind)}, not {_shown(value)}")


def _fits(kind: Any, value: Any) -> bool:
    """Whether a value has this type. The items of lists, objects and the like are not checked."""
    if kind is Any:
        return True
    if kind is bool:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind is int:
        return isinstance(value, numbers.Integral)
    if kind is float:
        return isinstance(value, numbers.Real) and _is_finite(value)
    if kind is None or kind is type(None):
        return value is None
    outer = typing.get_origin(kind) or kind
    return isinstance(value, (list, tuple) if outer is tuple else outer)


def _is_finite(value: numbers.Real) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that is too large for a float
        return False


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _joined(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _in_words(kind: Any) -> str:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, typing.get_args(kind)))
    if kind is None or kind in _WORDS:
        return _WORDS[type(None) if kind is None else kind]
    if dataclasses.is_dataclass(kind):
        return "an object of settings"
    return {list: "a list", tuple: f"a list of {len(typing.get_args(kind))}", dict: "an object"}.get(
        typing.get_origin(kind) or kind, str(kind)
    )


def _shown(value: Any, limit: int = 40) -> str:
    """A value for a message, shortened."""
    try:
        shown = repr(value)
    except (RecursionError, ValueError):  # it is nested too deeply, or an integer with too many digits to print
        shown = f"{a_or_an(type(value).__name__)} that is too large to show"
    return shortened(shown, limit)
