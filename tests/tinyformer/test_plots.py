"""The loss curve: a picture with something on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinyformer.plots import loss_curve

pytest.importorskip("matplotlib")


def row(step: int, train_loss: float | None, validation_loss: float | None) -> dict[str, Any]:
    return {"step": step, "train_loss": train_loss, "validation_loss": validation_loss}


def colored(path: Path, color: tuple[int, int, int]) -> int:
    """How many pixels of the picture have very nearly this color."""
    from matplotlib.image import imread

    pixels = imread(path)[..., :3]
    return int((np.abs(pixels * 255 - np.array(color)).max(axis=-1) < 3).sum())


GRAY, RED = (0x94, 0xA3, 0xB8), (0xDC, 0x26, 0x26)


def test_both_curves_are_drawn(tmp_path: Path) -> None:
    rows = [row(0, None, 3.0), *(row(i, 3.0 - i / 50, None) for i in range(10, 100, 10)), row(100, 1.0, 1.2)]
    path = tmp_path / "loss.png"
    loss_curve(rows, path, title="A run")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert colored(path, GRAY) > 100
    assert colored(path, RED) > 100
    assert [p.name for p in tmp_path.iterdir()] == ["loss.png"]  # the temporary file is gone


def test_each_curve_is_drawn_only_where_there_is_one(tmp_path: Path) -> None:
    loss_curve([row(10, 3.0, None), row(20, 2.0, None)], tmp_path / "trained.png")
    loss_curve([row(0, None, 3.0), row(20, None, 2.0)], tmp_path / "validated.png")
    assert (colored(tmp_path / "trained.png", GRAY) > 100, colored(tmp_path / "trained.png", RED)) == (True, 0)
    assert (colored(tmp_path / "validated.png", GRAY), colored(tmp_path / "validated.png", RED) > 100) == (0, True)


def test_a_run_without_rows_has_empty_axes(tmp_path: Path) -> None:
    loss_curve([], tmp_path / "loss.png")
    assert (colored(tmp_path / "loss.png", GRAY), colored(tmp_path / "loss.png", RED)) == (0, 0)
    assert colored(tmp_path / "loss.png", (0, 0, 0)) > 100  # the frame and its numbers


def test_matplotlib_is_not_imported_before_it_is_needed() -> None:
    # It is an optional package: a run without it must train all the same.
    program = "import sys, tinyformer.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
