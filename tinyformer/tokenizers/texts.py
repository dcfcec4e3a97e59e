"""Texts for people: of each token by itself, to begin with, and the words that a tokenizer does not know."""

from __future__ import annotations

from collections.abc import Iterable

from tinyformer.common.errors import shortened
from tinyformer.tokenizers.base import Tokenizer, checked
from tinyformer.tokenizers.bpe import BPETokenizer
from tinyformer.tokenizers.marian import MarianTokenizer
from tinyformer.tokenizers.pipeline import PipelineTokenizer
from tinyformer.tokenizers.special import UNKNOWN, cut_at_special
from tinytensor.common.wording import counted


def token_texts(tokenizer: Tokenizer, ids: Iterable[int], is_source: bool = False) -> list[str]:
    """The text of each id by itself, such as " the". Special tokens have their names.

    A token that is a part of a character is shown as its bytes, such as ``\\xe6``. WordPiece's "##" stays at the pieces that
    continue a word, and a space stands at the beginning of Marian's pieces that begin one. With ``is_source`` the ids are of
    the source language, which matters only to a Marian tokenizer with a vocabulary for each. Raises UserError for a number that
    is not an id.

    >>> from tinyformer import CharTokenizer, token_texts
    >>> token_texts(CharTokenizer.train("banana"), [1, 0, 2])
    ['b', 'a', 'n']
    """
    if isinstance(tokenizer, BPETokenizer):
        return [tokenizer.decode_bytes(i).decode("utf-8", "backslashreplace") for i in ids]
    if isinstance(tokenizer, PipelineTokenizer):
        return [tokenizer.text_of(i) for i in ids]
    if isinstance(tokenizer, MarianTokenizer):
        pieces = tokenizer.tokens if is_source else tokenizer.target_tokens
        return [pieces[i].replace("▁", " ") for i in checked(ids, len(pieces))]
    return [tokenizer.decode([i]) for i in ids]


def opening_text(tokenizer: Tokenizer) -> str:
    """The text to go on from where there is none: a new line; or what a tokenizer without new lines knows, one token or more.

    >>> from tinyformer import CharTokenizer
    >>> from tinyformer.tokenizers.texts import opening_text
    >>> opening_text(CharTokenizer.train("banana"))
    'a'
    """
    known = getattr(tokenizer, "characters", "\n")
    opening = "\n" if "\n" in known else known[0]
    return opening if len(tokenizer.encode(opening)) else "."  # a tokenizer of words has no token for white space


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
