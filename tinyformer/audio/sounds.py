"""Sounds that are no telephone keys, which a network must learn to leave alone: noise, chords, and what sounds like speech.

Each is an array of samples (length,), ``rate`` a second, of any level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tinytensor.device.backend import host

FRAME = 0.01  # seconds after which the loudness of harmonics changes
SYLLABLE = (0.1, 0.3)  # seconds
PITCH = (80.0, 250.0)  # Hz, of voices
FORMANTS = ((250.0, 850.0), (800.0, 2300.0), (2200.0, 3200.0))  # Hz, where vowels are loud
WIDTH = 120.0  # Hz, of a formant


def noise(seconds: float, rate: int, rng: Any) -> Any:
    """White noise, or brown noise, which falls towards high frequencies."""
    white = rng.standard_normal(round(rate * seconds))
    if rng.random() < 0.5:
        return white
    brown = host.cumsum(white)
    window = max(1, rate // 50)  # below 50 Hz it would drift away
    return brown - host.convolve(brown, host.full(window, 1 / window), "same")


def chords(seconds: float, rate: int, rng: Any, is_key: Callable[[Any], bool]) -> Any:
    """One to eight notes or chords, one after the other, each of one to five tones with overtones. No chord has frequencies for
    which ``is_key`` is true."""
    parts = []
    for length in _cut(seconds, rate, rng.integers(1, 9), rng):
        frequencies = host.exp(rng.uniform(host.log(100), host.log(0.45 * rate), rng.integers(1, 6)))
        while is_key(frequencies):
            frequencies *= 1.1
        overtones = rng.integers(1, 5)
        count = round(length * rng.uniform(0.5, 1.0))
        sound = host.zeros(length)
        for hz in frequencies[frequencies < 0.48 * rate]:
            for k in range(1, overtones + 1):
                if k * hz < 0.48 * rate:
                    sound[:count] += (
                        rng.random() / k * host.sin(2 * host.pi * (k * hz / rate * host.arange(count) + rng.random()))
                    )
        parts.append(sound)
    return host.concatenate(parts)


def speech(seconds: float, rate: int, rng: Any) -> Any:
    """What sounds like speech: syllables of a voice whose pitch and vowels glide, hisses between them, and pauses.

    A voice is the sum of its pitch's harmonics, and a harmonic is loud where it lies near a formant.
    """
    frames = max(2, round(seconds / FRAME))
    pitch = _glide(frames, rng, *PITCH) * host.exp(0.05 * rng.standard_normal())
    voiced = _glide(frames, rng, 0.0, 1.0) * (_glide(frames, rng, -1.0, 2.0) > 0)
    hiss = _glide(frames, rng, 0.0, 0.5) * (_glide(frames, rng, -2.0, 1.0) > 0)
    formants = [_glide(frames, rng, *span) for span in FORMANTS]
    per_frame = round(rate * FRAME)
    phase = 2 * host.pi * host.cumsum(host.repeat(pitch, per_frame)) / rate
    sound = host.repeat(hiss, per_frame) * rng.standard_normal(frames * per_frame)
    once = host.exp(1j * phase)
    turning = host.ones(len(phase), complex)
    for k in range(1, int(0.45 * rate / PITCH[0])):
        turning *= once  # the sine of k * phase is its imaginary part
        gain = sum(host.exp(-0.5 * ((k * pitch - formant) / WIDTH) ** 2) for formant in formants)
        sound += host.repeat(voiced * gain * (k * pitch < 0.45 * rate), per_frame) * turning.imag
    return sound


def _glide(frames: int, rng: Any, low: float, high: float) -> Any:
    """A value for each frame, which glides from one random value to the next, a syllable later."""
    count = max(2, int(frames * FRAME / SYLLABLE[0]) + 2)
    times = host.cumsum(rng.uniform(*SYLLABLE, count)) / FRAME
    return host.interp(host.arange(frames), times - times[0], rng.uniform(low, high, count))


def _cut(seconds: float, rate: int, parts: int, rng: Any) -> list[int]:
    """The lengths of so many random parts, in samples."""
    shares = rng.uniform(0.2, 1.0, parts)
    return [int(length) for length in host.maximum(1, seconds * rate * shares / shares.sum())]
