"""Agreement of word vectors with human judgments: similarity ratings of word pairs, and analogies."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import read_file
from tinyformer.data.files import check_file, decoded
from tinyformer.word_vectors.corpus import composed
from tinyformer.word_vectors.vectors import WordVectors
from tinytensor.common.wording import counted
from tinytensor.device.backend import Array, host

PIECE = 500  # analogies per computation
MARKS = r"[\t,;]"  # column separators, if a line has one


# -------------------------------------------------------------------------------------------------------- similarity


@dataclass(frozen=True)
class Agreement:
    """Spearman correlation of cosines with human ratings, and the numbers of pairs used and of pairs with an unknown word."""

    correlation: float
    known: int
    unknown: int


def similarity(vectors: WordVectors, path: str | Path) -> Agreement:
    """Return the agreement with a file of rated word pairs, such as WordSim-353 and SimLex-999.

    Each line has two words and a number, separated by tabs, commas or spaces. Comments (#), a first line without a number, and
    extra columns are ignored, as in SimLex-999, SimVerb-3500, WordSim-353 and Rare Words: numbers and single letters before the
    rating, and anything after it. Words that are unknown as written are looked up in lowercase.

    Raises UserError, with the file and line, for other lines. Also raises it if fewer than two pairs are known or all ratings
    are equal, since the correlation is then undefined.
    """
    cosines, ratings, unknown = [], [], 0
    for first, second, rating in _pairs(path):
        words = [_known(vectors, word) for word in (first, second)]
        if None in words:
            unknown += 1
        else:
            cosines.append(vectors.similarity(*map(str, words)))
            ratings.append(rating)
    if not ratings and not unknown:
        raise UserError(f"{path} has no word pairs: each line needs two words and a number")
    if len(ratings) < 2 and not unknown:
        raise UserError(f"{path} has only one pair: a correlation needs at least two")
    if len(ratings) < 2:
        raise UserError(
            f"{path} has {counted(len(ratings), 'pair')} of two known words (of {len(ratings) + unknown:,}), and a correlation "
            "needs two: use vectors of more words"
        )
    if min(ratings) == max(ratings):
        raise UserError(f"all ratings of known words in {path} are {ratings[0]:g}: a correlation needs different ones")
    return Agreement(spearman(cosines, ratings), len(ratings), unknown)


def spearman(first: Any, second: Any) -> float:
    """Return the Spearman correlation of two sequences: the Pearson correlation of their ranks. Return 0 if all values are
    equal."""
    ranks = [rank - rank.mean() for rank in (ranked(first), ranked(second))]
    size = host.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum())
    return float((ranks[0] * ranks[1]).sum() / size) if size else 0.0


def ranked(values: Any) -> Array:
    """Return the rank of each value from 1, float64. Ties share the mean of their ranks."""
    _, inverse, counts = host.unique(values, return_inverse=True, return_counts=True)
    last = host.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[inverse]


def _pairs(path: str | Path) -> Iterator[tuple[str, str, float]]:
    rows = [(number, _columns(line), line) for number, line in _lines(path)]
    columns = _pair_columns([parts for _, parts, _ in (rows[1:] or rows)])
    named = 0  # number of columns named in the first line
    if rows and not any(_number(part) is not None for part in rows[0][1][2 : columns[2] + 1]):
        number, names, line = rows.pop(0)
        named = len(names)
        if named < 3 or (named > 3 and not re.search(MARKS, line)):
            raise _no_pair(path, number, line)
    for number, parts, line in rows:
        first, second, rated = [parts[column] if column < len(parts) else "" for column in columns]
        rating = _number(rated)
        is_odd = len(parts) != named if named else len(parts) != 3 and not re.search(MARKS, line)
        if rating is None or not first or not second or is_odd:
            raise _no_pair(path, number, line)
        yield first, second, rating


def _columns(line: str) -> list[str]:
    return [part.strip() for part in re.split(MARKS if re.search(MARKS, line) else r"\s+", line)]


def _no_pair(path: str | Path, number: int, line: str) -> UserError:
    return UserError(f"{path}, line {number}: expected two words and a number, got {shortened(line, 60)!r}")


def _pair_columns(rows: Sequence[Sequence[str]]) -> tuple[int, int, int]:
    """Return the columns of the two words and their rating, from 0.

    The rating is the first number after two words. Other columns may precede it: the pair's number, and single letters for
    parts of speech or relations.
    """
    width = max(map(len, rows), default=0)
    columns = [[row[i] for row in rows if i < len(row)] for i in range(width)]
    rating = next((i for i in range(2, width) if _majority(columns[i], lambda cell: _number(cell) is not None)), 2)
    words = [
        i
        for i in range(min(rating, width))
        if not _majority(columns[i], lambda cell: len(cell) == 1 or _number(cell) is not None)
    ]
    first, second = words[:2] if len(words) >= 2 else (0, 1)
    return first, second, rating


def _majority(cells: Sequence[str], holds: Callable[[str], bool]) -> bool:
    """Return True if the condition holds for most cells. Lines with other cells raise errors later."""
    return 2 * sum(map(holds, cells)) > len(cells)


def _number(text: str) -> float | None:
    try:
        return value if host.isfinite(value := float(text)) else None
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------------- analogies


@dataclass(frozen=True)
class Section:
    """The analogies of one section of a file: the numbers of correct answers, of analogies tested, and of analogies skipped
    because of an unknown word."""

    name: str
    right: int
    asked: int
    unknown: int

    @property
    def accuracy(self) -> float:
        """The fraction of correct answers, or 0 if none was tested."""
        return self.right / self.asked if self.asked else 0.0


def analogies(vectors: WordVectors, path: str | Path) -> list[Section]:
    """Return the results for a file of analogies, such as questions-words.txt (Mikolov et al. 2013), by section. The last
    section, "all", is the total.

    A line has four words: the second is to the first as the fourth is to the third. ``WordVectors.analogy`` must return the
    fourth. A line such as ": capitals" starts a section. Words that are unknown as written are looked up in lowercase. Raises
    UserError, with the file and line, for other lines, and if no analogy has four known words.
    """
    named: list[tuple[str, list[list[str | None]]]] = []  # the analogies of each section
    for number, line in _lines(path):
        if line.startswith(":"):
            named.append((line[1:].strip(), []))
            continue
        words = line.split()
        if len(words) != 4:
            raise UserError(f"{path}, line {number}: expected four words, got {shortened(line, 60)!r}")
        named = named or [("", [])]
        named[-1][1].append([_known(vectors, word) for word in words])
    sections = []
    for name, questions in named:
        ids = [[vectors.ids[word] for word in words if word is not None] for words in questions if None not in words]
        right = _count_right(vectors, host.array(ids).reshape(-1, 4))
        sections.append(Section(name, right, len(ids), len(questions) - len(ids)))
    right, asked, unknown = (sum(getattr(s, field) for s in sections) for field in ("right", "asked", "unknown"))
    if not asked and not unknown:
        raise UserError(f"{path} has no analogies: each line needs four words")
    if not asked:
        raise UserError(f"no analogy in {path} has four known words: use vectors of more words")
    return [*sections, Section("all", right, asked, unknown)]


def _count_right(vectors: WordVectors, ids: Array) -> int:
    """Count the analogies, ids (analogies, 4), whose answer is the fourth word. Many share a matrix product."""
    right = 0
    for piece in (ids[first : first + PIECE] for first in range(0, len(ids), PIECE)):
        a, b, c = (vectors.directions[piece[:, i]] for i in range(3))
        scores = (b - a + c) @ vectors.directions.T
        scores[host.arange(len(piece))[:, None], piece[:, :3]] = -host.inf
        right += int((scores.argmax(axis=1) == piece[:, 3]).sum())
    return right


# ------------------------------------------------------------------------------------------------------------- both


def _known(vectors: WordVectors, word: str) -> str | None:
    """Return a word as the vectors spell it, or None."""
    return next((form for form in (word, word.lower()) if form in vectors), None)


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """Iterate over a file's lines with their numbers, ``composed``, without empty lines and comments (#)."""
    check_file(path, "give a text file of word pairs or of analogies", "*.txt", "*.[tc]sv")
    text = composed(decoded(path, read_file(path, None)))
    for number, line in enumerate(re.split(r"\r\n?|\n", text), start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def is_of_analogies(path: str | Path) -> bool:
    """Return True if a file looks like analogies: its first line starts a section or has four words."""
    _, line = next(_lines(path), (0, ""))
    return line.startswith(":") or (len(line.split()) == 4 and not re.search(MARKS, line))
