"""Pictures of a run: with something on them, and each thing in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.plots import attention_maps, if_possible, loss_curve

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


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved."""
    from matplotlib.figure import Figure

    saved: list[Any] = []
    savefig = Figure.savefig

    def remember(figure: Any, *arguments: Any, **options: Any) -> None:
        saved.append(figure)
        savefig(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", remember)
    return saved


def weights(heads: int, queries: int, keys: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).dirichlet(np.ones(keys), (heads, queries)).astype(np.float32)


def test_attention_maps_are_drawn_for_each_layer_and_head(tmp_path: Path, figures: list[Any]) -> None:
    source, target = ["ein", "Hund", "·"], ["·", "a", "dog", "!"]
    maps = {
        "encoder.blocks.0.attention": weights(2, 3, 3, seed=1),
        "decoder.blocks.0.attention": weights(2, 4, 4, seed=2),
        "decoder.blocks.0.cross_attention": weights(1, 4, 3, seed=3),
    }
    path = tmp_path / "attention.png"
    assert attention_maps({name: tt.tensor(m) for name, m in maps.items()}, source, target, path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["attention.png"]  # the temporary file is gone
    drawn = [axes for axes in figures[0].axes if axes.axison]
    assert [axes.get_title() for axes in drawn] == [f"{n}, head {h + 1}" for n, m in maps.items() for h in range(len(m))]
    for axes, expected in zip(drawn, [head for layer in maps.values() for head in layer]):
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.images[0].get_clim() == (0, 1)  # so that colors mean the same everywhere
    labels = [
        ([t.get_text() for t in axes.get_yticklabels()], [t.get_text() for t in axes.get_xticklabels()]) for axes in drawn
    ]
    assert labels == [(source, source)] * 2 + [(target, target)] * 2 + [(target, source)]


def test_tokens_that_look_like_formulas_are_drawn_as_they_are(tmp_path: Path, figures: list[Any]) -> None:
    tokens = ["$$", "$\\", "$x^$"]
    attention_maps({"encoder": tt.tensor(weights(1, 3, 3))}, tokens, [], tmp_path / "a.png")
    assert [label.get_text() for label in figures[0].axes[0].get_xticklabels()] == tokens


def test_drawing_if_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with if_possible():
        loss_curve([row(0, None, 3.0)], tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with if_possible():
        loss_curve([row(0, None, 3.0)], tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()
    assert capsys.readouterr().out == "(no pictures drawn: they need matplotlib, pip install matplotlib)\n"


def test_matplotlib_is_not_imported_before_it_is_needed() -> None:
    # It is an optional package: a run without it must train all the same.
    program = "import sys, tinyformer.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
