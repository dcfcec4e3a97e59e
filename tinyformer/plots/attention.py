"""Maps of attention weights: which tokens, or which part of a sound, each token attends to."""

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

LETTERS = 6 / 72  # the size of a token's letters, in inches
CELL = 0.11  # the room of a token on an axis, in inches: enough for its label
WIDEST = 12  # the widest label of a token, in ems
WIDEST_TITLE = 30  # the widest title of a panel, in ems
LONGEST_NAME = 24  # the most letters of a network's name in a title, which has to have room for the layer, too
RESOLUTION = 110  # pixels an inch
MOST_PIXELS = 6000  # on each side of a page
MOST_LABELS = 3000  # the most labels of keys on a page; each takes about a millisecond
FEWEST_LABELS = 8  # the fewest that MOST_LABELS may leave on an axis with that many tokens


@dataclasses.dataclass(frozen=True)
class Panel:
    """A picture of attention weights (queries, keys), and its title."""

    title: str
    weights: Any


@dataclasses.dataclass(frozen=True)
class Group:
    """Panels side by side. They have the same queries and keys: a name for each, such as "keys: source", and the tokens."""

    panels: Sequence[Panel]
    queries: tuple[str, Sequence[str]]
    keys: tuple[str, Sequence[str]]


def attention_means(
    maps: Mapping[str, Tensor], source_tokens: Sequence[str], target_tokens: Sequence[str], path: str | Path
) -> Path:
    """Draw the attention weights of each layer, as the mean over its heads, to a PNG. Returns its path.

    The picture has a row for each kind of attention and a column for each layer. The arguments are those of
    ``attention_maps``. Raises ImportError without matplotlib.
    """
    kinds: dict[str, list[str]] = {}
    for name in maps:
        kinds.setdefault(re.sub(r"\d+", "", name), []).append(name)
    axes = {kind: axes_of(names[0], source_tokens, target_tokens) for kind, names in kinds.items()}
    rows = [[Group([Panel(name, _mean(maps[name])) for name in names], *axes[kind])] for kind, names in kinds.items()]
    return _draw_page(rows, f"Attention weights, the mean over the heads of each layer. {HOW_TO_READ}", 7.0, path)


def attention_maps(
    maps: Mapping[str, Tensor], source_tokens: Sequence[str], target_tokens: Sequence[str], path: str | Path
) -> Path:
    """Draw the attention weights of each head to a PNG. Returns its path.

    The picture has a row for each layer and a column for each head. ``maps`` holds the weights (heads, queries, keys) by the
    layer's name. The queries stand on the vertical axis and the keys on the horizontal one. In an encoder layer both are
    source tokens, in a decoder layer target tokens; in cross-attention the queries are target tokens and the keys source
    tokens. Long tokens are cut, and where there are many only some have labels. Raises ImportError without matplotlib.
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


def alignments(found: Mapping[str, Attended], note: str, path: str | Path) -> Path:
    """Draw what the networks looked at while they translated a sentence, side by side, to a PNG. Returns its path.

    ``found`` holds it by the name of each network. There is a panel for each layer of a decoder: the mean over the heads of its
    attention to the source. The source is across; down are the tokens that the network wrote, each in the row of the weights
    with which it was written. ``note`` stands above, too. Raises ImportError without matplotlib.
    """
    groups = []
    for name, seen in found.items():
        layers, short = [_mean(weights) for weights in seen.alignments()], shortened(name, LONGEST_NAME)
        titles = [short] if len(layers) == 1 else [f"{short}, layer {i + 1} of {len(layers)}" for i in range(len(layers))]
        groups.append(Group(list(map(Panel, titles, layers)), ("written", seen.written), ("source", seen.source)))
    heading = (
        "How much each network looked at each token of the source (across) when it wrote each token of its translation (down): "
        f"the mean over the heads of a layer of the decoder. Each row sums to 1; white is 0, dark blue is 1. {note}"
    )
    return _draw_page([groups], heading, 7.0, path, zoom=1.6)


def _mean(weights: Tensor) -> Any:
    """The mean over the heads of weights (heads, queries, keys), as a NumPy array."""
    return weights.mean(axis=0).numpy()


def axes_of(name: str, source: Sequence[str], target: Sequence[str]) -> tuple[tuple[str, Sequence[str]], ...]:
    """The names and tokens of a layer's queries and keys."""
    if "cross_attention" in name:
        return ("queries: target", target), ("keys: source", source)
    what, tokens = ("target", target) if name.startswith("decoder") else ("source", source)
    return (f"queries: {what}", tokens), (f"keys: {what}", tokens)


HOW_TO_READ = (
    "Each row is a query: the token that looks. Each column is a key: a token that it may look at. Each row sums to 1; white "
    "is 0, dark blue is 1."
)


