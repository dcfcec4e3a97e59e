"""Byte-level byte-pair encoding (Sennrich et al. 2016; over bytes as in GPT-2, Radford et al. 2019).

Text is split into words, each with its leading space, and words into UTF-8 bytes. Encoding then repeatedly merges the adjacent
pair that training merged first. Every byte is a token, so any text can be encoded.
"""

from __future__ import annotations

import codecs
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex

from tinyformer.common.errors import SettingError, UserError, shortened
from tinyformer.common.files import write_json
from tinyformer.tokenizers.base import checked, checked_text, load_saved, texts_of
from tinyformer.tokenizers.merging import Pair, apply_merges, learn_merges
from tinyformer.tokenizers.special import cut_at_special, skippable, special_names
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

# GPT-2's words: English contractions; letters, digits or other characters, with an optional leading space; white space.
GPT2_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
_LEAST_SECONDS, _CHARACTERS_A_SECOND = 2.0, 500_000  # time limit: an untrusted pattern may hang


class BPETokenizer:
    """Byte-level BPE. ``tokens[i]`` holds the bytes of id i. ``merges`` are pairs of ids in the order they were learned.

    ``special`` tokens such as "<|endoftext|>" are never split, and merges never create them. Unless ``allow_special``,
    ``encode`` treats their names as plain text, so that text cannot inject them.

    ``pattern`` is a regular expression that splits text into words. Each match is a word, and so is the text between matches.
    The default is GPT-2's pattern; "" makes the text one word. Raises UserError for inconsistent arguments.

    >>> from tinyformer import BPETokenizer
    >>> tokenizer = BPETokenizer.train("low lower lowest " * 10, vocab_size=260)
    >>> [tokenizer.decode_bytes(i) for i in tokenizer.encode("lower").tolist()]
    [b'low', b'e', b'r']
    """

    kind = "bpe"

    def __init__(
        self,
        tokens: Sequence[bytes],
        merges: Iterable[Pair],
        special: Mapping[str, int] | None = None,
        *,
        pattern: str = GPT2_WORDS,
    ):
        self.tokens = list(tokens)
        self.merges = list(merges)
        self.pattern = pattern
        self.special = dict(special or {})
        self.before: tuple[int, ...] = ()
        self.after: tuple[int, ...] = ()
        for name in special_names(self.special):
            i = self.special[name]
            if not 0 <= i < len(self.tokens) or self.tokens[i] != name.encode():
                raise UserError(f"special token {name!r} is not the token of its id, {i}")
        reserved = set(self.special.values())
        self._id_of = {token: i for i, token in enumerate(self.tokens) if i not in reserved}
        if len(self._id_of) + len(reserved) < len(self.tokens):
            raise UserError("a token occurs twice")
        if missing := [bytes([b]) for b in range(256) if bytes([b]) not in self._id_of]:
            raise UserError(f"a byte-level tokenizer needs a token for every byte: {counted(len(missing), 'byte')} missing")
        self._bytes = [self._id_of[bytes([b])] for b in range(256)]
        self._merged = self._numbered_merges()
        self._words = _cutter(pattern)
        self._encode_word = functools.lru_cache(maxsize=65536)(self._merge_word)

    def _numbered_merges(self) -> dict[Pair, tuple[int, int]]:
        """Map each pair to the rank of its merge and the id of the result. If a pair has two merges, the last one wins, as in
        GPT-2's code."""
        id_of = self._id_of
        ordinary = {i: token for token, i in id_of.items()}
        merged: dict[Pair, tuple[int, int]] = {}
        for rank, pair in enumerate(self.merges):
            left, right = pair
            try:
                merged[pair] = (rank, id_of[ordinary[left] + ordinary[right]])
            except KeyError:
                if left in ordinary and right in ordinary:
                    raise UserError(f"merging {ordinary[left]!r} and {ordinary[right]!r} makes no token") from None
                wrong = left if left not in ordinary else right
                raise UserError(f"a merge has id {wrong}, which is special or out of range") from None
        return merged

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including special tokens."""
        return len(self.tokens)

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of the text as a NumPy int64 array. Raises UserError for invalid text."""
        ids: list[int] = []
        for part, special in cut_at_special(checked_text(text), self.special if allow_special else {}):
            if special is not None:
                ids.append(special)
            else:
                for word in self._words(part):
                    ids.extend(self._encode_word(word))
        return host.array(ids, dtype=host.int64)

    def _merge_word(self, word: str) -> tuple[int, ...]:
        return tuple(apply_merges([self._bytes[b] for b in word.encode()], self._merged))

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the decoded text. Bytes that are not UTF-8, such as half a character, become U+FFFD. Raises UserError for an
        invalid id."""
        leave_out = skippable(self.special) if skip_special else ()
        return b"".join(self.tokens[i] for i in checked(ids, self.vocab_size, leave_out)).decode("utf-8", "replace")

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """Yield the text of ``decode``, one piece per id (empty while a character is incomplete). The last piece holds any
        incomplete character."""
        leave_out = skippable(self.special) if skip_special else ()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for i in checked(ids, self.vocab_size, leave_out):
            yield decoder.decode(self.tokens[i])
        yield decoder.decode(b"", final=True)

    def decode_bytes(self, i: int) -> bytes:
        """Return the bytes of one id, possibly part of a character. Raises UserError for an invalid id."""
        return b"".join(self.tokens[i] for i in checked([i], self.vocab_size))

    @classmethod
    def train(
        cls,
        text: str | Iterable[str],
        vocab_size: int,
        special: Iterable[str] = (),
        progress: bool = False,
        pattern: str = GPT2_WORDS,
    ) -> BPETokenizer:
        """Learn merges from one or more strings until there are ``vocab_size`` tokens or no pair occurs twice.

        Each step merges the most frequent pair. In a tie, it merges the pair with the smaller ids. Ids are assigned to the
        bytes, the merged tokens, and the ``special`` tokens, in this order. ``pattern`` splits text into words. Raises
        UserError if the vocabulary is too small for the bytes and special tokens.
        """
        words_of = _cutter(pattern)
        names = special_names(special)
        if vocab_size < 256 + len(names):
            special_tokens = f" and {counted(len(names), 'special token')}" if names else ""
            raise SettingError(f"vocab_size must be at least {256 + len(names)} (256 bytes{special_tokens}), got {vocab_size}")
        tokens = [bytes([b]) for b in BYTES]
        merges: list[Pair] = []

        def merge(pair: Pair) -> int | None:
            if len(tokens) + len(names) == vocab_size:
                return None
            merges.append(pair)
            tokens.append(tokens[pair[0]] + tokens[pair[1]])
            return len(tokens) - 1

        words = Counter(word for part in texts_of(text) for word in words_of(part))
        id_of = {b: i for i, b in enumerate(BYTES)}
        learn_merges([[id_of[b] for b in word.encode()] for word in words], list(words.values()), merge, progress)
        ids = {name: len(tokens) + i for i, name in enumerate(names)}
        return cls([*tokens, *(name.encode() for name in names)], merges, ids, pattern=pattern)

    def save(self, path: str | Path) -> None:
        """Save the tokenizer as a JSON file, with bytes written as in GPT-2's files."""
        tokens = self.shown_tokens()
        merges = [f"{tokens[left]} {tokens[right]}" for left, right in self.merges]
        saved: dict[str, Any] = {"kind": self.kind, "special": self.special, "merges": merges, "tokens": tokens}
        write_json(Path(path), saved | ({} if self.pattern == GPT2_WORDS else {"pattern": self.pattern}))

    def shown_tokens(self) -> list[str]:
        """Return the tokens as in GPT-2's files: bytes as visible characters, special tokens by name."""
        names = {i: name for name, i in self.special.items()}
        return [names[i] if i in names else shown(token) for i, token in enumerate(self.tokens)]

    @classmethod
    def load(cls, path: str | Path) -> BPETokenizer:
        """Load a tokenizer written by ``save``. Raises UserError for any other file."""
        types = {"tokens": list[str], "merges": list[str], "special": dict[str, int]}
        return load_saved(cls._from_saved, path, cls.kind, "byte-pair", pattern=str | None, **types)

    @classmethod
    def _from_saved(cls, tokens: list[str], merges: list[str], special: dict[str, int], pattern: str | None) -> BPETokenizer:
        named = set(special.values())
        contents = hidden(["" if i in named else token for i, token in enumerate(tokens)])
        contents = [checked_text(tokens[i]).encode() if i in named else token for i, token in enumerate(contents)]
        id_of = {token: i for i, token in enumerate(tokens) if i not in named}
        pairs: list[Pair] = []
        for merge in merges:
            try:
                left, right = merge.split(" ")
                pairs.append((id_of[left], id_of[right]))
            except (KeyError, ValueError):
                raise UserError(f"a merge must be two tokens with a space between them, got {merge!r}") from None
        return cls(contents, pairs, special, pattern=GPT2_WORDS if pattern is None else pattern)


