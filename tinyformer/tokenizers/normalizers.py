"""The normalizers of tokenizer.json: each changes a text before it is cut into words. Another one is a row of the table."""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Callable

from tinyformer.common.schema import read_value
from tinyformer.tokenizers.charsmap import Charsmap
from tinyformer.tokenizers.patterns import finder
from tinyformer.tokenizers.sections import Section, Unsupported, allow, parts, shown

Normalizer = Callable[[str], str]

_MOST_GROWTH = 100  # so that no file can fill the memory; published ones replace one character with up to three


def normalizer_of(section: Section | None) -> Normalizer:
    """What a section does to a text. Raises Unsupported for a normalizer that is not in the table."""
    steps = []
    growth = 1.0
    for part in parts(section, "normalizers"):
        if part["type"] not in _TABLE:
            raise Unsupported(f"the normalizer {shown(part['type'])}; there are {', '.join(_TABLE)}")
        step = _TABLE[part["type"]](part)
        steps.append(step)
        growth *= max(1, len(part.get("content", "")) / len(part.get("pattern", {}).get("String", "x")))
        growth *= step.longest if isinstance(step, Charsmap) else 1
        if growth > _MOST_GROWTH or len(part.get("prepend", "")) > _MOST_GROWTH:
            raise Unsupported(f"normalizers that may make a text more than {_MOST_GROWTH} times as long")
    return lambda text: functools.reduce(lambda changed, step: step(changed), steps, text)


class CharacterTable(dict[int, str]):
    """A table for ``str.translate``. An entry is computed by ``rule`` when its character occurs for the first time."""

    def __init__(self, rule: Callable[[str], str]):
        self.rule = rule

    def __missing__(self, point: int) -> str:
        self[point] = replacement = self.rule(chr(point))
        return replacement


def cleaned(c: str) -> str:
    """The replacement of a character: a space for white space, and nothing for a control character."""
    if c in "\t\n\r" or unicodedata.category(c).startswith("Z"):
        return " "
    return "" if c == "\ufffd" or unicodedata.category(c) in ("Cc", "Cf", "Co", "Cs") else c


_CHINESE = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def is_chinese(c: str) -> bool:
    """Whether a character belongs to a block of Chinese characters, which are written without spaces."""
    return any(low <= ord(c) <= high for low, high in _CHINESE)


def _normal_form(section: Section) -> Normalizer:
    allow(section, section["type"])
    return functools.partial(unicodedata.normalize, section["type"])


def _of_each_character(rule: Callable[[str], str]) -> Callable[[Section], Normalizer]:
    table = CharacterTable(rule)

    def made(section: Section) -> Normalizer:
        allow(section, section["type"])
        return lambda text: text.translate(table)

    return made


def _strip(section: Section) -> Normalizer:
    allow(section, "Strip", strip_left=(False, True), strip_right=(False, True))
    left, right = section["strip_left"], section["strip_right"]

    def strip(text: str) -> str:
        text = text.lstrip(_WHITE_SPACE) if left else text
        return text.rstrip(_WHITE_SPACE) if right else text

    return strip


def _prepend(section: Section) -> Normalizer:
    allow(section, "Prepend", prepend=...)
    start: str = section["prepend"] + ""
    return lambda text: start + text if text else text


def _replace(section: Section) -> Normalizer:
    allow(section, "Replace", pattern=..., content=...)
    content: str = section["content"] + ""
    if set(section["pattern"]) == {"String"} and section["pattern"]["String"]:
        old: str = section["pattern"]["String"] + ""
        return lambda text: text.replace(old, content)
    find = finder(section["pattern"])

    def replace(text: str) -> str:
        changed, end = [], 0
        for start, stop in find(text):
            changed += [text[end:start], content]
            end = stop
        return "".join([*changed, text[end:]])

    return replace


def _bert(section: Section) -> Normalizer:
    switch = (False, True)
    choices = {"clean_text": switch, "handle_chinese_chars": switch, "strip_accents": (None, *switch), "lowercase": switch}
    allow(section, "BertNormalizer", **choices)
    tables = [_CLEANED] if section["clean_text"] else []
    tables += [_CHINESE_APART] if section["handle_chinese_chars"] else []
    lowercase = section["lowercase"]
    strip = lowercase if section.get("strip_accents") is None else section["strip_accents"]

    def normalize(text: str) -> str:
        for table in tables:
            text = text.translate(table)
        text = unicodedata.normalize("NFD", text).translate(_WITHOUT_ACCENTS) if strip else text
        return text.translate(_LOWERCASE) if lowercase else text

    return normalize


def _precompiled(section: Section) -> Normalizer:
    allow(section, "Precompiled", precompiled_charsmap=...)
    return Charsmap(read_value(str, section["precompiled_charsmap"], "precompiled_charsmap"))


_WHITE_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
_CLEANED = CharacterTable(cleaned)
_CHINESE_APART = CharacterTable(lambda c: f" {c} " if is_chinese(c) else c)
_WITHOUT_ACCENTS = CharacterTable(lambda c: "" if unicodedata.category(c) == "Mn" else c)
_LOWERCASE = CharacterTable(str.lower)
_TABLE: dict[str, Callable[[Section], Normalizer]] = {
    **dict.fromkeys(("NFC", "NFD", "NFKC", "NFKD"), _normal_form),
    "Lowercase": _of_each_character(str.lower),  # one at a time: in a whole Greek word the last sigma differs
    "StripAccents": _of_each_character(lambda c: "" if unicodedata.category(c).startswith("M") else c),
    "Strip": _strip,
    "Prepend": _prepend,
    "Replace": _replace,
    "BertNormalizer": _bert,
    "Precompiled": _precompiled,
}
