"""What the results files say: their tables and their numbers, from which all figures of the pages come.

``up_to_date(text)`` writes the figures of a page's sentences anew; ``sentences.py`` lists these. The site is built from what it
returns, so no figure on it can go stale. The pages' files hold the figures, too, and no marks in their place, as people also
read them without the site; ``python docs/_extensions/results.py`` writes them there, and a test tells when that is due.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
Sentence = tuple[str, Callable[[], list[float]]]


def in_a_line(text: str) -> str:
    """The text with one space for each stretch of white space, as a sentence runs over lines."""
    return " ".join(text.split())


def cells(text: str) -> list[list[list[str]]]:
    """The cells of each Markdown table, as they are written: its header, then its rows."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n)+", f"{text}\n", flags=re.MULTILINE):
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        found.append([row for row in rows if not all(re.fullmatch(r":?-+:?", cell) for cell in row)])
    return found


def tables(text: str) -> list[list[list[str]]]:
    """The same, without the signs of bold type and code."""
    return [[[re.sub("[*`]", "", cell) for cell in row] for row in table] for table in cells(text)]


@cache
def read(name: str) -> str:
    """A results file's text; a folder's is that of its README.md."""
    path = RESULTS / name
    return (path / "README.md" if path.is_dir() else path).read_text(encoding="utf-8")


def cell(name: str, row: str, column: str, *, table: int = 0, after: str = "") -> float:
    """The number at the start of a cell of a results file. ``row`` is its first cell, or several between bars; of tables that
    have such a row and column, the one with that index; of columns of one name, the first ``after`` another."""
    names = row.split(" | ")
    found = []
    for header, *rows in tables(read(name)):
        first = header.index(after) + 1 if after and after in header else 0
        if column in header[first:]:
            found += [each[header.index(column, first)] for each in rows if each[: len(names)] == names]
    if len(found) <= table:
        raise LookupError(f"benchmarks/results/{name} has no {column!r} of {row!r}")
    start = re.match(r"[\d.]+", found[table].replace(",", ""))
    if not start:
        raise LookupError(f"benchmarks/results/{name}: {found[table]!r} of {row!r} is no number")
    return float(start[0])


def number(name: str, pattern: str) -> float:
    """The number that the pattern's group finds in a results file."""
    found = re.search(pattern, in_a_line(read(name)))
    if not found:
        raise LookupError(f"benchmarks/results/{name} says nothing like {pattern}")
    return float(found[1].replace(",", ""))


# ------------------------------------------------------------------------------------------------------ figures on pages


def pattern_of(sentence: str) -> str:
    """A regular expression that finds the sentence with any figures, each of which is a group, and wherever its lines break."""
    parts = []
    for text, field, _, _ in string.Formatter().parse(sentence):
        parts.append(r"\s+".join(re.escape(word) for word in re.split(r"\s", text)))
        if field is not None:
            parts.append(r"(\d[\d,]*(?:\.\d+)?)")
    return "".join(parts)


def formatted(sentence: str, figures: Iterable[float]) -> list[str]:
    """The figures as the sentence writes them, one for each of its fields."""
    values, written = list(figures), []
    for i, (_, field, spec, _) in enumerate(f for f in string.Formatter().parse(sentence) if f[1] is not None):
        written.append(format(values[int(field) if field else i], spec or ""))
    return written


def up_to_date(text: str, sentences: Iterable[Sentence]) -> str:
    """The text of a page, with the figures that the results files have now. Nothing else of it changes."""
    for sentence, figures in sentences:
        pattern = pattern_of(sentence)
        if not re.search(pattern, text):
            continue
        written = formatted(sentence, figures())

        def renewed(match: re.Match[str], written: list[str] = written) -> str:
            pieces, end = [], match.start()
            for group, figure in enumerate(written, 1):
                pieces += [match.string[end : match.start(group)], figure]
                end = match.end(group)
            return "".join(pieces) + match.string[end : match.end()]

        text = re.sub(pattern, renewed, text)
    return text


def pages() -> list[Path]:
    """The README, and all pages of the site that are written by hand."""
    folders = ("docs/guides", "docs/lessons")
    return [ROOT / "README.md", ROOT / "docs/index.md", *(p for f in folders for p in sorted((ROOT / f).glob("*.md")))]


def renew(app: Any, page: str, source: list[str]) -> None:
    """Sphinx's event: what it reads of a page has the figures of the results files."""
    from sentences import SENTENCES

    source[0] = up_to_date(source[0], SENTENCES)


def setup(app: Any) -> dict[str, Any]:
    """Renew the figures of each page before it is read."""
    app.connect("source-read", renew)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def main() -> None:
    """Write the figures into the files of the pages, and tell which changed."""
    from sentences import SENTENCES

    for path in pages():
        before = path.read_text(encoding="utf-8")
        after = up_to_date(before, SENTENCES)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"{path.relative_to(ROOT)}: figures renewed")


if __name__ == "__main__":
    main()
