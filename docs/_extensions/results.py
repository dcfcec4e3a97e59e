"""Read the tables and numbers of ``benchmarks/results``, and write them into the pages' tables.

``figures.py`` makes the tables. ``python docs/_extensions/results.py`` writes them, and a test fails if they are out of date.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Table = list[list[str]]  # a header, then rows, as Markdown
TABLE = re.compile(r"(?:^\|.*\|\n)+", flags=re.MULTILINE)


def in_a_line(text: str) -> str:
    """Return the text with each stretch of white space replaced by a space."""
    return " ".join(text.split())


def cells(text: str) -> list[Table]:
    """Return the cells of each Markdown table, without the line below the header."""
    tables = []
    for block in TABLE.findall(f"{text}\n"):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        tables.append([row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)])
    return tables


def tables(text: str) -> list[Table]:
    """Return the cells of each table without the marks of bold type and code."""
    return [[[re.sub("[*`]", "", cell) for cell in row] for row in table] for table in cells(text)]


@cache
def read(name: str) -> str:
    """Return the text of a results file, or of a folder's README.md."""
    path = RESULTS / name
    return (path / "README.md" if path.is_dir() else path).read_text(encoding="utf-8")


def cell(name: str, row: str, column: str, *, table: int = 0, after: str = "") -> float:
    """Return the number at the start of a cell of a results file.

    ``row`` is the row's first cell, or several joined by " | ". ``table`` chooses among tables with such a row and column,
    and ``after`` names a column to the left when several columns have the same name.
    """
    names = row.split(" | ")
    matches = []
    for header, *rows in tables(read(name)):
        first = header.index(after) + 1 if after and after in header else 0
        if column in header[first:]:
            matches += [each[header.index(column, first)] for each in rows if each[: len(names)] == names]
    if len(matches) <= table:
        raise LookupError(f"benchmarks/results/{name} has no {column!r} of {row!r}")
    start = re.match(r"[\d.]+", matches[table].replace(",", ""))
    if not start:
        raise LookupError(f"benchmarks/results/{name}: {matches[table]!r} of {row!r} is no number")
    return float(start[0])


def number(name: str, pattern: str) -> float:
    """Return the number that the pattern's group matches in a results file."""
    match = re.search(pattern, in_a_line(read(name)))
    if not match:
        raise LookupError(f"benchmarks/results/{name} has no match of {pattern}")
    return float(match[1].replace(",", ""))


def with_tables(text: str, measured: list[Table]) -> str:
    """Return a page with the rows of these tables instead of those under the same headers."""

    def updated(match: re.Match[str]) -> str:
        (header,), lines = cells(match[0].splitlines(keepends=True)[0])[0], match[0].splitlines()
        for first, *rows in measured:
            if first == header:
                return "\n".join([*lines[:2], *(f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows), ""])
        return match[0]

    return TABLE.sub(updated, text)


def main() -> None:
    """Write the tables into the pages, and print the names of the pages that changed."""
    from figures import TABLES

    for name, make in TABLES.items():
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = with_tables(before, make())
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{name}: tables updated")


if __name__ == "__main__":
    main()
