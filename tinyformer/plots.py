"""Pictures of a run. Needs matplotlib: pip install "tinytensor[plot]"."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinytensor.io import atomic_write


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
