"""Log-mel vectors: what each step computes, on sounds whose answer is known."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tinyformer.audio.features import (
    SCALES,
    MelConfig,
    filter_corners,
    frames,
    hann_window,
    log_mel,
    mel_filters,
    power_spectrum,
)
from tinyformer.common.errors import SettingError

RATE = 8000
CONFIG = MelConfig(RATE, 256, 80, 40)


def tone(hz: float, count: int = 4000, height: float = 1.0) -> np.ndarray:
    return height * np.sin(2 * np.pi * hz * np.arange(count) / RATE)


def test_the_window_is_periodic() -> None:
    assert hann_window(4).tolist() == pytest.approx([0, 0.5, 1, 0.5])
    # Shifted by half its length and added to itself, a periodic window gives 1 everywhere.
    assert hann_window(10)[:5] + hann_window(10)[5:] == pytest.approx(np.ones(5))


def test_frames_are_centred() -> None:
    ramp = np.arange(1.0, 8.0)
    assert frames(ramp, 4, 2).tolist() == [[0, 0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 0]]
    assert frames(ramp, 4, 2, "reflect").tolist() == [[3, 2, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 6]]
    for count in (1, 79, 80, 81, 800):
        assert len(frames(np.ones(count), 256, 80)) == 1 + count // 80


def test_too_few_samples() -> None:
    with pytest.raises(ValueError, match="0 samples cannot fill frames"):
        frames(np.zeros(0), 4, 2)
    with pytest.raises(ValueError, match="2 samples cannot fill frames of 4 with reflect padding"):
        frames(np.zeros(2), 4, 2, "reflect")
    assert frames(np.zeros(3), 4, 2, "reflect").shape == (2, 4)


def test_the_power_of_a_tone_is_at_its_frequency() -> None:
    power = power_spectrum(tone(1000), 256, 80)[10:-10]  # frames without padding
    assert power.shape[1] == 129
    assert power[:, 32] == pytest.approx(np.full(len(power), (256 / 4) ** 2))  # the window's sum, and half of the tone's power
    assert power[:, 31] == pytest.approx(power[:, 32] / 4)
    assert power[:, [0, 20, 29, 35, 128]] == pytest.approx(0, abs=1e-18)


@pytest.mark.parametrize(("scale", "hz", "mel"), [("slaney", 500, 7.5), ("slaney", 6400, 42), ("htk", 700, 781.1728387)])
def test_scales(scale: str, hz: float, mel: float) -> None:
    to_mel, to_hz = SCALES[scale]
    assert to_mel(np.array([hz, 0.0])) == pytest.approx([mel, 0.0])
    many = np.linspace(0, 20_000, 401)
    assert to_hz(to_mel(many)) == pytest.approx(many)


@pytest.mark.parametrize("scale", SCALES)
def test_filters_are_triangles_that_add_up_to_one(scale: str) -> None:
    config = dataclasses.replace(CONFIG, size=2048, scale=scale, equal_area=False)
    filters = mel_filters(config)
    assert filters.shape == (40, 1025)
    assert 0.9 < filters.max(axis=1).min() <= filters.max() <= 1
    first, last = filters.argmax(axis=1)[[0, -1]]
    assert filters.sum(axis=0)[first : last + 1] == pytest.approx(1)
    areas = mel_filters(dataclasses.replace(config, equal_area=True)).sum(axis=1) * RATE / 2048
    assert areas == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("scale", SCALES)
def test_filters_start_and_end_at_the_given_frequencies(scale: str) -> None:
    config = MelConfig(RATE, 512, 128, 10, lowest=500, highest=2000, scale=scale)
    corners = filter_corners(config)
    assert corners[[0, -1]] == pytest.approx([500, 2000])
    assert np.diff(SCALES[scale][0](corners), 2) == pytest.approx(0, abs=1e-9)
    hz = np.arange(257) * RATE / 512
    for row, begin, middle, end in zip(mel_filters(config), corners, corners[1:], corners[2:]):
        assert ((row > 0) == ((hz > begin) & (hz < end))).all()
        assert abs(hz[row.argmax()] - middle) < RATE / 512


def test_filters_are_shared_and_cannot_be_changed() -> None:
    assert mel_filters(CONFIG) is mel_filters(dataclasses.replace(CONFIG))
    with pytest.raises(ValueError, match="read-only"):
        mel_filters(CONFIG)[0] = 1


def test_decibels() -> None:
    loud, soft = log_mel(tone(770), CONFIG), log_mel(tone(770, height=0.01), CONFIG)
    assert loud.shape == (51, 40)
    assert (loud - soft)[soft > -60] == pytest.approx(40)
    assert log_mel(np.zeros(100), CONFIG) == pytest.approx(np.full((2, 40), -100.0))
    assert log_mel(tone(770).astype(np.float32), CONFIG).dtype == np.float64


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (np.zeros((100, 2)), r"one row of finite numbers, got shape \(100, 2\): pass a single channel"),
        (np.array([0.0, np.nan, np.inf, 0.1]), "one row of finite numbers, got 2 of 4 NaN or infinite"),
        ([], "0 samples cannot fill frames"),
    ],
)
def test_samples_that_have_no_spectrum(samples: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        log_mel(samples, CONFIG)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 1}, "rate must be at least 2, got 1"),
        ({"size": 1}, "size must be at least 2, got 1"),
        ({"hop": 0}, "hop must be at least 1, got 0"),
        ({"num_mels": 0}, "num_mels must be at least 1, got 0"),
        ({"lowest": -1.0}, "lowest must be at least 0, got -1.0"),
        ({"lowest": 4000.0}, "highest must be above lowest .4000. and at most half the rate .4000., got 0"),
        ({"highest": 4001.0}, "at most half the rate .4000., got 4001"),
        ({"scale": "bark"}, "scale must be one of slaney, htk, got 'bark'"),
        ({"padding": "edge"}, "padding must be one of zero, reflect, got 'edge'"),
        ({"rate": 8000.5}, "rate must be an integer"),
    ],
)
def test_mistakes(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        dataclasses.replace(CONFIG, **changes)
