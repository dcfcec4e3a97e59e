"""Telephone keys as sounds: random synthetic recordings, some without keys, and the keys pressed.

Each telephone key sounds as two tones, one for its row and one for its column (ITU-T Q.23). A network must learn to ignore
noise, chords and speech-like sounds.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tinyformer.audio.features import MelConfig, log_mel
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.settings import at_least, check_counts, check_fields, setting
from tinyformer.data.batches import check_batch_fits
from tinyformer.data.pairs import Specials, VectorPair, VectorPairBatch, vector_pair_batch
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

KEYS = "0123456789*#"  # a key's id is its index here
SPECIALS = Specials(pad=12, start=13, end=14)
VOCAB_SIZE = 15
ROWS = {"123": 697, "456": 770, "789": 852, "*0#": 941}  # Hz
COLUMNS = {"147*": 1209, "2580": 1336, "369#": 1477}

RATE = 8000  # samples per second, as on the telephone
MEL = MelConfig(RATE, size=256, hop=80, num_mels=40)  # one vector per 10 ms
RANGE = 60.0  # decibels below the loudest vector; anything quieter is silence

SHORTEST, QUICK, LONGEST = 0.05, 0.2, 2.0  # seconds of a key, and of the silence after it, depending on the tempo
SLOW = 0.4  # fraction of tones, and of silences, that may exceed QUICK
UNEVEN = 0.2  # maximum relative variation of a single key or silence
PAUSE = 1.0  # maximum extra pause, in seconds, in one of the silences
ENDS = (0.05, 1.0)  # seconds before the first key and after the last
FADE = 0.004  # seconds of a tone's fade-in and fade-out
PITCH = 0.015  # maximum relative pitch shift of a recording
TWIST = 4.0  # maximum level difference between a key's two tones, in decibels
LEVEL = (-40.0, -6.0)  # of the louder tone, in decibels relative to full scale
CLEANEST = 30.0  # maximum signal-to-noise ratio in decibels, if there is noise
CLEAN = 0.2  # fraction of recordings without noise
NO_KEYS = 0.15  # fraction of recordings without keys
NOT_A_KEY = 0.04  # minimum relative distance of a chord's frequencies from a key's
AGAIN = 0.25  # fraction of keys that repeat the previous one
LONGEST_NUMBER = 100  # keys; a longer recording would take minutes
VALIDATION_RECORDINGS = 300
POOLED = 16  # batches generated together, so that each has recordings of similar length


@dataclass(frozen=True)
class DialTask:
    """Settings of the task. Raises SettingError for an invalid value."""

    fewest: int = setting(3, "minimum number of keys")
    most: int = setting(12, "maximum number of keys")
    snr: float = setting(0.0, "minimum signal-to-noise ratio, in decibels")

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, fewest=1, most=1)
        if self.most < self.fewest:
            raise SettingError(f"most must be at least fewest, {self.fewest}, got {self.most}", "most", "fewest")
        if self.most > LONGEST_NUMBER:
            raise SettingError(f"most must be at most {LONGEST_NUMBER}, got {self.most}")
        if not -CLEANEST <= self.snr <= CLEANEST:
            raise SettingError(f"snr must be from -{CLEANEST:g} to {CLEANEST:g}, got {self.snr:g}")


# -------------------------------------------------------------------------------------------------------- recordings


def dial(keys: str, rng: Any, snr: float | None = None) -> Any:
    """Synthesize a recording of these keys: samples (length,), float32, from -1 to 1, at RATE per second.

    Tempo, pitch and level are random (``rng``). ``snr`` is the power of the tones, while they sound, relative to white noise,
    in decibels (None: no noise). Raises UserError for an unknown key or too many keys.
    """
    check_keys(keys)
    (tone, gap), speed = _tempo(len(keys), rng), 1 + rng.uniform(-PITCH, PITCH)
    level, twist = 10 ** (rng.uniform(*LEVEL) / 20), rng.uniform(-TWIST, TWIST)
    heights = level * 10 ** (min(twist, 0) / 20), level * 10 ** (-max(twist, 0) / 20)  # of the row tone and the column tone
    parts = [_silence(rng.uniform(*ENDS))]
    paused = rng.integers(0, 2 * len(keys))  # every other recording has a pause
    for place, key in enumerate(keys):
        count = round(RATE * tone * _uneven(rng))
        parts.append(_fade(count) * sum(h * _sine(hz * speed, count, rng) for h, hz in zip(heights, frequencies(key))))
        parts.append(_silence(gap * _uneven(rng) + (rng.uniform(0, PAUSE) if place == paused else 0.0)))
    parts[-1] = _silence(rng.uniform(*ENDS))
    samples = host.concatenate(parts)
    if snr is not None:
        power = (heights[0] ** 2 + heights[1] ** 2) / 2
        samples += rng.standard_normal(len(samples)) * (power * 10 ** (-snr / 10)) ** 0.5
    return (samples / max(host.abs(samples).max(), 1.0)).astype(host.float32)


def other_sound(rng: Any) -> Any:
    """Synthesize a recording without keys: silence, noise, chords or speech-like sounds, plus noise. Samples as in ``dial``."""
    seconds = rng.uniform(0.3, 6.0)
    make = (noise, partial(chords, is_key=_is_key), speech)[rng.integers(0, 3)]
    samples = make(seconds, RATE, rng)
    if rng.random() < 0.05:
        samples *= 0
    power = (samples**2).mean()
    if rng.random() >= CLEAN and power:
        samples = samples + rng.standard_normal(len(samples)) * (power * 10 ** (-rng.uniform(0.0, CLEANEST) / 10)) ** 0.5
    level = 10 ** (rng.uniform(*LEVEL) / 20)
    return (samples * level / max(host.abs(samples).max(), 1e-9)).astype(host.float32)


def _is_key(hz: Any) -> bool:
    """Return True if frequencies may be those of a key."""
    near = [any(abs(hz / tone - 1).min() < NOT_A_KEY for tone in tones.values()) for tones in (ROWS, COLUMNS)]
    return all(near)


def _most_seconds(keys: int) -> float:
    """Return the maximum duration of this many keys, with the silences after them. Long numbers are dialed quickly."""
    return max(10.0, 0.4 * keys)


def _tempo(keys: int, rng: Any) -> tuple[float, float]:
    """Return the seconds of a key, and of the silence after it."""
    while True:
        longest = [LONGEST if rng.random() < SLOW else QUICK for _ in range(2)]
        tone, gap = (math.exp(rng.uniform(math.log(SHORTEST), math.log(most))) for most in longest)
        if keys * (tone + gap) <= _most_seconds(keys):
            return tone, gap


def frequencies(key: str) -> tuple[int, int]:
    """Return the frequencies of a key's two tones in Hz."""
    (row,) = (hz for keys, hz in ROWS.items() if key in keys)
    (column,) = (hz for keys, hz in COLUMNS.items() if key in keys)
    return row, column