def _cutter(pattern: str) -> Callable[[str], list[str]]:
    """Return a function that splits text into words. It raises UserError if the pattern takes too long."""
    if pattern == GPT2_WORDS:
        return regex.compile(pattern).findall  # its matches cover the text
    try:
        matches = regex.compile(pattern or r"(?s).+").finditer
    except (regex.error, OverflowError) as error:
        raise UserError(f"invalid regular expression {shortened(pattern, 120)!r}: {error}") from None

    def words(text: str) -> list[str]:
        seconds = _LEAST_SECONDS + len(text) / _CHARACTERS_A_SECOND
        try:
            ends = [0, *(end for match in matches(text, timeout=seconds) for end in match.span()), len(text)]
        except TimeoutError:
            raise UserError(f"the regular expression {shortened(pattern, 120)!r} takes too long for this text") from None
        return [text[start:end] for start, end in pairwise(ends) if start < end]

    return words


# --------------------------------------------------------------------------------------------------------- bytes as characters


# GPT-2's byte order: visible Latin-1 characters first.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = [*_VISIBLE, *(b for b in range(256) if b not in _VISIBLE)]

# A visible byte stays as is. Any other byte becomes the next character from U+0100 on.
_SHOWN = {b: chr(b if b in _VISIBLE else 0x100 + i - len(_VISIBLE)) for i, b in enumerate(BYTES)}
_LETTERS = frozenset(_SHOWN.values())

_BETWEEN = "\U0010fffe"  # a noncharacter that no byte maps to
_HIDDEN = dict.fromkeys(range(256), _BETWEEN) | {ord(shown): chr(b) for b, shown in _SHOWN.items()}


def shown(token: bytes) -> str:
    """Convert bytes to visible characters."""
    return token.decode("latin-1").translate(_SHOWN)


def hidden(tokens: Sequence[str]) -> list[bytes]:
    """Convert tokens of visible characters to bytes. Raises UserError for any other character."""
    # Translating the joined tokens in one call is several times faster. Latin-1 has a character for each byte.
    translated = _BETWEEN.join(tokens).translate(_HIDDEN).split(_BETWEEN)
    if len(translated) == max(1, len(tokens)):
        try:
            return [token.encode("latin-1") for token in translated][: len(tokens)]
        except UnicodeEncodeError:
            pass
    wrong = next(token for token in tokens if not can_be_hidden(token))
    raise UserError(f"token {wrong!r} has characters that do not stand for bytes")


def can_be_hidden(text: str) -> bool:
    """Return True if every character represents a byte."""
    return set(text) <= _LETTERS
