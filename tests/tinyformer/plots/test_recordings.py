"""What a network listened to, under the sound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.audio.features import MelConfig
from tinyformer.plots import attention, listening
from tinyformer.plots.drawing import save

pytest.importorskip("matplotlib")


def test_what_was_listened_to_stands_under_the_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = MelConfig(8000, 256, 80, 40)
    decibels = np.random.default_rng(0).uniform(-60, 0, (101, 40))  # a second
    weights = np.zeros((2, 3, 26), np.float32)  # a position for every four frames
    weights[0, 0, 5] = weights[1, 0, 5] = weights[0, 1, 9] = 1
    drawn: list[Any] = []
    monkeypatch.setattr(attention, "save", lambda figure, path, dpi: (drawn.append(figure), save(figure, path, dpi))[1])
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
