"""Special tokens: each is a name that stands for one id, and that no tokenizer cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import regex

from tinyformer.errors import UserError
from tinyformer.tokenizers.base import checked_text

PADDING, UNKNOWN = "[PAD]", "[UNK]"
BEGIN, END = "[BOS]", "[EOS]"  # the ends of a sequence that is generated
CLASSIFY, SEPARATE, MASK = "[CLS]", "[SEP]", "[MASK]"  # BERT's: the start and the end of a text, and a hidden token


def special_names(names: Iterable[str]) -> list[str]:
    """The names as a list. Raises UserError unless they are different strings that are not empty."""
    if isinstance(names, str):
        raise UserError(f"the special tokens must be a list of names, not the string {names!r}")
    names = list(names)
    if not all(isinstance(name, str) and name for name in names):
        raise UserError("the name of a special token must be a string that is not empty")
    for name in names:
        checked_text(name)
    if len(set(names)) < len(names):
        raise UserError(f"the special tokens have the same name twice: {', '.join(names)}")
    return names


def skippable(special: Mapping[str, int]) -> Collection[int]:
    """The ids that stand for nothing in the text: all special ones except [UNK], which stands for a word."""
    return {i for name, i in special.items() if name != UNKNOWN}


def cut_at_special(text: str, special: Mapping[str, int]) -> Iterator[tuple[str, int | None]]:
    """The text in pieces: (plain text, None), or (the name of a special token, its id). Where several names match at one
    place, the longest counts."""
    if not special:
        yield text, None
        return
    names = "|".join(regex.escape(name) for name in sorted(special, key=len, reverse=True))
    for piece in regex.split(f"({names})", text):
        if piece:
            yield piece, special.get(piece)
