"""Words as messages need them: 1 pair and 2,000 pairs, a list and an int."""

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


def a_or_an(word: str) -> str:
    """A word, such as a type's name, after the article that fits how it is said: "an LSTM", as its letters are said one by one.

    >>> from tinytensor.common.wording import a_or_an
    >>> a_or_an("list"), a_or_an("int"), a_or_an("LSTM"), a_or_an("UnigramTokenizer")
    ('a list', 'an int', 'an LSTM', 'a UnigramTokenizer')
    """
    return f"{'an' if re.match('[AEIOaeio]|[FHLMNRSX][A-Z]|nd', word) else 'a'} {word}"


def plural(what: str) -> str:
    """The plural of a word, or of the last one of several, by the usual rules."""
    if re.search(r"[^aeiou]y$", what):
        return what[:-1] + "ies"
    if what.endswith("is"):
        return what[:-2] + "es"
    return what + ("es" if re.search(r"(s|x|z|ch|sh)$", what) else "s")
