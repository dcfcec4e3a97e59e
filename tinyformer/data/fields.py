"""Read one field from files of records: JSON Lines, JSON, CSV and TSV."""

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

FORMATS = {".jsonl": "JSON Lines", ".ndjson": "JSON Lines", ".json": "JSON", ".csv": "a table", ".tsv": "a table"}
SEPARATOR = re.compile(r"\s*sep=(.)\s*", re.IGNORECASE)  # Excel's separator line
QUOTED = re.compile(r'"((?:[^"]|"")*)"')  # a quoted field
QUOTED_TABS = re.compile(r'"(?:[^"]|"")*"(?=\t|\Z)')  # a quoted field that may contain tabs
QUOTED_LINES = re.compile(r'"((?:[^"\t]|"")*)"(?=[\t\n]|\Z)')  # a quoted field that may span lines
SHOWN = 8  # the number of fields that a message lists


def format_of(path: str | Path) -> str:
    """Return the record format implied by a file name, or "" if there is none."""
    return FORMATS.get(Path(path).suffix.lower(), "")


def field_of(path: str | Path, text: str, field: str) -> str:
    """Return the text of ``field`` from every record in a file, each starting on a new line. Conversations become JSON.

    The field is a key or a column name. If there is no header row, it is a column number, starting at 1. Records whose field is
    missing or blank are skipped, and their number is printed to standard error. Raises UserError, with the file and line, if
    the format is invalid, a value is not a string, or no record has text.
    """
    if not format_of(path):
        raise UserError(f"{path} has no fields (only these files do: {', '.join(FORMATS)}): read it without a field")
    texts, left_out = [], 0
    for position, value in _values(path, text, field):
        if is_conversation(value):
            value = json.dumps(value, ensure_ascii=False)
        if not isinstance(value, str | None):
            shown = shortened(json.dumps(value), 60)
            raise UserError(f"{path}, {position}: {field} must be a string, got {shown}{_remedy(path, text, field)}")
        if value and value.strip():
            _check_unicode(value, f"{path}, {position}", field)
            texts.append(value)
        else:
            left_out += 1
    if not texts:
        raise UserError(f"{path} has no text in {field}{_remedy(path, text, field)}")
    if left_out:
        print_line(f"{path}: left out {counted(left_out, 'record')} without text in {field}", sys.stderr)
    return "\n".join(texts)


def _check_unicode(value: str, position: str, field: str) -> None:
    """Raise UserError for an unpaired surrogate. JSON escapes some characters as two surrogates; one may be missing."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise UserError(f"{position}: {field} contains {half}, half of a surrogate pair: remove it") from None


def notice(path: str | Path, text: str) -> str:
    """Return a note that a record file is read with its markup, with a list of its fields. Return "" for any other file."""
    fields = _first_fields(path, text) if format_of(path) else []
    if not fields:
        return ""
    return f"{path} is {format_of(path)}, read as is, markup included. To read only one field: {_listed(fields)}"


def _first_fields(path: str | Path, text: str) -> list[str]:
    """Return the field names of the first record, or [] if the file is damaged."""
    try:
        return next(_fields(path, text.lstrip()))
    except (StopIteration, UserError, ValueError, csv.Error):
        return []


def _remedy(path: str | Path, text: str, field: str) -> str:
    """Return a suggestion, for the end of a message, if a field has no text."""
    names = [name for name in _first_fields(path, text) if name != field]
    return f": choose another field ({_listed(names)})" if names else ": read it without a field"


def _listed(fields: list[str]) -> str:
    names = [shortened(field, 40) for field in fields[:SHOWN]]
    return ", ".join(names) + (", ..." if fields[SHOWN:] else "")


def rows_of(path: str | Path, text: str) -> list[list[Any]]:
    """Return the field names of a record file, then the values of each record in the same order (None if missing). Fields of
    nested objects count as the record's. Raises UserError for a damaged file."""
    if format_of(path) == "a table":
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
    """Iterate over each record's position, such as "line 7", and its value of the field."""
    if format_of(path) == "a table":
        yield from _column(path, text, field)
        return
    yield from ((position, record.get(field)) for position, record in _records(path, text))


def _records(path: str | Path, text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the positions and objects of a JSON or JSON Lines file. Raises UserError for any other value."""
    for position, record in _objects(path, text):
        if not isinstance(record, dict):
            raise UserError(f"{path}, {position}: expected an object, got {shortened(json.dumps(record), 60)}")
        yield position, record


def _objects(path: str | Path, text: str) -> Iterator[tuple[str, Any]]:
    """Iterate over the positions and values of a JSON or JSON Lines file."""
    if format_of(path) == "JSON" and not _has_lines_of_json(text):
        content = _parsed(path, text, 0)
        records = content if isinstance(content, list) else [content]
        yield from ((f"record {number}", record) for number, record in enumerate(records, start=1))
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"line {number}", _parsed(path, line, number)


def _has_lines_of_json(text: str) -> bool:
    """Return True if a .json file has an object on each line, as many published files do."""
    first, _, remainder = text.strip().partition("\n")
    try:
        return bool(remainder) and isinstance(json.loads(first), dict)
    except (RecursionError, ValueError):
        return False


def _parsed(path: str | Path, text: str, line: int) -> Any:
    """Parse a line as JSON, or the complete file if ``line`` is 0."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {line or error.lineno}: invalid JSON ({error.msg}, character {error.colno})") from None
    except (RecursionError, ValueError):  # ValueError: an integer with thousands of digits
        position = f", line {line}" if line else ""
        raise UserError(f"{path}{position}: the JSON is nested too deeply, or has too long a number") from None


