"""Settings as typed dataclasses, and their flags on a command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tinyformer.errors import UserError

Settings = TypeVar("Settings")


def setting(default: Any, help: str) -> Any:
    """A dataclass field that ``add_settings`` turns into a flag with this help text."""
    return dataclasses.field(default=default, metadata={"help": help})


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the defaults, but not that a switch is off unless it is given."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None or action.nargs == 0 else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose --help shows every default, and whose errors are one line (status 2)."""

    def __init__(self, **options: Any):
        super().__init__(**{"formatter_class": _Help, "allow_abbrev": False, **options})

    def error(self, message: str) -> Any:
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def add_settings(parser: argparse.ArgumentParser, kind: type, title: str) -> None:
    """Give the parser a flag for each ``setting`` of the dataclass: d_model becomes --d-model.

    The parsed arguments hold only the flags that were given; ``settings_from`` leaves the rest to the dataclass.
    """
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(kind):
        if "help" not in field.metadata:
            continue
        kind_of = type(field.default)
        how: dict[str, Any] = {"type": kind_of, "metavar": kind_of.__name__.upper()}
        if kind_of is bool:
            how = {"action": argparse.BooleanOptionalAction}
        text = f"{field.metadata['help']} (default: {field.default})"
        group.add_argument(_flag(field.name), default=argparse.SUPPRESS, help=text, **how)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def settings_from(kind: type[Settings], values: Mapping[str, Any], **more: Any) -> Settings:
    """The dataclass from a mapping (such as ``vars(arguments)``) that may hold other things, too."""
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in values.items() if name in names}, **more)


def changed_settings(kind: type, values: Mapping[str, Any], saved: Any) -> list[str]:
    """The flags of ``kind`` in ``values`` (such as ``vars(arguments)``) that are not what ``saved`` says."""
    names = [field.name for field in dataclasses.fields(kind)]
    return [_flag(name) for name in names if name in values and values[name] != getattr(saved, name)]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file's object. Raises UserError that names the file where it is missing or is no such thing."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: is {path.parent} the folder of a run?") from None
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file; an existing one stays until the new one is whole."""
    from tinytensor.io import atomic_write

    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
