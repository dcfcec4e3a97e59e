"""Losses and scores: each curve is drawn, in its place and with its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinyformer.plots import accuracy_by_distance, if_possible, loss_by_order, loss_curve, note_on_losses, scores_by_length
from tinyformer.training.comparison import ScoreTable

pytest.importorskip("matplotlib")


GRAY, RED = (0x94, 0xA3, 0xB8), (0xDC, 0x26, 0x26)


def labels(panels: list[Any], axis: str) -> list[list[str]]:
    """The labels on an axis of each panel."""
    return [[label.get_text() for label in getattr(axes, f"get_{axis}ticklabels")()] for axes in panels]


def row(step: int, train_loss: float | None, validation_loss: float | None) -> dict[str, Any]:
    return {"step": step, "train_loss": train_loss, "validation_loss": validation_loss}


def colored(path: Path, color: tuple[int, int, int]) -> int:
    """How many pixels of the picture have very nearly this color."""
    from matplotlib.image import imread

    pixels = imread(path)[..., :3]
    return int((np.abs(pixels * 255 - np.array(color)).max(axis=-1) < 3).sum())


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


def test_a_note_stands_under_the_curves(tmp_path: Path, figures: list[Any]) -> None:
    note = "The training loss is measured with label smoothing (0.1), the validation loss without. " * 2
    for options in ({}, {"note": note}, {"note": "短い"}):
        loss_curve([row(0, None, 3.0), row(20, 2.0, 1.0)], tmp_path / "loss.png", **options)
    without, with_note, _ = figures
    assert without.get_supxlabel() == ""
    assert with_note.get_supxlabel().replace("\n", " ") == note.strip()
    assert with_note.get_supxlabel().count("\n") == 1
    assert with_note.get_figheight() > without.get_figheight()  # it takes no room from the curves


def test_a_title_may_have_any_characters(tmp_path: Path, figures: list[Any], shipped_fonts_only: None) -> None:
    for title in ("GPT on $x^$", "GPT 中文\n\x00", "Titel " * 10_000):
        loss_curve([row(0, None, 3.0)], tmp_path / "loss.png", title)
    first, second, third = (figure.axes[0].get_title() for figure in figures)
    assert (first, second) == ("GPT on $x^$", "GPT U+4E2D U+6587 U+0000")
    assert third.startswith("Titel Titel ")
    assert third.endswith("…")
    assert len(third) < 130


def some_scores() -> ScoreTable:
    scores = {"lstm": [30.0, 40.0, 31.0, 19.0], "transformer": [37.0, 38.0, 37.0, 36.0], "$x^$ 中": [37.0, 38.0, 37.0, 36.0]}
    return ScoreTable("BLEU", [range(3, 6), range(6, 7), range(7, 31)], [5000, 4000, 900, 100], scores)


def test_scores_by_length_are_a_line_for_each_run(tmp_path: Path, figures: list[Any], shipped_fonts_only: None) -> None:
    path = tmp_path / "new" / "folder" / "scores.png"  # which is made
    table = some_scores()
    assert scores_by_length(table, path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["scores.png"]  # the temporary file is gone
    (axes,) = figures[0].axes
    assert [list(line.get_ydata()) for line in axes.lines] == [scores[1:] for scores in table.scores.values()]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines}
    assert len(looks) == 3
    assert labels([axes], "x") == [["3-5\n(4,000)", "6\n(900)", "7-30\n(100)"]]  # how many sentences, too
    assert (axes.get_ylabel(), axes.get_ylim()[0]) == ("BLEU", 0)
    (legend,) = figures[0].legends
    assert [text.get_text() for text in legend.get_texts()] == ["lstm", "transformer", "$x^$ U+4E2D"]
    assert legend.get_window_extent().x0 > axes.get_window_extent().x1  # over no line


def test_scores_of_one_bin_and_of_many_runs(tmp_path: Path, figures: list[Any]) -> None:
    scores = {f"run {i} with a name that is too long for a legend": [i, i] for i in range(40)}
    scores_by_length(ScoreTable("BLEU", [range(3, 6)], [5, 5], scores), tmp_path / "scores.png")
    (axes,) = figures[0].axes
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.lines}
    assert len(looks) == 40
    assert all(text.get_text().endswith("…") for text in figures[0].legends[0].get_texts())


def test_accuracies_have_a_line_for_each_model_and_one_for_guessing(tmp_path: Path, figures: list[Any]) -> None:
    found = {
        "RNN": {1: 0.3, 10: 0.125, 100: 0.125},
        "GRU": {1: 1.0, 10: 1.0, 100: 1.0},
        "attention": {1: 1.0, 10: 1.0, 100: 1.0},
    }
    path = tmp_path / "accuracy.png"
    accuracy_by_distance(found, 0.125, path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in tmp_path.iterdir()] == ["accuracy.png"]
    (axes,) = figures[0].axes
    *lines, guessing = axes.get_lines()
    assert [line.get_label() for line in lines] == list(found)
    assert [list(line.get_ydata()) for line in lines] == [[30.0, 12.5, 12.5], [100.0] * 3, [100.0] * 3]
    assert list(lines[0].get_xdata()) == [1, 10, 100]
    assert set(guessing.get_ydata()) == {12.5}
    assert guessing.get_linestyle() == "--"
    assert axes.get_xscale() == "log"
    assert labels([axes], "x") == [["1", "2", "5", "10", "20", "50", "100"]]
    # Where lines are equal, the later ones leave the edges of the earlier ones to be seen.
    assert lines[1].get_linewidth() > lines[2].get_linewidth()
    assert beside(figures[0])


def test_losses_by_order_have_their_numbers_inside(tmp_path: Path, figures: list[Any]) -> None:
    losses = {order: 3.5 - 0.25 * order for order in range(9)}
    path = tmp_path / "losses.png"
    assert loss_by_order(losses, path, "A $text^") == path
    (axes,) = figures[0].axes
    assert axes.get_title() == "A $text^"
    assert list(axes.lines[0].get_ydata()) == list(losses.values())
    assert [text.get_text() for text in axes.texts] == [f"{loss:.2f}" for loss in losses.values()]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["Markov, Kneser-Ney"]
    inside = axes.get_window_extent()
    for text in axes.texts:
        place = text.get_window_extent()
        assert inside.contains(place.x0, place.y0)
        assert inside.contains(place.x1, place.y1)


def beside(figure: Any) -> bool:
    """Whether the legend is inside the picture, and hides nothing of the axes and their titles."""
    (legend,) = figure.legends
    place = legend.get_window_extent()
    tops = [axes.get_tightbbox().y1 for axes in figure.axes]
    return place.x0 >= 0 and place.x1 <= figure.bbox.width and max(tops) <= place.y0 and place.y1 <= figure.bbox.height


def test_drawing_if_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with if_possible():
        loss_curve([row(0, None, 3.0)], tmp_path / "a.png")
    assert (tmp_path / "a.png").exists()
    assert capsys.readouterr().out == ""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with if_possible():
        loss_curve([row(0, None, 3.0)], tmp_path / "b.png")
    assert not (tmp_path / "b.png").exists()
    assert capsys.readouterr().out == "(no pictures: pip install matplotlib)\n"


def test_matplotlib_is_not_imported_before_it_is_needed() -> None:
    # It is an optional package: a run without it must train all the same.
    program = "import sys, tinyformer.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_why_the_training_loss_may_be_the_higher() -> None:
    assert note_on_losses(0.0) == ""
    assert "measured with label smoothing (0.1), the validation loss without" in note_on_losses(0.0, 0.1)
    assert "measured with dropout (0.2), the validation loss without" in note_on_losses(0.2)
    assert "measured with label smoothing (0.1) and dropout (0.2), the" in note_on_losses(0.2, 0.1)
