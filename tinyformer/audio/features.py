"""Compute log-mel vectors from samples: the power of each frequency band over time, on a scale similar to hearing.

Each step is one function: split the samples into overlapping frames, apply a window to each frame, take the power of its
Fourier transform, sum the power in bands (mel filters), and take the logarithm. They work on float64 NumPy arrays and match
librosa and torchaudio.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from tinyformer.common.errors import SettingError
from tinyformer.common.settings import at_least, check_fields, one_of
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

LEAST_POWER = 1e-10  # the power of silence, as in librosa and torchaudio
PADDINGS = ("zero", "reflect")


# ---------------------------------------------------------------------------------------------------------- spectrum


def one_row(samples: Any) -> Any:
    """Return samples (length,) as a NumPy array. Raises ValueError unless they are a 1D array of finite values."""
    samples = host.asarray(samples)
    if samples.ndim != 1:
        raise ValueError(f"samples must be one row of finite numbers, got shape {samples.shape}: pass a single channel")
    wrong = len(samples) - int(host.isfinite(samples).sum())
    if wrong:
        raise ValueError(f"samples must be one row of finite numbers, got {wrong:,} of {len(samples):,} NaN or infinite")
    return samples


def hann_window(size: int) -> Any:
    """Return the periodic Hann window (size,): 0.5 - 0.5 cos(2 pi n / size)."""
    return 0.5 - 0.5 * host.cos(2 * host.pi * host.arange(size) / size)


def frames(samples: Any, size: int, hop: int, padding: str = "zero") -> Any:
    """Return a view of samples (length,) as frames (1 + length // hop, size), for an even size. Frame i is centered on sample i
    * hop.

    Frames that extend past the samples are padded with zeros (librosa's default) or, with "reflect", with the samples in
    reverse (torchaudio's default), which needs more than size // 2 samples. Raises ValueError if there are too few.
    """
    half = size // 2
    if not len(samples) or (padding == "reflect" and len(samples) <= half):
        raise ValueError(f"{counted(len(samples), 'sample')} cannot fill frames of {size} with {padding} padding: pass more")
    padded = host.pad(samples, half, mode="reflect" if padding == "reflect" else "constant")
    return host.lib.stride_tricks.sliding_window_view(padded, size)[::hop]


def power_spectrum(samples: Any, size: int, hop: int, padding: str = "zero") -> Any:
    """Return the power of each frequency, k * rate / size, in each frame of samples (length,): (1 + length // hop, size // 2 +
    1). Raises ValueError unless the samples are a 1D array of finite values, long enough for ``frames``."""
    spectrum = host.fft.rfft(frames(one_row(samples).astype(host.float64), size, hop, padding) * hann_window(size))
    return spectrum.real**2 + spectrum.imag**2


# --------------------------------------------------------------------------------------------------------------- mel

# Slaney's scale is linear up to 1000 Hz, or 15 mel, then logarithmic: 27 mel are a factor of 6.4.
_LINEAR, _BREAK_HZ, _BREAK_MEL, _STEP = 200 / 3, 1000.0, 15.0, host.log(6.4) / 27


def _slaney_mel(hz: Any) -> Any:
    return host.where(hz < _BREAK_HZ, hz / _LINEAR, _BREAK_MEL + host.log(host.maximum(hz, 1.0) / _BREAK_HZ) / _STEP)


def _slaney_hz(mel: Any) -> Any:
    return host.where(mel < _BREAK_MEL, mel * _LINEAR, _BREAK_HZ * host.exp((mel - _BREAK_MEL) * _STEP))


def _htk_mel(hz: Any) -> Any:
    return 2595 * host.log10(1 + hz / 700)


def _htk_hz(mel: Any) -> Any:
    return 700 * (10 ** (mel / 2595) - 1)


# Hz to mel and back: Slaney's Auditory Toolbox (1998), and the HTK Book (Young et al. 2006, section 5.4).
SCALES = {"slaney": (_slaney_mel, _slaney_hz), "htk": (_htk_mel, _htk_hz)}


@dataclass(frozen=True)
class MelConfig:
    """Settings of log-mel vectors. Raises SettingError for an invalid value.

    ``rate``: samples per second. ``size`` and ``hop``: frame size and step, in samples. ``lowest`` and ``highest``: frequencies
    in Hz where the first filter starts and the last one ends; 0 is half the rate. ``equal_area``: scale the filters to equal
    area (Slaney) instead of equal height, so that noise is equally strong in all.
    """

    rate: int
    size: int = 400
    hop: int = 160
    num_mels: int = 80
    lowest: float = 0.0
    highest: float = 0.0
    scale: str = "slaney"
    equal_area: bool = True
    padding: str = "zero"

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, rate=2, size=2, hop=1, num_mels=1, lowest=0)
        one_of(self, "scale", SCALES)
        one_of(self, "padding", PADDINGS)
        if not self.lowest < self.top <= self.rate / 2:
            raise SettingError(
                f"highest must be above lowest ({self.lowest:g}) and at most half the rate ({self.rate / 2:g}), "
                f"got {self.highest:g}"
            )

    @property
    def top(self) -> float:
        """The frequency where the last filter ends."""
        return self.highest or self.rate / 2


def filter_corners(config: MelConfig) -> Any:
    """Return the filter corners in Hz (num_mels + 2,), equally spaced in mel. Filter i starts at corner i, peaks at i + 1 and
    ends at i + 2."""
    to_mel, to_hz = SCALES[config.scale]
    first, last = to_mel(host.array([config.lowest, config.top]))
    return to_hz(host.linspace(first, last, config.num_mels + 2))


def mel_filters(config: MelConfig) -> Any:
    """Return the filters (num_mels, size // 2 + 1): triangles over frequency, each from the previous filter's peak to the next
    filter's peak.

    If there are many filters and frames are short, a filter between two transform frequencies is all zero. The filters are
    cached per configuration, and read-only.
    """
    return _mel_filters(config)


@functools.cache
def _mel_filters(config: MelConfig) -> Any:
    corners = filter_corners(config)[:, None]
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    hz = host.arange(config.size // 2 + 1) * (config.rate / config.size)
    filters = host.maximum(0, host.minimum((hz - left) / (middle - left), (right - hz) / (right - middle)))
    if config.equal_area:
        filters *= 2 / (right - left)
    filters.flags.writeable = False
    return filters


def log_mel(samples: Any, config: MelConfig) -> Any:
    """Return the log-mel vectors of samples (length,) in decibels, (1 + length // hop, num_mels) float64: 10 log10 of the power
    in each mel filter, at least LEAST_POWER. Raises ValueError as ``power_spectrum`` does.

    >>> import numpy
    >>> from tinyformer import MelConfig, log_mel
    >>> log_mel(numpy.zeros(16000), MelConfig(rate=16000)).shape
    (101, 80)
    """
    power = power_spectrum(samples, config.size, config.hop, config.padding) @ mel_filters(config).T
    return 10 * host.log10(host.maximum(power, LEAST_POWER))
