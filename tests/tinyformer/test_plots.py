"""Pictures of a run: with something on them, and each thing in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.audio.features import MelConfig
from tinyformer.comparison import ScoreTable
from tinyformer.plots import (
    accuracy_by_distance,
    alignments,
    attention,
    attention_maps,
    attention_means,
    gradients_by_distance,
    if_possible,
    listening,
    loss_by_order,
    loss_curve,
    note_on_losses,
    recordings,
    scores_by_length,
    word_map,
    words,
)
from tinyformer.plots.drawing import save
from tinyformer.translation import Attended

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
    drawn = figures[0].axes
    assert [axes.get_title("left") for axes in drawn] == [f"{n}, head {h + 1}" for n, m in maps.items() for h in range(len(m))]
    for axes, expected in zip(drawn, [head for layer in maps.values() for head in layer]):
        np.testing.assert_array_equal(axes.images[0].get_array(), expected)
        assert axes.images[0].get_clim() == (0, 1)  # so that colors mean the same everywhere
    # The first of a row has the labels of its queries, each panel those of its keys.
    assert labels(drawn, "y") == [source, [], target, [], target]
    assert labels(drawn, "x") == [source, source, target, target, source]


def labels(panels: list[Any], axis: str) -> list[list[str]]:
    """The labels on an axis of each panel."""
    return [[label.get_text() for label in getattr(axes, f"get_{axis}ticklabels")()] for axes in panels]


def test_the_mean_over_the_heads_has_a_page_of_its_own(tmp_path: Path, figures: list[Any]) -> None:
    shapes = {"encoder.blocks.{}.attention": (4, 2, 2), "decoder.blocks.{}.cross_attention": (4, 3, 2)}
    maps = {name.format(layer): weights(*shape, seed=layer) for layer in range(3) for name, shape in shapes.items()}
    path = tmp_path / "attention.png"
    assert attention_means({name: tt.tensor(m) for name, m in maps.items()}, ["a", "b"], ["x", "y", "z"], path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    drawn = figures[0].axes
    assert [axes.get_title("left") for axes in drawn] == [name.format(layer) for name in shapes for layer in range(3)]
    for axes in drawn:
        np.testing.assert_allclose(axes.images[0].get_array(), maps[axes.get_title("left")].mean(axis=0), rtol=1e-6)
    # A row for each kind of attention, a column for each layer.
    lefts, bottoms = zip(*((round(axes.get_position().x0, 6), round(axes.get_position().y0, 6)) for axes in drawn))
    assert lefts[:3] == lefts[3:]
    assert (len(set(lefts)), len(set(bottoms))) == (3, 2)
    assert "mean over the heads" in figures[0].texts[0].get_text().replace("\n", " ")


def test_the_picture_says_which_axis_is_which(tmp_path: Path, figures: list[Any]) -> None:
    names = ["encoder.blocks.0.attention", "decoder.blocks.0.attention", "decoder.blocks.0.cross_attention"]
    maps = dict(zip(names, (tt.tensor(weights(1, *shape)) for shape in ((2, 2), (3, 3), (3, 2)))))
    for draw in (attention_maps, attention_means):
        draw(maps, ["a", "b"], ["x", "y", "z"], tmp_path / "attention.png")
    for figure in figures:
        said = [(axes.get_ylabel(), axes.get_xlabel()) for axes in figure.axes]
        source, target = "source tokens", "target tokens"
        wanted = [(source, source), (target, target), (target, source)]
        assert said == [(f"queries: {queries}", f"keys: {keys}") for queries, keys in wanted]
        assert "Each row is a query" in figure.texts[0].get_text().replace("\n", " ")


def some_attended(weights: dict[str, Any], source: list[str], written: list[str]) -> Attended:
    maps = {name: tt.tensor(w) for name, w in weights.items()}
    return Attended("", source, ["[BOS]", *written[:-1]], written, maps)


def test_alignments_side_by_side(tmp_path: Path, figures: list[Any]) -> None:
    additive = {"cross_attention": weights(1, 3, 4, seed=1)}
    layers = {f"decoder.blocks.{i}.cross_attention": weights(2, 2, 5, seed=i) for i in range(3)}
    others = {"encoder.blocks.0.attention": weights(2, 5, 5), "decoder.blocks.0.attention": weights(2, 2, 2)}
    found = {
        "attention": some_attended(additive, ["ro", "ter", " Hund", "[EOS]"], ["red", " dog", "[EOS]"]),
        "transformer with a long name": some_attended(
            {**others, **layers}, ["rot", "er", " H", "und", "[EOS]"], ["dog", "[EOS]"]
        ),
    }
    path = tmp_path / "alignments.png"
    assert alignments(found, "Without attention: $lstm$.", path) == path
    assert path.read_bytes().startswith(b"\x89PNG")
    drawn = figures[0].axes
    titles = ["attention", *(f"transformer with a lo..., layer {i} of 3" for i in (1, 2, 3))]
    assert [axes.get_title("left") for axes in drawn] == titles
    for axes, expected in zip(drawn, (*additive.values(), *layers.values())):
        np.testing.assert_allclose(axes.images[0].get_array(), expected.mean(axis=0), rtol=1e-6)  # over the heads
        assert axes.images[0].get_clim() == (0, 1)
    # Down are the tokens that are written, not those that are read; across is the source. Pieces are shown as they are.
    assert labels(drawn, "y") == [["red", "␣dog", "[EOS]"], ["dog", "[EOS]"], [], []]
    assert labels(drawn, "x") == [["ro", "ter", "␣Hund", "[EOS]"], *[["rot", "er", "␣H", "und", "[EOS]"]] * 3]
    assert [axes.get_ylabel() for axes in drawn] == ["written tokens"] * 2 + [""] * 2
    assert {axes.get_xlabel() for axes in drawn} == {"source tokens"}
    heading = figures[0].texts[0].get_text().replace("\n", " ")
    assert "the mean over the heads of a layer of the decoder" in heading
    assert heading.endswith("Without attention: $lstm$.")
    # Side by side, and no label is on another panel or outside.
    boxes = [axes.get_tightbbox() for axes in drawn]
    assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:]))
    page = figures[0].bbox
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 for box in boxes)
    assert max(box.y1 for box in boxes) < figures[0].texts[0].get_window_extent().y0


def test_tokens_that_look_like_formulas_are_drawn_as_they_are(tmp_path: Path, figures: list[Any]) -> None:
    tokens = ["$$", "$\\", "$x^$"]
    attention_maps({"encoder": tt.tensor(weights(1, 3, 3))}, tokens, [], tmp_path / "a.png")
    assert labels(figures[0].axes, "x") == labels(figures[0].axes, "y") == [tokens]


def test_tokens_may_have_any_characters(tmp_path: Path, figures: list[Any], shipped_fonts_only: None) -> None:
    # Warnings are errors here, as everywhere in these tests.
    tokens = ["中文", " ", "\n", "\u200b", "\ud800", "😀", "מילה", "\u0301", "", "a\u0301\u0302"]
    attention_maps({"encoder": tt.tensor(weights(1, 10, 10))}, tokens, [], tmp_path / "a.png")
    shown = ["U+4E2D U+6587", "␣", "\\n", "U+200B", "U+D800", "😀", "מילה", "◌\u0301", "(empty)", "a\u0301\u0302"]
    assert labels(figures[0].axes, "x") == labels(figures[0].axes, "y") == [shown]


def test_long_tokens_are_cut(tmp_path: Path, figures: list[Any]) -> None:
    tokens = [" " + "a" * 100_000, "dog", "W" * 99, "\u0301" * 100_000]
    attention_maps({"encoder": tt.tensor(weights(1, 4, 4))}, tokens, [], tmp_path / "a.png")
    ((first, second, third, fourth),) = labels(figures[0].axes, "x")
    assert first == "␣" + (len(first) - 2) * "a" + "…"
    assert second == "dog"
    assert third == (len(third) - 1) * "W" + "…"
    assert 9 < len(third) < len(first) < 25  # a W is wider than an a
    assert len(fourth) < 51
    # The labels leave the panel its place, and they fit into theirs.
    figure = figures[0]
    place = figure.axes[0].get_position()
    assert place.width * figure.get_figwidth() == pytest.approx(1.5)
    edges = [label.get_window_extent().x0 for label in figure.axes[0].get_yticklabels()]
    edges += [label.get_window_extent().y0 for label in figure.axes[0].get_xticklabels()]
    assert min(edges) > 0


def test_of_many_tokens_some_are_labelled(tmp_path: Path, figures: list[Any]) -> None:
    tokens = [str(i) for i in range(500)]
    maps = {"encoder": tt.tensor(weights(1, 500, 500))}
    for draw in (attention_means, attention_maps):
        draw(maps, tokens, [], tmp_path / "a.png")
    for figure, every in zip(figures, (8, 19)):
        assert labels(figure.axes, "x")[0] == tokens[::every]
        assert list(figure.axes[0].get_xticks()) == list(range(0, 500, every))
        assert figure.axes[0].get_xlabel() == f"keys: source tokens, 1 in {every} labelled"
        assert max(figure.get_size_inches()) < 10


def test_a_page_of_many_panels_stays_within_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.image import imread

    monkeypatch.setattr(attention, "MOST_PIXELS", 600)
    maps = {f"encoder.blocks.{i}.attention": tt.tensor(weights(1, 12, 12)) for i in range(3)}
    attention_maps(maps, list("abcdefghijkl"), [], tmp_path / "a.png")
    assert 590 <= max(imread(tmp_path / "a.png").shape) <= 600  # it would be 735


def test_of_many_panels_fewer_tokens_are_labelled(tmp_path: Path, figures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = list("abcdefghijkl")
    attention_maps({"encoder": tt.tensor(weights(1, 12, 12))}, tokens, [], tmp_path / "a.png")
    monkeypatch.setattr(attention, "MOST_LABELS", 3)  # a panel, as where there are a thousand
    attention_maps({"encoder": tt.tensor(weights(1, 12, 12))}, tokens, [], tmp_path / "a.png")
    # Not only 3, but as many as FEWEST_LABELS (8) allow at even distances.
    assert [labels(figure.axes, "x")[-1] for figure in figures] == [tokens, list("acegik")]


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


def test_gradients_have_panels_with_the_same_axis(tmp_path: Path, figures: list[Any]) -> None:
    panels = {
        "before training": {"RNN": [1.0, 1e-9, 1e-70], "attention": [1.0, 0.1, 0.1]},
        "after training": {"RNN": [1.0, 0.1, 0.0], "attention": [2.0, 0.1, 5.0]},
    }
    path = tmp_path / "gradients.png"
    gradients_by_distance(panels, path)
    assert [p.name for p in tmp_path.iterdir()] == ["gradients.png"]
    assert [axes.get_title() for axes in figures[0].axes] == list(panels)
    assert {axes.get_yscale() for axes in figures[0].axes} == {"log"}
    assert len({axes.get_ylim() for axes in figures[0].axes}) == 1
    for axes, lines in zip(figures[0].axes, panels.values()):
        assert [line.get_label() for line in axes.get_lines()] == ["RNN", "attention"]
        for line, norms in zip(axes.get_lines(), lines.values()):
            np.testing.assert_array_equal(line.get_ydata(), [norm or np.nan for norm in norms])
            assert list(line.get_xdata()) == [0, 1, 2]
    colors = [[line.get_color() for line in axes.get_lines()] for axes in figures[0].axes]
    assert colors[0] == colors[1]
    assert len(set(colors[0])) == 2
    assert beside(figures[0])


@pytest.mark.parametrize("gpt", [None, 1.75])
def test_losses_by_order_have_their_numbers_inside(tmp_path: Path, figures: list[Any], gpt: float | None) -> None:
    losses = {order: 3.5 - 0.25 * order for order in range(9)}
    path = tmp_path / "losses.png"
    assert loss_by_order(losses, gpt, path, "A $text^") == path
    (axes,) = figures[0].axes
    assert axes.get_title() == "A $text^"
    assert list(axes.lines[0].get_ydata()) == list(losses.values())
    assert [text.get_text() for text in axes.texts] == [f"{loss:.2f}" for loss in losses.values()]
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["Markov, Kneser-Ney"] + ["GPT: 1.75"] * (gpt is not None)
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
    assert capsys.readouterr().out == "(no pictures drawn: they need matplotlib, pip install matplotlib)\n"


def test_matplotlib_is_not_imported_before_it_is_needed() -> None:
    # It is an optional package: a run without it must train all the same.
    program = "import sys, tinyformer.plots; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_why_the_training_loss_may_be_the_higher() -> None:
    assert note_on_losses(0.0) == ""
    assert "measured with label smoothing (0.1), the validation loss without" in note_on_losses(0.0, 0.1)
    assert "measured with dropout (0.2), the validation loss without" in note_on_losses(0.2)
    assert "measured with label smoothing (0.1) and dropout (0.2), the" in note_on_losses(0.2, 0.1)


# ------------------------------------------------------------------------------------------------------------- words


def drawn_map(figures: list[Any], path: Path, points: dict[str, Any], groups: dict[str, list[str]], note: str = "") -> Any:
    word_map(points, groups, note, path)
    figures[-1].set_dpi(130)  # as it was saved: letters are as wide as whole pixels allow
    return figures[-1]


def test_no_label_of_a_map_of_words_covers_another_or_a_point(tmp_path: Path, figures: list[Any]) -> None:
    rng = np.random.default_rng(0)
    names = [f"{'long' * int(rng.integers(1, 4))}{i}" for i in range(90)]
    near = dict(zip(names, rng.normal(0, 1, (90, 2)).tolist()))
    figure = drawn_map(figures, tmp_path / "map.png", near, {"some": names[:50], "others": names[50:]})
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == names
    boxes = [text.get_window_extent() for text in axes.texts]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i]), names[i]
        assert figure.bbox.containsx(box.x0)
        assert figure.bbox.containsx(box.x1)
    dots = [axes.transData.transform(line.get_xydata()[0]) for line in axes.lines if line.get_marker() == "o"]
    assert len(dots) == 90
    for box in boxes:
        assert not any(box.contains(*dot) for dot in dots)


def test_a_map_of_words_has_one_scale_and_the_colors_of_groups(tmp_path: Path, figures: list[Any]) -> None:
    points = {"a": (0, 0), "b": (4, 0), "c": (4, 1), "$x$": (0, 1)}
    figure = drawn_map(figures, tmp_path / "map.png", points, {"one": ["a", "b"], "two": ["c", "$x$"]}, "What it is. " * 30)
    (axes,) = figure.axes
    dots = [line.get_xydata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert np.linalg.norm(dots[0] - dots[1]) == pytest.approx(4 * np.linalg.norm(dots[1] - dots[2]))
    colors = [text.get_color() for text in axes.texts]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    assert axes.texts[3].get_text() == "$x$"
    shown = {text.get_text(): text for text in figure.texts}
    assert {"one", "two"} < shown.keys()
    places = [text.get_window_extent() for text in figure.texts]
    assert all(place.x1 < figure.bbox.x1 for place in places)
    assert not any(place.overlaps(other) for i, place in enumerate(places) for other in places[:i])


def test_labels_without_room_are_counted(tmp_path: Path, figures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "SIZES", (2.0,))
    points = {f"word{i}": (0.0, 0.001 * i) for i in range(60)}
    figure = drawn_map(figures, tmp_path / "map.png", points, {})
    (axes,) = figure.axes
    missing = 60 - len(axes.texts)
    assert 0 < missing < 60
    assert f"{missing} words have no room for a label." in figure.texts[0].get_text().replace("\n", " ")


def test_a_map_of_one_word(tmp_path: Path, figures: list[Any]) -> None:
    (axes,) = drawn_map(figures, tmp_path / "map.png", {"alone": (3.0, 3.0)}, {}).axes
    assert [text.get_text() for text in axes.texts] == ["alone"]


# ------------------------------------------------------------------------------------------------------- recordings


def test_what_was_listened_to_stands_under_the_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MelConfig(8000, 256, 80, 40)
    decibels = np.random.default_rng(0).uniform(-60, 0, (101, 40))  # a second
    weights = np.zeros((2, 3, 26), np.float32)  # a position for every four frames
    weights[0, 0, 5] = weights[1, 0, 5] = weights[0, 1, 9] = 1
    drawn: list[Any] = []
    monkeypatch.setattr(recordings, "save", lambda figure, path, dpi: (drawn.append(figure), save(figure, path, dpi))[1])
    layers = [tt.tensor(weights)] * 2
    path = listening(decibels, config, layers, 4, ["$1", "7", "end"], "it.wav: $x$", tmp_path / "a.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    top, *below = drawn[0].axes
    assert top.get_title(loc="left") == "it.wav: $x$"
    assert len(below) == 2
    for axes in below:
        assert axes.get_xlim() == top.get_xlim() == pytest.approx((-0.005, 1.005))
        assert [label.get_text() for label in axes.get_yticklabels()] == ["$1", "7", "end"]
        (picture,) = axes.get_images()
        shown = picture.get_array()
        assert (shown[0, 5], shown[1, 9], shown.sum()) == (1, 0.5, 1.5)  # the mean over the heads
        left, right, bottom, top_side = picture.get_extent()
        assert left + 5.5 * (right - left) / 26 == pytest.approx(5 * 4 * 80 / 8000)  # the middle of position 5
        assert (bottom, top_side) == (2.5, -0.5)
    frequencies = [float(label.get_text()) for label in top.get_yticklabels()]
    assert 0 < frequencies[0] < 100
    assert 2900 < frequencies[-1] < 4000
    assert frequencies == sorted(frequencies)
