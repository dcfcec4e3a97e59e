"""Special tokens: each is a name that stands for one id, and that no tokenizer cuts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import regex

from tinyformer.common.errors import UserError, shortened
from tinyformer.tokenizers.base import checked_text

PADDING, UNKNOWN = "[PAD]", "[UNK]"
BEGIN, END = "[BOS]", "[EOS]"  # the ends of a sequence that is generated
CLASSIFY, SEPARATE, MASK = "[CLS]", "[SEP]", "[MASK]"  # BERT's: the start and the end of a text, and a hidden token

# Names are looked for all at once, which takes time and memory that grow with their lengths. Those of published tokenizers have
# up to a hundred characters, and 200,000 together.
_LONGEST_NAME, _MOST_CHARACTERS = 500, 500_000


def special_names(names: Iterable[str]) -> list[str]:
    """The names as a list. Raises UserError unless they are different strings that are not empty, and not so long or so many
    that looking for them takes long."""
    if isinstance(names, str):
        raise UserError(f"the special tokens must be a list of names, not the string {names!r}")
    names = list(names)
    if not all(isinstance(name, str) and name for name in names):
        raise UserError("the name of a special token must be a string that is not empty")
    for name in names:
        checked_text(name)
    if len(set(names)) < len(names):
        raise UserError(f"the special tokens have the same name twice: {shortened(', '.join(names))}")
    if (longest := max(map(len, names), default=0)) > _LONGEST_NAME:
        raise UserError(f"the name of a special token has {longest:,} characters; it can have {_LONGEST_NAME}")
    if (together := sum(map(len, names))) > _MOST_CHARACTERS:
        raise UserError(
            f"the names of the special tokens have {together:,} characters together; they can have {_MOST_CHARACTERS:,}"
        )
    return names


def mask_name(special: Collection[str]) -> str | None:
    """The name of the token that hides another one, of those named: BERT's [MASK], or <mask> of RoBERTa and MPNet. None if
    there is none."""
    return next((name for name in (MASK, "<mask>") if name in special), None)


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
