"""Shared plotting code: draw if matplotlib is installed, save files, and fit text.

A character that no font can draw becomes an escape such as U+4E2D.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinytensor.device.disk import atomic_write, make_folder


@contextmanager
def if_possible() -> Iterator[None]:
    """Context manager for drawing. Without matplotlib, it prints a line and skips drawing."""
    try:
        yield
    except ImportError:
        print("(no pictures: pip install matplotlib)")


def save(figure: Any, path: str | Path, dpi: float) -> Path:
    """Save a matplotlib figure as PNG and return its path. An existing file is replaced only once the new one is complete."""
    path = Path(path)
    make_folder(path.parent)
    with atomic_write(path) as file, fonts_of_any_weight():
        figure.savefig(file, format="png", dpi=dpi)
    return path


# ------------------------------------------------------------------------------------------------------------------------ text


LONGEST = 120  # maximum characters of a text
NARROWEST = 0.25  # minimum width of a character, in ems, so that even zero-width marks are truncated
SPACE, ELLIPSIS, CIRCLE = "␣", "…", "◌"  # a mark without a letter is drawn on the CIRCLE
NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# Unicode categories of characters without a glyph: controls, formats, surrogates, separators, and private-use characters, whose
# glyphs differ between fonts.
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp", "Zs", "Co"}
PLAIN = {ELLIPSIS, SPACE, CIRCLE, *map(chr, range(33, 127))}  # for escapes in any label
BOXES = ("last resort", "lastresort", "unicode bmp fallback")  # fonts that draw a box for every character


class Lettering:
    """The fonts of a figure, and its texts as they can draw them.

    ``texts`` are all texts to draw. ``families`` are the names of matplotlib's font and of system fonts for characters it
    lacks. Raises ImportError without matplotlib.
    """

    def __init__(self, texts: Iterable[str]):
        from matplotlib.font_manager import FontProperties, findfont

        characters = PLAIN.union(*(text[:LONGEST] for text in texts))
        characters = {c for c in characters if unicodedata.category(c) not in UNSEEN}
        properties = FontProperties()
        self.families: list[str] = list(properties.get_family())
        self._widths = _widths(findfont(properties), characters)
        self._font = dict.fromkeys(self._widths, 0)  # font index per character
        for face in _regular_faces():
            missing = characters - self._widths.keys()
            if not missing:
                break
            if widths := _widths(face.fname, missing, getattr(face, "index", 0)):
                self._font |= dict.fromkeys(widths, len(self.families))
                self._widths |= widths
                self.families.append(face.name)
        self._widths[" "] = NARROWEST

    def token(self, text: str, widest: float) -> str:
        """Return a token's label with visible spaces and control characters, truncated at ``widest`` ems."""
        if text[:1] in self._widths and unicodedata.category(text[0]).startswith("M"):
            text = CIRCLE + text
        return self._fitted(text.replace(" ", SPACE), widest) or "(empty)"

    def line(self, text: str, widest: float) -> str:
        """Return a text as one line, truncated at ``widest`` ems with an ellipsis."""
        return self._fitted(" ".join(text.split()), widest)

    def width(self, shown: str) -> float:
        """Return a label's width in ems. Each character counts at least NARROWEST."""
        return sum(max(self._widths[c], NARROWEST) for c in shown)

    def _fitted(self, text: str, widest: float) -> str:
        """Return as much of the text as fits, with spaces around escapes."""
        shown, width, after_escape = "", 0.0, False
        for part in self._parts(text[:LONGEST]):
            escape = len(part) > 1
            if (escape or after_escape) and shown and not shown.endswith(" ") and part != " ":
                part = " " + part
            width += self.width(part)
            if width > widest:
                return shown + ELLIPSIS
            shown, after_escape = shown + part, escape
        return shown + ELLIPSIS * (len(text) > LONGEST)

    def _parts(self, text: str) -> Iterator[str]:
        """Yield each character as drawn: itself or an escape."""
        base = ""
        for c in text:
            mark = unicodedata.category(c).startswith("M")
            # one font must have a letter and its marks
            if c in self._widths and not (mark and self._font.get(base) != self._font[c]):
                yield c
            else:
                yield NAMED.get(c, f"U+{ord(c):04X}")
            base = base if mark else c


@contextmanager
def fonts_of_any_weight() -> Iterator[None]:
    """Context manager in which matplotlib does not log that a font's weight differs from the requested one."""

    def is_logged(record: logging.LogRecord) -> bool:
        return "find font weight" not in record.getMessage()

    log = logging.getLogger("matplotlib.font_manager")
    log.addFilter(is_logged)
    try:
        yield
    finally:
        log.removeFilter(is_logged)


def _regular_faces() -> list[Any]:
    """Return the most regular face of each font family on this system, sans serif first."""
    from matplotlib.font_manager import fontManager

    upright: list[Any] = [face for face in fontManager.ttflist if face.style == "normal"]
    ordered = sorted(upright, key=lambda face: (abs(face.weight - 400), face.stretch != "normal"))
    faces = {face.name: face for face in reversed(ordered) if not face.name.lower().startswith(BOXES)}  # the first per name
    return sorted(faces.values(), key=lambda face: ("sans" not in face.name.lower(), face.name))


def _widths(path: Any, characters: Iterable[str], face: int | None = None) -> dict[str, float]:
    """Return the widths in ems of the characters that a font draws, except characters without ink."""
    from matplotlib.ft2font import FT2Font

    face = getattr(path, "face_index", 0) if face is None else face  # older matplotlib: the first face in a file
    try:
        options: dict[str, Any] = {"face_index": face} if face else {}
        font = FT2Font(str(path), **options)
    except (OSError, RuntimeError):  # the file has changed since matplotlib listed it
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
