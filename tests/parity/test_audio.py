"""Log-mel vectors beside librosa's and torchaudio's: the same filters, powers and decibels from the same samples.

In float64 all three agree almost to the last digit. torchaudio's filters are of float32 unless PyTorch's default is float64.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import librosa
import numpy as np
import pytest
import torch

from tinyformer.audio.features import MelConfig, hann_window, log_mel, power_spectrum

# What is used of torchaudio is Python. Its compiled extension fits only the PyTorch that it was built with, often one with
# CUDA, and importing torchaudio fails where it does not fit: so it is left out.
extension: Any = types.ModuleType("torchaudio._extension")
extension.fail_if_no_align = lambda function: function
extension._IS_TORCHAUDIO_EXT_AVAILABLE = False
sys.modules.setdefault("torchaudio._extension", extension)

import torchaudio  # noqa: E402

RATES = {8000: (256, 80, 40), 16000: (400, 160, 40), 22050: (2048, 512, 128), 44100: (1024, 441, 64)}
CONFIGS = [
    MelConfig(rate, size, hop, num_mels, lowest, highest, scale, equal_area, padding)
    for rate, (size, hop, num_mels) in RATES.items()
    for lowest, highest in ((0.0, 0.0), (133.3, 3400.0))
    for scale in ("slaney", "htk")
    for equal_area in (True, False)
    for padding in ("zero", "reflect")
]
each_config = pytest.mark.parametrize(
    "config", CONFIGS, ids=lambda c: f"{c.rate}-{c.top:g}-{c.scale}-{c.equal_area}-{c.padding}"
)


def sound(rate: int) -> np.ndarray:
    """A second and a bit: a gliding tone, steps in loudness, some noise, and some silence."""
    rng = np.random.default_rng(0)
    seconds = np.arange(int(1.1 * rate)) / rate
    glide = np.sin(2 * np.pi * (200 * seconds + 1400 * seconds**2))
    noise = rng.standard_normal(len(seconds))
    return np.where(seconds < 0.9, np.floor(4 * seconds) / 4 * glide + 0.01 * noise, 0.0)


def librosas(config: MelConfig, samples: np.ndarray) -> np.ndarray:
    power = librosa.feature.melspectrogram(
        y=samples,
        sr=config.rate,
        n_fft=config.size,
        hop_length=config.hop,
        n_mels=config.num_mels,
        fmin=config.lowest,
        fmax=config.top,
        htk=config.scale == "htk",
        norm="slaney" if config.equal_area else None,
        pad_mode="constant" if config.padding == "zero" else "reflect",
        dtype=np.float64,
    )
    return librosa.power_to_db(power, top_db=None).T


def torchaudios(config: MelConfig, samples: np.ndarray) -> np.ndarray:
    power = torchaudio.transforms.MelSpectrogram(
        config.rate,
        config.size,
        hop_length=config.hop,
        f_min=config.lowest,
        f_max=config.top,
        n_mels=config.num_mels,
        norm="slaney" if config.equal_area else None,
        mel_scale=config.scale,
        pad_mode="constant" if config.padding == "zero" else "reflect",
    )
    return torchaudio.transforms.AmplitudeToDB("power")(power(torch.tensor(samples))).numpy().T


@contextmanager
def float64_by_default() -> Iterator[None]:
    """torchaudio makes its window and its filters of PyTorch's default dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@each_config
def test_decibels(config: MelConfig) -> None:
    samples = sound(config.rate)
    ours = log_mel(samples, config)
    np.testing.assert_allclose(ours, librosas(config, samples), rtol=0, atol=1e-9)
    with float64_by_default():
        np.testing.assert_allclose(ours, torchaudios(config, samples), rtol=0, atol=1e-9)


@each_config
def test_samples_of_float32(config: MelConfig) -> None:
    samples = sound(config.rate).astype(np.float32)
    ours = log_mel(samples, config)
    np.testing.assert_allclose(ours, librosas(config, samples), rtol=0, atol=1e-5)
    # torchaudio's transform and filters are of float32, too: weak bands beside a strong one get its rounding errors.
    power, theirs = 10 ** (ours / 10), 10 ** (torchaudios(config, samples) / 10)
    np.testing.assert_allclose(power, theirs, rtol=0, atol=1e-5 * theirs.max())


def test_frames_of_odd_size() -> None:
    """torchaudio is left out: it takes half the rate for the last frequency of an odd size, too, which is a little lower."""
    config = MelConfig(44100, 1023, 441, 64)
    np.testing.assert_allclose(log_mel(sound(44100), config), librosas(config, sound(44100)), rtol=0, atol=1e-9)


def test_windows_and_spectra() -> None:
    for size in (256, 400, 1023):
        np.testing.assert_allclose(hann_window(size), librosa.filters.get_window("hann", size), rtol=0, atol=1e-15)
        np.testing.assert_allclose(hann_window(size), torch.hann_window(size, dtype=torch.float64).numpy(), rtol=0, atol=1e-15)
        theirs = np.abs(librosa.stft(sound(8000), n_fft=size, hop_length=80, dtype=np.complex128)) ** 2
        np.testing.assert_allclose(power_spectrum(sound(8000), size, 80), theirs.T, rtol=1e-9, atol=1e-12)
