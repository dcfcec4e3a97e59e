"""A map of words: each is a point, with a label that no other label and no point covers."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyformer.plots.curves import COLORS
from tinyformer.plots.drawing import Lettering, save
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

LETTERS = 9 / 72  # the size of a label's letters, in inches
HEIGHT = 1.3 * LETTERS  # of a label
WIDEST = 16  # the widest label, in ems
POINT = 0.035  # the radius of a point, in inches
SIZES = (7.0, 9.0, 12.0, 16.0)  # of a map, in inches: the first one with room for all labels is taken
MARGIN = 0.5  # around the outermost points, in inches
FARTHEST = 0.9  # the farthest that a label may be from its point, in inches

Box = tuple[float, float, float, float]  # left, bottom, right, top, in inches


def word_map(points: Mapping[str, Sequence[float]], groups: Mapping[str, Sequence[str]], note: str, path: str | Path) -> Path:
    """Draw words at their places in a plane to a PNG. Returns its path.

    ``points`` holds the two coordinates of each word, ``groups`` the words by the name of their group, which have a colour of
    their own. A label that is not beside its point has a line to it. Where not even the largest map has room for all labels,
    those that come last are left out, and ``note``, which stands above, says how many. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    lettering = Lettering([*points, *groups, note])
    labels = {word: lettering.token(word, WIDEST) for word in points}
    widths = [LETTERS * lettering.width(label) + 0.02 for label in labels.values()]
    for side in SIZES:
        places = _in_inches(list(points.values()), side)
        boxes = _boxes(places, widths, side)
        if None not in boxes:
            break
    missing = boxes.count(None)
    heading = note + (f" No room for the label of {counted(missing, 'word')}." if missing else "")

    words: dict[str, Any] = {"fontfamily": lettering.families, "parse_math": False}
    lines = [lettering.line(line, math.inf) for line in textwrap.wrap(heading, int(14 * side))]
    height = side + 0.2 + 0.15 * len(lines) + 0.25 * bool(groups)
    figure = Figure(figsize=(side, height))
    axes = figure.add_axes((0, 0, 1, side / height))
    axes.set_xlim(0, side)
    axes.set_ylim(0, side)
    axes.axis("off")
    colors = {word: color for group, color in zip(groups.values(), itertools.cycle(COLORS)) for word in group}
    for label, word, place, box in zip(labels.values(), points, places, boxes):
        color = colors.get(word, COLORS[-1])
        axes.plot(*place, "o", markersize=2 * 72 * POINT, color=color, markeredgewidth=0)
        if box is not None:
            ends = _nearest_point(place, box)
            if math.dist(place, ends) > 2 * POINT:
                axes.plot(*zip(place, ends), color=color, linewidth=0.5, alpha=0.6)
            axes.text(box[0], (box[1] + box[3]) / 2, label, fontsize=72 * LETTERS, va="center", color=color, **words)
    figure.text(0.02, 1 - 0.1 / height, "\n".join(lines), fontsize=8, va="top", **words)
    names = [lettering.line(name, WIDEST) for name in groups]
    *lefts, end = itertools.accumulate((1.15 * LETTERS * lettering.width(name) + 0.2 for name in names), initial=0.02 * side)
    fit, top = min(1.0, side / end), (side + 0.25) / height  # many groups have smaller letters, so that none is cut
    for name, left, color in zip(names, lefts, itertools.cycle(COLORS)):
        figure.text(fit * left / side, top, name, fontsize=9 * fit, va="top", color=color, weight="bold", **words)
    return save(figure, path, 130)


def _in_inches(points: Sequence[Sequence[float]], side: float) -> list[tuple[float, float]]:
    """The points on a square map of this side, as large as possible. Both axes have the same scale, as distances count."""
    places = host.array(points, dtype=host.float64)
    low, high = places.min(axis=0), places.max(axis=0)
    scale = (side - 2 * MARGIN) / (float((high - low).max()) or 1.0)
    return [(float(x), float(y)) for x, y in side / 2 + (places - (low + high) / 2) * scale]


def _boxes(places: Sequence[tuple[float, float]], widths: Sequence[float], side: float) -> list[Box | None]:
    """The place of each label: the nearest to its point where it covers nothing. None where there is none."""
    taken: list[Box] = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in places]
    found: list[Box | None] = []
    for place, width in zip(places, widths):
        free = (box for box in _candidates(place, width) if _is_inside(box, side) and not any(_overlap(box, b) for b in taken))
        box = next(free, None)
        found.append(box)
        if box is not None:
            taken.append(box)
    return found


def _candidates(place: tuple[float, float], width: float) -> Any:
    """Boxes around a point, the nearest first; at the same distance first that to the right."""
    x, y = place
    for distance in host.arange(POINT + 0.02, FARTHEST, 0.06):
        for angle in host.arange(16) * (math.pi / 8):
            dx, dy = math.cos(angle), math.sin(angle)
            # The box touches a circle around the point: its center is off by half its size, as much as the angle says.
            center = x + dx * (distance + width / 2), y + dy * (distance + HEIGHT / 2)
            yield center[0] - width / 2, center[1] - HEIGHT / 2, center[0] + width / 2, center[1] + HEIGHT / 2


def _is_inside(box: Box, side: float) -> bool:
    return box[0] > 0 and box[1] > 0 and box[2] < side and box[3] < side


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _nearest_point(place: tuple[float, float], box: Box) -> tuple[float, float]:
    """The point of a box that is nearest to a place."""
    return min(max(place[0], box[0]), box[2]), min(max(place[1], box[1]), box[3])
