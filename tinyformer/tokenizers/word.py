"""One token a word: simple, and what sequence models used before pieces of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import regex

from tinyformer.errors import UserError
from tinyformer.files import write_json
from tinyformer.tokenizers.base import checked, checked_text, load_saved, texts_of
from tinyformer.tokenizers.special import BEGIN, END, PADDING, UNKNOWN, cut_at_special, skippable, special_names
from tinytensor.backend import host

SPECIAL = (PADDING, UNKNOWN, BEGIN, END)

# A run of letters (with their accents) and digits, or any other single mark; white space is left out.
WORDS = regex.compile(r"[\p{L}\p{M}\p{N}]+|[^\s\p{L}\p{M}\p{N}]")


class WordTokenizer:
    """The ids: [PAD], [UNK], [BOS], [EOS], the names of ``special``, then the words.

    ``unknown`` says what becomes of a word that the tokenizer does not know: "token" encodes it as [UNK], "error" raises
    UserError. With ``lowercase``, words are lower-cased before they are looked up.
    """

    kind = "word"

    def __init__(self, words: Iterable[str], special: Iterable[str] = (), *, lowercase: bool = False, unknown: str = "token"):
        self.words = list(map(checked_text, words))
        self.lowercase = lowercase
        self.unknown = unknown
        if unknown not in ("token", "error"):
            raise UserError(f"unknown={unknown!r} is not a way to treat unknown words: use 'token' or 'error'")
        if not self.words:
            raise UserError("a word tokenizer needs at least one word")
        names = special_names([*SPECIAL, *special_names(special)])
        self.special = {name: i for i, name in enumerate(names)}
        self._id_of = {word: len(names) + i for i, word in enumerate(self.words)}
        if "" in self._id_of or len(self._id_of) < len(self.words):
            raise UserError("a word is empty, or there twice")
        self._tokens = [*names, *self.words]

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self._tokens)

    # ---------------------------------------------------------------------------------------------- both directions

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """The ids of the words, a NumPy int64 array. Raises UserError for what is no text and, with ``unknown="error"``, where
        it does not know a word, which is named."""
        ids: list[int] = []
        start = 0
        for part, special in cut_at_special(checked_text(text), self.special if allow_special else {}):
            if special is not None:
                ids.append(special)
            else:
                ids.extend(self._id(match[0], start + match.start()) for match in WORDS.finditer(part))
            start += len(part)
        return host.array(ids, dtype=host.int64)

    def _id(self, word: str, place: int) -> int:
        i = self._id_of.get(word.lower() if self.lowercase else word)
        if i is not None:
            return i
        if self.unknown == "token":
            return self.special[UNKNOWN]
        raise UserError(
            f"the word {word!r} at position {place} is not among the {len(self.words)} this tokenizer knows: leave it out, "
            f"train on a text that has it, or use unknown='token'"
        )

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The words with spaces between, and marks where they usually stand; the text's own white space is not known."""
        leave_out = skippable(self.special) if skip_special else ()
        return join_words([self._tokens[i] for i in checked(ids, self.vocab_size, leave_out)])

    # ---------------------------------------------------------------------------------------------------- training

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
        """Know the words of a text, or lines, that occur at least ``min_count`` times; with a ``vocab_size``, only the most
        frequent, so that there are no more tokens than that, special ones included.

        Ids follow the frequency, and the alphabet where it is equal. Raises UserError where no word is left.
        """
        names = special_names([*SPECIAL, *special_names(special)])
        if vocab_size != 0 and vocab_size <= len(names):
            raise UserError(f"a vocabulary of {vocab_size} tokens has no room for words beside {len(names)} special tokens")
        if min_count < 1:
            raise UserError(f"the minimum count must be at least 1, not {min_count}")
        counts = Counter(word for part in texts_of(text) for word in WORDS.findall(part))
        if lowercase:
            lowered: Counter[str] = Counter()
            for word, count in counts.items():
                lowered[word.lower()] += count
            counts = lowered
        words = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
        if not words:
            raise UserError(f"no word occurs {min_count} times in the text" if counts else "the text has no words")
        room = vocab_size - len(names) if vocab_size else len(words)
        return cls(words[:room], names[len(SPECIAL) :], lowercase=lowercase, unknown=unknown)

    # ------------------------------------------------------------------------------------------------------- files

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file."""
        saved = {
            "kind": self.kind,
            "lowercase": self.lowercase,
            "unknown": self.unknown,
            "special": list(self.special)[len(SPECIAL) :],
            "words": self.words,
        }
        write_json(Path(path), saved)

    @classmethod
    def load(cls, path: str | Path) -> WordTokenizer:
        """Read what ``save`` wrote. Raises UserError for anything else."""
        return load_saved(cls, path, cls.kind, "word", words=list[str], special=list[str], lowercase=bool, unknown=str)


# ---------------------------------------------------------------------------------------------------- words into a line

_AFTER_A_WORD = frozenset(".,;:!?%)]}…”»。、，！？；：）」』")
_BEFORE_A_WORD = frozenset("([{¿¡“‘«$€£#@（「『")
_BETWEEN_WORDS = frozenset("'’-‐/_")  # as in don't and well-known


def join_words(words: Sequence[str]) -> str:
    """Words and marks as a line: no space before a comma, none after an opening bracket, none around the apostrophe of
    "don't" or the point of 3.14; straight quotation marks open and close in turn. A guess, as the spaces are gone."""
    line: list[str] = []
    tight = True  # whether the next word stands close to what is before it
    quoted = False
    for before, word, after in zip(["", *words], words, [*words[1:], ""]):
        inside = _is_word(before) and _is_word(after)
        close_left, close_right = word in _AFTER_A_WORD, word in _BEFORE_A_WORD
        if word == '"':
            close_left, close_right = quoted, not quoted
            quoted = not quoted
        elif word in _BETWEEN_WORDS:
            close_left, close_right = _is_word(before), inside
        elif word in (".", ":") and before.isdecimal() and after.isdecimal():
            close_left = close_right = True
        line.append(word if tight or close_left else f" {word}")
        tight = close_right
    return "".join(line)


def _is_word(word: str) -> bool:
    return word[:1].isalnum()
