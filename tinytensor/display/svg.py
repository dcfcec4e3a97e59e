"""A picture of boxes and arrows as SVG text."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from tinytensor.display.layout import Layout, Point, lay_out

SIZE = 12  # of letters, in pixels
LINE = 16  # from one line of text to the next
MARGIN = 8
LONGEST = 34  # letters in a line
LOOKS = {  # the fill, the dashes of the border, its width, and the radius of the corners (None: half the height)
    "leaf": ("rgba(59,130,246,.22)", "", 1, 0),
    "op": ("rgba(128,128,128,.12)", "", 1, None),
    "output": ("rgba(245,158,11,.32)", "", 1, None),
    "module": ("rgba(128,128,128,.12)", "", 2, 4),
    "outside": ("none", "3 3", 1, 0),
}


class Box(NamedTuple):
    """A box of a picture: lines of text, of which the first one stands out, and a kind of LOOKS."""

    lines: Sequence[str]
    kind: str


def svg(boxes: Sequence[Box], edges: Sequence[tuple[int, int]], label: str, background: str = "") -> str:
    """The picture, with arrows between the boxes of these positions. Arrows go down. Screen readers read ``label``."""
    sizes = [_size(box) for box in boxes]
    layout = lay_out(sizes, edges)
    width, height = layout.width + 2 * MARGIN, layout.height + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="{-MARGIN} {-MARGIN} {width:.0f} {height:.0f}" font-family="sans-serif" font-size="{SIZE}" '
        f'text-anchor="middle" style="max-width:none{";color:black" if background else ""}" '
        f'role="group" aria-label="{escape(label)}">'
    ]
    if background:
        parts.append(f'<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" fill="{background}"/>')
    parts += map(_arrow, layout.routes)
    parts += [_drawn(box, size, centre) for box, size, centre in zip(boxes, sizes, layout.centres)]
    return "".join([*parts, "</svg>"])


def _size(box: Box) -> Point:
    widest = max(sum(_letter_width(c) for c in _shortened(line)) for line in box.lines)
    return max(widest * SIZE, SIZE) + 20, LINE * len(box.lines) + 8


def _letter_width(letter: str) -> float:
    """About how wide a letter is, in ems; rather too wide than too narrow, as the font is not known."""
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.85 if letter in "mwMW×" else 0.62


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2 - 1]}…{line[-LONGEST // 2 :]}"


def _arrow(route: list[Point]) -> str:
    """A line through these points, which is curved between layers, and a tip at its end."""
    path = f"M{route[0][0]:.1f} {route[0][1]:.1f}"
    for i, ((x, y), (next_x, next_y)) in enumerate(zip(route, route[1:])):
        middle = (y + next_y) / 2
        curve = f"C{x:.1f} {middle:.1f} {next_x:.1f} {middle:.1f} " if i % 2 == 0 else "L"
        path += f"{curve}{next_x:.1f} {next_y:.1f}"
    x, y = route[-1]
    return (
        f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity=".55"/>'
        f'<path d="M{x:.1f} {y:.1f}l-3.5 -7h7z" fill="currentColor" fill-opacity=".7"/>'
    )


def _drawn(box: Box, size: Point, centre: Point) -> str:
    (width, height), (x, y) = size, centre
    fill, dashes, border, radius = LOOKS[box.kind]
    first = y - LINE * (len(box.lines) - 1) / 2 + SIZE * 0.36
    texts = [
        f'<text x="{x:.1f}" y="{first + i * LINE:.1f}" fill="currentColor"'
        f"{' font-weight=' + chr(34) + '600' + chr(34) if i == 0 else ''}>{escape(_shortened(line))}</text>"
        for i, line in enumerate(box.lines)
    ]
    return (
        f"<g><title>{escape(chr(10).join(box.lines))}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'rx="{min(height / 2, 14) if radius is None else radius:.0f}" fill="{fill}" stroke="currentColor" '
        f'stroke-opacity=".6" stroke-width="{border}" stroke-dasharray="{dashes or "none"}"/>{"".join(texts)}</g>'
    )


__all__ = ["Box", "Layout", "svg"]
