"""Stream text: decode ids as they are generated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol


class TextStreamer(Protocol):
    """Protocol for tokenizers that can stream text."""

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the decoded text in pieces, each as soon as it is final."""


def stream_text(tokenizer: TextStreamer, ids: Iterable[int], after: Sequence[int] = ()) -> Iterator[str]:
    """Yield the decoded text of ids in pieces, each as soon as it is final. Joined, the pieces equal the decoded text.

    A character may span several tokens. Some tokenizers put a space between words, but not before a comma or within a word. The
    text therefore depends on earlier ids. Pass ids that were already shown, such as a prompt, as ``after``.

    >>> from tinyformer import WordTokenizer, stream_text
    >>> tokenizer = WordTokenizer.train("Don't stop!")
    >>> prompt, new = (tokenizer.encode(text).tolist() for text in ("Don't", "stop! Don't"))
    >>> list(stream_text(tokenizer, new, after=prompt))
    [' stop', '!', " Don't"]
    """
    is_shown = True  # the current piece

    def all_ids() -> Iterator[int]:
        nonlocal is_shown
        yield from after
        is_shown = False
        yield from ids

    for piece in tokenizer.stream(all_ids()):
        if not is_shown:
            yield piece


def until(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Yield pieces of text up to the first stop string. A stop string may span pieces. Read no pieces after it."""
    held = ""
    for piece in pieces:
        held += piece
        if starts := [start for stop in stops if (start := held.find(stop)) >= 0]:
            held = held[: min(starts)]
            break
        begun = max((n for stop in stops for n in range(1, len(stop)) if held.endswith(stop[:n])), default=0)
        if text := held[: len(held) - begun]:
            yield text
        held = held[len(held) - begun :]
    if held:
        yield held
