"""How a text is normalised and cut into words before byte pairs are merged in each of them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import regex

from tinyformer.common.errors import UserError
from tinyformer.tokenizers.patterns import GPT2_WORDS, Clock, compiled, is_quick

_MOST_PATTERNS = 50  # one after the other; those of published tokenizers are up to 5


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
        if len(self.patterns) > _MOST_PATTERNS:
            raise UserError(f"a text is cut by at most {_MOST_PATTERNS} regular expressions, not {len(self.patterns):,}")
        for pattern in self.patterns:
            compiled(pattern)

    def normalized(self, text: str) -> str:
        """The text in the normal form."""
        return unicodedata.normalize(self.normal_form, text) if self.normal_form else text  # type: ignore[arg-type]

    def words(self, text: str) -> list[str]:
        """The words of a text that is normalised. Raises TooSlow where a pattern takes so long that it may never end."""
        words = [text] if text else []
        clock: Clock | None = None
        for place, pattern in enumerate(self.patterns, start=1):
            if self.space_before and place == len(self.patterns):
                words = [word if word.startswith(" ") else " " + word for word in words]
            if clock is None and not is_quick(pattern):
                clock = Clock(len(text))
            timed = None if is_quick(pattern) else clock
            if len(words) == 1:
                words = _pieces(pattern, words[0], timed)
            else:
                words = [piece for word in words for piece in _pieces(pattern, word, timed)]
        return words


def _pieces(pattern: str, text: str, clock: Clock | None) -> list[str]:
    """The matches of a pattern, and what lies between them."""
    cut = compiled(pattern)
    found: list[str]
    if clock is None:
        found = cut.findall(text)
    else:
        found = clock.run(pattern, lambda seconds: cut.findall(text, timeout=seconds))
    if sum(map(len, found)) == len(text):
        return found
    if clock is None:
        return list(_with_gaps(text, cut.finditer(text)))
    return clock.run(pattern, lambda seconds: list(_with_gaps(text, cut.finditer(text, timeout=seconds))))


def _with_gaps(text: str, matches: Iterable[regex.Match[str]]) -> Iterator[str]:
    end = 0
    for match in matches:
        if match.start() > end:
            yield text[end : match.start()]
        yield match[0]
        end = match.end()
    if end < len(text):
        yield text[end:]
