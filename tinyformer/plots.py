"""Pictures of a run. Needs matplotlib: pip install matplotlib."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyformer.lettering import LONGEST, Lettering, fonts_of_any_weight
from tinytensor import Tensor
from tinytensor.io import atomic_write

if TYPE_CHECKING:
    from tinyformer.comparison import ScoreTable
    from tinyformer.translation import Attended


@contextmanager
def if_possible() -> Iterator[None]:
    """A context to draw pictures in. Without matplotlib nothing is drawn, and a line says that it is missing."""
    try:
        yield
    except ImportError:
        print("(no pictures drawn: they need matplotlib, pip install matplotlib)")


def note_on_losses(dropout: float, label_smoothing: float = 0.0) -> str:
    """A sentence that says why the training loss may lie above the validation loss. Empty where there is no reason."""
    reasons = [f"label smoothing ({label_smoothing:g})"] * (label_smoothing > 0) + [f"dropout ({dropout:g})"] * (dropout > 0)
    if not reasons:
        return ""
    return (
        f"The training loss is measured with {' and '.join(reasons)}, the validation loss without: "
        "the training loss may stay above it all the time."
    )


def loss_curve(rows: Sequence[dict[str, Any]], path: str | Path, title: str = "", note: str = "") -> None:
    """Draw the training and validation losses of a log's rows to a PNG at ``path``.

    ``note`` stands below the picture in small letters. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    lines = textwrap.wrap(note, 110)
    lettering = Lettering([title, *lines])
    words: dict[str, Any] = {"fontfamily": lettering.families, "parse_math": False}
    figure = Figure(figsize=(8, 4.5 + 0.15 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    trained = [(row["step"], row["train_loss"]) for row in rows if row["train_loss"] is not None]
    validated = [(row["step"], row["validation_loss"]) for row in rows if row["validation_loss"] is not None]
    if trained:
        axes.plot(*zip(*trained), color="#94a3b8", linewidth=1, label="training")
    if validated:
        axes.plot(*zip(*validated), color="#dc2626", linewidth=2, marker="o", markersize=4, label="validation (whole split)")
        step, loss = min(validated, key=lambda point: point[1])
        axes.axhline(loss, color="#dc2626", linewidth=0.8, linestyle=":", label=f"best validation: {loss:.4f} at step {step}")
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats a token)")
    axes.set_title(lettering.line(title, 40), **words)
    axes.grid(alpha=0.25)
    if trained or validated:
        axes.legend(frameon=False)
    if lines:
        figure.supxlabel("\n".join(lettering.line(line, 70) for line in lines), fontsize=8, color="#475569", **words)
    _save(figure, path, 120)


COLORS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#475569")
MARKERS = "osD^vPX"
DASHES = ("-", "--", ":")  # so that a line under another one can be seen


def scores_by_length(table: ScoreTable, path: str | Path) -> Path:
    """Draw the scores of translations by the length of the source, a line for each run, to a PNG. Returns its path.

    Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    lettering = Lettering(table.scores)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    names = {}
    places = range(len(table.bins))
    for i, (name, (_, *scores)) in enumerate(table.scores.items()):
        look: dict[str, Any] = {"color": COLORS[i % len(COLORS)], "linestyle": DASHES[i % len(DASHES)], "linewidth": 2}
        (line,) = axes.plot(places, scores, marker=MARKERS[i % len(MARKERS)], markersize=5, **look)
        names[line] = lettering.line(name, 14)
    axes.set_xticks(places, [f"{length}\n({count:,})" for length, count in zip(table.labels(), table.counts[1:])])
    axes.margins(x=0.05)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("words of the source sentence (in brackets: sentences)")
    axes.set_ylabel(table.measure)
    axes.set_title("Translation by the length of the source")
    axes.grid(alpha=0.25)
    words = {"family": lettering.families}
    legend = figure.legend(list(names), list(names.values()), loc="outside right upper", frameon=False, prop=words)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a $ in the name of a folder is no formula
    _save(figure, path, 120)
    return Path(path)


def _save(figure: Any, path: str | Path, dpi: float) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary, fonts_of_any_weight():
        figure.savefig(temporary, format="png", dpi=dpi)


# ------------------------------------------------------------------------------------------------------- memory

COLORS = ("#dc2626", "#d97706", "#2563eb", "#059669", "#7c3aed", "#475569")


def accuracy_by_distance(accuracies: Mapping[str, Mapping[int, float]], chance: float, path: str | Path) -> None:
    """Draw a line for each model to a PNG at ``path``: how often it recalls a token from a distance. Guessing is a dashed line.

    ``accuracies`` are fractions by the model's name and the distance in steps. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, found) in enumerate(accuracies.items()):
        percent = [100 * fraction for fraction in found.values()]
        # Each line is thinner than those before it, so that all are seen where they are equal.
        width = 1.2 + 0.9 * (len(accuracies) - 1 - i)
        axes.plot(
            list(found), percent, color=COLORS[i % len(COLORS)], linewidth=width, marker="o", markersize=3 + width, label=name
        )
    axes.axhline(100 * chance, color="black", linewidth=1, linestyle="--", label="guessing")
    axes.set_xscale("log")
    ticks = [t for power in range(9) for t in (10**power, 2 * 10**power, 5 * 10**power)]
    longest = max(distance for found in accuracies.values() for distance in found)
    axes.set_xticks([t for t in ticks if t <= longest], [f"{t:,}" for t in ticks if t <= longest])
    axes.minorticks_off()
    axes.set_ylim(0, 104)
    axes.set_xlabel("distance of the token from the end (steps)")
    axes.set_ylabel("right answers (%)")
    axes.grid(alpha=0.25)
    figure.legend(loc="outside upper center", ncols=len(accuracies) + 1, frameon=False)
    _save(figure, path, 120)


def gradients_by_distance(panels: Mapping[str, Mapping[str, Sequence[float]]], path: str | Path) -> None:
    """Draw panels side by side to a PNG at ``path``, each with a line for each model: the norm of the gradient of the last
    output with respect to the inputs, on a logarithmic axis.

    ``panels`` holds the norms by the panel's title and the model's name; the first one is that of the last input. A norm of 0
    has no place on the axis. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items()):
        for (name, norms), color in zip(lines.items(), itertools.cycle(COLORS)):
            axes.plot([norm or math.nan for norm in norms], color=color, linewidth=1.5, label=name)
        axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel("distance of the input from the end (steps)")
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("norm of the gradient")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(COLORS), frameon=False)
    _save(figure, path, 120)


# ------------------------------------------------------------------------------------------------------ attention

LETTERS = 6 / 72  # the size of a token's letters, in inches
CELL = 0.11  # the room of a token on an axis, in inches: enough for its label
WIDEST = 12  # the widest label of a token, in ems
WIDEST_TITLE = 30  # the widest title of a panel, in ems
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
    axes = {kind: _axes_of(names[0], source_tokens, target_tokens) for kind, names in kinds.items()}
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
                *_axes_of(name, source_tokens, target_tokens),
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
        layers = [_mean(weights) for weights in seen.alignments()]
        titles = [name] if len(layers) == 1 else [f"{name}, decoder layer {i + 1} of {len(layers)}" for i in range(len(layers))]
        groups.append(Group(list(map(Panel, titles, layers)), ("written", seen.written), ("source", seen.source)))
    heading = (
        "How much each network looked at each token of the source (across) when it wrote each token of its translation (down): "
        f"the mean over the heads of a layer. Each row sums to 1; white is 0, dark blue is 1. {note}"
    )
    return _draw_page([groups], heading, 7.0, path, zoom=1.6)


def _mean(weights: Tensor) -> Any:
    """The mean over the heads of weights (heads, queries, keys), as a NumPy array."""
    return weights.mean(axis=0).numpy()


def _axes_of(name: str, source: Sequence[str], target: Sequence[str]) -> tuple[tuple[str, Sequence[str]], ...]:
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
    _save(figure, path, min(RESOLUTION * zoom, MOST_PIXELS / max(width, height)))
    return Path(path)


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
