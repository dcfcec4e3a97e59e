"""A word-level tokenizer: simple, and common before subword tokenizers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import regex

from tinyformer.common.errors import UserError
from tinyformer.common.files import write_json
from tinyformer.common.words import WORDS_AND_MARKS
from tinyformer.tokenizers.base import checked, checked_text, load_saved, texts_of
from tinyformer.tokenizers.special import BEGIN, END, PADDING, UNKNOWN, cut_at_special, skippable, special_names
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

SPECIAL = (PADDING, UNKNOWN, BEGIN, END)

# Word patterns by their names in files. Files of early versions have no name and use "letters".
RULES = {"unicode": WORDS_AND_MARKS, "letters": regex.compile(r"[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]")}


class WordTokenizer:
    """Word-level tokenizer. Each word and each mark between words is a token. Ids start with [PAD], [UNK], [BOS], [EOS],
    followed by ``special`` and the words.

    Words follow Unicode rules: don't and 3.14 are one word each, and a composed emoji is one mark. If ``rules="letters"``, as
    in early versions, words consist only of letters and digits.

    ``unknown`` controls how to encode an unknown word: "token" returns [UNK], "error" raises UserError. If ``lowercase``, words
    are lowercased before lookup.

    >>> from tinyformer import WordTokenizer
    >>> tokenizer = WordTokenizer.train("to be or not to be")
    >>> tokenizer.encode("to be two").tolist()
    [5, 4, 1]
    """

    kind = "word"
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __init__(
        self,
        words: Iterable[str],
        special: Iterable[str] = (),
        *,
        lowercase: bool = False,
        unknown: str = "token",
        rules: str = "unicode",
    ):
        self.words = list(map(checked_text, words))
        self.rules = rules
        self.lowercase = lowercase
        self.unknown = unknown
        if unknown not in ("token", "error"):
            raise UserError(f"unknown must be 'token' or 'error', got {unknown!r}")
        if rules not in RULES:
            raise UserError(f"rules must be {' or '.join(map(repr, RULES))}, got {rules!r}")
        if not self.words:
            raise UserError("a word tokenizer needs at least one word")
        names = special_names([*SPECIAL, *special_names(special)])
        self.special = {name: i for i, name in enumerate(names)}
        self._id_of = {word: len(names) + i for i, word in enumerate(self.words)}
        if "" in self._id_of or len(self._id_of) < len(self.words):
            raise UserError("a word is empty or occurs twice")
        self._tokens = [*names, *self.words]

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including special tokens."""
        return len(self._tokens)

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of the words as a NumPy int64 array. Raises UserError for invalid text and, if ``unknown="error"``,
        for an unknown word."""
        ids: list[int] = []
        start = 0
        for part, special in cut_at_special(checked_text(text), self.special if allow_special else {}):
            if special is not None:
                ids.append(special)
            else:
                ids.extend(self._id(match[0], start + match.start()) for match in RULES[self.rules].finditer(part))
            start += len(part)
        return host.array(ids, dtype=host.int64)

    def _id(self, word: str, position: int) -> int:
        i = self._id_of.get(word.lower() if self.lowercase else word)
        if i is not None:
            return i
        if self.unknown == "token":
            return self.special[UNKNOWN]
        raise UserError(
            f"unknown word {word!r} at position {position}: remove it, train the tokenizer on a text that has it (it knows "
            f"{counted(len(self.words), 'word')}), or use unknown='token'"
        )

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the words with spaces between them and standard spacing around punctuation. The original white space is not
        stored. Raises UserError for an invalid id."""
        return "".join(self.stream(ids, skip_special))

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """Yield the text of ``decode``, one word at a time."""
        leave_out = skippable(self.special) if skip_special else ()
        return spaced((self._tokens[i] for i in checked(ids, self.vocab_size, leave_out)), RULES[self.rules])

    @classmethod
    def train(
        cls,
        text: str | Iterable[str],
        vocab_size: int = 0,
        min_count: int = 1,
        special: Iterable[str] = (),
        *,
        lowercase: bool = False,
        unknown: str = "token",
    ) -> WordTokenizer:
        """Return a tokenizer for the words that occur at least ``min_count`` times in one or more strings. ``vocab_size``
        limits the number of tokens, including special tokens, to the most frequent words.

        Ids are ordered by word frequency, then alphabetically. Raises UserError if no word remains.
        """
        names = special_names([*SPECIAL, *special_names(special)])
        if vocab_size != 0 and vocab_size <= len(names):
            raise UserError(f"vocab_size must be above {len(names)}, the number of special tokens, got {vocab_size}")
        if min_count < 1:
            raise UserError(f"min_count must be at least 1, got {min_count}")
        counts = Counter(word for part in texts_of(text) for word in WORDS_AND_MARKS.findall(part))
        if lowercase:
            lowered: Counter[str] = Counter()
            for word, count in counts.items():
                lowered[word.lower()] += count
            counts = lowered
        words = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        if not words:
            raise UserError(f"no word occurs {counted(min_count, 'time')} in the text" if counts else "the text has no words")
        room = vocab_size - len(names) if vocab_size else len(words)
        return cls(words[:room], names[len(SPECIAL) :], lowercase=lowercase, unknown=unknown)

    def save(self, path: str | Path) -> None:
        """Save the tokenizer as a JSON file."""
        saved = {
            "kind": self.kind,
            "lowercase": self.lowercase,
            "unknown": self.unknown,
            "special": list(self.special)[len(SPECIAL) :],
            "words": self.words,
        }
        write_json(Path(path), saved | ({} if self.rules == "letters" else {"rules": self.rules}))

    @classmethod
    def load(cls, path: str | Path) -> WordTokenizer:
        """Load a tokenizer written by ``save``. Raises UserError for any other file."""
        types = {"words": list[str], "special": list[str], "lowercase": bool, "unknown": str}
        return load_saved(cls._from_saved, path, cls.kind, "word", rules=str | None, **types)

    @classmethod
    def _from_saved(cls, rules: str | None, **more: Any) -> WordTokenizer:
        return cls(rules="letters" if rules is None else rules, **more)


