"""Writing down which telephone keys are heard in a recording: a model and beam search behind one name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.vectors import padded_vectors
from tinyformer.decoding.beam_search import beam_search
from tinyformer.decoding.decoders import TransformerDecoder
from tinyformer.models.attention import recording_attention
from tinyformer.models.evaluating import evaluating
from tinyformer.models.transformer import Transformer, TransformerConfig
from tinyformer.runs.run_folder import RunFolder, load_weights
from tinyformer.tasks.dial_tones import MEL, RATE, SPECIALS, DialTask, features, ids_of, keys_of
from tinytensor import Tensor

KIND = "dial tone transcriber"
AT_ONCE = 64


@dataclass(frozen=True)
class Heard:
    """What a model heard in a recording: the keys, and for each of them and the end, the weights of the decoder's attention to
    the sound, a tensor (heads, keys + 1, positions) for each layer."""

    keys: str
    weights: list[Tensor]


class Transcriber:
    """An encoder-decoder that reads the features of recordings, and writes keys."""

    def __init__(self, model: Transformer, task: DialTask):
        self.model = model
        self.task = task

    def check_positions(self) -> None:
        """Raise SettingError if the model has fewer learned positions than the longest recording needs."""
        config = self.model.config
        positions = max(math.ceil((1 + self.task.longest // MEL.hop) / config.source_stride), self.task.most + 1)
        if config.positions == "learned" and config.max_length < positions:
            raise SettingError(f"max_length must be at least {positions}, for the longest recording, not {config.max_length}")

    @property
    def longest(self) -> int:
        """The number of samples in the longest recording that the model can read."""
        config = self.model.config
        read = config.max_length * config.source_stride * MEL.hop - 1 if config.positions == "learned" else self.task.longest
        return min(self.task.longest, read)

    def check_length(self, samples: Any, name: object) -> None:
        """Raise UserError if a recording is longer than any that the model can have learned from."""
        if len(samples) > self.longest:
            raise UserError(
                f"{name} lasts {len(samples) / RATE:.1f} s, longer than the {self.longest / RATE:.1f} s that the model "
                "has learned to hear: cut it into pieces"
            )

    def transcribe(self, recordings: Sequence[Any], beam: int = 1) -> list[str]:
        """The keys in each recording, an array of samples. A ``beam`` of 1 is greedy.

        Numbers are cut off after one key more than the model learned: these are not finished. Recordings of similar length are
        read together, so that there is little padding.
        """
        order = sorted(range(len(recordings)), key=lambda i: len(recordings[i]))
        found: dict[int, str] = {}
        for first in range(0, len(order), AT_ONCE):
            part = order[first : first + AT_ONCE]
            source = padded_vectors([features(recordings[i]) for i in part])
            longest = self.task.most + 1  # the end token counts, too
            decoder = TransformerDecoder(self.model, source, longest)
            searched = beam_search(decoder, [[SPECIALS.start]] * len(part), SPECIALS.end, beam, longest)
            found |= {i: keys_of(hypotheses[0].ids) for i, hypotheses in zip(part, searched)}
        return [found[i] for i in range(len(recordings))]

    def hear(self, recording: Any) -> Heard:
        """What the attention layers look at while the model writes down a recording, greedily."""
        (keys,) = self.transcribe([recording])
        read = tt.tensor([[SPECIALS.start, *ids_of(keys)]])
        with recording_attention(self.model) as recorded, evaluating(self.model):
            self.model(padded_vectors([features(recording)]), read)
        return Heard(keys, [weights[0] for name, (weights,) in recorded.items() if "cross_attention" in name])


def trained_transcriber(folder: RunFolder) -> Transcriber:
    """A run's transcriber, with its best weights. Raises UserError for a folder that is no such run, or damaged."""
    task, config = folder.read_part("task", DialTask), folder.read_part("model", TransformerConfig)
    transcriber = Transcriber(Transformer(config), task)
    load_weights(transcriber.model, folder.best)
    return transcriber
