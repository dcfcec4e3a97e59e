"""Plots of attention weights: which tokens or sounds each token attends to."""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyformer.audio.features import MelConfig, filter_corners
from tinyformer.common.errors import shortened
from tinyformer.plots.drawing import LONGEST, Lettering, save
from tinytensor import Tensor

if TYPE_CHECKING:
    from tinyformer.training.translation import Attended

LETTERS = 6 / 72  # font size of a token, in inches
CELL = 0.11  # space per token on an axis, in inches
WIDEST = 12  # maximum width of a token label, in ems
WIDEST_TITLE = 30  # maximum width of a panel title, in ems
LONGEST_NAME = 24  # maximum letters of a network's name in a title, which also names the layer
RESOLUTION = 110  # pixels per inch
MOST_PIXELS = 6000  # on each side of a page
MOST_LABELS = 3000  # of keys on a page; each takes about a millisecond
FEWEST_LABELS = 8  # minimum that MOST_LABELS leaves on an axis


@dataclasses.dataclass(frozen=True)
class Panel:
    """A plot of attention weights (queries, keys) with a title."""

    title: str
    weights: Any


@dataclasses.dataclass(frozen=True)
class Group:
    """Side-by-side panels with the same queries and keys: a name for each axis, such as "keys: source", and the tokens."""

    panels: Sequence[Panel]
    queries: tuple[str, Sequence[str]]
    keys: tuple[str, Sequence[str]]


def attention_means(
    maps: Mapping[str, Tensor], source_tokens: Sequence[str], target_tokens: Sequence[str], path: str | Path
) -> Path:
    """Plot each layer's attention weights, averaged over heads, to a PNG. Return its path.

    The plot has one row per type of attention and one column per layer. For the arguments, see ``attention_maps``. Raises
    ImportError without matplotlib.
    """
    layers: dict[str, list[str]] = {}  # the layers of each type of attention
    for name in maps:
        layers.setdefault(re.sub(r"\d+", "", name), []).append(name)
    rows = [
        [Group([Panel(name, _mean(maps[name])) for name in names], *axes_of(names[0], source_tokens, target_tokens))]
        for names in layers.values()
    ]
    return _draw_page(rows, f"Attention weights, the mean over the heads of each layer. {HOW_TO_READ}", 7.0, path)


def attention_maps(
    maps: Mapping[str, Tensor], source_tokens: Sequence[str], target_tokens: Sequence[str], path: str | Path
) -> Path:
    """Plot the attention weights of each head to a PNG. Return its path.

    The plot has one row per layer and one column per head. ``maps`` maps layer names to weights (heads, queries, keys). Queries
    are on the vertical axis, keys on the horizontal axis. Both are source tokens in an encoder layer and target tokens in a
    decoder layer. In cross-attention, queries are target tokens and keys source tokens. Long tokens are truncated. If there are
    many, only some have labels. Raises ImportError without matplotlib.
    """
    rows = [
        [
            Group(
                [Panel(f"{name}, head {head + 1}", weights[head].numpy()) for head in range(weights.shape[0])],
                *axes_of(name, source_tokens, target_tokens),
            )
        ]
        for name, weights in maps.items()
    ]
    return _draw_page(rows, f"Attention weights of each head. {HOW_TO_READ}", 3.0, path)


def alignments(attended: Mapping[str, Attended], note: str, path: str | Path) -> Path:
    """Plot the attention of networks translating a sentence, side by side, to a PNG. Return its path.

    ``attended`` maps network names to their attention. Each panel is a decoder layer: its attention to the source (across) for
    each generated token (down), averaged over heads. ``note`` is part of the heading. Raises ImportError without matplotlib.
    """
    groups = []
    for name, one in attended.items():
        layers, short = [_mean(weights) for weights in one.alignments()], shortened(name, LONGEST_NAME)
        titles = [short] if len(layers) == 1 else [f"{short}, layer {i + 1} of {len(layers)}" for i in range(len(layers))]
        groups.append(Group(list(map(Panel, titles, layers)), ("written", one.written), ("source", one.source)))
    heading = (
        "The attention of each network to the tokens of the source (across) as it wrote each token of its translation (down): "
        f"the mean over the heads of a decoder layer. Each row sums to 1; white is 0, dark blue is 1. {note}"
    )
    return _draw_page([groups], heading, 7.0, path, zoom=1.6)


