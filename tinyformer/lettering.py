"""Text for a picture: what some font can draw as it is, all else as escapes such as U+4E2D. Needs matplotlib."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Any

LONGEST = 120  # characters of a text that are looked at: no picture has room for more
NARROWEST = 0.25  # ems that a character counts at least: marks that are drawn on each other must not be endless
SPACE, ELLIPSIS, CIRCLE = "␣", "…", "◌"  # CIRCLE carries a mark that has no letter under it
NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"}  # categories of Unicode: controls, formats, surrogates, separators
PLAIN = {ELLIPSIS, SPACE, CIRCLE, *map(chr, range(33, 127))}  # what labels may hold beside their own characters
BOXES = ("last resort", "lastresort", "unicode bmp fallback")  # fonts that have a box for every character


class Lettering:
    """The fonts of one picture, and how it writes what it is given.

    ``texts``: all that will be written. ``families`` has matplotlib's font, and those others on this system that have what it
    lacks. Raises ImportError without matplotlib.
    """

    def __init__(self, texts: Iterable[str]):
        from matplotlib.font_manager import FontProperties, findfont

        characters = PLAIN.union(*(text[:LONGEST] for text in texts))
        characters = {c for c in characters if unicodedata.category(c) not in INVISIBLE}
        properties = FontProperties()
        self.families: list[str] = list(properties.get_family())
        self._widths = _widths(findfont(properties), characters)
        self._own = set(self._widths)  # what matplotlib's font has
        for family in _families_with(characters - self._own):
            found = _widths(findfont(FontProperties(family=[family])), characters - self._widths.keys())
            if found:
                self.families.append(family)
                self._widths |= found
        self._widths[" "] = NARROWEST

    def token(self, text: str, widest: float) -> str:
        """A token so that one sees what it is, spaces and control characters included, at most ``widest`` ems wide (and an
        ellipsis)."""
        if text[:1] in self._widths and unicodedata.category(text[0]).startswith("M"):
            text = CIRCLE + text
        return self._fitted(text.replace(" ", SPACE), widest) or "(empty)"

    def line(self, text: str, widest: float) -> str:
        """Words on one line, at most ``widest`` ems wide (and an ellipsis)."""
        return self._fitted(" ".join(text[:LONGEST].split()), widest)

    def width(self, shown: str) -> float:
        """How many ems wide the characters of a label are, each at least NARROWEST."""
        return sum(max(self._widths[c], NARROWEST) for c in shown)

    def _fitted(self, text: str, widest: float) -> str:
        """The beginning of the text that is not too wide; an escape is a word of its own."""
        shown, width, apart = "", 0.0, False
        for i, part in enumerate(self._parts(text[:LONGEST])):
            escaped = len(part) > 1
            part = " " * (i > 0 and (escaped or apart)) + part
            width += self.width(part)
            if width > widest:
                return shown + ELLIPSIS
            shown, apart = shown + part, escaped
        return shown + ELLIPSIS * (len(text) > LONGEST)

    def _parts(self, text: str) -> Iterator[str]:
        """Each character as it is drawn: itself or an escape."""
        base = ""
        for c in text:
            mark = unicodedata.category(c).startswith("M")
            # A letter and its mark are one picture, which must come from one font.
            if c in self._widths and not (mark and (base in self._own) != (c in self._own)):
                yield c
            else:
                yield NAMED.get(c, f"U+{ord(c):04X}")
            base = base if mark else c


def _families_with(characters: set[str]) -> Iterator[str]:
    """The families on this system, sans serif first, whose regular font has some of the characters, until all were found."""
    from matplotlib.font_manager import fontManager

    faces: dict[str, Any] = {}
    for face in fontManager.ttflist:
        if (face.style, face.weight) == ("normal", 400) and not face.name.lower().startswith(BOXES):
            faces.setdefault(face.name, face)
    for name in sorted(faces, key=lambda name: ("sans" not in name.lower(), name)):
        if not characters:
            return
        found = _widths(faces[name].fname, characters, getattr(faces[name], "index", 0)).keys()
        if found:
            yield name
            characters = characters - found


def _widths(path: Any, characters: Iterable[str], face: int | None = None) -> dict[str, float]:
    """The widths, in ems, of those characters that a font draws, with ink."""
    from matplotlib.ft2font import FT2Font

    face = getattr(path, "face_index", 0) if face is None else face  # 0, too, where matplotlib knows only one in a file
    try:
        font = FT2Font(str(path), **({"face_index": face} if face else {}))
    except (OSError, RuntimeError):  # gone or damaged since matplotlib listed it
        return {}
    font.set_size(100, 72)
    widths = {}
    for c in characters:
        if font.get_char_index(ord(c)):
            glyph = font.load_char(ord(c))
            left, bottom, right, top = glyph.bbox
            if right > left and top > bottom:
                widths[c] = glyph.linearHoriAdvance / 65536 / 100
    return widths
