"""Bytes as GPT-2's files show them: each as one visible character."""

from __future__ import annotations

from collections.abc import Sequence

from tinyformer.common.errors import UserError

# The order in which GPT-2 numbers the bytes: first those that are visible characters of Latin-1, then the others.
_VISIBLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
BYTES = [*_VISIBLE, *(b for b in range(256) if b not in _VISIBLE)]

# A byte is shown as itself where it is a visible character, else as the next one from U+0100 on.
_SHOWN = {b: chr(b if b in _VISIBLE else 0x100 + place - len(_VISIBLE)) for place, b in enumerate(BYTES)}
_LETTERS = frozenset(_SHOWN.values())

_BETWEEN = "\U0010fffe"  # no character, and none that stands for a byte
_HIDDEN = dict.fromkeys(range(256), _BETWEEN) | {ord(shown): chr(b) for b, shown in _SHOWN.items()}


def shown(token: bytes) -> str:
    """Bytes as visible characters."""
    return token.decode("latin-1").translate(_SHOWN)


def hidden(tokens: Sequence[str]) -> list[bytes]:
    """The bytes that each token shows. Raises UserError for a token with other characters."""
    # All at once, which is several times faster: Latin-1 has a character for each byte.
    found = _BETWEEN.join(tokens).translate(_HIDDEN).split(_BETWEEN)
    if len(found) == max(1, len(tokens)):
        try:
            return [token.encode("latin-1") for token in found][: len(tokens)]
        except UnicodeEncodeError:
            pass
    wrong = next(token for token in tokens if not can_be_hidden(token))
    raise UserError(f"the token {wrong!r} has characters that do not stand for bytes")


def can_be_hidden(text: str) -> bool:
    """Whether each character stands for a byte."""
    return set(text) <= _LETTERS
