"""A character-level tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import write_json
from tinyformer.tokenizers.base import checked, checked_text, load_saved, texts_of
from tinyformer.tokenizers.special import cut_at_special, skippable, special_names
from tinytensor.common.wording import counted
from tinytensor.device.backend import host


class CharTokenizer:
    """Character-level tokenizer. Ids follow code point order, with ``special`` tokens last.

    >>> from tinyformer import CharTokenizer
    >>> tokenizer = CharTokenizer.train("banana")
    >>> tokenizer.encode("nab").tolist(), tokenizer.decode([1, 0, 2])
    ([2, 0, 1], 'ban')
    """

    kind = "char"
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def __init__(self, characters: Iterable[str], special: Iterable[str] = ()):
        self.characters = sorted(set(map(checked_text, characters)))
        if wrong := [character for character in self.characters if len(character) != 1]:
            raise UserError(f"a character tokenizer needs single characters, got {shortened(repr(wrong[0]), 40)}")
        if not self.characters:
            raise UserError("a character tokenizer needs at least one character: the text is empty")
        self.special = {name: len(self.characters) + i for i, name in enumerate(special_names(special))}
        self._tokens = [*self.characters, *self.special]
        points = host.array([ord(c) for c in self.characters], dtype=host.int64)
        self._id_of = host.full(int(points.max()) + 1, -1, dtype=host.int64)
        self._id_of[points] = host.arange(len(points))

    @classmethod
    def train(cls, text: str | Iterable[str], special: Iterable[str] = ()) -> CharTokenizer:
        """Return a tokenizer for all characters in one or more strings."""
        return cls({character for part in texts_of(text) for character in part}, special)

    @property
    def vocab_size(self) -> int:
        """The number of tokens, including special tokens."""
        return len(self._tokens)

    def encode(self, text: str, allow_special: bool = False) -> Any:
        """Return the ids of the characters as a NumPy int64 array. Raises UserError for invalid text or an unknown character.
        Unless ``allow_special``, special-token names are plain text."""
        checked_text(text)
        if not allow_special:
            return self._encode_plain(text, 0)
        parts = []
        start = 0
        for part, special in cut_at_special(text, self.special):
            parts.append(self._encode_plain(part, start) if special is None else host.array([special], dtype=host.int64))
            start += len(part)
        return host.concatenate(parts) if parts else self._encode_plain("", 0)

    def _encode_plain(self, text: str, start: int) -> Any:
        """Return the ids of the characters. ``start`` is the offset of ``text`` in the original string."""
        points = host.frombuffer(text.encode("utf-32-le"), dtype=host.uint32).astype(host.int64)
        ids = self._id_of[host.minimum(points, len(self._id_of) - 1)]
        ids[points >= len(self._id_of)] = -1
        if (ids < 0).any():
            index = int(host.argmax(ids < 0))
            raise UserError(
                f"unknown character {text[index]!r} (U+{ord(text[index]):04X}) at position {start + index}: remove it, or "
                f"train the tokenizer on a text that has it (it knows {counted(len(self.characters), 'character')})"
            )
        return ids

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the decoded text. Raises UserError for an invalid id."""
        return "".join(self.stream(ids, skip_special))

    def stream(self, ids: Iterable[int], skip_special: bool = False) -> Iterator[str]:
        """Yield the text of ``decode``, one token at a time."""
        leave_out = skippable(self.special) if skip_special else ()
        return (self._tokens[i] for i in checked(ids, self.vocab_size, leave_out))

    def save(self, path: str | Path) -> None:
        """Save the tokenizer as a JSON file."""
        write_json(Path(path), {"kind": self.kind, "special": list(self.special), "characters": self.characters})

    @classmethod
    def load(cls, path: str | Path) -> CharTokenizer:
        """Load a tokenizer written by ``save``. Raises UserError for any other file."""
        # Early versions had no special tokens, so their files lack this entry.
        return load_saved(cls._from_saved, path, cls.kind, "character", characters=list[str], special=list[str] | None)

    @classmethod
    def _from_saved(cls, characters: list[str], special: list[str] | None) -> CharTokenizer:
        if characters != sorted(set(characters)):
            raise UserError("its characters are not sorted by code point, or not unique")
        return cls(characters, special or ())
