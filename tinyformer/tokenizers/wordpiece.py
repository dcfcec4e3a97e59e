"""WordPiece (Schuster and Nakajima 2012) as used by BERT.

Text is normalized and split into words. Each word is split, left to right, into the longest pieces in the vocabulary. Pieces
inside a word start with ##.
"""

from __future__ import annotations

import functools
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.files import write_json
from tinyformer.tokenizers.base import checked, checked_text, load_saved, texts_of
from tinyformer.tokenizers.merging import Pair, learn_merges
from tinyformer.tokenizers.special import CLASSIFY, MASK, PADDING, SEPARATE, UNKNOWN, cut_at_special, skippable, special_names
from tinytensor.device.backend import host

SPECIAL = (PADDING, UNKNOWN, CLASSIFY, SEPARATE, MASK)


class WordPieceTokenizer:
    """BERT's tokenizer. ``tokens[i]`` is the piece of id i. A word becomes [UNK] if it cannot be split into pieces or exceeds
    ``longest_word`` characters.

    The special tokens are BERT's five and ``special``. The model expects the ids ``before`` and ``after``, [CLS] and [SEP],
    around a sequence. Raises UserError if a special token is missing from the tokens.

    >>> from tinyformer import WordPieceTokenizer
    >>> special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    >>> tokenizer = WordPieceTokenizer([*special, "play", "##ing"])
    >>> tokenizer.encode("Playing chess").tolist()
    [5, 6, 1]
    """

    kind = "wordpiece"

    def __init__(self, tokens: Sequence[str], special: Iterable[str] = (), *, lowercase: bool = True, longest_word: int = 100):
        self.tokens = list(map(checked_text, tokens))
        self.lowercase = lowercase
        self.longest_word = longest_word
        names = special_names([*SPECIAL, *special_names(special)])
        missing = [name for name in names if name not in self.tokens]
        if missing:
            raise UserError(f"the WordPiece vocabulary lacks the special tokens {', '.join(missing)}")
        self.special = {name: self.tokens.index(name) for name in names}
        self.before: tuple[int, ...] = (self.special[CLASSIFY],)
        self.after: tuple[int, ...] = (self.special[SEPARATE],)
        reserved = set(self.special.values())
        self._id_of = {token: i for i, token in enumerate(self.tokens) if i not in reserved}
        if "" in self._id_of or len(self._id_of) + len(reserved) < len(self.tokens):
            raise UserError("a token is empty or occurs twice")
        self._longest_piece = max(map(len, self.tokens))
        self._encode_word = functools.lru_cache(maxsize=65536)(self._pieces)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including special tokens."""
        return len(self.tokens)

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of the text as a NumPy int64 array, without [CLS] and [SEP].

        Unless ``allow_special``, special-token names are plain text. Raises UserError for invalid text.
        """
        ids: list[int] = []
        for part, special in cut_at_special(checked_text(text), self.special if allow_special else {}):
            if special is not None:
                ids.append(special)
            else:
                for word in words_of(part, self.lowercase):
                    ids.extend(self._encode_word(word))
        return host.array(ids, dtype=host.int64)

    def _pieces(self, word: str) -> tuple[int, ...]:
        """Return the ids of a word's pieces, always taking the longest piece from the left. [UNK] if no piece fits."""
        ids: list[int] = []
        start = 0
        while start < len(word) <= self.longest_word:
            ends = range(min(len(word), start + self._longest_piece), start, -1)
            pieces = ((end, self._id_of.get(("##" if start else "") + word[start:end])) for end in ends)
            start, i = next(((end, i) for end, i in pieces if i is not None), (len(word), None))
            ids.append(self.special[UNKNOWN] if i is None else i)
        return tuple(ids) if ids and self.special[UNKNOWN] not in ids else (self.special[UNKNOWN],)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the normalized words of the ids, separated by spaces. Raises UserError for an invalid id."""
        return "".join(self.stream(ids, skip_special))

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """Yield the text of ``decode``, one piece at a time."""
        leave_out = skippable(self.special) if skip_special else ()
        for position, i in enumerate(checked(ids, self.vocab_size, leave_out)):
            token = self.tokens[i]
            yield token if position == 0 else token[2:] if token.startswith("##") else f" {token}"

    @classmethod
    def train(
        cls,
        text: str | Iterable[str],
        vocab_size: int,
        special: Iterable[str] = (),
        lowercase: bool = True,
        progress: bool = False,
    ) -> WordPieceTokenizer:
        """Learn pieces from one or more strings until there are ``vocab_size`` tokens or no pair occurs twice.

        The first pieces are the characters of the text. As in byte-pair encoding, each step merges the most frequent pair of
        adjacent pieces. In a tie, it merges the pair that is first in the vocabulary. Ids are assigned to BERT's five special
        tokens, ``special`` and the pieces, in this order. Raises UserError if the vocabulary is too small for the characters or
        the text has no words.
        """
        words = Counter(word for part in texts_of(text) for word in words_of(part, lowercase))
        if not words:
            raise UserError("the text has no words to learn from")
        cut = [[c if i == 0 else "##" + c for i, c in enumerate(word)] for word in words]
        special = special_names(special)
        names = [*SPECIAL, *special]
        tokens = [*names, *sorted({piece for pieces in cut for piece in pieces})]
        if vocab_size < len(tokens):
            raise SettingError(f"vocab_size must be {len(tokens)} or more for the characters of this text, got {vocab_size}")
        id_of = {token: i for i, token in enumerate(tokens) if i >= len(names)}

        def merge(pair: Pair) -> int | None:
            if len(tokens) == vocab_size:
                return None
            tokens.append(tokens[pair[0]] + tokens[pair[1]].removeprefix("##"))
            return len(tokens) - 1

        learn_merges([[id_of[piece] for piece in pieces] for pieces in cut], list(words.values()), merge, progress)
        return cls(tokens, special, lowercase=lowercase)

    def save(self, path: str | Path) -> None:
        """Save the tokenizer as a JSON file."""
        saved = {
            "kind": self.kind,
            "lowercase": self.lowercase,
            "longest_word": self.longest_word,
            "special": [name for name in self.special if name not in SPECIAL],
            "tokens": self.tokens,
        }
        write_json(Path(path), saved)

    @classmethod
    def load(cls, path: str | Path) -> WordPieceTokenizer:
        """Load a tokenizer written by ``save``. Raises UserError for any other file."""
        types = {"tokens": list[str], "special": list[str], "lowercase": bool, "longest_word": int}
        return load_saved(cls, path, cls.kind, "WordPiece", **types)


# ----------------------------------------------------------------------------------------------- normalizing and splitting


class _CharacterTable(dict[int, str]):
    """Table for ``str.translate``. ``rule`` computes each entry on first use."""

    def __init__(self, rule: Callable[[str], str]):
        self.rule = rule

    def __missing__(self, point: int) -> str:
        self[point] = replacement = self.rule(chr(point))
        return replacement


def _cleaned(c: str) -> str:
    """Return a space for white space, "" for a control character, and any other character unchanged."""
    if c in "\t\n\r" or unicodedata.category(c).startswith("Z"):
        return " "
    return "" if c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cf", "Co", "Cs") else c


_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def _is_chinese(c: str) -> bool:
    """Return True for Chinese characters, which have no spaces between words."""
    return any(low <= ord(c) <= high for low, high in _CHINESE)


def words_of(text: str, lowercase: bool = True) -> list[str]:
    """Split a text into words as BERT does: at white space, and around punctuation marks and Chinese characters. Control
    characters are removed. If ``lowercase``, words are lowercased and accents are stripped."""
    text = text.translate(_CLEANED)
    if lowercase:
        text = unicodedata.normalize("NFD", text).translate(_LOWERED)
    return text.translate(_PARTED).split()


def _cleaned_and_apart(c: str) -> str:
    """Return ``_cleaned(c)``, or a Chinese character surrounded by spaces."""
    return f" {c} " if _is_chinese(c) else _cleaned(c)


def _lowered(c: str) -> str:
    """Lowercase a character. Return "" for an accent that normalization has split off.

    Works on one character at a time, as BERT does. Lowercasing a complete Greek word would change its final sigma.
    """
    return "" if unicodedata.category(c) == "Mn" else c.lower()


def _parted(c: str) -> str:
    """Surround a punctuation mark with spaces. Return any other character unchanged. Punctuation is Unicode punctuation plus
    all visible ASCII characters that are neither letters nor digits, such as $ and ^."""
    punctuation = unicodedata.category(c).startswith("P") or ("!" <= c <= "~" and not c.isalnum())
    return f" {c} " if punctuation else c


_CLEANED, _LOWERED, _PARTED = map(_CharacterTable, (_cleaned_and_apart, _lowered, _parted))
