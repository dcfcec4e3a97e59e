"""A picture of boxes and arrows as SVG text.

The boxes stand in layers from top to bottom, with few crossings of arrows (Sugiyama, Tagawa and Toda 1981).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from graphlib import TopologicalSorter
from html import escape
from typing import NamedTuple

GAP_ACROSS = 16.0
GAP_DOWN = 26.0
LANE = 6.0  # the width of the place that an arrow takes in a layer that it passes
ROUNDS = 8
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

Point = tuple[float, float]


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


# --------------------------------------------------------------------------------------------------- layout


class Layout(NamedTuple):
    """The centre of each box, the points through which each edge goes, and the size of the whole."""

    centres: list[Point]
    routes: list[list[Point]]
    width: float
    height: float


def lay_out(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """Places for boxes of these sizes (width, height), so that each edge (from, to) goes down. There is no circle of edges."""
    layer_of = _layers(len(sizes), edges)
    widths = [width for width, _ in sizes]
    lanes: list[list[int]] = []  # for each edge, its boxes and, in the layers between them, its places
    steps: list[tuple[int, int]] = []  # the edges, cut into pieces from one layer to the next
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
    centres = [(x[box], tops[layer_of[box]] + depths[layer_of[box]] / 2) for box in range(len(sizes))]
    routes = []
    for path in lanes:
        (first_x, first_y), (last_x, last_y) = centres[path[0]], centres[path[-1]]
        route = [(first_x, first_y + sizes[path[0]][1] / 2)]
        for lane in path[1:-1]:
            top = tops[layer_of[lane]]
            route += [(x[lane], top), (x[lane], top + depths[layer_of[lane]])]
        routes.append([*route, (last_x, last_y - sizes[path[-1]][1] / 2)])
    width = max((place + size / 2 for place, size in zip(x, widths)), default=0.0)
    return Layout(centres, routes, width, max(y - GAP_DOWN, 0.0))


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each box: below all boxes that lead to it. A box to which none leads stands right above its first use."""
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
    """Sort each layer, several times, by the mean place of the boxes above, and then below: so fewer edges cross."""
    place = {box: float(i) for boxes in layers for i, box in enumerate(boxes)}
    for turn in range(ROUNDS):
        neighbours = above if turn % 2 == 0 else below
        for boxes in layers if turn % 2 == 0 else reversed(layers):
            boxes[:] = sorted(boxes, key=lambda box: _mean([place[n] for n in neighbours[box]], place[box]))
            for i, box in enumerate(boxes):
                place[box] = float(i)


def _across(layers: list[list[int]], widths: list[float], above: list[list[int]], below: list[list[int]]) -> list[float]:
    """The place of each box from left to right: near the mean of its neighbours, without touching those beside it."""
    x = [0.0] * len(widths)
    for turn in range(ROUNDS + 1):  # the last turn goes down
        neighbours = above if turn % 2 == 0 else below
        for boxes in layers if turn % 2 == 0 else reversed(layers):
            wishes = [_mean([x[n] for n in neighbours[box]], x[box]) for box in boxes]
            for box, place in zip(boxes, _apart(wishes, [widths[box] for box in boxes])):
                x[box] = place
    left = min((place - width / 2 for place, width in zip(x, widths)), default=0.0)
    return [place - left for place in x]


def _apart(wishes: list[float], widths: list[float]) -> list[float]:
    """The places nearest to the wishes, in the sum of squares, at which boxes in this order keep their distance.

    Less the room that the boxes before it take, each place must be at least the one before: a monotone regression. It is
    solved by pooling: where two neighbours violate the order, both get their mean.
    """
    starts = [0.0]
    for left, right in zip(widths, widths[1:]):
        starts.append(starts[-1] + (left + right) / 2 + GAP_ACROSS)
    pools: list[tuple[float, int]] = []  # the mean of a pool, and how many boxes are in it
    for wish, start in zip(wishes, starts):
        mean, count = wish - start, 1
        while pools and pools[-1][0] > mean:
            other, many = pools.pop()
            mean, count = (mean * count + other * many) / (count + many), count + many
        pools.append((mean, count))
    fitted = [mean for mean, count in pools for _ in range(count)]
    return [place + start for place, start in zip(fitted, starts)]


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise
