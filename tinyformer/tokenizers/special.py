"""Special tokens: names that stand for one id each and are never cut."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import regex

from tinyformer.errors import UserError
from tinyformer.tokenizers.base import checked_text

PADDING, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[BOS]", "[EOS]"


def special_names(names: Iterable[str]) -> list[str]:
    """The names as a list. Raises UserError unless they are distinct texts and none is empty."""
    if isinstance(names, str):
        raise UserError(f"the special tokens must be a list of names, not the string {names!r}")
    names = list(names)
    if not all(isinstance(name, str) and name for name in names):
        raise UserError("the name of a special token must be a string that is not empty")
    for name in names:
        checked_text(name)
    if len(set(names)) < len(names):
        raise UserError(f"the special tokens have a name twice: {', '.join(names)}")
    return names


def skippable(special: Mapping[str, int]) -> Collection[int]:
    """The ids that say nothing about the text: all but [UNK]'s, which stands for a word of it."""
    return {i for name, i in special.items() if name != UNKNOWN}


def cut_at_special(text: str, special: Mapping[str, int]) -> Iterator[tuple[str, int | None]]:
    """The text in pieces: (plain text, None), or (the name of a special token, its id). Of names that start alike, the
    longest counts."""
    if not special:
        yield text, None
        return
    names = "|".join(regex.escape(name) for name in sorted(special, key=len, reverse=True))
    for piece in regex.split(f"({names})", text):
        if piece:
            yield piece, special.get(piece)
