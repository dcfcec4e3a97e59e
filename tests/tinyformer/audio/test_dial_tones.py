"""Recordings of telephone keys: that they sound as they should, and how batches are drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tinyformer.audio import dial_tones
from tinyformer.audio.dial_tones import (
    KEYS,
    LONGEST_NUMBER,
    MEL,
    PITCH,
    POOLED,
    RATE,
    SPECIALS,
    VOCAB_SIZE,
    DialBatches,
    DialTask,
    dial,
    features,
    frequencies,
    ids_of,
    keys_of,
    random_keys,
)
from tinyformer.audio.features import power_spectrum
from tinyformer.common.errors import SettingError, UserError
from tinyformer.data.pairs import VectorPairBatch

TASK = DialTask(fewest=1, most=3)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# -------------------------------------------------------------------------------------------------------- recordings


def test_every_key_has_its_own_pair_of_frequencies() -> None:
    assert frequencies("1") == (697, 1209)
    assert frequencies("0") == (941, 1336)
    assert frequencies("#") == (941, 1477)
    assert len({frequencies(key) for key in KEYS}) == len(KEYS) == 12


@pytest.mark.parametrize("key", KEYS)
def test_both_tones_of_a_key_are_heard_and_nothing_else(key: str) -> None:
    samples = dial(key, rng())
    size = 2048  # a frame that is longer than the key
    power = power_spectrum(samples, size, 100).sum(axis=0)
    hz = np.arange(len(power)) * RATE / size
    near = np.zeros(len(hz), bool)
    for frequency in frequencies(key):
        own = np.abs(hz - frequency) < PITCH * frequency + 25
        assert power[own].sum() > 0.2 * power.sum()
        near |= own
    assert power[near].sum() > 0.95 * power.sum()


def test_recordings_differ_in_tempo_and_level_and_repeat_with_a_seed() -> None:
    many = [dial("55", rng(seed)) for seed in range(200)]
    lengths, levels = [len(samples) / RATE for samples in many], [np.abs(samples).max() for samples in many]
    assert 0.2 < min(lengths) < 0.8
    assert 5.0 < max(lengths) < 11.0
    assert np.mean(np.array(lengths) < 2.0) > 0.5
    assert min(levels) < 0.03
    assert 0.5 < max(levels) <= 1.0
    assert many[3].tobytes() == dial("55", rng(3)).tobytes()
    assert many[0].dtype == np.float32


def test_a_key_pressed_twice_is_heard_twice() -> None:
    for seed in range(50):
        loud = np.abs(dial("77", rng(seed))) > 0
        (changes,) = np.nonzero(np.diff(np.convolve(loud, np.ones(40)) > 0))
        assert len(changes) == 4  # from silence to sound and back, twice


@pytest.mark.parametrize("snr", [20.0, 0.0, -10.0])
def test_noise_has_the_given_strength(snr: float) -> None:
    for seed in range(5):
        clean, noisy = dial("1234567890", rng(seed)), dial("1234567890", rng(seed), snr).astype(float)
        scale = noisy @ clean / (clean @ clean)  # a recording that would be too loud is made softer
        noise = noisy / scale - clean
        sounds = np.convolve(np.abs(clean) > 0, np.ones(40), "same") > 0
        measured = 10 * np.log10(np.mean(clean[sounds].astype(float) ** 2) / np.mean(noise**2))
        assert measured == pytest.approx(snr, abs=1.5)
        assert np.abs(noisy).max() <= 1


def test_other_sounds_have_no_keys_and_differ() -> None:
    many = [dial_tones.other_sound(rng(seed)) for seed in range(60)]
    for samples in many:
        assert samples.dtype == np.float32 and np.abs(samples).max() <= 1
        assert np.isfinite(features(samples)).all()
    assert len({samples.tobytes() for samples in many}) > 50
    assert sum(not samples.any() for samples in many) < 10
    assert min(map(len, many)) / RATE >= 0.25 and max(map(len, many)) / RATE < 6.5
    assert many[7].tobytes() == dial_tones.other_sound(rng(7)).tobytes()


def test_no_chord_is_a_key() -> None:
    for seed in range(40):
        chord = dial_tones.chords(1.0, RATE, rng(seed), dial_tones._is_key)
        assert len(chord) > 0.9 * RATE
    assert dial_tones._is_key(np.array([500.0, 700.0, 1210.0])) and not dial_tones._is_key(np.array([697.0, 1000.0]))


def test_speech_has_syllables_and_harmonics() -> None:
    voice = dial_tones.speech(6.0, RATE, rng(3))
    loud = np.abs(voice[: 6 * RATE]).reshape(-1, 400).mean(axis=1)
    assert loud.max() > 5 * np.quantile(loud, 0.2)  # pauses
    power = power_spectrum(voice, 1024, 512).max(axis=0)
    assert power[:200].max() > 5 * np.median(power)


def test_features_do_not_depend_on_the_level() -> None:
    samples = dial("123", rng(), 10.0)
    found = features(samples)
    assert found.shape == (1 + len(samples) // MEL.hop, MEL.num_mels)
    assert found.dtype == np.float32
    assert found.mean() == pytest.approx(0, abs=1e-5)
    assert found.std() == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(features(samples / 8), found, rtol=1e-4, atol=1e-4)
    assert (features(np.zeros(1000)) == 0).all()


def test_ids_and_keys() -> None:
    assert ids_of("0*9#") == [0, 10, 9, 11]
    assert keys_of([SPECIALS.start, *ids_of("0*9#"), SPECIALS.end, SPECIALS.pad]) == "0*9#"
    assert {*ids_of(KEYS), SPECIALS.pad, SPECIALS.start, SPECIALS.end} == set(range(VOCAB_SIZE))
    lengths = [len(random_keys(DialTask(), rng(seed))) for seed in range(300)]
    assert (min(lengths), max(lengths)) == (3, 12)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("12A", "there is no key 'A': use 0123456789"),
        ("", "no keys are given"),
        ("1" * (LONGEST_NUMBER + 1), "the number has 101 keys: choose at most 100"),
    ],
)
def test_numbers_that_cannot_be_dialed(keys: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        dial(keys, rng())


# ----------------------------------------------------------------------------------------------------------- batches


def same(one: VectorPairBatch, two: VectorPairBatch) -> bool:
    return all(getattr(one, name).tolist() == getattr(two, name).tolist() for name in ("values", "lengths", "target_outputs"))


def test_a_batch_has_recordings_of_similar_length_and_their_keys() -> None:
    batches = DialBatches(TASK, 8)
    drawn = [batches.sample() for _ in range(POOLED)]
    for batch in drawn:
        assert batch.values.shape == (8, max(batch.lengths.tolist()), MEL.num_mels)
        for inputs, outputs in zip(batch.target_inputs.tolist(), batch.target_outputs.tolist()):
            end = outputs.index(SPECIALS.end)
            assert inputs[: end + 1] == [SPECIALS.start, *outputs[:end]]
            assert 0 <= len(keys_of(outputs)) == end <= 3
            assert set(outputs[end + 1 :]) <= {SPECIALS.pad}
        assert batch.num_targets == sum(i != SPECIALS.pad for row in batch.target_outputs.tolist() for i in row)
    shortest, longest = ([f(batch.lengths.tolist()) for batch in drawn] for f in (min, max))
    assert max(longest) > 2 * min(shortest)
    assert np.mean(np.array(shortest) / longest) > 0.85
    assert longest != sorted(longest)
    assert batches.largest_batch() == 8 <= min(batch.lengths.sum().item() for batch in drawn)


def test_a_seed_repeats_the_batches_and_a_state_continues_them() -> None:
    one, two, other = DialBatches(TASK, 2, seed=1), DialBatches(TASK, 2, seed=1), DialBatches(TASK, 2, seed=2)
    for taken in (0, 1, POOLED - 2, 1, 1, 3):  # to the end of a pool, and beyond it
        for _ in range(taken):
            assert same(one.sample(), two.sample())
        other.set_state(json.loads(json.dumps(one.get_state())))
        assert same(one.sample(), other.sample())
        two.sample()


def test_another_batch_size_continues_with_a_new_pool() -> None:
    small, large = DialBatches(TASK, 2), DialBatches(TASK, 3)
    for _ in range(5):
        small.sample()
    large.set_state(small.get_state())
    assert large.sample().values.shape[0] == 3


@pytest.mark.parametrize("place", [-1, POOLED + 1, 1.0, None, True])
def test_states_that_cannot_be(place: object) -> None:
    batches = DialBatches(TASK, 2)
    with pytest.raises(ValueError, match="its batches cannot be at place"):
        batches.set_state({**batches.get_state(), "place": place})


def test_validation_takes_the_same_recordings_each_time_and_others_than_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_tones, "VALIDATION_RECORDINGS", 20)
    batches = DialBatches(TASK, 8)
    first = list(batches.validation_batches())
    trained = batches.sample()
    again = list(batches.validation_batches())
    assert all(same(a, b) for a, b in zip(first, again))
    assert sum(batch.values.shape[0] for batch in first) == 20
    known = {row.tobytes() for batch in first for row in batch.values.numpy()[:, :20]}
    assert not known & {row.tobytes() for row in trained.values.numpy()[:, :20]}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fewest": 0}, "fewest must be at least 1, got 0"),
        ({"most": 2}, "most must be at least fewest, 3, got 2"),
        ({"most": 101}, "most must be at most 100, got 101"),
        ({"snr": 31.0}, "snr must be from -30 to 30, got 31"),
        ({"snr": "loud"}, "snr must be a finite number"),
    ],
)
def test_mistakes(settings: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        DialTask(**settings)


def test_batches_that_do_not_fit_in_memory() -> None:
    with pytest.raises(SettingError, match="batch_size must be at least 1, got 0"):
        DialBatches(TASK, 0)
    with pytest.raises(SettingError, match="needs at least"):
        DialBatches(TASK, 10**13)
