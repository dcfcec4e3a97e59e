"""Transcribing recordings: the same result in any batch, and attention over the sound."""

from __future__ import annotations

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.audio.dial_tones import KEYS, MEL, VOCAB_SIZE, DialTask, dial
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.training.transcription import AT_ONCE, Transcriber

TASK = DialTask(fewest=1, most=4)


def make(task: DialTask = TASK, **changes: object) -> Transcriber:
    """One whose weights are large, so that what it writes depends on what it hears."""
    tt.seed(0)
    sizes = {"d_model": 16, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 2, "d_ff": 16, "norm_first": True}
    sound = {"source_features": MEL.num_mels, "source_stride": 4}
    model = Transformer(TransformerConfig(0, VOCAB_SIZE, **{**sizes, **sound, **changes}))
    for parameter in model.parameters():
        parameter.assign(3 * parameter)
    return Transcriber(model, task)


def recordings(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [dial(KEYS[i % 12] * (1 + i % 4), rng, 10.0) for i in range(count)]


@pytest.mark.parametrize("beam", [1, 3])
def test_a_recording_is_transcribed_alike_in_any_company(beam: int) -> None:
    transcriber, sounds = make(), recordings(AT_ONCE + 6)
    together = transcriber.transcribe(sounds, beam)
    assert len(set(together)) > 5
    assert all(len(keys) <= TASK.most + 1 and set(keys) <= set(KEYS) for keys in together)
    for i in (0, 1, 30, AT_ONCE + 5):
        assert transcriber.transcribe([sounds[i]], beam) == [together[i]]
    assert transcriber.transcribe([], beam) == []


def test_attention_over_the_sound() -> None:
    transcriber = make()
    (sound,) = recordings(1)
    heard = transcriber.hear(sound)
    assert [heard.keys] == transcriber.transcribe([sound])
    frames = 1 + len(sound) // MEL.hop
    assert [weights.shape for weights in heard.weights] == [(2, len(heard.keys) + 1, -(-frames // 4))] * 2
    for weights in heard.weights:
        np.testing.assert_allclose(weights.numpy().sum(axis=-1), 1, rtol=1e-5)
