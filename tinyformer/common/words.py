"""Words by Unicode rules (Unicode Standard Annex 29), for all code that splits text into words.

Unicode does not define words for scripts without spaces. Here, a run of their letters is one word, so that text segmented by
another program stays unchanged.
"""

from __future__ import annotations

import regex

# Letters, digits, and their accents and vowel signs.
_FIRST = r"\p{L}\p{N}\p{WB=ALetter}\p{WB=Hebrew_Letter}\p{WB=Katakana}\p{WB=Numeric}"  # a word cannot start with an accent
_LETTERS = _FIRST + r"\p{M}"
# Invisible characters inside words: soft hyphens, word joiners, direction marks, Indic joiners.
_UNSEEN = r"\p{WB=Format}\p{WB=Extend}\p{WB=ZWJ}"
_RUN = rf"[{_FIRST}][{_LETTERS}]*(?:[{_UNSEEN}]+[{_LETTERS}]+)*"


def _between(left: str, marks: str, right: str) -> str:
    """Return a pattern for one of the marks between characters of these classes."""
    return rf"(?<=[{left}][{_UNSEEN}]*)[{marks}][{_UNSEEN}]*(?=[{right}])"


_ALPHABETIC, _HEBREW, _DIGITS = r"\p{WB=ALetter}\p{WB=Hebrew_Letter}", r"\p{WB=Hebrew_Letter}", r"\p{WB=Numeric}"
_BOTH = r"\p{WB=MidNumLet}\p{WB=Single_Quote}"
_INSIDE = "|".join(
    [
        _between(_ALPHABETIC, _BOTH + r"\p{WB=MidLetter}", _ALPHABETIC),  # don't, l·l
        _between(_DIGITS, _BOTH + r"\p{WB=MidNum}", _DIGITS),  # 3.14
        _between(_HEBREW, r"\p{WB=Double_Quote}", _HEBREW),
        rf"\p{{WB=ExtendNumLet}}+(?=[{_LETTERS}])",  # x_1
    ]
)
_WORD = rf"{_RUN}(?:[{_UNSEEN}]*(?:{_INSIDE}){_RUN})*"

# The words of a text, and nothing else.
WORDS = regex.compile(_WORD)
# A flag emoji's two letters. (\X would scan all preceding flags to pair the letters.)
_FLAG = r"\p{GCB=Regional_Indicator}{1,2}[\p{GCB=Extend}\p{GCB=ZWJ}]*"
# Words, and single marks between them, such as a composed emoji. White space and invisible characters outside words are
# skipped.
WORDS_AND_MARKS = regex.compile(rf"{_WORD}|{_FLAG}|(?![\s\p{{Cf}}])\X")
