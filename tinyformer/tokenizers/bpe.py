"""Byte-level byte-pair encoding (Sennrich et al. 2016; over bytes as in GPT-2, Radford et al. 2019).

A text is cut into words, where a word keeps the space before it, and a word into its UTF-8 bytes. Then the pair of neighbours
that training merged first is merged, again and again. Every text can be encoded, because every byte is a token.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import regex

from tinyformer.errors import UserError
from tinyformer.files import damaged, read_json, write_json
from tinyformer.tokenizers.base import checked, checked_text, load_saved, texts_of
from tinyformer.tokenizers.merging import Pair, apply_merges, learn_merges
from tinyformer.tokenizers.special import cut_at_special, skippable, special_names
from tinytensor.backend import host

# How GPT-2 cuts a text into words: English contractions; then letters, digits or other signs, each with one space before them;
# then white space.
WORDS = regex.compile(r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")

# The order in which GPT-2 numbers the bytes: first those that are visible characters of Latin-1, then the others.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = [*_VISIBLE, *(b for b in range(256) if b not in _VISIBLE)]


class BPETokenizer:
    """Byte-level BPE. ``tokens[i]`` are the bytes of id i. ``merges`` are pairs of ids, in the order they were learned.

    ``special`` tokens, such as "<|endoftext|>", are never cut, and no merge makes one. ``encode`` treats their names as plain
    text unless ``allow_special``, so that a text cannot smuggle them in. Raises UserError if tokens, merges and special tokens
    do not fit together.
    """

    kind = "bpe"

    def __init__(self, tokens: Sequence[bytes], merges: Iterable[Pair], special: Mapping[str, int] | None = None):
        self.tokens = list(tokens)
        self.merges = list(merges)
        self.special = dict(special or {})
        special_names(self.special)
        for name, i in self.special.items():
            if not 0 <= i < len(self.tokens) or self.tokens[i] != name.encode():
                raise UserError(f"the special token {name!r} is not the token of its id, {i}")
        reserved = set(self.special.values())
        id_of = {token: i for i, token in enumerate(self.tokens) if i not in reserved}
        if b"" in id_of or len(id_of) + len(reserved) < len(self.tokens):
            raise UserError("a token is empty, or occurs twice")
        missing = sum(bytes([b]) not in id_of for b in range(256))
        if missing:
            raise UserError(f"a byte-level tokenizer needs all 256 bytes as tokens; {missing} are missing")
        self._bytes = [id_of[bytes([b])] for b in range(256)]
        self._merged: dict[Pair, tuple[int, int]] = {}  # pair -> (rank, id of the two together)
        for rank, (left, right) in enumerate(self.merges):
            new = id_of.get(self._ordinary(left) + self._ordinary(right))
            if new is None:
                raise UserError(f"the merge of {self.tokens[left]!r} and {self.tokens[right]!r} makes no token")
            self._merged.setdefault((left, right), (rank, new))
        self._encode_word = functools.lru_cache(maxsize=65536)(self._merge_word)

    def _ordinary(self, i: int) -> bytes:
        if i in self.special.values() or not 0 <= i < len(self.tokens):
            raise UserError(f"a merge joins the id {i}, which is special or not an id")
        return self.tokens[i]

    @property
    def vocab_size(self) -> int:
        """The number of tokens, special ones included."""
        return len(self.tokens)

    # ---------------------------------------------------------------------------------------------- both directions

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """The ids of the text, a NumPy int64 array. Raises UserError for anything but text. Every text can be encoded."""
        ids: list[int] = []
        for part, special in cut_at_special(checked_text(text), self.special if allow_special else {}):
            if special is not None:
                ids.append(special)
            else:
                for word in WORDS.findall(part):
                    ids.extend(self._encode_word(word))
        return host.array(ids, dtype=host.int64)

    def _merge_word(self, word: str) -> tuple[int, ...]:
        return tuple(apply_merges([self._bytes[b] for b in word.encode()], self._merged))

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text of the ids. Bytes that are not UTF-8, such as those of half a character, become U+FFFD. Raises UserError for
        a number that is not an id."""
        leave_out = skippable(self.special) if skip_special else ()
        return b"".join(self.tokens[i] for i in checked(ids, self.vocab_size, leave_out)).decode("utf-8", "replace")

    def decode_bytes(self, i: int) -> bytes:
        """The bytes of one id, which may be a part of a character. Raises UserError for a number that is not an id."""
        return b"".join(self.tokens[i] for i in checked([i], self.vocab_size))

    # ---------------------------------------------------------------------------------------------------- training

    @classmethod
    def train(
        cls, text: str | Iterable[str], vocab_size: int, special: Iterable[str] = (), progress: bool = False
    ) -> BPETokenizer:
        """Learn merges from a text, or several, until there are ``vocab_size`` tokens, or no pair occurs twice.

        Each step merges the most frequent pair; of equally frequent ones, that with the smaller ids. The ids are: first the
        bytes, then the tokens that merging made, then the ``special`` tokens. Raises UserError if the vocabulary is too small
        for the bytes and the special tokens.
        """
        names = special_names(special)
        if vocab_size < 256 + len(names):
            raise UserError(
                f"a byte-level vocabulary with {len(names)} special tokens has at least {256 + len(names)} tokens "
                f"(the 256 bytes), not {vocab_size}"
            )
        tokens = [bytes([b]) for b in BYTES]
        merges: list[Pair] = []

        def merge(pair: Pair) -> int | None:
            if len(tokens) + len(names) == vocab_size:
                return None
            merges.append(pair)
            tokens.append(tokens[pair[0]] + tokens[pair[1]])
            return len(tokens) - 1

        words = Counter(word for part in texts_of(text) for word in WORDS.findall(part))
        place = {b: i for i, b in enumerate(BYTES)}
        learn_merges([[place[b] for b in word.encode()] for word in words], list(words.values()), merge, progress)
        ids = {name: len(tokens) + i for i, name in enumerate(names)}
        return cls([*tokens, *(name.encode() for name in names)], merges, ids)

    # ------------------------------------------------------------------------------------------------------- files

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a JSON file. Bytes are written as in GPT-2's files."""
        names = {i: name for name, i in self.special.items()}
        tokens = [names[i] if i in names else _shown(token) for i, token in enumerate(self.tokens)]
        merges = [f"{tokens[left]} {tokens[right]}" for left, right in self.merges]
        write_json(Path(path), {"kind": self.kind, "special": self.special, "merges": merges, "tokens": tokens})

    @classmethod
    def load(cls, path: str | Path) -> BPETokenizer:
        """The tokenizer that ``save`` wrote. Raises UserError for any other file."""
        return load_saved(
            cls._from_shown, path, cls.kind, "byte-pair", tokens=list[str], merges=list[str], special=dict[str, int]
        )

    @classmethod
    def from_gpt2_files(cls, encoder: str | Path, vocab: str | Path) -> BPETokenizer:
        """GPT-2's own tokenizer from its two files: ``encoder.json`` (tokens to ids) and ``vocab.bpe`` (one merge a line, in
        order). "<|endoftext|>" is special. Raises UserError if a file is missing or damaged, or if they do not fit together."""
        ids = read_json(Path(encoder))
        if not Path(vocab).exists():
            raise UserError(f"{vocab} does not exist: pass the file of merges that belongs to {encoder}")
        with damaged(f"{encoder} or {vocab} (or they do not belong together)"):
            if sorted(ids.values()) != list(range(len(ids))):
                raise UserError(f"the ids are not the numbers from 0 to {len(ids) - 1}")
            lines = Path(vocab).read_text(encoding="utf-8").split("\n")
            if lines[0].startswith("#version"):
                del lines[0]
            special = {name: i for name, i in ids.items() if name == "<|endoftext|>"}
            return cls._from_shown(sorted(ids, key=ids.__getitem__), [line for line in lines if line], special)

    @classmethod
    def _from_shown(cls, tokens: Sequence[str], merges: Iterable[str], special: Mapping[str, int]) -> BPETokenizer:
        """A tokenizer from tokens as GPT-2's files write them, and from merges: two tokens with a space between them."""
        reserved = set(special.values())
        id_of = {token: i for i, token in enumerate(tokens) if i not in reserved}
        pairs: list[Pair] = []
        for line in merges:
            pair = [id_of[part] for part in line.split(" ") if part in id_of]
            if len(pair) != 2 or line.count(" ") != 1:
                raise UserError(f"the merge {line!r} is not two tokens with a space between them")
            pairs.append((pair[0], pair[1]))
        return cls([checked_text(t).encode() if i in reserved else _hidden(t) for i, t in enumerate(tokens)], pairs, special)


# --------------------------------------------------------------------------------------------- bytes as GPT-2 shows them

# Each byte is shown as one visible character: as itself where it is one, else as the next one from U+0100 on.
_SHOWN = {b: chr(b if b in _VISIBLE else 0x100 + place - len(_VISIBLE)) for place, b in enumerate(BYTES)}
_HIDDEN = {c: b for b, c in _SHOWN.items()}


def _shown(token: bytes) -> str:
    return "".join(_SHOWN[b] for b in token)


def _hidden(shown: str) -> bytes:
    try:
        return bytes(_HIDDEN[c] for c in shown)
    except KeyError:
        raise UserError(f"the token {shown!r} has characters that do not stand for bytes") from None
