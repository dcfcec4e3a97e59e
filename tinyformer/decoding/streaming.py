"""Streaming: the text of ids while they are generated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class TextStreamer(Protocol):
    """The part of a tokenizer that is needed here."""

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of the ids in pieces, each as soon as it is certain."""


def stream_text(tokenizer: TextStreamer, ids: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
    """The text of ids in pieces, each as soon as it is certain. Together they are what the tokenizer decodes.

    A character may span several tokens. Some tokenizers put a space between words, but not before a comma, or before a piece
    that continues a word. So the text may depend on what was there before: ``after`` are ids whose text was already shown, such
    as those of a prompt.

    >>> from tinyformer import WordTokenizer, stream_text
    >>> tokenizer = WordTokenizer.train("Don't stop!")
    >>> prompt, new = (tokenizer.encode(text).tolist() for text in ("Don't", "stop! Don't"))
    >>> list(stream_text(tokenizer, new, after=prompt))
    [' stop', '!', " Don't"]
    """
    is_shown = True  # what is decoded now

    def all_ids() -> Iterator[int]:
        nonlocal is_shown
        yield from after
        is_shown = False
        yield from ids

    for piece in tokenizer.stream(all_ids()):
        if not is_shown:
            yield piece


def until(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Pieces of text up to the first of these strings, which may begin in one piece and end in another. No more pieces are
    taken after it."""
    held = ""
    for piece in pieces:
        held += piece
        if found := [place for stop in stops if (place := held.find(stop)) >= 0]:
            held = held[: min(found)]
            break
        begun = max((n for stop in stops for n in range(1, len(stop)) if held.endswith(stop[:n])), default=0)
        if text := held[: len(held) - begun]:
            yield text
        held = held[len(held) - begun :]
    if held:
        yield held
