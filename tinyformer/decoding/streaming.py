"""The text of ids as they come."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Protocol


class Tokenizer(Protocol):
    """What turns ids into text."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the ids."""


def stream_text(tokenizer: Tokenizer, ids: Iterable[int]) -> Iterator[str]:
    """The text of ids as they come, in pieces: as soon as a piece is sure, also where a character spans several tokens.

    For tokenizers whose pieces make the text as they are (characters, byte pairs), without spaces to guess between them.
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
