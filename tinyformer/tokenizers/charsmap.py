"""SentencePiece's precompiled map of characters, by which T5's and XLM-R's tokenizers normalise a text.

It is one block of bytes: the size of a trie, the trie as a double array of 32-bit units (Aoe 1989), and the replacements, each
ended by a zero byte. A unit says by what its children's places differ from its own; a child is there if its label is the byte
that led to it.
"""

from __future__ import annotations

import base64
import functools

import regex

from tinytensor.device.backend import host

_MOST_BYTES = 5  # of a user-perceived character that is looked up as a whole, as in the package


class Charsmap:
    """Replaces characters of a text, and some combinations of them. Raises ValueError for what is no such map."""

    def __init__(self, encoded: str):
        try:
            block = base64.b64decode(encoded, validate=True)
            end = 4 + int.from_bytes(block[:4], "little")
            texts = block[end:].decode()
        except ValueError as error:
            raise ValueError(f"precompiled_charsmap cannot be read: {error}") from None
        if not 4 < end <= len(block) or end % 4:
            raise ValueError("precompiled_charsmap ends too early")
        self._units: list[int] = host.frombuffer(block[4:end], "<u4").tolist()
        self._replacements = block[end:] + b"\0"
        self.longest = max(map(len, texts.split("\0")))  # characters
        self._replaced = functools.lru_cache(maxsize=65536)(self._look_up_all)

    def __call__(self, text: str) -> str:
        """The text with its replacements."""
        return "".join(map(self._replaced, regex.findall(r"\X", text)))

    def _look_up_all(self, cluster: str) -> str:
        """The replacement of a user-perceived character, or of each of its code points, or these themselves."""
        if len(cluster.encode()) <= _MOST_BYTES and (whole := self._look_up(cluster)) is not None:
            return whole
        return "".join(c if (found := self._look_up(c)) is None else found for c in cluster)

    def _look_up(self, text: str) -> str | None:
        """The replacement of the first bytes of a text that have one. The rest goes with them, as in the package."""
        place = _offset(self._units[0])
        for byte in text.encode():
            place ^= byte
            if not byte or place >= len(self._units) or self._units[place] & 0x800000FF != byte:
                return None
            unit = self._units[place]
            place ^= _offset(unit)
            if unit >> 8 & 1 and place < len(self._units):
                start = self._units[place] & 0x7FFFFFFF
                return self._replacements[start : self._replacements.find(b"\0", start)].decode(errors="replace")
        return None


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 1 << 9) >> 6)
