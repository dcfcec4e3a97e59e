"""Reading files of others, and reading and writing JSON. What cannot be read is a UserError that names the file.

Whatever this package reads, it opens here: a file in a folder of others may be a pipe, a device, or have no end.
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

# The most that a file may have that describes a model or a tokenizer, and is read as a whole. Published ones have up to 35 MB.
MOST_BYTES = 1 << 28
_SHOWN_KEY = 40  # characters of a key of JSON in a message


@contextmanager
def damaged(what: object) -> Iterator[None]:
    """A context that turns every usual error inside it into a UserError: ``what``, such as a path, is damaged."""
    try:
        yield
    except UnknownField as error:
        raise UnknownField(f"{what}: {error}") from None
    except SettingError as error:  # the value may have been edited, too
        raise UserError(f"{what} is damaged, or of another version: {shortened(str(error))}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise UserError(f"{what} is damaged: {shortened(str(error))}") from None


def open_file(path: str | Path) -> BinaryIO:
    """A file opened to read its bytes. Raises UserError, which names it, unless it is a regular file; OSError if it cannot be
    opened."""
    try:
        return open_regular(path, "a regular file")
    except FileError as error:
        raise UserError(str(error)) from None


def read_file(path: str | Path, most: int | None = MOST_BYTES) -> bytes:
    """The content of a file. Raises UserError, which names it, unless it is a regular file of at most so many bytes; OSError,
    which names it, too, if it cannot be read."""
    with open_file(path) as file:
        try:
            content = file.read() if most is None else file.read(most + 1)
        except OSError as error:  # unlike that of a failed open, it does not name the file by itself
            raise OSError(error.errno, error.strerror, os.fspath(path)) from None
    if most is not None and len(content) > most:
        raise UserError(f"{path} is too large: a file of this kind has at most {in_bytes(most)}")
    return content


def read_utf8(path: str | Path, wanted: str, most: int = MOST_BYTES) -> str:
    """The text of a UTF-8 file that describes a model or a tokenizer. Raises UserError, which names the file and says what is
    ``wanted``, if it is missing, has more than so many bytes, or cannot be read as such."""
    try:
        return read_file(path, most).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: {wanted}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text: {wanted}") from None


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
            raise ValueError(f"it has the key {shortened(name, _SHOWN_KEY)!r} twice")
        found[name] = value
    return found


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError, which names the file, if it is missing or damaged."""
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
    """JSON that is indented for people to read. Dataclasses become objects."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=dataclasses.asdict)
