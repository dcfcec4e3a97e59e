"""Pairs from the columns of one file: which columns hold the sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tinyformer.common.errors import UserError, print_line
from tinyformer.data.pairs import Pair, read_lines

LOOKED_AT = 1000  # lines that show what the columns hold
MOST = 0.95  # of them: a file may have a few odd lines
NUMBER = re.compile(r"\s*\d+\s*")
LICENCE = re.compile(r"\s*CC[ -](BY|0)\b.*", re.IGNORECASE)  # what Tatoeba's files say of each line's authors


def read_tsv(path: str | Path) -> list[Pair]:
    """Pairs from a file with a sentence, a tab and its translation on each line. Further columns are ignored.

    Where columns hold only numbers, as Tatoeba's files have them before each sentence, the sentences are in the others. A line
    is printed then. Raises UserError for a line with too few columns.
    """
    rows = [line.rstrip("\r").split("\t") for line in read_lines(path)]
    first, second, has_names = _places([row for row in rows[: LOOKED_AT + 1] if any(map(str.strip, row))])
    if (first, second) != (0, 1):
        without = ", and the first line is left out, as it names them" if has_names else ""
        print_line(f"{path}: the sentences are in columns {first + 1} and {second + 1}, as others hold only numbers{without}")
    pairs: list[Pair] = []
    for number, columns in enumerate(rows, start=1):
        if len(columns) <= second:
            if any(map(str.strip, columns)):
                what = "no tab between a sentence and its translation" if second == 1 else f"there is no column {second + 1}"
                raise UserError(f"{path}, line {number}: {what}")
            columns = [""] * (second + 1)
        pairs.append((columns[first].strip(), columns[second].strip()))
    return pairs[1:] if has_names else pairs


def _places(rows: Sequence[Sequence[str]]) -> tuple[int, int, bool]:
    """The columns of the sentences and of their translations, from 0, and whether the first line holds names of columns."""
    width = max(map(len, rows), default=0)
    numbers = [i for i in range(width) if _holds(NUMBER, rows, i)]
    kept = [i for i in range(width) if i not in numbers and not _holds(LICENCE, rows, i)]
    if not numbers or len(kept) < 2 or min(numbers) > kept[1]:  # as where numbers are what is translated
        return 0, 1, False
    has_names = not any(i < len(rows[0]) and NUMBER.fullmatch(rows[0][i]) for i in numbers)
    return kept[0], kept[1], has_names


def _holds(kind: re.Pattern[str], rows: Sequence[Sequence[str]], column: int) -> bool:
    """Whether nearly all cells of a column are of this kind. The first line may be one of names."""
    cells = [row[column] if column < len(row) else "" for row in (rows[1:] or rows)]
    return sum(bool(kind.fullmatch(cell)) for cell in cells) >= MOST * len(cells)
