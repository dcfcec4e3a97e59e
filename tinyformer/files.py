"""Reading and writing JSON files. Every failure to read one is a UserError that names the file."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinyformer.errors import OtherVersion, SettingError, UserError, shortened
from tinytensor.disk import write_text


@contextmanager
def damaged(what: object) -> Iterator[None]:
    """A context that turns every usual error inside it into a UserError: ``what``, such as a path, is damaged."""
    try:
        yield
    except OtherVersion as error:
        raise OtherVersion(f"{what} is of another version: {error}") from None
    except SettingError as error:  # the value may have been edited, too
        raise UserError(f"{what} is damaged, or of another version: {shortened(str(error))}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise UserError(f"{what} is damaged: {shortened(str(error))}") from None


def parse_json(text: str) -> dict[str, Any]:
    """The JSON object in a text. Raises ValueError for anything else, and for an object with the same key twice, NaN, or too
    deep nesting."""
    try:
        value = json.loads(text, parse_constant=_no_number, object_pairs_hook=_without_repeats)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it has the key {name!r} twice")
        found[name] = value
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError, which names the file, if it is missing or damaged."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading from a pipe or a device may never end
            raise UserError(f"{path} is not a regular file")
        return parse_json(path.read_text(encoding="utf-8"))
    except NotADirectoryError:
        raise UserError(f"{path.parent} is a file: name the folder of a run, or of a model") from None
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: is {path.parent} the folder of a run?") from None
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} is damaged: {shortened(str(error))}") from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file. Dataclasses become objects. An existing file stays until the new one is complete."""
    write_text(path, as_json(value) + "\n")


def as_json(value: Mapping[str, Any]) -> str:
    """JSON that is indented for people to read. Dataclasses become objects."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=dataclasses.asdict)
