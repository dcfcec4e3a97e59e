"""A corpus as word ids, and its vocabulary."""

from __future__ import annotations

import difflib
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import regex

from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.words import WORDS
from tinytensor.common.wording import counted
from tinytensor.device.backend import Array, host
from tinytensor.device.forks import cached_property

# Five consecutive letters of a script without spaces: rarely one word, often a clause.
CLAUSES = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{5}")
PASSAGES = {"paragraph": regex.compile(r"\n\s*\n"), "line": regex.compile(r"\n")}  # what ends a passage
SPELLINGS = 50_000  # number of frequent words searched for similar spellings; more would take seconds


def words_of(text: str) -> Iterator[str]:
    """Iterate over the words of a text, lowercased and ``composed``, without punctuation."""
    return (match[0].replace("’", "'") for match in WORDS.finditer(composed(text.lower())))


def composed(text: str) -> str:
    """Return a text in Unicode normal form C, where é is always one character."""
    return unicodedata.normalize("NFC", text)


def passages(text: str, end: str = "paragraph") -> Iterator[Iterator[str]]:
    """Iterate over the passages of a text, each as words. Passages end at empty lines or, if ``end="line"``, at every line."""
    if end not in PASSAGES:
        raise SettingError(f"end must be one of {', '.join(PASSAGES)}, got {end!r}")
    return map(words_of, PASSAGES[end].splititer(text))


@dataclass(frozen=True)
class Vocabulary:
    """Words and their counts, sorted by descending frequency, then alphabetically. Indices are ids."""

    words: Sequence[str]
    counts: Array  # (words,), int64

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """Maps each word to its id."""
        return {word: number for number, word in enumerate(self.words)}


@dataclass(frozen=True)
class Corpus:
    """A corpus as ids. Words outside the vocabulary are dropped, which makes their neighbors adjacent.

    Attributes:
        vocabulary: The vocabulary.
        ids: The words of all passages, concatenated, (length,), int64.
        starts: The start of each passage in ``ids``, followed by the length, (passages + 1,), int64.
        num_words: The number of words in the corpus, including dropped words.
    """

    vocabulary: Vocabulary
    ids: Array
    starts: Array
    num_words: int

    @classmethod
    def of(cls, passages: Iterable[Iterable[str]], min_count: int = 5, name: str = "the text") -> Corpus:
        """Build a corpus from passages of words. Words that occur fewer than ``min_count`` times are dropped.

        Raises UserError, with the corpus ``name``, unless two distinct words and two adjacent words remain, and for text
        without spaces between words.
        """
        if min_count < 1:
            raise SettingError(f"min_count must be at least 1, got {min_count}")
        numbers: dict[str, int] = {}  # the words in order of first occurrence
        occurrences, ends = array("q"), [0]
        for passage in passages:
            occurrences.extend(numbers.setdefault(word, len(numbers)) for word in passage)
            ends.append(len(occurrences))
        everything = host.array(occurrences, dtype=host.int64)
        counts = host.bincount(everything, minlength=len(numbers))
        words = list(numbers)
        order = sorted((i for i in range(len(words)) if counts[i] >= min_count), key=lambda i: (-counts[i], words[i]))
        vocabulary = Vocabulary([words[i] for i in order], counts[order])
        _check_spaces(words, int(vocabulary.counts.sum()), len(occurrences), name)
        _check_size(vocabulary, len(occurrences), len(words), min_count, name)

        new_ids = host.full(len(words), -1, dtype=host.int64)
        new_ids[order] = host.arange(len(order))
        ids = new_ids[everything]
        kept_before = host.concatenate([[0], host.cumsum(ids >= 0)])
        starts = host.unique(kept_before[ends])  # unique, since a passage may have lost all words
        if host.diff(starts).max() < 2:
            lower = ", or a lower min_count" if min_count > 1 and max(host.diff(ends)) > 1 else ""
            raise SettingError(
                f"no passage of {name} has two words that occur often enough: give longer ones{lower}", "min_count"
            )
        return cls(vocabulary, ids[ids >= 0], starts, len(occurrences))

    @cached_property
    def passage_of(self) -> Array:
        """The passage number of each word, (length,), int64."""
        return host.repeat(host.arange(len(self.starts) - 1), host.diff(self.starts))

    @cached_property
    def reach(self) -> int:
        """The largest distance between two words of a passage, and so the largest useful window."""
        return int(host.diff(self.starts).max()) - 1


def _check_spaces(words: Sequence[str], num_kept: int, num_words: int, name: str) -> None:
    """Raise UserError if most "words" are clauses, as in Chinese without spaces. Few clauses are repeated."""
    if 4 * num_kept < num_words and 2 * sum(bool(CLAUSES.search(word)) for word in words) > len(words):
        raise UserError(
            f"most strings between the spaces of {name} are too long for words: separate the words by spaces first, with a "
            "program for its language"
        )


def _check_size(vocabulary: Vocabulary, num_words: int, num_different: int, min_count: int, name: str) -> None:
    """Raise UserError for a corpus with fewer than two trainable words."""
    if num_different < 2:
        times = "once" if num_words == 1 else counted(num_words, "time")
        content = f"only one word, {times}" if num_words else "no words"
        raise UserError(f"{name} has {content}: vectors need at least two different words")
    if len(vocabulary) < 2:
        raise SettingError(
            f"min_count={min_count} leaves {len(vocabulary)} of {counted(num_different, 'different word')} in {name}, and "
            "vectors need two: give a longer text, or a lower min_count",
            "min_count",
        )


def check_known(word: str, ids: Any, words: Sequence[str], where: str = "") -> None:
    """Raise UserError if a word is not in ``ids``. The message suggests similar spellings among ``words``, ignoring case.
    ``where`` follows the word in the message."""
    if word in ids:
        return
    spellings = {known.lower(): known for known in reversed(words[:SPELLINGS])}  # the first of several matches
    similar = [shortened(spellings[match], 60) for match in difflib.get_close_matches(word.lower(), spellings, n=3)]
    hint = f"did you mean {', '.join(similar)}?" if similar else "no word is spelled like it"
    raise UserError(f"unknown word {shortened(word, 60)!r}{where}: {hint}")
