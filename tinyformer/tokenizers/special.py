"""Special tokens: names with one id each that tokenizers never split."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import regex

from tinyformer.common.errors import UserError, shortened
from tinyformer.tokenizers.base import checked_text
from tinytensor.common.wording import counted

PADDING, UNKNOWN = "[PAD]", "[UNK]"
BEGIN, END = "[BOS]", "[EOS]"  # start and end of a generated sequence
CLASSIFY, SEPARATE, MASK = "[CLS]", "[SEP]", "[MASK]"  # BERT's start and end of a sequence, and mask

# Finding names takes time and memory proportional to their length. Published ones have up to 100 characters, 200,000 in all.
_LONGEST_NAME, _MOST_CHARACTERS = 500, 500_000


def special_names(names: Iterable[str]) -> list[str]:
    """Return the names as a list. Raises UserError unless they are distinct nonempty strings, few and short enough to find
    quickly."""
    if isinstance(names, str):
        raise UserError(f"the special tokens must be a list of names, got the string {names!r}")
    names = list(names)
    if wrong := [name for name in names if not isinstance(name, str) or not name]:
        raise UserError(f"the name of a special token must be a nonempty string, got {wrong[0]!r}")
    for name in names:
        checked_text(name)
    if len(set(names)) < len(names):
        raise UserError(f"two special tokens have the same name: {shortened(', '.join(names))}")
    if (longest := max(map(len, names), default=0)) > _LONGEST_NAME:
        raise UserError(f"the name of a special token has {longest:,} characters; the limit is {_LONGEST_NAME}")
    if (total := sum(map(len, names))) > _MOST_CHARACTERS:
        raise UserError(
            f"the names of the special tokens have {counted(total, 'character')}; the limit is {_MOST_CHARACTERS:,}"
        )
    return names


def mask_name(special: Collection[str]) -> str | None:
    """Return the mask token's name in ``special``: BERT's [MASK], or <mask> for RoBERTa and MPNet. Return None if there is
    none."""
    return next((name for name in (MASK, "<mask>") if name in special), None)


def skippable(special: Mapping[str, int]) -> Collection[int]:
    """Return the ids to skip when decoding: all special tokens except [UNK], which represents a word."""
    return {i for name, i in special.items() if name != UNKNOWN}


def cut_at_special(text: str, special: Mapping[str, int]) -> Iterator[tuple[str, int | None]]:
    """Yield the text in pieces: (plain text, None), or (special-token name, id). If several names match at a position, the
    longest wins."""
    if not special:
        yield text, None
        return
    names = "|".join(regex.escape(name) for name in sorted(special, key=len, reverse=True))
    for piece in regex.split(f"({names})", text):
        if piece:
            yield piece, special.get(piece)
