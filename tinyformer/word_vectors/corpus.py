"""A text as rows of word ids, and the vocabulary of its words."""

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

# Five letters in a row of scripts without spaces between words: seldom one word, and often a clause.
CLAUSES = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]{5}")
PASSAGES = {"paragraph": regex.compile(r"\n\s*\n"), "line": regex.compile(r"\n")}  # what ends one
SPELLINGS = 50_000  # as many words are searched for similar spellings, the first of the vocabulary: more would take seconds


def words_of(text: str) -> Iterator[str]:
    """The words of a text in lower case, ``composed``, without punctuation."""
    return (found[0].replace("’", "'") for found in WORDS.finditer(composed(text.lower())))


def composed(text: str) -> str:
    """A text in Unicode's normal form C, in which é is one character, however it was typed."""
    return unicodedata.normalize("NFC", text)


def passages(text: str, end: str = "paragraph") -> Iterator[Iterator[str]]:
    """The words of each passage of a text. A passage ends at an empty line, or with ``end="line"`` at the end of each line."""
    if end not in PASSAGES:
        raise SettingError(f"end must be one of {', '.join(PASSAGES)}, not {end!r}")
    return map(words_of, PASSAGES[end].splititer(text))


@dataclass(frozen=True)
class Vocabulary:
    """Words by their ids, and how often each occurs. The more frequent word has the lower id; of equals, the first in the
    alphabet."""

    words: Sequence[str]
    counts: Array  # (words,), int64

    def __len__(self) -> int:
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each word."""
        return {word: number for number, word in enumerate(self.words)}


@dataclass(frozen=True)
class Corpus:
    """A text as ids. Words that are not in the vocabulary are left out, so that their neighbours stand side by side.

    Attributes:
        vocabulary: The words.
        ids: The words of all passages in a row, (length,), int64.
        starts: Where each passage begins in ``ids``, and then the length, (passages + 1,), int64.
        num_words: How many words the text has, with those that are left out.
    """

    vocabulary: Vocabulary
    ids: Array
    starts: Array
    num_words: int

    @classmethod
    def of(cls, passages: Iterable[Iterable[str]], min_count: int = 5, name: str = "the text") -> Corpus:
        """The corpus of passages of words. Words that occur less than ``min_count`` times are left out.

        Raises UserError, which calls the text by its ``name``, unless there are at least two different words left, and two
        words side by side; and for a text that seems not to be separated into words.
        """
        if min_count < 1:
            raise SettingError(f"min_count must be at least 1, not {min_count}")
        numbers: dict[str, int] = {}  # the words in the order of their first appearance
        found, ends = array("q"), [0]
        for passage in passages:
            found.extend(numbers.setdefault(word, len(numbers)) for word in passage)
            ends.append(len(found))
        everything = host.array(found, dtype=host.int64)
        counts = host.bincount(everything, minlength=len(numbers))
        words = list(numbers)
        order = sorted((i for i in range(len(words)) if counts[i] >= min_count), key=lambda i: (-counts[i], words[i]))
        vocabulary = Vocabulary([words[i] for i in order], counts[order])
        _check_spaces(words, int(vocabulary.counts.sum()), len(found), name)
        _check_size(vocabulary, len(found), len(words), min_count, name)

        new_ids = host.full(len(words), -1, dtype=host.int64)
        new_ids[order] = host.arange(len(order))
        ids = new_ids[everything]
        kept_before = host.concatenate([[0], host.cumsum(ids >= 0)])
        starts = host.unique(kept_before[ends])  # unique, as a passage may have lost all its words
        if host.diff(starts).max() < 2:
            lower = ", or a lower min_count" if min_count > 1 and max(host.diff(ends)) > 1 else ""
            raise SettingError(
                f"no passage of {name} has two words that occur often enough: give longer ones{lower}", "min_count"
            )
        return cls(vocabulary, ids[ids >= 0], starts, len(found))

    @cached_property
    def passage_of(self) -> Array:
        """The number of the passage of each word, (length,), int64."""
        return host.repeat(host.arange(len(self.starts) - 1), host.diff(self.starts))

    @cached_property
    def reach(self) -> int:
        """How many words apart two words of a passage are at most. No window needs to be larger."""
        return int(host.diff(self.starts).max()) - 1


def _check_spaces(words: Sequence[str], num_kept: int, num_words: int, name: str) -> None:
    """Raise UserError for a text in which most "words" are clauses, as of Chinese without spaces. Few of these are repeated."""
    if 4 * num_kept < num_words and 2 * sum(bool(CLAUSES.search(word)) for word in words) > len(words):
        raise UserError(
            f"most of what stands between the spaces of {name} is too long for a word, and seldom repeated: words must be "
            "separated by spaces, so let a program for its language do that first"
        )


def _check_size(vocabulary: Vocabulary, num_words: int, num_different: int, min_count: int, name: str) -> None:
    """Raise UserError for a text from which nothing can be learned."""
    if num_different < 2:
        times = "once" if num_words == 1 else counted(num_words, "time")
        found = f"only one word, {times}" if num_words else "no words"
        raise UserError(f"{name} has {found}: vectors need at least two different words")
    if len(vocabulary) < 2:
        raise SettingError(
            f"{name} has {counted(num_different, 'different word')}, of which {len(vocabulary) or 'none'} "
            f"is there min_count={min_count} times or more, and vectors need two: give a longer text, or a lower "
            "min_count",
            "min_count",
        )


def check_known(word: str, ids: Any, words: Sequence[str], where: str = "") -> None:
    """Raise UserError for a word that is not among the ``words``, which ``ids`` has, too. It offers words that are spelled
    alike, in upper or lower case. ``where`` follows the word in the message."""
    if word in ids:
        return
    spellings = {other.lower(): other for other in reversed(words[:SPELLINGS])}  # of equals, the first
    similar = [shortened(spellings[found], 60) for found in difflib.get_close_matches(word.lower(), spellings, n=3)]
    offer = f": did you mean {', '.join(similar)}?" if similar else ", nor one that is spelled like it"
    raise UserError(f"there is no word {shortened(word, 60)!r}{where}{offer}")
