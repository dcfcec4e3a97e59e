"""Maps of attention weights: each in its place, with the labels of its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.plots import alignments, attention, attention_maps, attention_means
from tinyformer.training.translation import Attended

pytest.importorskip("matplotlib")


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


def test_the_mean_over_the_heads_has_its_own_page(tmp_path: Path, figures: list[Any]) -> None:
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
    assert "the mean over the heads of a decoder layer" in heading
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