def _column(path: str | Path, text: str, field: str) -> Iterator[tuple[str, Any]]:
    rows = _rows(path, text)
    _, names = next(rows, (0, []))
    if field in names:
        if names.count(field) > 1:
            raise UserError(f"{path} has {counted(names.count(field), 'column')} named {field}: rename all but one of them")
        column = names.index(field)
    elif field.isascii() and field.isdigit() and 1 <= int(field[:9]) <= len(names):
        column = int(field) - 1
        yield "line 1", names[column]  # if there is no header row, the first line is a record
    else:
        choice = f"choose one of {_listed(names)}" if names else "the file has no columns"
        raise UserError(f"{path}, line 1: no column {field}: {choice}")
    yield from ((f"line {line}", row[column]) for line, row in rows)


def _rows(path: str | Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Iterate over the nonempty rows of a table, each with its last line number. Raises UserError if the row lengths differ."""
    first = text.split("\n", 1)[0]
    separator = SEPARATOR.fullmatch(first)
    text, before = (text[len(first) + 1 :], 1) if separator else (text, 0)
    first = text.split("\n", 1)[0]
    usual = "\t" if Path(path).suffix.lower() == ".tsv" else max(",;\t|", key=QUOTED.sub("", first).count)
    mark = separator[1] if separator else usual
    rows = _rows_between_tabs(text) if mark == "\t" else _rows_between(path, text, mark, before)
    width = 0
    for line, row in rows:
        width = width or len(row)
        if row and len(row) != width:
            raise UserError(f"{path}, line {before + line}: expected {counted(width, 'column')}, as on line 1, got {len(row)}")
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
            raise UserError(f"{path}, line {before + reader.line_num}: invalid table ({error})") from None
    finally:
        csv.field_size_limit(limit)


def _rows_between_tabs(text: str) -> Iterator[tuple[int, list[str]]]:
    """Iterate over the rows of a tab-separated table.

    In TSV files, a quotation mark is often part of the text. It quotes a field only if a second mark ends the field: on the
    same line or, if there is no tab in between, on a later line that makes the row as long as the first.
    """
    start, line, width = 0, 0, 0
    while start < len(text):
        end = text.find("\n", start)
        end = len(text) if end < 0 else end
        row = _fields_between_tabs(text[start:end], width)
        if width > 1 and (longer := _over_lines(text, start, end, width)):
            row, end = longer
        line += 1 + text.count("\n", start, end)
        width = width or len(row)
        yield line, row if row != [""] else []
        start = end + 1


def _over_lines(text: str, start: int, end: int, width: int) -> tuple[list[str], int] | None:
    """Return the row that starts with the line from ``start`` to ``end`` and spans several lines, and its end. Return None for
    a one-line row."""
    fields: list[str] = []
    while len(fields) < width:
        last = max(start, text.rfind("\t", start, end) + 1)
        is_open = text.startswith('"', last) and last < end and not QUOTED.fullmatch(text[last:end])
        longer = QUOTED_LINES.match(text, last) if is_open else None
        if longer is None:
            break
        fields += [_unquoted(field) for field in text[start:last].split("\t")[:-1]] + [longer[1].replace('""', '"')]
        start, end = longer.end() + 1, text.find("\n", longer.end())
        end = len(text) if end < 0 else end
        if start > end:  # the line ends with the field
            return (fields, end) if len(fields) == width else None
    if not fields or len(fields) >= width:
        return None
    fields += _fields_between_tabs(text[start:end], width)
    return (fields, end) if len(fields) == width else None


def _fields_between_tabs(line: str, width: int) -> list[str]:
    """Split a line at tabs. Quoted fields may contain tabs if the line would otherwise have more than ``width`` fields."""
    fields = [_unquoted(field) for field in line.split("\t")]
    if not width or len(fields) <= width or '"' not in line:
        return fields
    joined, start = [], 0
    while start <= len(line):
        quoted = QUOTED_TABS.match(line, start)
        end = quoted.end() if quoted else (line.find("\t", start) + 1 or len(line) + 1) - 1
        joined.append(_unquoted(line[start:end]))
        start = end + 1
    return joined if len(joined) == width else fields


def _unquoted(field: str) -> str:
    return match[1].replace('""', '"') if (match := QUOTED.fullmatch(field)) else field


def _fields(path: str | Path, text: str) -> Iterator[list[str]]:
    """Iterate over the field names of each record."""
    if format_of(path) == "a table":
        yield from (names for _, names in _rows(path, text) if len(names) > 1)
    else:
        yield from (list(record) for _, record in _objects(path, text) if isinstance(record, dict))
