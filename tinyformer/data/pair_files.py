"""The files of a translation run: finding, reading, cleaning and splitting its pairs of sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinyformer.common.errors import SettingError, UserError, print_line
from tinyformer.data.fields import format_of, rows_of
from tinyformer.data.pairs import Pair, read_lines, read_two_files, split_pairs, without_empty
from tinytensor.common.wording import counted


@dataclass(frozen=True)
class PairFiles:
    """Paths of files with pairs of sentences.

    The training pairs are in ``data``, read by ``read_pairs``, or line by line in ``source`` and ``target``. Validation and
    test pairs may have their own files.
    """

    data: str | None = None
    source: str | None = None
    target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None

    def are_given(self) -> bool:
        """Return True if there is at least one file."""
        return self != PairFiles()

    def read(self, lowercase: bool, validation: int, test: int) -> list[list[Pair]]:
        """Return the pairs for training, validation and testing.

        ``validation``, ``test``: how many training pairs to hold out for a part without files. Raises UserError for missing,
        contradictory or mismatched files, and for too few pairs.
        """
        pairs = self._read("", lowercase)
        held_apart = [self._read(part, lowercase) for part in ("validation_", "test_")]
        if not pairs:
            raise UserError("there are no sentences to train on: give --data, or --source and --target")
        counts = zip(("validation", "test"), (validation, test), held_apart)
        wanted = {name: count for name, count, part in counts if not part}
        different = list(dict.fromkeys(pairs))
        if len(different) < len(pairs):
            repeated = counted(len(pairs) - len(different), "repeated pair")
            print_line(f"{self.data or self.source}: left out {repeated} of {len(pairs):,}")
        training, *held_out = split_by_settings(different, wanted)
        return [training, *(part or held_out.pop(0) for part in held_apart)]

    def _read(self, part: str, lowercase: bool) -> list[Pair]:
        """Return the cleaned pairs of a part's files, or [] if it has none."""
        data, source, target = None if part else self.data, getattr(self, f"{part}source"), getattr(self, f"{part}target")
        if (source is None) != (target is None):
            raise UserError("a source and a target file belong together: give both")
        if data is not None and source is not None:
            raise UserError("got --data and --source: give either --data, or --source and --target")
        if data is None and source is None:
            return []
        raw = read_pairs(data) if data is not None else read_two_files(source, target)
        # Clean before splitting: sentences that are equal to the model must not go to two parts.
        pairs, empty = without_empty([(one_line(s, lowercase), one_line(t, lowercase)) for s, t in raw])
        if not pairs:
            raise UserError(f"{data or source} has no pair of sentences: every line is empty on one side")
        if empty:
            print_line(f"{data or source}: skipped {counted(empty, 'pair')} with an empty side")
        return pairs


def split_by_settings(pairs: Sequence[Pair], held_out: Mapping[str, int]) -> list[list[Pair]]:
    """Call ``split_pairs`` with the counts of ``held_out``. Errors name the settings, which are its keys."""
    try:
        return split_pairs(pairs, list(held_out.values()))
    except UserError as error:
        limit = len({source for source, _ in pairs}) - 1
        if limit < len(held_out):
            raise UserError(f"{error}. Give more pairs, or files for validation and testing") from None
        together = "together " if len(held_out) > 1 else ""
        message = f"{error}. Choose smaller {' and '.join(held_out)}: {together}at most {limit:,}"
        raise SettingError(message, *held_out) from None


def one_line(text: str, lowercase: bool = False) -> str:
    """Return the text with single spaces between its words, lower-cased if ``lowercase``.

    >>> from tinyformer import one_line
    >>> one_line("  Two   words ", lowercase=True)
    'two words'
    """
    text = " ".join(text.split())
    return text.lower() if lowercase else text


# -------------------------------------------------------------------------------------------- which columns hold the sentences


SAMPLED = 1000  # lines that show what the columns hold
ENOUGH = 0.95  # of them: a file may have a few odd lines
# Contents of columns without sentences, as messages name them.
PATTERNS = {
    "numbers": re.compile(r"\s*[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?\s*%?\s*"),
    "links": re.compile(r"\s*(?:https?|ftp)://\S+\s*"),
    "dates and times": re.compile(r"\s*(?:\d{4}-\d\d-\d\d(?:[ T][\d:.,Z+-]+)?|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|\\N)\s*"),
    "ids": re.compile(r"\s*(?=\S*\d)(?:[0-9a-fA-F]{8,}|[\w.:/#-]*[_.:/#-][\w.:/#-]*\d[\w.:/#-]*)\s*"),
    "language codes": re.compile(r"\s*(?:[a-z]{2,3}|[A-Z]{2,3})(?:[-_][A-Za-z]{2,4})*\s*"),
    "licences": re.compile(r"\s*CC[ -](BY|0)\b.*", re.IGNORECASE),  # Tatoeba's attribution of each line
    "labels": re.compile(r"\S*"),  # such as the name of a test set: the same few words again and again
}
NUMBERS, CODES, LABELS = "numbers", "language codes", "labels"
MOST_DIFFERENT = {CODES: 1 / 2, LABELS: 1 / 10}  # different cells per line: sentences without white space differ more
FEWEST_LABELED = 20  # lines needed to tell labels from words