def _mean(weights: Tensor) -> Any:
    """Average weights (heads, queries, keys) over heads. Return a NumPy array."""
    return weights.mean(axis=0).numpy()


def axes_of(name: str, source: Sequence[str], target: Sequence[str]) -> tuple[tuple[str, Sequence[str]], ...]:
    """Return the names and tokens of a layer's queries and keys."""
    if "cross_attention" in name:
        return ("queries: target", target), ("keys: source", source)
    side, tokens = ("target", target) if name.startswith("decoder") else ("source", source)
    return (f"queries: {side}", tokens), (f"keys: {side}", tokens)


HOW_TO_READ = (
    "Each row is a query: the token that attends. Each column is a key: a token it may attend to. Each row sums to 1; white "
    "is 0, dark blue is 1."
)


def _draw_page(rows: Sequence[Sequence[Group]], heading: str, longest: float, path: str | Path, zoom: float = 1.0) -> Path:
    """Draw rows of panels below a heading. No panel side exceeds ``longest`` inches before ``zoom`` enlarges the page.

    Panel positions are computed here, since matplotlib's layout would draw all labels several times.
    """
    from matplotlib.figure import Figure

    groups = [group for row in rows for group in row]
    texts = [text for group in groups for text in (*group.queries[1], *group.keys[1], *(p.title for p in group.panels))]
    lettering = Lettering([*texts, heading])
    limit = max(MOST_LABELS // sum(len(group.panels) for group in groups), FEWEST_LABELS)

    def axis(named_tokens: tuple[str, Sequence[str]]) -> _Axis:
        return _Axis(lettering, *named_tokens, longest, limit)

    placed = [[(group.panels, axis(group.queries), axis(group.keys)) for group in row] for row in rows]
    heights = [max(0.35 + queries.side + keys.room for _, queries, keys in row) for row in placed]
    room = max(queries.room for row in placed for _, queries, _ in row)  # for the query labels, left of a group
    titles = [LETTERS * lettering.width(lettering.line(p.title, WIDEST_TITLE)) for group in groups for p in group.panels]
    step = max(*titles, *(keys.side for row in placed for _, _, keys in row)) + 0.15  # between the left sides of panels
    width = max(0.1 + max(sum(room + len(group.panels) * step for group in row) for row in rows), 4.0)
    letters = min(int((width - 0.2) / (0.55 * 7 / 72)), LONGEST)  # per line
    lines = [lettering.line(line, math.inf) for line in textwrap.wrap(heading, letters)]
    height = 0.2 + 0.13 * len(lines) + sum(heights)
    figure = Figure(figsize=(width, height))
    words: dict[str, Any] = {"fontfamily": lettering.families, "parse_math": False}
    figure.text(0.1 / width, 1 - 0.1 / height, "\n".join(lines), fontsize=7, va="top", **words)
    top = height - 0.2 - 0.13 * len(lines)
    for row, row_height in zip(placed, heights):
        x = 0.1
        for panels, queries, keys in row:
            x += room
            for i, panel in enumerate(panels):
                box = (x / width, (top - 0.25 - queries.side) / height, keys.side / width, queries.side / height)
                _draw_panel(figure.add_axes(box), panel, lettering, queries if i == 0 else None, keys)
                x += step
        top -= row_height
    return save(figure, path, min(RESOLUTION * zoom, MOST_PIXELS / max(width, height)))


class _Axis:
    """An axis of a panel: its length and the label space in inches, and the labeled tokens."""

    def __init__(self, lettering: Lettering, name: str, tokens: Sequence[str], longest: float, limit: int):
        self.side = min(max(CELL * len(tokens), 1.5), longest)
        every = math.ceil(len(tokens) / min(limit, longest / CELL)) or 1
        self.ticks = range(0, len(tokens), every)
        self.labels = [lettering.token(tokens[i], WIDEST) for i in self.ticks]
        self.note = f"{name} tokens" + (f", 1 in {every} labelled" if every > 1 else "")
        self.room = LETTERS * max(map(lettering.width, self.labels), default=0) + 0.25


def _draw_panel(axes: Any, panel: Panel, lettering: Lettering, queries: _Axis | None, keys: _Axis) -> None:
    """Draw a panel's weights. Only the first panel of a group has ``queries``, the vertical axis labels."""
    small: dict[str, Any] = {"fontsize": 6, "fontfamily": lettering.families, "parse_math": False}  # $ is a token, not math
    axes.imshow(panel.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.tick_params(length=2, pad=1)
    axes.set_xticks(keys.ticks, keys.labels, rotation=90, **small)
    axes.set_xlabel(keys.note, fontsize=6, labelpad=1)
    if queries is not None:
        axes.set_yticks(queries.ticks, queries.labels, **small)
        axes.set_ylabel(queries.note, fontsize=6, labelpad=1)
    else:
        axes.set_yticks([])
    axes.set_title(lettering.line(panel.title, WIDEST_TITLE), loc="left", pad=3, **small)


# ---------------------------------------------------------------------------------------------------------------------- sounds


LABELLED = 8  # maximum number of labeled frequencies


def listening(
    decibels: Any,
    config: MelConfig,
    weights: Sequence[Tensor],
    stride: int,
    written: Sequence[str],
    title: str,
    path: str | Path,
) -> Path:
    """Plot log-mel vectors (frames, mels) and, below them, each decoder layer's attention to the sound, to a PNG. Return its
    path.

    ``weights`` holds (heads, tokens, positions) per layer; the plot shows the mean over heads. A position is ``stride`` frames
    wide. ``written`` holds the generated tokens, one per row. All panels share the time axis. Raises ImportError without
    matplotlib.
    """
    from matplotlib.figure import Figure

    hop = config.hop / config.rate
    seconds, width = len(decibels) * hop, stride * hop  # of the sound, and of a position
    heights = [2.2] + [0.5 + 0.16 * len(written)] * len(weights)
    figure = Figure(figsize=(min(max(4.0, 2.2 * seconds), 16.0), 0.6 + sum(heights)), layout="constrained")
    top, *below = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    begin = -hop / 2  # a frame is centered on its time
    look: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    top.imshow(decibels.T, origin="lower", cmap="magma", extent=(begin, begin + seconds, -0.5, config.num_mels - 0.5), **look)
    ticks = range(0, config.num_mels, -(-config.num_mels // LABELLED))
    top.set_yticks(ticks, [f"{filter_corners(config)[i + 1]:.0f}" for i in ticks], fontsize=7)
    top.set_ylabel("frequency (Hz)", fontsize=8)
    top.set_title(title, fontsize=9, loc="left", parse_math=False)
    for layer, (axes, of_layer) in enumerate(zip(below, weights)):
        mean = of_layer.mean(axis=0).numpy()
        extent = (-width / 2, -width / 2 + width * mean.shape[1], len(written) - 0.5, -0.5)
        axes.imshow(mean, cmap="Blues", vmin=0, vmax=1, extent=extent, **look)
        axes.set_yticks(range(len(written)), written, fontsize=7)
        axes.set_ylabel("written", fontsize=8)
        axes.set_title(f"attention of layer {layer + 1} of {len(weights)}", fontsize=8, loc="left")
    figure.axes[-1].set_xlabel("seconds", fontsize=8)
    figure.axes[-1].tick_params(axis="x", labelsize=7)
    figure.axes[-1].set_xlim(begin, begin + seconds)
    return save(figure, path, 130)
