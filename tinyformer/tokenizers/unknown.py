"""Words of a text that a model cannot read: its tokenizer has an unknown token in their place."""

from __future__ import annotations

from tinyformer.common.errors import shortened
from tinyformer.tokenizers.base import Tokenizer
from tinyformer.tokenizers.special import UNKNOWN, cut_at_special
from tinytensor.common.wording import counted

_NAMES = (UNKNOWN, "<unk>")  # the latter is that of Marian's models


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """The words of a text, as they stand between spaces, in which the tokenizer has its unknown token; each once. The names of
    special tokens are no words."""
    unknown = next((tokenizer.special[name] for name in _NAMES if name in tokenizer.special), None)
    if unknown is None:  # as with byte pairs, which can spell everything
        return []
    parts = (part for part, special in cut_at_special(text, tokenizer.special) if special is None)
    words = dict.fromkeys(word for part in parts for word in part.split())
    return [word for word in words if unknown in tokenizer.encode(word)]


def note_on_unknown(tokenizer: Tokenizer, text: str) -> str:
    """A line that names the words of a text that the model cannot read; empty if there are none."""
    words = unknown_words(tokenizer, text)
    if not words:
        return ""
    name = next(name for name in _NAMES if name in tokenizer.special)
    shown = ", ".join(repr(shortened(word, 30)) for word in words[:3]) + (", ..." if words[3:] else "")
    what = f"{counted(len(words), 'word')} are" if words[1:] else "a word is"
    return f"({what} too long for this model, or with characters that it does not know, and read as {name}: {shown})"
