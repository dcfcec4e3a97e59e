"""How well word vectors agree with people: on ratings of how similar two words are, and on analogies."""

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

PIECE = 500  # analogies that are computed at a time
MARKS = r"[\t,;]"  # between columns, where a line has one


# -------------------------------------------------------------------------------------------------------- similarity


@dataclass(frozen=True)
class Agreement:
    """Spearman's correlation of the cosines with people's ratings, the pairs it is of, and the pairs with an unknown word."""

    correlation: float
    known: int
    unknown: int


def similarity(vectors: WordVectors, path: str | Path) -> Agreement:
    """The agreement with a file of word pairs and their ratings, such as WordSim-353 and SimLex-999.

    Each line has two words and a number, with tabs, commas or spaces between them; lines that begin with # are left out, and so
    is a first line without a number. Further columns are left out, as those of SimLex-999, SimVerb-3500, WordSim-353 and Rare
    Words: numbers and single letters before the rating, and whatever is behind it. Words that are not known as they are written
    are looked up in lower case.

    Raises UserError, which names the file and the line, for other lines; and where fewer than two pairs are known or the
    ratings are all equal, as there is no correlation then.
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
        raise UserError(f"{path} has no word pairs: two words and a number must be on each line")
    if len(ratings) < 2 and not unknown:
        raise UserError(f"{path} has only one pair: a correlation needs two or more")
    if len(ratings) < 2:
        raise UserError(
            f"of {counted(len(ratings) + unknown, 'pair')} in {path} only {len(ratings)} with two known words: "
            "use vectors of more words"
        )
    if min(ratings) == max(ratings):
        raise UserError(f"all ratings of known words in {path} are {ratings[0]:g}: there is no correlation")
    return Agreement(spearman(cosines, ratings), len(ratings), unknown)


def spearman(first: Any, second: Any) -> float:
    """Spearman's correlation of two rows of numbers: Pearson's correlation of their ranks. 0 where all numbers are equal."""
    ranks = [place - place.mean() for place in (ranked(first), ranked(second))]
    size = host.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum())
    return float((ranks[0] * ranks[1]).sum() / size) if size else 0.0


def ranked(values: Any) -> Array:
    """The rank of each number from 1, float64. Equal numbers share the mean of their ranks."""
    _, places, counts = host.unique(values, return_inverse=True, return_counts=True)
    last = host.cumsum(counts)
    return ((last - counts + 1 + last) / 2)[places]


def _pairs(path: str | Path) -> Iterator[tuple[str, str, float]]:
    rows = [(number, _columns(line), line) for number, line in _lines(path)]
    places = _places([parts for _, parts, _ in (rows[1:] or rows)])
    named = 0  # how many columns the first line names
    if rows and not any(_number(part) is not None for part in rows[0][1][2 : places[2] + 1]):
        number, names, line = rows.pop(0)
        named = len(names)
        if named < 3 or (named > 3 and not re.search(MARKS, line)):
            raise _no_pair(path, number, line)
    for number, parts, line in rows:
        first, second, rated = [parts[place] if place < len(parts) else "" for place in places]
        rating = _number(rated)
        is_odd = len(parts) != named if named else len(parts) != 3 and not re.search(MARKS, line)
        if rating is None or not first or not second or is_odd:
            raise _no_pair(path, number, line)
        yield first, second, rating


def _columns(line: str) -> list[str]:
    return [part.strip() for part in re.split(MARKS if re.search(MARKS, line) else r"\s+", line)]


def _no_pair(path: str | Path, number: int, line: str) -> UserError:
    return UserError(f"{path}, line {number}: two words and a number must be here, not {shortened(line, 60)!r}")


def _places(rows: Sequence[Sequence[str]]) -> tuple[int, int, int]:
    """The columns of the two words and of their rating, from 0.

    The rating is the first number after two words. Before it there may be other columns: the number of the pair, and single
    letters for parts of speech or kinds of relations.
    """
    width = max(map(len, rows), default=0)
    columns = [[row[i] for row in rows if i < len(row)] for i in range(width)]
    rating = next((i for i in range(2, width) if _most(columns[i], lambda cell: _number(cell) is not None)), 2)
    words = [
        i for i in range(min(rating, width)) if not _most(columns[i], lambda cell: len(cell) == 1 or _number(cell) is not None)
    ]
    first, second = words[:2] if len(words) >= 2 else (0, 1)
    return first, second, rating


def _most(cells: Sequence[str], holds: Callable[[str], bool]) -> bool:
    """Whether something holds for most cells. Those for which it does not are in damaged lines, which are refused by number."""
    return 2 * sum(map(holds, cells)) > len(cells)


def _number(text: str) -> float | None:
    try:
        return value if host.isfinite(value := float(text)) else None
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------------- analogies


@dataclass(frozen=True)
class Section:
    """The analogies of a section of a file: how many were answered rightly, how many were asked, and how many have an unknown
    word and were not."""

    name: str
    right: int
    asked: int
    unknown: int

    @property
    def accuracy(self) -> float:
        """The fraction of right answers. 0 if none was asked."""
        return self.right / self.asked if self.asked else 0.0


def analogies(vectors: WordVectors, path: str | Path) -> list[Section]:
    """The answers to a file of analogies, such as questions-words.txt (Mikolov et al. 2013), by section. The last one, with
    the name "all", is their sum.

    A line has four words: the second is to the first as the fourth is to the third. ``WordVectors.analogy`` has to answer with
    the fourth. A line such as ": capitals" begins a section. Words that are not known as they are written are looked up in
    lower case. Raises UserError, which names the file and the line, for other lines, and if no analogy has four known words.
    """
    named: list[tuple[str, list[list[str | None]]]] = []  # the analogies of each section
    for number, line in _lines(path):
        if line.startswith(":"):
            named.append((line[1:].strip(), []))
            continue
        words = line.split()
        if len(words) != 4:
            raise UserError(f"{path}, line {number}: four words must be here, not {shortened(line, 60)!r}")
        named = named or [("", [])]
        named[-1][1].append([_known(vectors, word) for word in words])
    sections = []
    for name, questions in named:
        ids = [[vectors.ids[word] for word in words if word is not None] for words in questions if None not in words]
        right = _count_right(vectors, host.array(ids).reshape(-1, 4))
        sections.append(Section(name, right, len(ids), len(questions) - len(ids)))
    right, asked, unknown = (sum(getattr(s, field) for s in sections) for field in ("right", "asked", "unknown"))
    if not asked and not unknown:
        raise UserError(f"{path} has no analogies: four words must be on each line")
    if not asked:
        raise UserError(f"no analogy in {path} has four known words: use vectors of more words")
    return [*sections, Section("all", right, asked, unknown)]


def _count_right(vectors: WordVectors, ids: Array) -> int:
    """How many analogies, ids (analogies, 4), are answered with the fourth word: a product for many analogies at a time."""
    right = 0
    for piece in (ids[first : first + PIECE] for first in range(0, len(ids), PIECE)):
        a, b, c = (vectors.directions[piece[:, i]] for i in range(3))
        scores = (b - a + c) @ vectors.directions.T
        scores[host.arange(len(piece))[:, None], piece[:, :3]] = -host.inf
        right += int((scores.argmax(axis=1) == piece[:, 3]).sum())
    return right


# ------------------------------------------------------------------------------------------------------------- both


def _known(vectors: WordVectors, word: str) -> str | None:
    """The word as the vectors know it, or None."""
    return next((form for form in (word, word.lower()) if form in vectors), None)


def _lines(path: str | Path) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, ``composed``, without empty ones and those that begin with #."""
    check_file(path, "give a text file of word pairs or of analogies", "*.txt", "*.[tc]sv")
    text = composed(decoded(path, read_file(path, None)))
    for number, line in enumerate(re.split(r"\r\n?|\n", text), start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def is_of_analogies(path: str | Path) -> bool:
    """Whether a file seems to be one of analogies: its first line begins a section, or is four words."""
    _, line = next(_lines(path), (0, ""))
    return line.startswith(":") or (len(line.split()) == 4 and not re.search(MARKS, line))
