"""The files of a translation run: where its pairs of sentences are, and how they are read, cleaned and split."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyformer.common.errors import SettingError, UserError, print_line
from tinyformer.data.fields import kind_of, rows_of
from tinyformer.data.pairs import Pair, read_lines, read_two_files, split_pairs, without_empty
from tinytensor.common.wording import counted


@dataclass(frozen=True)
class PairFiles:
    """Paths of files with pairs of sentences.

    The pairs to train on are in ``data``, which ``read_pairs`` reads, or in ``source`` and ``target`` (line by line). Those to
    validate and to test with may have files of their own.
    """

    data: str | None = None
    source: str | None = None
    target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None

    def are_given(self) -> bool:
        """Whether there is at least one file."""
        return self != PairFiles()

    def read(self, lowercase: bool, validation: int, test: int) -> list[list[Pair]]:
        """The pairs to train on, to validate with and to test with.

        ``validation``, ``test``: how many pairs are held out of the others where a part has no files of its own. Raises
        UserError for files that do not go together, that hold no pairs, or too few.
        """
        pairs = self._read("", lowercase)
        own = [self._read(part, lowercase) for part in ("validation_", "test_")]
        if not pairs:
            raise UserError("there are no sentences to train on: give --data, or --source and --target")
        wanted = {name: count for name, count, found in zip(("validation", "test"), (validation, test), own) if not found}
        different = list(dict.fromkeys(pairs))
        if len(different) < len(pairs):
            repeated = counted(len(pairs) - len(different), "pair")
            left = f"left out {repeated} that occurred before, of {counted(len(pairs), 'pair')}"
            print_line(f"{self.data or self.source}: {left}")
        training, *held_out = split_by_settings(different, wanted)
        return [training, *(found or held_out.pop(0) for found in own)]

    def _read(self, part: str, lowercase: bool) -> list[Pair]:
        """The cleaned pairs of a part's files. The list is empty where there are no files."""
        data, source, target = None if part else self.data, getattr(self, f"{part}source"), getattr(self, f"{part}target")
        if (source is None) != (target is None):
            raise UserError("give a source and a target file together: the sentences of one are the translations of the other")
        if data is not None and source is not None:
            raise UserError("give either --data, or --source and --target: each holds the pairs to train on")
        if data is None and source is None:
            return []
        found = read_pairs(data) if data is not None else read_two_files(source, target)
        # They are cleaned before they are split: sentences that the model sees as one must not go to two parts.
        pairs, empty = without_empty([(one_line(s, lowercase), one_line(t, lowercase)) for s, t in found])
        if not pairs:
            raise UserError(f"{data or source} has no pair of sentences: every line is empty on one side")
        if empty:
            print_line(f"{data or source}: skipped {counted(empty, 'pair')} with an empty side")
        return pairs


def split_by_settings(pairs: Sequence[Pair], held_out: Mapping[str, int]) -> list[list[Pair]]:
    """As ``split_pairs``, but the numbers of ``held_out`` pairs have the names of their settings, which the errors tell."""
    try:
        return split_pairs(pairs, list(held_out.values()))
    except UserError as error:
        most = len({source for source, _ in pairs}) - 1
        if most < len(held_out):
            raise UserError(f"{error}. Give more pairs, or files to validate and to test with") from None
        together = "together " if len(held_out) > 1 else ""
        message = f"{error}. Choose smaller {' and '.join(held_out)}: {together}at most {most:,}"
        raise SettingError(message, *held_out) from None


def one_line(text: str, lowercase: bool = False) -> str:
    """The text with single spaces between its words, in lower case if ``lowercase``.

    >>> from tinyformer import one_line
    >>> one_line("  Two   words ", lowercase=True)
    'two words'
    """
    text = " ".join(text.split())
    return text.lower() if lowercase else text


# -------------------------------------------------------------------------------------------- which columns hold the sentences


LOOKED_AT = 1000  # lines that show what the columns hold
MOST = 0.95  # of them: a file may have a few odd lines
# What columns hold that are no sentences, in the words of a message.
KINDS = {
    "numbers": re.compile(r"\s*[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?\s*%?\s*"),
    "links": re.compile(r"\s*(?:https?|ftp)://\S+\s*"),
    "dates and times": re.compile(r"\s*(?:\d{4}-\d\d-\d\d(?:[ T][\d:.,Z+-]+)?|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|\\N)\s*"),
    "ids": re.compile(r"\s*(?=\S*\d)(?:[0-9a-fA-F]{8,}|[\w.:/#-]*[_.:/#-][\w.:/#-]*\d[\w.:/#-]*)\s*"),
    "codes of languages": re.compile(r"\s*(?:[a-z]{2,3}|[A-Z]{2,3})(?:[-_][A-Za-z]{2,4})*\s*"),
    "licences": re.compile(r"\s*CC[ -](BY|0)\b.*", re.IGNORECASE),  # what Tatoeba's files say of each line's authors
    "labels": re.compile(r"\S*"),  # such as the name of a test set: the same few words again and again
}
NUMBERS, CODES, LABELS = "numbers", "codes of languages", "labels"
MOST_KINDS = {CODES: 1 / 2, LABELS: 1 / 10}  # of them to a line: sentences without white space are more
FEWEST_LABELLED = 20  # lines that tell labels from words


