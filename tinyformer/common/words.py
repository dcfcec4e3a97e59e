"""Words by Unicode's rules (Unicode Standard Annex 29), for all code that cuts texts into words.

Unicode leaves open how scripts without spaces between words are cut. Here a run of their letters is one word, so that a text
that another program has cut stays as it is.
"""

from __future__ import annotations

import regex

# Letters, digits, and the accents and vowel signs on them.
_FIRST = r"\p{L}\p{N}\p{WB=ALetter}\p{WB=Hebrew_Letter}\p{WB=Katakana}\p{WB=Numeric}"  # an accent begins no word
_LETTERS = _FIRST + r"\p{M}"
# Invisible characters within words: soft hyphens, word joiners, marks of direction, joiners of Indian letters.
_UNSEEN = r"\p{WB=Format}\p{WB=Extend}\p{WB=ZWJ}"
_RUN = rf"[{_FIRST}][{_LETTERS}]*(?:[{_UNSEEN}]+[{_LETTERS}]+)*"


def _between(left: str, marks: str, right: str) -> str:
    """One of the marks where the characters beside it are of these kinds."""
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
# Two letters of a flag. (\X would look at all flags before it, to know which letters go together.)
_FLAG = r"\p{GCB=Regional_Indicator}{1,2}[\p{GCB=Extend}\p{GCB=ZWJ}]*"
# The words, and the single marks between them, such as an emoji of several parts. White space is left out, and so is what
# nobody sees where it is in no word.
WORDS_AND_MARKS = regex.compile(rf"{_WORD}|{_FLAG}|(?![\s\p{{Cf}}])\X")