def check_keys(keys: str) -> None:
    """Raise UserError unless there are 1 to LONGEST_NUMBER keys, all on a telephone."""
    wrong = sorted(set(keys) - set(KEYS))
    if wrong or not keys:
        raise UserError(f"there is no key {wrong[0]!r}: use {KEYS}" if wrong else f"no keys are given: use {KEYS}")
    if len(keys) > LONGEST_NUMBER:
        raise UserError(f"the number has {counted(len(keys), 'key')}: choose at most {LONGEST_NUMBER}")


def _sine(hz: float, count: int, rng: Any) -> Any:
    return host.sin(2 * host.pi * (hz / RATE * host.arange(count) + rng.random()))


def _silence(seconds: float) -> Any:
    return host.zeros(round(RATE * seconds))


def _uneven(rng: Any) -> float:
    return float(1 + rng.uniform(-UNEVEN, UNEVEN))


def _fade(count: int) -> Any:
    """Return a factor for each sample of a tone that avoids clicks at its start and end."""
    distance = host.minimum(host.arange(1, count + 1), host.arange(count, 0, -1))  # from the nearer end
    return host.minimum(distance / (RATE * FADE), 1.0)


def features(samples: Any) -> Any:
    """Compute a recording's network input: log-mel vectors (frames, 40), float32, with mean 0 and standard deviation 1.

    The input does not depend on the recording's level. Anything more than RANGE decibels below its maximum is silence.
    """
    decibels = log_mel(samples, MEL)
    decibels = host.maximum(decibels, decibels.max() - RANGE)
    return ((decibels - decibels.mean()) / max(decibels.std(), 1e-3)).astype(host.float32)


