"""How a text is normalised and cut into words before byte pairs are merged in each of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

import regex

from tinyformer.errors import UserError
from tinyformer.tokenizers.patterns import compiled

# How GPT-2 cuts a text into words: English contractions; then letters, digits or other signs, each with one space before them;
# then white space.
GPT2_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


@dataclass(frozen=True)
class CuttingRules:
    """Rules that cut a text into words. Those without arguments are GPT-2's.

    ``patterns`` are regular expressions: the first cuts the text, the next cuts the pieces, and so on. Each match is a piece,
    and so is what lies between two matches, so that nothing is lost. ``normal_form`` is the form of Unicode that a text is
    brought to before: NFC, NFD, NFKC, NFKD, or "" for none. With ``space_before``, each piece that the last pattern is given
    gets a space in front, if it has none there. Raises UserError for other values, and for patterns that are not supported.
    """

    patterns: list[str] = field(default_factory=lambda: [GPT2_WORDS])
    normal_form: str = ""
    space_before: bool = False

    def __post_init__(self) -> None:
        if self.normal_form not in ("", "NFC", "NFD", "NFKC", "NFKD"):
            raise UserError(f"{self.normal_form!r} is not a normal form of Unicode: use 'NFC', 'NFD', 'NFKC', 'NFKD' or ''")
        if self.space_before and not self.patterns:
            raise UserError("a space before each piece needs a pattern that cuts it")
        for pattern in self.patterns:
            compiled(pattern)

    def normalized(self, text: str) -> str:
        """The text in the normal form."""
        return unicodedata.normalize(self.normal_form, text) if self.normal_form else text  # type: ignore[arg-type]

    def words(self, text: str) -> list[str]:
        """The words of a text that is normalised."""
        words = [text] if text else []
        for place, pattern in enumerate(self.patterns, start=1):
            if self.space_before and place == len(self.patterns):
                words = [word if word.startswith(" ") else " " + word for word in words]
            cut = compiled(pattern)
            words = _pieces(cut, words[0]) if len(words) == 1 else [piece for word in words for piece in _pieces(cut, word)]
        return words


def _pieces(pattern: regex.Pattern[str], text: str) -> list[str]:
    """The matches of a pattern, and what lies between them."""
    found: list[str] = pattern.findall(text)
    if sum(map(len, found)) == len(text):
        return found
    return list(_with_gaps(pattern, text))


def _with_gaps(pattern: regex.Pattern[str], text: str) -> Iterator[str]:
    end = 0
    for match in pattern.finditer(text):
        if match.start() > end:
            yield text[end : match.start()]
        yield match[0]
        end = match.end()
    if end < len(text):
        yield text[end:]
