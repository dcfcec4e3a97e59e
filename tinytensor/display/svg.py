"""Draw boxes and arrows as SVG.

Boxes are arranged in layers from top to bottom, with few crossing arrows (Sugiyama, Tagawa and Toda 1981).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from graphlib import TopologicalSorter
from html import escape
from typing import NamedTuple

GAP_ACROSS = 16.0
GAP_DOWN = 26.0
LANE = 6.0  # the width of an arrow that passes through a layer
ROUNDS = 8
SIZE = 12  # font size in pixels
LINE = 16  # the height of a line of text
MARGIN = 8
LONGEST = 34  # maximum characters per line
LOOKS = {  # the fill, the border's dashes and width, and the radius of the corners (None: half the height)
    "leaf": ("rgba(59,130,246,.22)", "", 1, 0),
    "op": ("rgba(128,128,128,.12)", "", 1, None),
    "output": ("rgba(245,158,11,.32)", "", 1, None),
    "module": ("rgba(128,128,128,.12)", "", 2, 4),
    "outside": ("none", "3 3", 1, 0),
}

Point = tuple[float, float]


class Box(NamedTuple):
    """A box in a picture: lines of text (the first one bold) and a style from LOOKS."""

    lines: Sequence[str]
    style: str


def svg(boxes: Sequence[Box], edges: Sequence[tuple[int, int]], label: str, background: str = "") -> str:
    """Draw boxes, and a downward arrow between each pair of box indices in ``edges``. Screen readers read ``label``."""
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
    parts += [_drawn(box, size, center) for box, size, center in zip(boxes, sizes, layout.centers)]
    return "".join([*parts, "</svg>"])


def _size(box: Box) -> Point:
    widest = max(sum(_letter_width(c) for c in _shortened(line)) for line in box.lines)
    return max(widest * SIZE, SIZE) + 20, LINE * len(box.lines) + 8


def _letter_width(letter: str) -> float:
    """Estimate the width of a letter in ems, generously, because the font is unknown."""
    return 1.0 if unicodedata.east_asian_width(letter) in "WF" else 0.85 if letter in "mwMW×" else 0.62


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[: LONGEST // 2 - 1]}…{line[-LONGEST // 2 :]}"


def _arrow(route: list[Point]) -> str:
    """Draw an arrow through these points, curved between layers."""
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


def _drawn(box: Box, size: Point, center: Point) -> str:
    (width, height), (x, y) = size, center
    fill, dashes, border, radius = LOOKS[box.style]
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


# --------------------------------------------------------------------------------------------------- layout


class Layout(NamedTuple):
    """The center of each box, the points of each edge, and the size of the picture."""

    centers: list[Point]
    routes: list[list[Point]]
    width: float
    height: float


def lay_out(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes of these sizes (width, height) so that each edge (from, to) goes down. The edges have no cycle."""
    layer_of = _layers(len(sizes), edges)
    widths = [width for width, _ in sizes]
    lanes: list[list[int]] = []  # for each edge, its two boxes and its lanes in the layers between them
    steps: list[tuple[int, int]] = []  # the edges, split into segments between neighboring layers
    for start, end in edges:
        path = [start]
        for layer in range(layer_of[start] + 1, layer_of[end]):
            path.append(len(widths))
            widths.append(LANE)
            layer_of.append(layer)
        path.append(end)
        lanes.append(path)
        steps += zip(path, path[1:])
    layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
    for box, layer in enumerate(layer_of):
        layers[layer].append(box)
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for start, end in steps:
        above[end].append(start)
        below[start].append(end)
    _order(layers, above, below)
    x = _across(layers, widths, above, below)
    tops, y = [], 0.0
    for boxes in layers:
        tops.append(y)
        y += max((sizes[box][1] for box in boxes if box < len(sizes)), default=0.0) + GAP_DOWN
    depths = [bottom - top - GAP_DOWN for top, bottom in zip(tops, [*tops[1:], y])]
    centers = [(x[box], tops[layer_of[box]] + depths[layer_of[box]] / 2) for box in range(len(sizes))]
    routes = []
    for path in lanes:
        (first_x, first_y), (last_x, last_y) = centers[path[0]], centers[path[-1]]
        route = [(first_x, first_y + sizes[path[0]][1] / 2)]
        for lane in path[1:-1]:
            top = tops[layer_of[lane]]
            route += [(x[lane], top), (x[lane], top + depths[layer_of[lane]])]
        routes.append([*route, (last_x, last_y - sizes[path[-1]][1] / 2)])
    width = max((middle + size / 2 for middle, size in zip(x, widths)), default=0.0)
    return Layout(centers, routes, width, max(y - GAP_DOWN, 0.0))


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the layer of each box: below all boxes that lead to it. If no box does, just above its first use."""
    before: dict[int, list[int]] = {box: [] for box in range(count)}
    after: dict[int, list[int]] = {box: [] for box in range(count)}
    for start, end in edges:
        before[end].append(start)
        after[start].append(end)
    layer = [0] * count
    for box in TopologicalSorter(before).static_order():
        layer[box] = max((layer[other] + 1 for other in before[box]), default=0)
    for box in range(count):
        if after[box] and not before[box]:
            layer[box] = min(layer[other] for other in after[box]) - 1
    return layer


def _order(layers: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Repeatedly sort each layer by the mean rank of the boxes above, then below, to reduce edge crossings."""
    rank = {box: float(i) for boxes in layers for i, box in enumerate(boxes)}
    for turn in range(ROUNDS):
        neighbors = above if turn % 2 == 0 else below
        for boxes in layers if turn % 2 == 0 else reversed(layers):
            boxes[:] = sorted(boxes, key=lambda box: _mean([rank[n] for n in neighbors[box]], rank[box]))
            for i, box in enumerate(boxes):
                rank[box] = float(i)


def _across(layers: list[list[int]], widths: list[float], above: list[list[int]], below: list[list[int]]) -> list[float]:
    """Return the x coordinate of each box's center: near the mean of its neighbors above and below, without overlap."""
    x = [0.0] * len(widths)
    for turn in range(ROUNDS + 1):  # the last turn goes down
        neighbors = above if turn % 2 == 0 else below
        for boxes in layers if turn % 2 == 0 else reversed(layers):
            wishes = [_mean([x[n] for n in neighbors[box]], x[box]) for box in boxes]
            for box, center in zip(boxes, _apart(wishes, [widths[box] for box in boxes])):
                x[box] = center
    left = min((center - width / 2 for center, width in zip(x, widths)), default=0.0)
    return [center - left for center in x]


def _apart(wishes: list[float], widths: list[float]) -> list[float]:
    """Return the centers closest to ``wishes`` (in least squares) such that boxes in this order do not overlap.

    After subtracting the widths of earlier boxes, each center must be at least the previous one. This is isotonic regression,
    solved by pooling: neighbors that violate the order both get their mean.
    """
    starts = [0.0]
    for left, right in zip(widths, widths[1:]):
        starts.append(starts[-1] + (left + right) / 2 + GAP_ACROSS)
    pools: list[tuple[float, int]] = []  # the mean and the size of each pool
    for wish, start in zip(wishes, starts):
        mean, count = wish - start, 1
        while pools and pools[-1][0] > mean:
            last_mean, last_count = pools.pop()
            mean, count = (mean * count + last_mean * last_count) / (count + last_count), count + last_count
        pools.append((mean, count))
    fitted = [mean for mean, count in pools for _ in range(count)]
    return [offset + start for offset, start in zip(fitted, starts)]


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
