"""A map of words: points with labels that do not overlap."""

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

LETTERS = 9 / 72  # font size of a label, in inches
HEIGHT = 1.3 * LETTERS  # of a label
WIDEST = 16  # maximum label width, in ems
POINT = 0.035  # radius of a point, in inches
SIZES = (7.0, 9.0, 12.0, 16.0)  # of a map, in inches; uses the first that fits all labels
MARGIN = 0.5  # around the outermost points, in inches
FARTHEST = 0.9  # maximum distance of a label from its point, in inches

Box = tuple[float, float, float, float]  # left, bottom, right, top, in inches


def word_map(points: Mapping[str, Sequence[float]], groups: Mapping[str, Sequence[str]], note: str, path: str | Path) -> Path:
    """Plot words as points in a plane to a PNG. Return its path.

    ``points`` maps words to two coordinates, and ``groups`` group names to words. Each group has its own color. A line connects
    a label to a distant point. If even the largest map cannot fit all labels, the last ones are omitted, and the heading (which
    starts with ``note``) states their number. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    lettering = Lettering([*points, *groups, note])
    labels = {word: lettering.token(word, WIDEST) for word in points}
    widths = [LETTERS * lettering.width(label) + 0.02 for label in labels.values()]
    for side in SIZES:
        positions = _in_inches(list(points.values()), side)
        boxes = _boxes(positions, widths, side)
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
    for label, word, point, box in zip(labels.values(), points, positions, boxes):
        color = colors.get(word, COLORS[-1])
        axes.plot(*point, "o", markersize=2 * 72 * POINT, color=color, markeredgewidth=0)
        if box is not None:
            end_of_line = min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3])  # the box's nearest point
            if math.dist(point, end_of_line) > 2 * POINT:
                axes.plot(*zip(point, end_of_line), color=color, linewidth=0.5, alpha=0.6)
            axes.text(box[0], (box[1] + box[3]) / 2, label, fontsize=72 * LETTERS, va="center", color=color, **words)
    figure.text(0.02, 1 - 0.1 / height, "\n".join(lines), fontsize=8, va="top", **words)
    names = [lettering.line(name, WIDEST) for name in groups]
    *lefts, end = itertools.accumulate((1.15 * LETTERS * lettering.width(name) + 0.2 for name in names), initial=0.02 * side)
    fit, top = min(1.0, side / end), (side + 0.25) / height  # many groups get smaller letters
    for name, left, color in zip(names, lefts, itertools.cycle(COLORS)):
        figure.text(fit * left / side, top, name, fontsize=9 * fit, va="top", color=color, weight="bold", **words)
    return save(figure, path, 130)


def _in_inches(points: Sequence[Sequence[float]], side: float) -> list[tuple[float, float]]:
    """Scale the points to a square map of this side, with equal axis scales, so that distances are comparable."""
    coordinates = host.array(points, dtype=host.float64)
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    scale = (side - 2 * MARGIN) / (float((high - low).max()) or 1.0)
    return [(float(x), float(y)) for x, y in side / 2 + (coordinates - (low + high) / 2) * scale]


def _boxes(points: Sequence[tuple[float, float]], widths: Sequence[float], side: float) -> list[Box | None]:
    """Return each label's box, the free one nearest to its point, or None if there is none."""
    taken: list[Box] = [(x - POINT, y - POINT, x + POINT, y + POINT) for x, y in points]
    boxes: list[Box | None] = []
    for point, width in zip(points, widths):
        free = (box for box in _candidates(point, width) if _is_inside(box, side) and not any(_overlap(box, b) for b in taken))
        box = next(free, None)
        boxes.append(box)
        if box is not None:
            taken.append(box)
    return boxes


def _candidates(point: tuple[float, float], width: float) -> Any:
    """Yield boxes around a point by distance, then counterclockwise from the right."""
    x, y = point
    for distance in host.arange(POINT + 0.02, FARTHEST, 0.06):
        for angle in host.arange(16) * (math.pi / 8):
            dx, dy = math.cos(angle), math.sin(angle)
            # The box touches a circle around the point. Its center is offset by half its size along the angle.
            center = x + dx * (distance + width / 2), y + dy * (distance + HEIGHT / 2)
            yield center[0] - width / 2, center[1] - HEIGHT / 2, center[0] + width / 2, center[1] + HEIGHT / 2


def _is_inside(box: Box, side: float) -> bool:
    return box[0] > 0 and box[1] > 0 and box[2] < side and box[3] < side


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
