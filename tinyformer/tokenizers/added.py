"""Added tokens: names that are looked for in a text before it is cut into words, as Hugging Face's tokenizers do it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import regex

from tinyformer.tokenizers.special import special_names

Pieces = Iterator[tuple[str, int | None]]

# What a single word must not touch: letters, marks, decimal digits, connectors such as _, and joiners.
_WORD_BEFORE = regex.compile(r"(?<=[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d])")
_WORD_AFTER = regex.compile(r"[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]")
_SPACES = regex.compile(r"\s*")
_SPACES_BEFORE = regex.compile(r"(?r)\s*")  # read from right to left


@dataclass(frozen=True)
class AddedToken:
    """A name that stands for an id wherever it occurs in a text.

    A ``special`` one stands for nothing in a text, such as the end of it, and is plain text unless the caller allows it.
    ``single_word``: not where it touches a letter. ``lstrip``, ``rstrip``: white space before or after it goes with it.
    ``normalized``: it is looked for after the text was normalised, and after those that are not. ``in_vocabulary``: it is also
    an ordinary token, which merging may make; its name shows bytes as GPT-2's files do.
    """

    content: str
    id: int
    special: bool = False
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    in_vocabulary: bool = False


class AddedTokens:
    """Finds added tokens in texts. Raises UserError for tokens with the same name, and for a name that is empty or no text."""

    def __init__(self, tokens: Iterable[AddedToken], normalize: Callable[[str], str]):
        tokens = list(tokens)
        special_names(token.content for token in tokens)
        self.normalize = normalize
        self._first = _Names({token.content: token for token in tokens if not token.normalized})
        self._second = _Names({normalize(token.content): token for token in tokens if token.normalized})

    def cut(self, text: str, allow_special: bool) -> Pieces:
        """The text in pieces: (plain text, normalised, None), or (the name of an added token, its id)."""
        for piece, found in self._first.cut(text, allow_special):
            if found is None:
                yield from self._second.cut(self.normalize(piece), allow_special)
            else:
                yield piece, found


class _Names:
    """Names that are looked for at the same time. Where several match at one place, the longest counts."""

    def __init__(self, tokens: dict[str, AddedToken]):
        self.tokens = tokens
        self.all_special = all(token.special for token in tokens.values())
        self.pattern = regex.compile(r"\L<names>", names=list(tokens))

    def cut(self, text: str, allow_special: bool) -> Pieces:
        end = 0
        if self.tokens and (allow_special or not self.all_special):
            for match in self.pattern.finditer(text):
                token = self.tokens[match[0]]
                if (token.special and not allow_special) or (token.single_word and _touches_a_word(text, match)):
                    continue
                start, stop = match.span()
                if token.lstrip:
                    start = max(end, _SPACES_BEFORE.match(text, endpos=start).start())  # another token may have taken some
                if token.rstrip:
                    stop = _SPACES.match(text, stop).end()
                if end < start:
                    yield text[end:start], None
                if start < stop:  # else it is white space, and the token before took all of it
                    yield match[0], token.id
                end = max(end, stop)  # theirs reads white space twice that the token before took
        if end < len(text):
            yield text[end:], None


def _touches_a_word(text: str, match: regex.Match[str]) -> bool:
    return bool(_WORD_BEFORE.match(text, match.start()) or _WORD_AFTER.match(text, match.end()))