# -------------------------------------------------------------------------------------------------------------- spacing

_AFTER_A_WORD = frozenset(".,;:!?%)]}…”»。、，！？；：）」』")
_BEFORE_A_WORD = frozenset("([{¿¡“‘«$€£#@（「『")
_BETWEEN_WORDS = frozenset("'’-‐/_")  # for example, don't and well-known


def spaced(words: Iterable[str], rules: regex.Pattern[str]) -> Iterator[str]:
    """Yield words and punctuation marks, each with or without a leading space, as in a line of text.

    Spacing is a guess: no space before a comma, after an opening bracket, or around the apostrophe of "don't" and the point of
    3.14. Straight quotation marks alternate between opening and closing. A space also prevents the ``rules`` from splitting
    other words. Each piece depends only on earlier words, so nothing is delayed.
    """
    before, last = "", ""  # the previous two words
    line = ""  # the last two words, or only the last if it has a leading space
    quoted = False
    for word in words:
        close = not last or _is_close(before, last, word, quoted)
        if word == '"':
            close, quoted = close or quoted, not quoted
        close = close and not any(m.start() < len(line) < m.end() for m in rules.finditer(line + word))
        yield word if close else f" {word}"
        line = last + word if close else word
        before, last = last, word


def _is_close(before: str, last: str, word: str, quoted: bool) -> bool:
    """Return True if no space separates ``last`` from the next word. ``before`` is the word before ``last``. ``quoted`` is True
    inside straight quotation marks."""
    if word in _AFTER_A_WORD or (word in _BETWEEN_WORDS and _is_word(last)):
        return True
    if last == '"':
        return quoted
    if last in _BETWEEN_WORDS:
        return _is_word(before) and _is_word(word)
    if last in (".", ":"):
        return before.isdecimal() and word.isdecimal()
    return last in _BEFORE_A_WORD


def _is_word(word: str) -> bool:
    return word[:1].isalnum()
