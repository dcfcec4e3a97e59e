"""Transcribe telephone keys in a recording, with a model and beam search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.audio.dial_tones import SPECIALS, DialTask, features, ids_of, keys_of
from tinyformer.common.vectors import padded_vectors
from tinyformer.decoding.beam_search import beam_search
from tinyformer.decoding.generation import TransformerDecoder
from tinyformer.models.attention import recording_attention
from tinyformer.models.evaluating import evaluating
from tinyformer.models.transformer import Transformer
from tinytensor import Tensor

AT_ONCE = 64


@dataclass(frozen=True)
class Heard:
    """The keys that a model heard in a recording, and each layer's attention weights on the sound, (heads, keys + 1,
    positions), for the keys and the end token."""

    keys: str
    weights: list[Tensor]


class Transcriber:
    """An encoder-decoder that reads features of recordings and outputs keys."""

    def __init__(self, model: Transformer, task: DialTask):
        self.model = model
        self.task = task

    def transcribe(self, recordings: Sequence[Any], beam: int = 1) -> list[str]:
        """Return the keys in each recording, an array of samples. A ``beam`` of 1 is greedy.

        Key sequences are cut off at one key more than the training maximum. Recordings of similar length share a batch to
        reduce padding.
        """
        order = sorted(range(len(recordings)), key=lambda i: len(recordings[i]))
        keys: dict[int, str] = {}
        for first in range(0, len(order), AT_ONCE):
            part = order[first : first + AT_ONCE]
            source = padded_vectors([features(recordings[i]) for i in part])
            longest = self.task.most + 1  # the end token also counts
            decoder = TransformerDecoder(self.model, source, longest)
            searched = beam_search(decoder, [[SPECIALS.start]] * len(part), SPECIALS.end, beam, longest)
            keys |= {i: keys_of(hypotheses[0].ids) for i, hypotheses in zip(part, searched)}
        return [keys[i] for i in range(len(recordings))]

    def hear(self, recording: Any) -> Heard:
        """Transcribe a recording greedily and return the attention weights."""
        (keys,) = self.transcribe([recording])
        read = tt.tensor([[SPECIALS.start, *ids_of(keys)]])
        with recording_attention(self.model) as recorded, evaluating(self.model):
            self.model(padded_vectors([features(recording)]), read)
        return Heard(keys, [weights[0] for name, (weights,) in recorded.items() if "cross_attention" in name])
