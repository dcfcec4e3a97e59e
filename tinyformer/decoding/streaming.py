"""Streaming: the text of ids while they are generated."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Protocol


class TextDecoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids."""


def stream_text(tokenizer: TextDecoder, ids: Iterable[int]) -> Iterator[str]:
    """The text of ids in pieces, each as soon as it is complete. A character may span several tokens.

    This works for tokenizers whose pieces, put together, are the text: characters and byte pairs. It does not work for those
    that have to guess the spaces between words.
    """
    decode_bytes = getattr(tokenizer, "decode_bytes", None)
    if decode_bytes is None:
        for i in ids:
            yield tokenizer.decode([i])
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for i in ids:
        yield decoder.decode(decode_bytes(i))
    yield decoder.decode(b"", final=True)
