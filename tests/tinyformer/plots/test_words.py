"""Maps of words: no label covers another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tinyformer.plots import word_map, words

pytest.importorskip("matplotlib")


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


def test_the_names_of_many_groups_are_not_cut(tmp_path: Path, figures: list[Any]) -> None:
    groups = {f"the group of number {i}": [f"word{i}"] for i in range(9)}
    figure = drawn_map(figures, tmp_path / "map.png", {f"word{i}": (i, i % 4) for i in range(9)}, groups)
    shown = [text for text in figure.texts if text.get_text() in groups]
    assert len(shown) == 9
    places = [text.get_window_extent() for text in shown]
    assert all(place.x1 < figure.bbox.x1 for place in places)
    assert not any(place.overlaps(other) for i, place in enumerate(places) for other in places[:i])


def test_labels_without_room_are_counted(tmp_path: Path, figures: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "SIZES", (2.0,))
    points = {f"word{i}": (0.0, 0.001 * i) for i in range(60)}
    figure = drawn_map(figures, tmp_path / "map.png", points, {})
    (axes,) = figure.axes
    missing = 60 - len(axes.texts)
    assert 0 < missing < 60
    assert f"No room for the label of {missing} words." in figure.texts[0].get_text().replace("\n", " ")


def test_a_map_of_one_word(tmp_path: Path, figures: list[Any]) -> None:
    (axes,) = drawn_map(figures, tmp_path / "map.png", {"alone": (3.0, 3.0)}, {}).axes
    assert [text.get_text() for text in axes.texts] == ["alone"]
