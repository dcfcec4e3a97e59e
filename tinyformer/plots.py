"""Pictures of a run. Needs matplotlib: pip install matplotlib."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tinytensor import Tensor
from tinytensor.io import atomic_write


@contextmanager
def if_possible() -> Iterator[None]:
    """What is drawn inside is drawn where there is matplotlib; elsewhere a line says what is missing."""
    try:
        yield
    except ImportError:
        print("(no pictures drawn: they need matplotlib, pip install matplotlib)")


def loss_curve(rows: Sequence[dict[str, Any]], path: str | Path, title: str = "") -> None:
    """Draw training and validation loss against steps, from a log's rows, to a PNG. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
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
    axes.set_title(title)
    axes.grid(alpha=0.25)
    if trained or validated:
        axes.legend(frameon=False)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=120)


def attention_maps(
    maps: Mapping[str, Tensor], source_tokens: Sequence[str], target_tokens: Sequence[str], path: str | Path
) -> Path:
    """Draw attention weights, a row of pictures for each layer and a column for each head, to a PNG; returns its path.

    ``maps``: for each layer's name its weights (heads, queries, keys). The tokens stand on both axes: queries downwards,
    keys to the right; encoder layers see the source, decoder layers the target, cross-attention one from the other.
    Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure

    heads = max(weights.shape[0] for weights in maps.values())
    figure = Figure(figsize=(2.6 * heads + 1, 2.6 * len(maps) + 0.5), layout="constrained")
    grid = figure.subplots(len(maps), heads, squeeze=False)
    for row, (name, weights) in zip(grid, maps.items()):
        queries, keys = _tokens_of(name, source_tokens, target_tokens)
        for head, axes in enumerate(row):
            if head >= weights.shape[0]:
                axes.set_axis_off()
                continue
            axes.imshow(weights[head].numpy(), cmap="Blues", vmin=0, vmax=1, aspect="auto")
            axes.set_xticks(range(len(keys)), keys, rotation=90, fontsize=6, parse_math=False)  # a $ is a token, no formula
            axes.set_yticks(range(len(queries)), queries, fontsize=6, parse_math=False)
            axes.set_title(f"{name}, head {head + 1}", fontsize=6)
    with atomic_write(path) as temporary:
        figure.savefig(temporary, format="png", dpi=110)
    return Path(path)


def _tokens_of(name: str, source: Sequence[str], target: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The tokens of the queries and of the keys of a layer."""
    if "cross_attention" in name:
        return target, source
    return (target, target) if name.startswith("decoder") else (source, source)
