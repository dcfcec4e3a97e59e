"""Read files from others, and read and write JSON. UserErrors include the name of an unreadable file.

All files here are opened by this package, because a file in someone else's folder may be a pipe, a device, or endless.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tinyformer.common.errors import SettingError, UnknownField, UserError, shortened
from tinyformer.common.memory import in_bytes
from tinytensor.device.disk import FileError, open_regular, write_text

# The maximum size of files that describe a model or tokenizer. Published ones have up to 35 MB.
MOST_BYTES = 1 << 28
_SHOWN_KEY = 40  # characters of a JSON key in a message


@contextmanager
def damaged(path: object) -> Iterator[None]:
    """Context manager that turns common errors into a UserError: the file at ``path`` is damaged."""
    try:
        yield
    except UnknownField as error:
        raise UnknownField(f"{path}: {error}") from None
    except SettingError as error:  # the value may also have been edited
        raise UserError(f"{path} is damaged, or of another version: {shortened(str(error))}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {shortened(str(error))}") from None


def open_file(path: str | Path) -> BinaryIO:
    """Open a file to read bytes. Raises UserError unless it is a regular file, and OSError if it cannot be opened."""
    try:
        return open_regular(path, "a regular file")
    except FileError as error:
        raise UserError(str(error)) from None


def read_file(path: str | Path, limit: int | None = MOST_BYTES) -> bytes:
    """Return a file's content. Raises UserError unless it is a regular file of at most ``limit`` bytes, and OSError if it
    cannot be read. Both include the file name."""
    with open_file(path) as file:
        try:
            content = file.read() if limit is None else file.read(limit + 1)
        except OSError as error:  # unlike open's error, it has no file name
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    if limit is not None and len(content) > limit:
        raise UserError(f"{path} is too large: a file of this kind has at most {in_bytes(limit)}")
    return content


def read_utf8(path: str | Path, wanted: str, limit: int = MOST_BYTES) -> str:
    """Return the text of a UTF-8 file that describes a model or tokenizer. Raises UserError, with the file and what is
    ``wanted``, if it is missing, too large or not UTF-8."""
    try:
        return read_file(path, limit).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: {wanted}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: {wanted}") from None


def parse_json(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for anything else, repeated keys, NaN, or excessive nesting."""
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
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise ValueError(f"it has the key {shortened(name, _SHOWN_KEY)!r} twice")
        values[name] = value
    return values


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises UserError if the file is missing or damaged."""
    try:
        return parse_json(read_file(path).decode("utf-8"))
    except NotADirectoryError:
        raise UserError(f"{path.parent} is a file: name the folder of a run, or of a model") from None
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: is {path.parent} the folder of a run?") from None
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} is damaged: {shortened(str(error))}") from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file. Dataclasses become objects. An existing file is replaced only once the new one is complete."""
    write_text(path, as_json(value) + "\n")


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows to a CSV file, header first. An existing file is replaced only once the new one is complete."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    write_text(path, table.getvalue())


def as_json(value: Mapping[str, Any]) -> str:
    """Return indented JSON. Dataclasses become objects."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=dataclasses.asdict)