def random_keys(task: DialTask, rng: Any) -> str:
    """Return a number of random length. Keys often repeat, since repeats are the hardest to count."""
    count = rng.integers(task.fewest, task.most + 1)
    drawn, again = rng.integers(0, len(KEYS), count), rng.random(count) < AGAIN
    for i in range(1, count):
        drawn[i] = drawn[i - 1] if again[i] else drawn[i]
    return "".join(KEYS[i] for i in drawn)


def ids_of(keys: str) -> list[int]:
    """Return the id of each key."""
    return [KEYS.index(key) for key in keys]


def keys_of(ids: Sequence[int]) -> str:
    """Return the keys for these ids, skipping special tokens."""
    return "".join(KEYS[i] for i in ids if i < len(KEYS))


# ----------------------------------------------------------------------------------------------------------- batches


class DialBatches:
    """Batches of new recordings, some without noise. The validation recordings never change.

    Raises SettingError if a batch does not fit in memory.
    """

    def __init__(self, task: DialTask, batch_size: int, seed: int = 0):
        check_counts(batch_size=batch_size)
        check_batch_fits(POOLED * int(batch_size), MEL.num_mels * int(task.fewest))
        self.task = task
        self.batch_size = batch_size
        self.seed = seed
        self._rng = host.random.default_rng(seed)
        self._before = dict(self._rng.bit_generator.state)  # the state before generating the pool
        self._pool: list[list[VectorPair]] = []
        self._place = 0

    def sample(self) -> VectorPairBatch:
        """Return the next training batch."""
        if self._place == len(self._pool):
            self._draw_pool()
        self._place += 1
        return vector_pair_batch(self._pool[self._place - 1], SPECIALS)

    def largest_batch(self) -> int:
        """Return a lower bound on the number of vectors and tokens in the largest training batch."""
        return int(self.batch_size) * int(self.task.fewest)

    def _draw_pool(self) -> None:
        """Generate the recordings of several batches, sort them by length, and shuffle the batches."""
        self._before = dict(self._rng.bit_generator.state)
        pairs = sorted((self._pair(self._rng) for _ in range(POOLED * self.batch_size)), key=lambda pair: len(pair[0]))
        order = self._rng.permutation(POOLED) * self.batch_size
        self._pool = [pairs[first : first + self.batch_size] for first in order.tolist()]
        self._place = 0

    def _pair(self, rng: Any) -> VectorPair:
        if rng.random() < NO_KEYS:
            return features(other_sound(rng)), []
        keys = random_keys(self.task, rng)
        snr = None if rng.random() < CLEAN else rng.uniform(self.task.snr, CLEANEST)
        return features(dial(keys, rng, snr)), ids_of(keys)

    def validation_batches(self) -> Iterator[VectorPairBatch]:
        """Iterate over the validation recordings in batches, sorted by length."""
        rng = host.random.default_rng([self.seed, 1])  # a different random stream than in training
        pairs = sorted((self._pair(rng) for _ in range(VALIDATION_RECORDINGS)), key=lambda pair: len(pair[0]))
        for first in range(0, len(pairs), self.batch_size):
            yield vector_pair_batch(pairs[first : first + self.batch_size], SPECIALS)

    def get_state(self) -> dict[str, Any]:
        """Return the JSON-serializable state of ``sample``."""
        return {"before": copy.deepcopy(self._before), "place": self._place, "batch_size": self.batch_size}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by ``get_state``. If its batch size differs, regenerate the pool, which starts with some of
        the same recordings. Raises KeyError, TypeError or ValueError for an invalid state."""
        self._rng.bit_generator.state = self._before = copy.deepcopy(state["before"])
        self._pool, self._place = [], 0
        place = state["place"]
        if type(place) is not int or not 0 <= place <= POOLED:
            raise ValueError(f"its batches cannot be at place {place!r} of {POOLED}")
        if place and state["batch_size"] == self.batch_size:
            self._draw_pool()
            self._place = place


# -------------------------------------------------------------------------------------------- other sounds

# Each is an array of samples (length,), at ``rate`` per second, of any level.
FRAME = 0.01  # seconds between changes in the loudness of harmonics
SYLLABLE = (0.1, 0.3)  # seconds
VOICE_PITCH = (80.0, 250.0)  # Hz, of voices
FORMANTS = ((250.0, 850.0), (800.0, 2300.0), (2200.0, 3200.0))  # Hz; vowels are loud at these frequencies
WIDTH = 120.0  # Hz, of a formant


def noise(seconds: float, rate: int, rng: Any) -> Any:
    """Return white noise, or brown noise, which falls off toward high frequencies."""
    white = rng.standard_normal(round(rate * seconds))
    if rng.random() < 0.5:
        return white
    brown = host.cumsum(white)
    window = max(1, rate // 50)  # below 50 Hz, it would drift away
    return brown - host.convolve(brown, host.full(window, 1 / window), "same")


def chords(seconds: float, rate: int, rng: Any, is_key: Callable[[Any], bool]) -> Any:
    """Return one to eight notes or chords in sequence, each of one to five tones with overtones. ``is_key`` is false for the
    frequencies of every chord."""
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
    """Return speech-like sounds: syllables of a voice with gliding pitch and vowels, hisses between them, and pauses.

    A voice is the sum of its pitch's harmonics. A harmonic is loud near a formant.
    """
    frames = max(2, round(seconds / FRAME))
    pitch = _glide(frames, rng, *VOICE_PITCH) * host.exp(0.05 * rng.standard_normal())
    voiced = _glide(frames, rng, 0.0, 1.0) * (_glide(frames, rng, -1.0, 2.0) > 0)
    hiss = _glide(frames, rng, 0.0, 0.5) * (_glide(frames, rng, -2.0, 1.0) > 0)
    formants = [_glide(frames, rng, *span) for span in FORMANTS]
    per_frame = round(rate * FRAME)
    phase = 2 * host.pi * host.cumsum(host.repeat(pitch, per_frame)) / rate
    sound = host.repeat(hiss, per_frame) * rng.standard_normal(frames * per_frame)
    once = host.exp(1j * phase)
    turning = host.ones(len(phase), complex)
    for k in range(1, int(0.45 * rate / VOICE_PITCH[0])):
        turning *= once  # the imaginary part is the sine of k * phase
        gain = sum(host.exp(-0.5 * ((k * pitch - formant) / WIDTH) ** 2) for formant in formants)
        sound += host.repeat(voiced * gain * (k * pitch < 0.45 * rate), per_frame) * turning.imag
    return sound


def _glide(frames: int, rng: Any, low: float, high: float) -> Any:
    """Return a value per frame that glides from one random value to the next over one syllable."""
    count = max(2, int(frames * FRAME / SYLLABLE[0]) + 2)
    times = host.cumsum(rng.uniform(*SYLLABLE, count)) / FRAME
    return host.interp(host.arange(frames), times - times[0], rng.uniform(low, high, count))


def _cut(seconds: float, rate: int, parts: int, rng: Any) -> list[int]:
    """Return the lengths of this many random pieces, in samples."""
    shares = rng.uniform(0.2, 1.0, parts)
    return [int(length) for length in host.maximum(1, seconds * rate * shares / shares.sum())]
