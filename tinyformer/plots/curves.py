"""Plots of a run's losses and of model scores."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyformer.plots.drawing import Lettering, save

if TYPE_CHECKING:
    from tinyformer.training.comparison import ScoreTable


def note_on_losses(dropout: float, label_smoothing: float = 0.0) -> str:
    """Return a sentence that explains why the training loss may exceed the validation loss, or "" if there is no reason."""
    reasons = [f"label smoothing ({label_smoothing:g})"] * (label_smoothing > 0) + [f"dropout ({dropout:g})"] * (dropout > 0)
    if not reasons:
        return ""
    return (
        f"The training loss is measured with {' and '.join(reasons)}, the validation loss without: "
        "the training loss may stay above it all the time."
    )


def loss_curve(rows: Sequence[dict[str, Any]], path: str | Path, title: str = "", note: str = "") -> None:
    """Plot the training and validation losses in log rows to a PNG at ``path``.

    ``note`` is printed below in small type. Raises ImportError without matplotlib.
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
    save(figure, path, 120)


COLORS = ("#dc2626", "#d97706", "#2563eb", "#059669", "#7c3aed", "#475569", "#0891b2")
MARKERS = "osD^vPXh"  # one more than colors, so that each color gets all markers
DASHES = ("-", "--", ":")  # tell overlapping lines apart


def scores_by_length(table: ScoreTable, path: str | Path) -> Path:
    """Plot translation scores by source length, one line per run, to a PNG. Return its path. Raises ImportError without
    matplotlib."""
    from matplotlib.figure import Figure

    lettering = Lettering(table.scores)
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot()
    names = {}
    ticks = range(len(table.bins))
    for i, (name, (_, *scores)) in enumerate(table.scores.items()):
        look: dict[str, Any] = {"color": COLORS[i % len(COLORS)], "linestyle": DASHES[i % len(DASHES)], "linewidth": 2}
        (line,) = axes.plot(ticks, scores, marker=MARKERS[i % len(MARKERS)], markersize=5, **look)
        names[line] = lettering.line(name, 14)
    axes.set_xticks(ticks, [f"{length}\n({count:,})" for length, count in zip(table.labels(), table.counts[1:])])
    axes.margins(x=0.05)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("words of the source sentence (in brackets: sentences)")
    axes.set_ylabel(table.measure)
    axes.set_title("Translation by the length of the source")
    axes.grid(alpha=0.25)
    words = {"family": lettering.families}
    legend = figure.legend(list(names), list(names.values()), loc="outside right upper", frameon=False, prop=words)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a $ in a folder name is not math
    return save(figure, path, 120)


def accuracy_by_distance(accuracies: Mapping[str, Mapping[int, float]], chance: float, path: str | Path) -> None:
    """Plot each model's recall accuracy by token distance to a PNG at ``path``. A dashed line marks chance level.

    ``accuracies`` maps a model's name to fractions by distance in steps. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for i, (name, fractions) in enumerate(accuracies.items()):
        percent = [100 * fraction for fraction in fractions.values()]
        width = 1.2 + 0.9 * (len(accuracies) - 1 - i)  # decreasing, so that equal lines all stay visible
        look: dict[str, Any] = {"color": COLORS[i % len(COLORS)], "linewidth": width, "markersize": 3 + width}
        axes.plot(list(fractions), percent, marker="o", label=name, **look)
    axes.axhline(100 * chance, color="black", linewidth=1, linestyle="--", label="guessing")
    axes.set_xscale("log")
    ticks = [t for power in range(9) for t in (10**power, 2 * 10**power, 5 * 10**power)]
    longest = max(distance for fractions in accuracies.values() for distance in fractions)
    axes.set_xticks([t for t in ticks if t <= longest], [f"{t:,}" for t in ticks if t <= longest])
    axes.minorticks_off()
    axes.set_ylim(0, 104)
    axes.set_xlabel("distance of the token from the end (steps)")
    axes.set_ylabel("right answers (%)")
    axes.grid(alpha=0.25)
    figure.legend(loc="outside upper center", ncols=len(accuracies) + 1, frameon=False)
    save(figure, path, 120)


def loss_by_order(losses: Mapping[int, float], path: str | Path, title: str) -> Path:
    """Plot the validation loss of Markov models by order to a PNG. Return its path. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    lettering = Lettering([title])
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(list(losses), list(losses.values()), color=COLORS[2], linewidth=2, marker="o", label="Markov, Kneser-Ney")
    for order, loss in losses.items():
        axes.annotate(f"{loss:.2f}", (order, loss), textcoords="offset points", xytext=(5, 6), fontsize=8)
    axes.set_xticks(list(losses))
    axes.margins(x=0.07, y=0.12)  # room for the last value
    axes.set_xlabel("characters of context")
    axes.set_ylabel("validation loss (nats a character)")
    axes.set_title(lettering.line(title, 40), fontfamily=lettering.families, parse_math=False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    return save(figure, path, 120)
