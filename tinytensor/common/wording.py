"""Counts and articles for messages: "1 pair" and "2,000 pairs", "a list" and "an int"."""

from __future__ import annotations

import re


def counted(number: float, noun: str, several: str = "") -> str:
    """Return a number with thousands separators, followed by its noun. ``several`` is an irregular plural.

    >>> from tinytensor.common.wording import counted
    >>> counted(1, "batch"), counted(2000, "batch"), counted(0, "entry")
    ('1 batch', '2,000 batches', '0 entries')
    """
    return f"{number:,} {noun if number == 1 else several or plural(noun)}"


def a_or_an(word: str) -> str:
    """Return a word, such as a type name, with the article that fits its pronunciation: "an LSTM".

    >>> from tinytensor.common.wording import a_or_an
    >>> a_or_an("list"), a_or_an("int"), a_or_an("LSTM"), a_or_an("UnigramTokenizer")
    ('a list', 'an int', 'an LSTM', 'a UnigramTokenizer')
    """
    return f"{'an' if re.match('[AEIOaeio]|[FHLMNRSX][A-Z]|nd', word) else 'a'} {word}"


def plural(noun: str) -> str:
    """Return the regular plural of a noun."""
    if re.search(r"[^aeiou]y$", noun):
        return noun[:-1] + "ies"
    if noun.endswith("is"):
        return noun[:-2] + "es"
    return noun + ("es" if re.search(r"(s|x|z|ch|sh)$", noun) else "s")
