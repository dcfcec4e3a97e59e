"""One field of each record in a file of records: JSON Lines, JSON, CSV or TSV."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, print_line, shortened
from tinyformer.data.conversations import is_conversation
from tinytensor.common.wording import counted

# The kinds of files that have fields, by the ends of their names.
KINDS = {".jsonl": "JSON Lines", ".ndjson": "JSON Lines", ".json": "JSON", ".csv": "a table", ".tsv": "a table"}
SEPARATOR = re.compile(r"\s*sep=(.)\s*", re.IGNORECASE)
QUOTED = re.compile(r'"((?:[^"]|"")*)"')  # a field in quotation marks
HELD = re.compile(r'"(?:[^"]|"")*"(?=\t|\Z)')  # one that may have tabs in it
QUOTED_LINES = re.compile(r'"((?:[^"\t]|"")*)"(?=[\t\n]|\Z)')  # one that goes over several lines
SHOWN = 8  # fields that a message names


def kind_of(path: str | Path) -> str:
    """The kind of a file that has fields, in words. "" for another one."""
    return KINDS.get(Path(path).suffix.lower(), "")


def field_of(path: str | Path, text: str, field: str) -> str:
    """The text of a ``field`` of all records in a file, one after the other, on lines of their own. A conversation is text as
    JSON.

    The field is a key or the name of a column. Where a table has no line of names, it is the number of a column, from 1.
    Records without it, or with nothing in it, are left out, and a line on standard error counts them. Raises UserError, which
    names the file and the line, for what is no such file, for a record with something other than a text in the field, and
    where none has a text.
    """
    if not kind_of(path):
        raise UserError(f"{path} has no fields, as {', '.join(KINDS)} have: read it without a field")
    found, left_out = [], 0
    for number, value in _values(path, text, field):
        if is_conversation(value):
            value = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, str | None):
            where = f", {number}" if number else ""
            raise UserError(
                f"{path}{where}: {field} is {shortened(json.dumps(value), 60)}, and not a text{_others(path, text, field)}"
            )
        if value and value.strip():
            _check_whole(value, f"{path}, {number}", field)
            found.append(value)
        else:
            left_out += 1
    if not found:
        raise UserError(f"{path} has no text in {field}{_others(path, text, field)}")
    if left_out:
        print_line(f"{path}: left out {counted(left_out, 'record')} without text in {field}", sys.stderr)
    return "\n".join(found)


def _check_whole(value: str, where: str, field: str) -> None:
    """Raise UserError for half of a character: JSON writes some as two halves, of which one may be missing."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise UserError(
            f"{where}: {field} has half of a character ({half}): the other half is missing, so leave it out"
        ) from None


def notice(path: str | Path, text: str) -> str:
    """Return what a user should know who reads a file of records as it is written: its fields. Return "" for another file, and
    for one that is not as its name says."""
    fields = _first_fields(path, text) if kind_of(path) else []
    if not fields:
        return ""
    return f"{path} is {kind_of(path)}, read as it is, with its names and marks. To read one field alone: {_listed(fields)}"


def _first_fields(path: str | Path, text: str) -> list[str]:
    """The names of the first record's fields. The list is empty where they cannot be told."""
    try:
        return next(_fields(path, text.lstrip()))
    except (StopIteration, UserError, ValueError, csv.Error):
        return []


def _others(path: str | Path, text: str, field: str) -> str:
    """What else to learn of a file than a field that holds no text."""
    others = [name for name in _first_fields(path, text) if name != field]
    return f": choose another field ({_listed(others)})" if others else ": read it without a field"


def _listed(fields: list[str]) -> str:
    names = [shortened(field, 40) for field in fields[:SHOWN]]
    return ", ".join(names) + (", ..." if fields[SHOWN:] else "")


def rows_of(path: str | Path, text: str) -> list[list[Any]]:
    """The names of the fields in a file of records, and then the values of each record in that order, None for one that it
    lacks. The fields of an object in a record count as the record's own. Raises UserError for what is no such file."""
    if kind_of(path) == "a table":
        return [row for _, row in _rows(path, text)]
    records = []
    for _, record in _records(path, text):
        inner = [value for value in record.values() if isinstance(value, dict)]
        records.append(
            {name: value for part in (record, *inner) for name, value in part.items() if not isinstance(value, dict)}
        )
    names = list(dict.fromkeys(itertools.chain(*records)))
    return [names, *([record.get(name) for name in names] for record in records)]


# -------------------------------------------------------------------------------------------------------- the records


def _values(path: str | Path, text: str, field: str) -> Iterator[tuple[str, Any]]:
    """The value of the field in each record, and where that is: "line 7"."""
    if kind_of(path) == "a table":
        yield from _column(path, text, field)
        return
    yield from ((where, record.get(field)) for where, record in _records(path, text))