def _draw_page(rows: Sequence[Sequence[Group]], heading: str, longest: float, path: str | Path, zoom: float = 1.0) -> Path:
    """Draw rows of panels below a heading. No side of a panel is longer than ``longest`` inches, before ``zoom`` enlarges the
    whole page.

    The places of the panels are computed here. If matplotlib had to find them, it would draw all labels several times.
    """
    from matplotlib.figure import Figure

    groups = [group for row in rows for group in row]
    texts = [text for group in groups for text in (*group.queries[1], *group.keys[1], *(p.title for p in group.panels))]
    lettering = Lettering([*texts, heading])
    most = max(MOST_LABELS // sum(len(group.panels) for group in groups), FEWEST_LABELS)
    placed = [[_placed(group, lettering, longest, most) for group in row] for row in rows]
    heights = [max(0.35 + queries.side + keys.room for _, queries, keys in row) for row in placed]
    room = max(queries.room for row in placed for _, queries, _ in row)  # for the labels of the queries, left of a group
    titles = [LETTERS * lettering.width(lettering.line(p.title, WIDEST_TITLE)) for group in groups for p in group.panels]
    # From one panel's left side to the next one's:
    step = max(*titles, *(keys.side for row in placed for _, _, keys in row)) + 0.15
    width = max(0.1 + max(sum(room + len(group.panels) * step for group in row) for row in rows), 4.0)
    letters = min(int((width - 0.2) / (0.55 * 7 / 72)), LONGEST)  # of a line
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
                place = (x / width, (top - 0.25 - queries.side) / height, keys.side / width, queries.side / height)
                _draw_panel(figure.add_axes(place), panel, lettering, queries if i == 0 else None, keys)
                x += step
        top -= row_height
    return save(figure, path, min(RESOLUTION * zoom, MOST_PIXELS / max(width, height)))


def _placed(group: Group, lettering: Lettering, longest: float, most: int) -> tuple[Sequence[Panel], _Axis, _Axis]:
    """The panels of a group, and the axes of their queries and keys."""
    queries, keys = (_Axis(lettering, *tokens, longest, most) for tokens in (group.queries, group.keys))
    return group.panels, queries, keys


class _Axis:
    """An axis of a panel: its length and the room for its labels in inches, and which tokens have labels."""

    def __init__(self, lettering: Lettering, what: str, tokens: Sequence[str], longest: float, most: int):
        self.side = min(max(CELL * len(tokens), 1.5), longest)
        every = math.ceil(len(tokens) / min(most, longest / CELL)) or 1
        self.places = range(0, len(tokens), every)
        self.labels = [lettering.token(tokens[i], WIDEST) for i in self.places]
        self.note = f"{what} tokens" + (f", 1 in {every} labelled" if every > 1 else "")
        self.room = LETTERS * max(map(lettering.width, self.labels), default=0) + 0.25


def _draw_panel(axes: Any, panel: Panel, lettering: Lettering, queries: _Axis | None, keys: _Axis) -> None:
    """Draw a panel's weights. Only the first panel of a group has ``queries``: the labels of the vertical axis."""
    small: dict[str, Any] = {"fontsize": 6, "fontfamily": lettering.families, "parse_math": False}  # a $ is a token, no formula
    axes.imshow(panel.weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.tick_params(length=2, pad=1)
    axes.set_xticks(keys.places, keys.labels, rotation=90, **small)
    axes.set_xlabel(keys.note, fontsize=6, labelpad=1)
    if queries is not None:
        axes.set_yticks(queries.places, queries.labels, **small)
        axes.set_ylabel(queries.note, fontsize=6, labelpad=1)
    else:
        axes.set_yticks([])
    axes.set_title(lettering.line(panel.title, WIDEST_TITLE), loc="left", pad=3, **small)


# ---------------------------------------------------------------------------------------------------------------------- sounds


LABELLED = 8  # frequencies that have a label, at most


def listening(
    decibels: Any,
    config: MelConfig,
    weights: Sequence[Tensor],
    stride: int,
    written: Sequence[str],
    title: str,
    path: str | Path,
) -> Path:
    """Draw log-mel vectors (frames, mels), and under them what each layer of a decoder listened to, to a PNG. Returns its path.

    ``weights`` are those of the attention to the sound, (heads, tokens, positions) for each layer; the mean over the heads is
    drawn. A position is ``stride`` frames wide. ``written`` holds the tokens, each in the row of the weights with which it was
    written. All panels have the same axis of time. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    hop = config.hop / config.rate
    seconds, width = len(decibels) * hop, stride * hop  # of the sound, and of a position
    heights = [2.2] + [0.5 + 0.16 * len(written)] * len(weights)
    figure = Figure(figsize=(min(max(4.0, 2.2 * seconds), 16.0), 0.6 + sum(heights)), layout="constrained")
    top, *below = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    begin = -hop / 2  # a frame is centred on its time
    look: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest"}
    top.imshow(decibels.T, origin="lower", cmap="magma", extent=(begin, begin + seconds, -0.5, config.num_mels - 0.5), **look)
    places = range(0, config.num_mels, -(-config.num_mels // LABELLED))
    top.set_yticks(places, [f"{filter_corners(config)[i + 1]:.0f}" for i in places], fontsize=7)
    top.set_ylabel("frequency (Hz)", fontsize=8)
    top.set_title(title, fontsize=9, loc="left", parse_math=False)
    for layer, (axes, of_layer) in enumerate(zip(below, weights)):
        mean = of_layer.mean(axis=0).numpy()
        extent = (-width / 2, -width / 2 + width * mean.shape[1], len(written) - 0.5, -0.5)
        axes.imshow(mean, cmap="Blues", vmin=0, vmax=1, extent=extent, **look)
        axes.set_yticks(range(len(written)), written, fontsize=7)
        axes.set_ylabel("written", fontsize=8)
        axes.set_title(f"what layer {layer + 1} of {len(weights)} listened to", fontsize=8, loc="left")
    figure.axes[-1].set_xlabel("seconds", fontsize=8)
    figure.axes[-1].tick_params(axis="x", labelsize=7)
    figure.axes[-1].set_xlim(begin, begin + seconds)
    return save(figure, path, 130)
