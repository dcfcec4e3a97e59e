"""Counts and lists as messages say them: 1 pair, 2,000 pairs."""

from __future__ import annotations

import re


def counted(number: float, what: str, several: str = "") -> str:
    """A number of things, with commas: ``what`` is the word for one of them, and ``several`` that for more, if the usual rules
    do not give it.

    >>> from tinytensor.common.wording import counted
    >>> counted(1, "batch"), counted(2000, "batch"), counted(0, "entry")
    ('1 batch', '2,000 batches', '0 entries')
    """
    return f"{number:,} {what if number == 1 else several or plural(what)}"


def plural(what: str) -> str:
    """The plural of a word, or of the last one of several, by the usual rules."""
    if re.search(r"[^aeiou]y$", what):
        return what[:-1] + "ies"
    if what.endswith("is"):
        return what[:-2] + "es"
    return what + ("es" if re.search(r"(s|x|z|ch|sh)$", what) else "s")
