"""One token a character."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tinyformer.command_line import read_json, write_json
from tinyformer.errors import UserError
from tinytensor.backend import host


class CharTokenizer:
    """Each distinct character is a token; ids follow the order of the code points."""

    kind = "char"

    def __init__(self, characters: Iterable[str]):
        self.characters = sorted(set(characters))
        if not self.characters:
            raise UserError("a character tokenizer needs at least one character: the text is empty")
        points = host.array([ord(c) for c in self.characters], dtype=host.int64)
        self._id_of = host.full(int(points.max()) + 1, -1, dtype=host.int64)
        self._id_of[points] = host.arange(len(points))

    @classmethod
    def train(cls, text: str) -> CharTokenizer:
        """A tokenizer that knows every character of the text."""
        return cls(text)

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.characters)

    def encode(self, text: str) -> Any:
        """The ids of the characters, a NumPy int64 array. Raises UserError that names a character it does not know."""
        points = host.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=host.uint32).astype(host.int64)
        ids = self._id_of[host.minimum(points, len(self._id_of) - 1)]
        ids[points >= len(self._id_of)] = -1
        if (ids < 0).any():
            place = int(host.argmax(ids < 0))
            raise UserError(
                f"the character {text[place]!r} (U+{ord(text[place]):04X}) at position {place} is not among the "
                f"{self.vocab_size} this tokenizer knows: leave it out, or train on a text that has it"
            )
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids. Raises UserError for a number that is no id."""
        try:
            return "".join([self.characters[self._checked(int(i))] for i in ids])
        except IndexError:
            raise UserError(f"an id is not between 0 and {self.vocab_size - 1}") from None

    def _checked(self, i: int) -> int:
        if i < 0:
            raise IndexError
        return i

    def save(self, path: str | Path) -> None:
        """Write the characters to a JSON file."""
        write_json(Path(path), {"kind": self.kind, "characters": self.characters})

    @classmethod
    def load(cls, path: str | Path) -> CharTokenizer:
        """Read what ``save`` wrote. Raises UserError for anything else."""
        saved = read_json(Path(path))
        characters = saved.get("characters")
        if saved.get("kind") != cls.kind or not isinstance(characters, list):
            raise UserError(f"{path} is not a character tokenizer's file")
        single = all(isinstance(c, str) and len(c) == 1 for c in characters)
        if not characters or not single or characters != sorted(set(characters)):
            raise UserError(f"{path} is damaged: its characters are not single characters in the order of their code points")
        return cls(characters)
