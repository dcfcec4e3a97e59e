"""Find, read, clean and split the sentence pairs of a translation run."""

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
    """Paths of sentence-pair files.

    Training pairs come from ``data`` (see ``read_pairs``), or line by line from ``source`` and ``target``. Validation and test
    pairs may have separate files.
    """

    data: str | None = None
    source: str | None = None
    target: str | None = None
    validation_source: str | None = None
    validation_target: str | None = None
    test_source: str | None = None
    test_target: str | None = None

    def are_given(self) -> bool:
        """Return True if any file is set."""
        return self != PairFiles()

    def read(self, lowercase: bool, validation: int, test: int) -> list[list[Pair]]:
        """Return the pairs for training, validation and testing.

        ``validation`` and ``test`` are the numbers of training pairs to hold out for splits without files. Raises UserError for
        missing, conflicting or mismatched files, or too few pairs.
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
        """Return the cleaned pairs of a split, or [] if it has no files."""
        data, source, target = None if part else self.data, getattr(self, f"{part}source"), getattr(self, f"{part}target")
        if (source is None) != (target is None):
            raise UserError("a source and a target file belong together: give both")
        if data is not None and source is not None:
            raise UserError("got --data and --source: give either --data, or --source and --target")
        if data is None and source is None:
            return []
        raw = read_pairs(data) if data is not None else read_two_files(source, target)
        # Clean before splitting: sentences that become equal must not end up in two splits.
        pairs, empty = without_empty([(one_line(s, lowercase), one_line(t, lowercase)) for s, t in raw])
        if not pairs:
            raise UserError(f"{data or source} has no pair of sentences: every line is empty on one side")
        if empty:
            print_line(f"{data or source}: skipped {counted(empty, 'pair')} with an empty side")
        return pairs


def split_by_settings(pairs: Sequence[Pair], held_out: Mapping[str, int]) -> list[list[Pair]]:
    """Call ``split_pairs`` with the counts in ``held_out``. Its keys are setting names for error messages."""
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
    """Return the text with single spaces between words, lowercased if ``lowercase``.

    >>> from tinyformer import one_line
    >>> one_line("  Two   words ", lowercase=True)
    'two words'
    """
    text = " ".join(text.split())
    return text.lower() if lowercase else text


# -------------------------------------------------------------------------------------------- which columns hold the sentences


SAMPLED = 1000  # lines to sample to find out what the columns hold
ENOUGH = 0.95  # share of sampled lines that must match: a file may have a few odd lines
# Contents of non-sentence columns, as named in messages.
PATTERNS = {
    "numbers": re.compile(r"\s*[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?\s*%?\s*"),
    "links": re.compile(r"\s*(?:https?|ftp)://\S+\s*"),
    "dates and times": re.compile(r"\s*(?:\d{4}-\d\d-\d\d(?:[ T][\d:.,Z+-]+)?|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?|\\N)\s*"),
    "ids": re.compile(r"\s*(?=\S*\d)(?:[0-9a-fA-F]{8,}|[\w.:/#-]*[_.:/#-][\w.:/#-]*\d[\w.:/#-]*)\s*"),
    "language codes": re.compile(r"\s*(?:[a-z]{2,3}|[A-Z]{2,3})(?:[-_][A-Za-z]{2,4})*\s*"),
    "licences": re.compile(r"\s*CC[ -](BY|0)\b.*", re.IGNORECASE),  # Tatoeba's attribution of each line
    "labels": re.compile(r"\S*"),  # a few repeated words, such as the name of a test set
}
NUMBERS, CODES, LABELS = "numbers", "language codes", "labels"
MOST_DIFFERENT = {CODES: 1 / 2, LABELS: 1 / 10}  # distinct cells per line; sentences without white space are more diverse
FEWEST_LABELED = 20  # lines needed to tell labels from words


def read_pairs(path: str | Path) -> list[Pair]:
    """Read pairs from a record file: JSON, JSON Lines, or CSV with a header row. Any other file is read by ``read_tsv``. Files
    may be gzipped.

    Sentences come from the fields source and target, which may be nested in an object such as "translation". If these are
    missing, the first two text fields are used, except those that ``read_tsv`` ignores, and their names are printed. Raises
    UserError if a file is damaged or lacks two such fields.
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
    """Read pairs from a file with a sentence, a tab and its translation on each line. Extra columns are ignored.

    Published files often have extra columns before the sentences. If there are at least three, columns of only numbers, dates,
    links, ids, language codes or labels are ignored. Prints a line unless the sentences are in the first two columns. Raises
    UserError if a line has too few columns or only one of several columns holds sentences.
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
    """Split a line at lone carriage returns if each piece has a tab, as in files with mixed line ends. Otherwise they count as
    white space."""
    rows = line.rstrip("\r").split("\r")
    return rows if all("\t" in row for row in rows) else [line.rstrip("\r")]


def _ignored(rows: Sequence[Sequence[str]]) -> dict[int, str]:
    """Return the columns without sentences, from 0, and their contents. With at most two columns, none is ignored."""
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
    """Return the source and target columns, from 0, and whether the first line is a header."""
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
    """Return True if the first line's cell looks like the cells below it, not like a column name."""
    if content == LABELS:
        return rows[0][column] in {row[column] for row in rows[1:] if column < len(row)}
    return bool(PATTERNS[content].fullmatch(rows[0][column]))