def read_pairs(path: str | Path) -> list[Pair]:
    """Pairs from a file of records: JSON, JSON Lines, or CSV with a line of names. Any other file is read as by ``read_tsv``.
    Each may be gzipped.

    The sentences are in the fields source and target. Where there are none, they are in the first two fields that hold texts,
    without those that ``read_tsv`` leaves out. A line is printed that names the two. An object in a record, such as
    "translation", may have them. Raises UserError for a file without two such fields, and for a damaged one.
    """
    name = str(path).removesuffix(".gz")
    if not kind_of(name) or name.lower().endswith(".tsv"):
        return read_tsv(path)
    names, *records = rows_of(name, "\n".join(read_lines(path))) or [[]]
    rows = [[value.strip() if isinstance(value, str) else "" for value in record] for record in records]
    places = [names.index(name) for name in ("source", "target") if name in names]
    if len(places) < 2:
        texts = [i for i in range(len(names)) if any(row[i] for row in rows[:LOOKED_AT])]
        others = _others([[row[i] for i in texts] for row in [names, *rows[:LOOKED_AT]]])
        places = [column for number, column in enumerate(texts) if number not in others]
    if len(places) < 2:
        has = ", ".join(names[i] for i in places) or "no text"
        raise UserError(f"{path} has {has}: two fields are needed, of sentences and of their translations")
    print_line(f"{path}: learns to translate {names[places[0]]} to {names[places[1]]}")
    return [(row[places[0]], row[places[1]]) for row in rows]


def read_tsv(path: str | Path) -> list[Pair]:
    """Pairs from a file with a sentence, a tab and its translation on each line. Further columns are ignored.

    Of three columns or more, those are left out that hold only numbers, dates, links, ids, codes of languages or labels, as
    published files have them before each sentence. A line is printed if the sentences are not in the first two. Raises
    UserError for a line with too few columns, and for a file with further columns and only one of sentences.
    """
    rows = [(number, row.split("\t")) for number, line in enumerate(read_lines(path), start=1) for row in _rows_of(line)]
    looked_at = [row for _, row in rows[: LOOKED_AT + 1] if any(map(str.strip, row))]
    others = _others(looked_at)
    first, second, has_names = _places(path, looked_at, others)
    if (first, second) != (0, 1):
        kinds = " or ".join(dict.fromkeys(kind for place, kind in others.items() if place < second))
        without = ", and the first line is left out, as it names them" if has_names else ""
        print_line(f"{path}: the sentences are in columns {first + 1} and {second + 1}, as others hold only {kinds}{without}")
    pairs: list[Pair] = []
    for number, columns in rows:
        if len(columns) <= second:
            if any(map(str.strip, columns)):
                what = "no tab between a sentence and its translation" if second == 1 else f"there is no column {second + 1}"
                raise UserError(f"{path}, line {number}: {what}")
            columns = [""] * (second + 1)
        pairs.append((columns[first].strip(), columns[second].strip()))
    return pairs[1:] if has_names else pairs


def _rows_of(line: str) -> list[str]:
    """The rows of a line: several in a file of mixed line ends, where a lone carriage return parts what are rows by themselves.
    Anywhere else it is white space."""
    rows = line.rstrip("\r").split("\r")
    return rows if all("\t" in row for row in rows) else [line.rstrip("\r")]


def _others(rows: Sequence[Sequence[str]]) -> dict[int, str]:
    """The columns that hold no sentences, from 0, and what they hold. There are none if there are two columns at most."""
    width = max(map(len, rows), default=0)
    found = {}
    for column in range(width if width > 2 else 0):
        first, *rest = [row[column].strip() if column < len(row) else "" for row in rows]
        cells = rest or [first]  # the first line may be one of names
        for kind, pattern in KINDS.items():
            if sum(bool(pattern.fullmatch(cell)) for cell in cells) < MOST * len(cells):
                continue
            if kind in MOST_KINDS and len({first, *cells}) > max(1, MOST_KINDS[kind] * len(rows)):
                continue
            if kind == LABELS and (len(cells) < FEWEST_LABELLED or not any(cells)):
                continue
            found[column] = kind
            break
    if len(found) == width:  # the same few words may be what is translated
        return {column: kind for column, kind in found.items() if kind != LABELS}
    return found


def _places(path: str | Path, rows: Sequence[Sequence[str]], others: Mapping[int, str]) -> tuple[int, int, bool]:
    """The columns of the sentences and of their translations, from 0, and whether the first line holds names of columns."""
    width = max(map(len, rows), default=0)
    kept = [column for column in range(width) if column not in others]
    if not others or kept[:2] == [0, 1]:
        return 0, 1, False
    if len(kept) < 2:
        if {others.get(0, NUMBERS), others.get(1, NUMBERS)} <= {NUMBERS, LABELS}:  # these may be what is translated
            return 0, 1, False
        what = f"column {kept[0] + 1} alone" if kept else "no column"
        held = ", ".join(dict.fromkeys(others.values()))
        raise UserError(
            f"{path}: {what} holds sentences, and the others {held}: give a file of a sentence, a tab and its translation, as "
            "cut -f 1,2 makes it of columns 1 and 2"
        )
    telling = [column for column, kind in others.items() if kind not in MOST_KINDS] or list(others)
    has_names = not any(column < len(rows[0]) and _is_usual(rows, column, others[column]) for column in telling)
    return kept[0], kept[1], has_names


def _is_usual(rows: Sequence[Sequence[str]], column: int, kind: str) -> bool:
    """Whether the first line has in this column what the others have, and no name of the column."""
    if kind == LABELS:
        return rows[0][column] in {row[column] for row in rows[1:] if column < len(row)}
    return bool(KINDS[kind].fullmatch(rows[0][column]))