def _records(path: str | Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a file of JSON or JSON Lines, and where each is. Raises UserError for anything else there."""
    for where, record in _objects(path, text):
        if not isinstance(record, dict):
            raise UserError(f"{path}, {where}: an object must be here, not {shortened(json.dumps(record), 60)}")
        yield where, record


def _objects(path: str | Path, text: str) -> Iterator[tuple[str, Any]]:
    """The records of a file of JSON or JSON Lines, and where each is."""
    if kind_of(path) == "JSON" and not _has_lines_of_json(text):
        whole = _parsed(path, text, 0)
        records = whole if isinstance(whole, list) else [whole]
        yield from ((f"record {number}", record) for number, record in enumerate(records, start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", _parsed(path, line, number)


def _has_lines_of_json(text: str) -> bool:
    """Whether a file that calls itself JSON has an object on each line, as many published ones do."""
    first, _, others = text.strip().partition("\n")
    try:
        return bool(others) and isinstance(json.loads(first), dict)
    except (RecursionError, ValueError):
        return False


def _parsed(path: str | Path, text: str, line: int) -> Any:
    """The JSON value in a text, which is a line of the file, or with line 0 the whole of it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path}, line {line or error.lineno}: this is no JSON ({error.msg}, character {error.colno})"
        ) from None
    except (RecursionError, ValueError):  # the latter for an integer with thousands of digits
        raise UserError(
            f"{path}{f', line {line}' if line else ''}: this is nested too deeply, or has too long a number"
        ) from None


def _column(path: str | Path, text: str, field: str) -> Iterator[tuple[str, Any]]:
    rows = _rows(path, text)
    _, names = next(rows, (0, []))
    if field in names:
        if names.count(field) > 1:
            raise UserError(
                f"{path} has {counted(names.count(field), 'column')} with the name {field}: give one of them another name"
            )
        place = names.index(field)
    elif field.isascii() and field.isdigit() and 1 <= int(field[:9]) <= len(names):
        place = int(field) - 1
        yield "line 1", names[place]  # columns that are called by their numbers have no names
    else:
        choice = f": choose one of {_listed(names)}" if names else ", nor another one"
        raise UserError(f"{path}, line 1: there is no column {field}{choice}")
    yield from ((f"line {line}", row[place]) for line, row in rows)


def _rows(path: str | Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table that are not empty, and the line on which each ends. Raises UserError for one with another number of
    columns than the first."""
    first = text.split("\n", 1)[0]
    said = SEPARATOR.fullmatch(first)  # a line that Excel writes and reads
    text, before = (text[len(first) + 1 :], 1) if said else (text, 0)
    first = text.split("\n", 1)[0]
    usual = "\t" if Path(path).suffix.lower() == ".tsv" else max(",;\t|", key=QUOTED.sub("", first).count)
    mark = said[1] if said else usual
    rows = _rows_between_tabs(text) if mark == "\t" else _rows_between(path, text, mark, before)
    width = 0
    for line, row in rows:
        width = width or len(row)
        if row and len(row) != width:
            raise UserError(
                f"{path}, line {before + line}: there must be {counted(width, 'column')}, as on line 1, not {len(row)}"
            )
        if row:
            yield before + line, row


def _rows_between(path: str | Path, text: str, mark: str, before: int) -> Iterator[tuple[int, list[str]]]:
    limit = csv.field_size_limit(len(text) + 1)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise UserError(f"{path}, line {before + reader.line_num}: this is no table ({error})") from None
    finally:
        csv.field_size_limit(limit)


def _rows_between_tabs(text: str) -> Iterator[tuple[int, list[str]]]:
    """The rows of a table with tabs between its columns.

    In such files a quotation mark is often one that was said. It is read as one that holds a field together only if a second
    one ends the field: on the same line, or on a later one if that makes a row as long as the first, without a tab before it.
    """
    place, line, width = 0, 0, 0
    while place < len(text):
        end = text.find("\n", place)
        end = len(text) if end < 0 else end
        row = _fields_between_tabs(text[place:end], width)
        if width > 1 and (longer := _over_lines(text, place, end, width)):
            row, end = longer
        line += 1 + text.count("\n", place, end)
        width = width or len(row)
        yield line, row if row != [""] else []
        place = end + 1


def _over_lines(text: str, place: int, end: int, width: int) -> tuple[list[str], int] | None:
    """The row of several lines that begins with the line from ``place`` to ``end``, and where it ends. None if that is one."""
    found: list[str] = []
    while len(found) < width:
        last = max(place, text.rfind("\t", place, end) + 1)
        is_open = text.startswith('"', last) and last < end and not QUOTED.fullmatch(text[last:end])
        longer = QUOTED_LINES.match(text, last) if is_open else None
        if longer is None:
            break
        found += [_unquoted(field) for field in text[place:last].split("\t")[:-1]] + [longer[1].replace('""', '"')]
        place, end = longer.end() + 1, text.find("\n", longer.end())
        end = len(text) if end < 0 else end
        if place > end:  # the line ends with the field
            return (found, end) if len(found) == width else None
    if not found or len(found) >= width:
        return None
    found += _fields_between_tabs(text[place:end], width)
    return (found, end) if len(found) == width else None


def _fields_between_tabs(line: str, width: int) -> list[str]:
    """The fields of a line. Tabs part them all, but for those in quotation marks where the line has more than ``width``."""
    fields = [_unquoted(field) for field in line.split("\t")]
    if not width or len(fields) <= width or '"' not in line:
        return fields
    found, place = [], 0
    while place <= len(line):
        end = held.end() if (held := HELD.match(line, place)) else (line.find("\t", place) + 1 or len(line) + 1) - 1
        found.append(_unquoted(line[place:end]))
        place = end + 1
    return found if len(found) == width else fields


def _unquoted(field: str) -> str:
    return found[1].replace('""', '"') if (found := QUOTED.fullmatch(field)) else field


def _fields(path: str | Path, text: str) -> Iterator[list[str]]:
    """The names of the fields of each record."""
    if kind_of(path) == "a table":
        yield from (names for _, names in _rows(path, text) if len(names) > 1)
    else:
        yield from (list(record) for _, record in _objects(path, text) if isinstance(record, dict))
