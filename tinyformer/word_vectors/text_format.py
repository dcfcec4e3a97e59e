"""Word vectors in the word2vec text format, also used by gensim, GloVe and fastText.

The first line has the number of words and the width; GloVe files omit it. Every other line has a word and the values of its
vector, separated by spaces or tabs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from tinyformer.common.errors import UserError, print_line, shortened
from tinyformer.common.files import open_file
from tinyformer.common.memory import check_fits
from tinyformer.common.settings import check_counts
from tinyformer.data.files import check_file
from tinyformer.word_vectors.vectors import WordVectors
from tinytensor.common.wording import counted
from tinytensor.device.backend import Array, host
from tinytensor.device.disk import atomic_write

WANTED = "give a file of word vectors in word2vec's text format"


def save_vectors(vectors: WordVectors, path: str | Path) -> None:
    """Save word vectors with enough digits for float32: ``load_vectors`` restores the exact values.

    An existing file is replaced only once the new one is complete. Raises UserError for a word with white space, which the
    format cannot represent, and OSError if the file cannot be written.
    """
    for word in vectors.words:
        if not word or word.split() != [word]:
            raise UserError(f"cannot write the word {shortened(word, 60)!r}, as white space ends a word in {path}: rename it")
    with atomic_write(path) as file:
        file.write(f"{len(vectors)} {vectors.width}\n".encode())
        for word, row in zip(vectors.words, vectors.matrix):
            file.write(f"{word} {' '.join(row.astype(str))}\n".encode())  # the shortest exact digits of each float32


def load_vectors(path: str | Path, limit: int | None = None) -> WordVectors:
    """Load word vectors, or the first ``limit`` of them. In published files, frequent words come first.

    The header line may be missing. Duplicate words and words that are not UTF-8 are skipped, and a line reports them. Raises
    UserError, with the file and line, if a file is missing, damaged, truncated or in another format. Raises SettingError for a
    limit below 1.
    """
    size = check_file(path, WANTED, "*vec*", "*.txt")
    if limit is not None:
        check_counts(limit=limit)
    else:
        check_fits(size // 3, f"the vectors in {path}", "read fewer words, with limit", on_host=True)  # <= 12 bytes per value
    with open_file(path) as file:
        reader = _Reader(path, file)
        vectors = reader.read(limit)
    if reader.repeated:
        print_line(f"{path}: left out {counted(reader.repeated, 'line')} with repeated words")
    if reader.broken:
        print_line(f"{path}: left out {counted(reader.broken, 'line')} with words that are not UTF-8 text")
    if reader.is_doubtful:
        print_line(f"{path}: the last line does not end with a newline, so its last number may be truncated")
    return vectors


class _Reader:
    """Reads a file line by line."""

    def __init__(self, path: str | Path, file: BinaryIO):
        self.path = path
        self.lines = self._decoded(file)
        self.number = 0  # number of the last line read, from 1
        self.is_ended = False  # True if that line ends with a newline
        self.is_broken = False  # True if that line is not UTF-8
        self.is_doubtful = False  # True if the last line of a file with a header lacks a newline, which is unusual
        self.repeated = self.broken = 0  # numbers of lines with repeated words, and with words that are not UTF-8

    def _decoded(self, file: BinaryIO) -> Iterator[str]:
        for self.number, line in enumerate(file, start=1):
            self.is_ended = line.endswith(b"\n")
            try:
                text = line.decode("utf-8").removeprefix("\ufeff" if self.number == 1 else "")
                self.is_broken = False
            except UnicodeDecodeError:
                text, self.is_broken = line.decode("utf-8", "replace"), True
            yield text.rstrip(" \t\r\n").replace("\t", " ")
        self.is_broken = False

    def _error(self, problem: str) -> UserError:
        if self.is_broken:
            problem = f"not UTF-8 text: {WANTED}, neither binary nor compressed"
        return UserError(f"{self.path}, line {self.number}: {problem}")

    def read(self, limit: int | None) -> WordVectors:
        first = next(self.lines, "")
        count, width = self._header(first)
        line_of: dict[str, int] = {}  # each word's line
        rows: list[Array] = []
        lines = self.lines if count is not None else chain([first], self.lines)
        for line in lines:
            if limit is not None and len(rows) == limit:
                break
            if count is not None and len(rows) + self.repeated + self.broken == count:
                if line:
                    raise self._error(f"there are more words than the {count:,} that line 1 announces")
                continue
            if count is None and not line and self._is_end(lines):
                break
            self.is_doubtful = count is not None and not self.is_ended
            if self.is_doubtful and count is not None and len(rows) + self.repeated + self.broken + 1 < count:
                raise self._error("the line has no newline: the file is truncated")
            word, row = self._entry(line, width)
            if self.is_broken or word in line_of:
                self.broken += self.is_broken
                self.repeated += not self.is_broken
                continue
            line_of[word] = self.number
            rows.append(row)
        read = len(rows) + self.repeated + self.broken
        if count is not None and read < count and (limit is None or len(rows) < limit):
            raise self._error(f"the file ends after {read:,} of {counted(count, 'word')}: it is truncated")
        if not rows:
            raise UserError(f"{self.path} has no vectors: {WANTED}")
        return WordVectors(line_of, host.stack(rows))

    def _is_end(self, lines: Iterator[str]) -> bool:
        """Return True if only empty lines remain. ``number`` stays at the last line read, for errors."""
        number = self.number
        is_end = not any(lines)
        self.number = number
        return is_end

    def _header(self, line: str) -> tuple[int | None, int]:
        """Return the number of words and the width. Without a header, return None and the width of the first line."""
        parts = line.split(" ")
        if len(parts) == 2 and all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
            count, width = map(int, parts)
            if not count or not width:
                raise self._error(f"it announces {counted(count, 'word')} with {counted(width, 'number')} each: {WANTED}")
            return count, width
        if len(parts) < 2:
            raise UserError(f"{self.path} has no vectors: {WANTED}") if not line else self._error(f"no numbers: {WANTED}")
        return None, len(parts) - 1

    def _entry(self, line: str, width: int) -> tuple[str, Array]:
        """Return the word and the values of a line. Words in some published files contain spaces, but never two in a row or a
        number at the end."""
        word, *numbers = line.rsplit(" ", width)
        before, *last = word.split(" ")
        if len(numbers) < width or not before or "" in last or (last and _floats(last[-1:]) is not None):
            raise self._error(f"expected a word and {counted(width, 'number')}, a space apart, got {shortened(line, 60)!r}")
        row = _floats(numbers)
        if row is None:
            remedy = f": {WANTED}" if self.number == 1 else ""  # the file is probably in another format
            raise self._error(f"{shortened(' '.join(numbers), 60)!r} are not {counted(width, 'number')}{remedy}")
        if not host.isfinite(row @ row):
            raise self._error(f"a number of {shortened(word, 60)!r} is not finite, or its square overflows float32")
        return word, row


def _floats(texts: Sequence[str]) -> Array | None:
    """Parse texts as float32, or return None. Unlike Python, files have no numbers such as 1_0."""
    try:
        return None if "_" in " ".join(texts) else host.array(texts, dtype=host.float32)
    except ValueError:
        return None
