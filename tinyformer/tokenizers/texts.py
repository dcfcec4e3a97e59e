"""Readable token texts, default prompts, and words unknown to a tokenizer."""

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
    """Return the text of each id, such as " the", or the name of a special token.

    Part of a character is shown as bytes, such as ``\\xe6``. WordPieces inside a word keep their "##". Marian pieces at the
    start of a word have a leading space. Pass ``is_source=True`` for source-language ids, which matters only to a Marian
    tokenizer with two vocabularies. Raises UserError for an invalid id.

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
    """Return the default prompt: a newline, or some known text if the tokenizer has no newline.

    >>> from tinyformer import CharTokenizer
    >>> from tinyformer.tokenizers.texts import opening_text
    >>> opening_text(CharTokenizer.train("banana"))
    'a'
    """
    known = getattr(tokenizer, "characters", "\n")
    opening = "\n" if "\n" in known else known[0]
    return opening if len(tokenizer.encode(opening)) else "."  # a word tokenizer has no token for white space


_NAMES = (UNKNOWN, "<unk>")  # the latter is Marian's


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the distinct space-separated words of a text whose ids include the unknown token. Special-token names do not
    count."""
    unknown = next((tokenizer.special[name] for name in _NAMES if name in tokenizer.special), None)
    if unknown is None:  # byte pairs can encode any text
        return []
    parts = (part for part, special in cut_at_special(text, tokenizer.special) if special is None)
    words = dict.fromkeys(word for part in parts for word in part.split())
    return [word for word in words if unknown in tokenizer.encode(word)]


def note_on_unknown(tokenizer: Tokenizer, text: str) -> str:
    """Return a line that lists the words of a text that the model cannot read, or "" if there are none."""
    words = unknown_words(tokenizer, text)
    if not words:
        return ""
    name = next(name for name in _NAMES if name in tokenizer.special)
    shown = ", ".join(repr(shortened(word, 30)) for word in words[:3]) + (", ..." if words[3:] else "")
    return f"({counted(len(words), 'unknown word')}, too long or with unknown characters, read as {name}: {shown})"
