"""Reading other people's files, and reading and writing JSON. A UserError names the file that cannot be read.

This package opens all files here: a file in somebody else's folder may be a pipe, a device, or endless.
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

# The largest file that describes a model or a tokenizer. Published ones have up to 35 MB.
MOST_BYTES = 1 << 28
_SHOWN_KEY = 40  # characters of a key of JSON in a message


@contextmanager
def damaged(path: object) -> Iterator[None]:
    """A context that turns every usual error inside it into a UserError: the file at ``path`` is damaged."""
    try:
        yield
    except UnknownField as error:
        raise UnknownField(f"{path}: {error}") from None
    except SettingError as error:  # the value may have been edited, too
        raise UserError(f"{path} is damaged, or of another version: {shortened(str(error))}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {shortened(str(error))}") from None


def open_file(path: str | Path) -> BinaryIO:
    """Open a file to read its bytes. Raises UserError unless it is a regular file; OSError if it cannot be opened."""
    try:
        return open_regular(path, "a regular file")
    except FileError as error:
        raise UserError(str(error)) from None


def read_file(path: str | Path, limit: int | None = MOST_BYTES) -> bytes:
    """Return the content of a file. Raises UserError unless it is a regular file of at most ``limit`` bytes; OSError if it
    cannot be read. Both name the file."""
    with open_file(path) as file:
        try:
            content = file.read() if limit is None else file.read(limit + 1)
        except OSError as error:  # unlike the error of open, it does not name the file
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    if limit is not None and len(content) > limit:
        raise UserError(f"{path} is too large: a file of this kind has at most {in_bytes(limit)}")
    return content


def read_utf8(path: str | Path, wanted: str, limit: int = MOST_BYTES) -> str:
    """Return the text of a UTF-8 file that describes a model or a tokenizer. Raises UserError, which names the file and what is
    ``wanted``, if it is missing, too large or not UTF-8."""
    try:
        return read_file(path, limit).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: {wanted}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: {wanted}") from None


def parse_json(text: str) -> dict[str, Any]:
    """Return the JSON object in a text. Raises ValueError for anything else, and for repeated keys, NaN, and too deep
    nesting."""
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
    """Write a JSON file. Dataclasses become objects. An existing file stays until the new one is complete."""
    write_text(path, as_json(value) + "\n")


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write a table as a CSV file; the first row is the header. An existing file stays until the new one is complete."""
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows(rows)
    write_text(path, table.getvalue())


def as_json(value: Mapping[str, Any]) -> str:
    """Return indented JSON. Dataclasses become objects."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=dataclasses.asdict)
