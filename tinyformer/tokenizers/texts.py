"""The text of each token by itself, to be shown, and a text to begin with."""

from __future__ import annotations

from collections.abc import Iterable

from tinyformer.tokenizers.base import Tokenizer, checked
from tinyformer.tokenizers.bpe import BPETokenizer
from tinyformer.tokenizers.marian import MarianTokenizer
from tinyformer.tokenizers.pipeline import PipelineTokenizer


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
