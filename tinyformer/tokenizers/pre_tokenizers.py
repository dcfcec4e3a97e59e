"""The pre-tokenizers of tokenizer.json: each cuts a text into pieces, and the last one's pieces are the words. Another one is a
row of the table."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import regex

from tinyformer.tokenizers.byte_letters import shown as as_letters
from tinyformer.tokenizers.patterns import GPT2_WORDS, Finder, finder
from tinyformer.tokenizers.sections import Section, Unsupported, allow, parts, shown

# Pieces of a piece. It is told whether that is the beginning of the whole text. What it leaves out is "" in its place.
Cutter = Callable[[str, bool], list[str]]
Part = tuple[int, int, bool]  # from where to where, and whether it is a match

BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
_LETTERS = r"\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d"  # \w of the package
_PUNCTUATION = r"\p{P}!-/:-@\[-`{-~"


def pre_tokenizer_of(section: Section | None) -> Cutter:
    """What a section makes of a text: its words. Raises Unsupported for a pre-tokenizer that is not in the table."""
    cutters = []
    for part in parts(section, "pretokenizers"):
        if part["type"] not in _TABLE:
            raise Unsupported(f"the pre-tokenizer {shown(part['type'])}; there are {', '.join(_TABLE)}")
        cutters.append(_TABLE[part["type"]](part))

    def words(text: str, is_first: bool) -> list[str]:
        pieces = [text]
        for cut in cutters:
            first = [is_first, *[False] * len(pieces)]
            pieces = [new for piece, at_start in zip(pieces, first) for new in (cut(piece, at_start) if piece else [""])]
        return [piece for piece in pieces if piece]

    return words


def split(text: str, spans: Iterable[tuple[int, int]], behavior: str, invert: bool = False) -> list[str]:
    """The pieces of a text in which a pattern matches at ``spans``. With ``invert``, what lies between these is the match.

    >>> from tinyformer.tokenizers.pre_tokenizers import split
    >>> [split("a-b--c", [(1, 2), (3, 4), (4, 5)], behavior) for behavior in ("Isolated", "MergedWithNext", "Contiguous")]
    [['a', '-', 'b', '-', '-', 'c'], ['a', '-b', '-', '-c'], ['a', '-', 'b', '--', 'c']]
    """
    found: list[Part] = []
    end = 0
    for start, stop in spans:
        found += [(end, start, invert), (start, stop, not invert)]
        end = stop
    found = [part for part in (*found, (end, len(text), invert)) if part[0] < part[1]]
    if behavior == "Removed":
        return ["" if is_match else text[start:stop] for start, stop, is_match in found]
    if behavior == "Contiguous":
        runs = [list(run) for _, run in itertools.groupby(found, key=lambda part: part[2])]
        return [text[run[0][0] : run[-1][1]] for run in runs]
    pieces = [text[start:stop] for start, stop, _ in found]
    matches = [is_match for _, _, is_match in found]
    if behavior == "MergedWithPrevious":
        return _merged(pieces, matches, lambda before, match: before + match)
    if behavior == "MergedWithNext":
        return _merged(pieces[::-1], matches[::-1], lambda after, match: match + after)[::-1]
    return pieces


def _merged(pieces: list[str], matches: list[bool], join: Callable[[str, str], str]) -> list[str]:
    """Each match that follows something else is joined with it."""
    joined: list[str] = []
    was_match = False
    for piece, is_match in zip(pieces, matches):
        if is_match and not was_match and joined:
            joined[-1] = join(joined[-1], piece)
        else:
            joined.append(piece)
        was_match = is_match
    return joined


def _cut_by(find: Finder, behavior: str, invert: bool = False) -> Cutter:
    return lambda text, is_first: split(text, find(text), behavior, invert)


def _spans(pattern: str) -> Finder:
    """Finds a pattern of ours, which needs no check."""
    matches = regex.compile(pattern).finditer
    return lambda text: [match.span() for match in matches(text)]


def _split(section: Section) -> Cutter:
    allow(section, "Split", pattern=..., behavior=BEHAVIORS, invert=(False, True))
    return _cut_by(finder(section["pattern"]), section["behavior"], section.get("invert", False))


def _digits(section: Section) -> Cutter:
    allow(section, "Digits", individual_digits=(False, True))
    return _cut_by(_spans(r"\p{N}"), "Isolated" if section["individual_digits"] else "Contiguous")


def _punctuation(section: Section) -> Cutter:
    allow(section, "Punctuation", behavior=BEHAVIORS)
    return _cut_by(_spans(f"[{_PUNCTUATION}]"), section.get("behavior", "Isolated"))


def _matches(pattern: str) -> Callable[[Section], Cutter]:
    """A pre-tokenizer without settings: it leaves out what does not match."""

    def made(section: Section) -> Cutter:
        allow(section, section["type"])
        return _cut_by(_spans(pattern), "Removed", invert=True)

    return made


def _byte_level(section: Section) -> Cutter:
    allow(section, "ByteLevel", add_prefix_space=(False, True), trim_offsets=..., use_regex=(False, True))
    with_space, words = section["add_prefix_space"], regex.compile(GPT2_WORDS)

    def cut(text: str, is_first: bool) -> list[str]:
        text = " " + text if with_space and not text.startswith(" ") else text
        pieces = words.findall(text) if section.get("use_regex", True) else [text]
        return [as_letters(piece.encode()) for piece in pieces]

    return cut


def _metaspace(section: Section) -> Cutter:
    schemes = ("always", "first", "never")
    allow(
        section, "Metaspace",
        replacement=..., str_rep=..., add_prefix_space=(False, True), prepend_scheme=schemes, split=(None, False, True),
    )  # fmt: skip
    mark = section["replacement"] + ""
    scheme = metaspace_scheme(section)
    cuts = section.get("split") is not False
    find = _spans(regex.escape(mark))

    def cut(text: str, is_first: bool) -> list[str]:
        text = text.replace(" ", mark)
        if not text.startswith(mark) and (scheme == "always" or (scheme == "first" and is_first)):
            text = mark + text
        return split(text, find(text), "MergedWithNext") if cuts else [text]

    return cut


def metaspace_scheme(section: Section) -> str:
    """Before which pieces Metaspace puts a mark. Older files say only whether it does."""
    usual = "always" if section.get("add_prefix_space", True) else "never"
    scheme: str = section.get("prepend_scheme", usual)
    return scheme


_TABLE: dict[str, Callable[[Section], Cutter]] = {
    "ByteLevel": _byte_level,
    "Metaspace": _metaspace,
    "Split": _split,
    "Digits": _digits,
    "Punctuation": _punctuation,
    "Whitespace": _matches(rf"[{_LETTERS}]+|[^\s{_LETTERS}]+"),
    "WhitespaceSplit": _matches(r"\S+"),
    "BertPreTokenizer": _matches(rf"[{_PUNCTUATION}]|[^\s{_PUNCTUATION}]+"),
}