def read_pairs(path: str | Path) -> list[Pair]:
    """Read pairs from a file of records: JSON, JSON Lines, or CSV with a header row. ``read_tsv`` reads any other file. Each
    may be gzipped.

    The sentences are in the fields source and target, which may be inside an object such as "translation". Without these, they
    are in the first two fields of text, apart from those that ``read_tsv`` ignores. A line is printed that names the two.
    Raises UserError for a file without two such fields, and for a damaged one.
    """
    name = str(path).removesuffix(".gz")
    if not format_of(name) or name.lower().endswith(".tsv"):
        return read_tsv(path)
    names, *records = rows_of(name, "\n".join(read_lines(path))) or [[]]
    rows = [[value.strip() if isinstance(value, str) else "" for value in record] for record in records]
    columns = [names.index(name) for name in ("source", "target") if name in names]
    if len(columns) < 2:
        texts = [i for i in range(len(names)) if any(row[i] for row in rows[:SAMPLED])]
        ignored = _ignored([[row[i] for i in texts] for row in [names, *rows[:SAMPLED]]])
        columns = [column for number, column in enumerate(texts) if number not in ignored]
    if len(columns) < 2:
        fields = " and ".join(names[i] for i in columns) or "no fields of text"
        raise UserError(f"{path} has {fields}: two fields are needed, one of sentences and one of their translations")
    first, second = columns[:2]
    print_line(f"{path}: learns to translate {names[first]} to {names[second]}")
    return [(row[first], row[second]) for row in rows]


def read_tsv(path: str | Path) -> list[Pair]:
    """Read pairs from a file with a sentence, a tab and its translation on each line. Further columns are ignored.

    If there are three columns or more, those with only numbers, dates, links, ids, language codes or labels are ignored, as
    published files have them before each sentence. A line is printed if the sentences are not in the first two columns. Raises
    UserError for a line with too few columns, and if only one of several columns holds sentences.
    """
    rows = [(number, row.split("\t")) for number, line in enumerate(read_lines(path), start=1) for row in _rows_of(line)]
    sample = [row for _, row in rows[: SAMPLED + 1] if any(map(str.strip, row))]
    ignored = _ignored(sample)
    first, second, has_names = _columns(path, sample, ignored)
    if (first, second) != (0, 1):
        contents = " or ".join(dict.fromkeys(content for column, content in ignored.items() if column < second))
        header = "; the first line is a header" if has_names else ""
        print_line(f"{path}: the sentences are in columns {first + 1} and {second + 1}; others hold only {contents}{header}")
    pairs: list[Pair] = []
    for number, columns in rows:
        if len(columns) <= second:
            if any(map(str.strip, columns)):
                problem = "no tab between a sentence and its translation" if second == 1 else f"no column {second + 1}"
                raise UserError(f"{path}, line {number}: {problem}")
            columns = [""] * (second + 1)
        pairs.append((columns[first].strip(), columns[second].strip()))
    return pairs[1:] if has_names else pairs


def _rows_of(line: str) -> list[str]:
    """Split a line at lone carriage returns if each part has a tab, as in a file of mixed line ends. Otherwise they are white
    space."""
    rows = line.rstrip("\r").split("\r")
    return rows if all("\t" in row for row in rows) else [line.rstrip("\r")]


def _ignored(rows: Sequence[Sequence[str]]) -> dict[int, str]:
    """Return the columns without sentences, from 0, and what they hold. Of two columns or fewer, none is ignored."""
    width = max(map(len, rows), default=0)
    ignored = {}
    for column in range(width if width > 2 else 0):
        first, *below = [row[column].strip() if column < len(row) else "" for row in rows]
        cells = below or [first]  # the first line may be a header
        for content, pattern in PATTERNS.items():
            if sum(bool(pattern.fullmatch(cell)) for cell in cells) < ENOUGH * len(cells):
                continue
            if content in MOST_DIFFERENT and len({first, *cells}) > max(1, MOST_DIFFERENT[content] * len(rows)):
                continue
            if content == LABELS and (len(cells) < FEWEST_LABELED or not any(cells)):
                continue
            ignored[column] = content
            break
    if len(ignored) == width:  # the labels may be the sentences
        return {column: content for column, content in ignored.items() if content != LABELS}
    return ignored


def _columns(path: str | Path, rows: Sequence[Sequence[str]], ignored: Mapping[int, str]) -> tuple[int, int, bool]:
    """Return the columns of the sentences and of their translations, from 0, and whether the first line is a header."""
    width = max(map(len, rows), default=0)
    kept = [column for column in range(width) if column not in ignored]
    if not ignored or kept[:2] == [0, 1]:
        return 0, 1, False
    if len(kept) < 2:
        if {ignored.get(0, NUMBERS), ignored.get(1, NUMBERS)} <= {NUMBERS, LABELS}:  # these may be the sentences
            return 0, 1, False
        sentences = f"only column {kept[0] + 1}" if kept else "no column"
        contents = ", ".join(dict.fromkeys(ignored.values()))
        raise UserError(
            f"{path}: {sentences} holds sentences, the others hold {contents}: give a file with a sentence, a tab and its "
            "translation on each line (cut -f 1,2 keeps columns 1 and 2)"
        )
    telling = [column for column, content in ignored.items() if content not in MOST_DIFFERENT] or list(ignored)
    has_names = not any(column < len(rows[0]) and _is_content(rows, column, ignored[column]) for column in telling)
    return kept[0], kept[1], has_names


def _is_content(rows: Sequence[Sequence[str]], column: int, content: str) -> bool:
    """Return True if the first line's cell is like those below it, and not the column's name."""
    if content == LABELS:
        return rows[0][column] in {row[column] for row in rows[1:] if column < len(row)}
    return bool(PATTERNS[content].fullmatch(rows[0][column]))
