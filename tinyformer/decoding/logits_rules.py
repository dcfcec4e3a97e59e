"""Rules that change the scores of the next tokens by what was written so far, as those of Hugging Face's ``generate`` do.

Each is small, and a list of them is applied in its order. Scores are logits when a token is sampled, and log-probabilities in
beam search. -inf is a token that may not be written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tinyformer.common.errors import SettingError
from tinytensor.device.backend import host


class LogitsRule(Protocol):
    """A rule for the next token of each text of a batch."""

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """The new scores (batch, vocab_size). The given array is not changed, and is returned if nothing changes. ``texts`` are
        the ids so far (batch, length), the prompt included, and ``written`` says how many of them were written."""


@dataclass(frozen=True)
class RepetitionPenalty:
    """Tokens that a text has are made less likely (Keskar et al. 2019): a positive score is divided by the penalty, and a
    negative one multiplied. A penalty below 1 makes them more likely. Raises SettingError unless it is above 0."""

    penalty: float

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise SettingError(f"repetition_penalty must be a number above 0, not {self.penalty}")

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """The scores with those of the tokens in each text changed."""
        seen = host.zeros(scores.shape, bool)
        host.put_along_axis(seen, texts, True, axis=1)
        return host.where(seen, host.where(scores < 0, scores * self.penalty, scores / self.penalty), scores)


@dataclass(frozen=True)
class NoRepeatedNgrams:
    """No run of ``size`` tokens occurs twice in a text. Raises SettingError for a size below 1."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SettingError(f"no_repeat_ngram_size must be at least 1, not {self.size}")

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """The scores without the tokens that would end a run that is there already."""
        length = texts.shape[1]
        if length < self.size:
            return scores
        runs = host.lib.stride_tricks.sliding_window_view(texts, self.size, axis=1)
        begun = texts[:, length + 1 - self.size :]  # what the next token would make a run
        rows, places = host.nonzero((runs[..., :-1] == begun[:, None]).all(axis=-1))
        scores = scores.copy()
        scores[rows, runs[rows, places, -1]] = -host.inf
        return scores


@dataclass(frozen=True)
class ForbiddenSequences:
    """None of these sequences of tokens is written."""

    sequences: tuple[tuple[int, ...], ...]

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """The scores without the tokens that would end one of the sequences."""
        scores = scores.copy()
        for *begun, last in self.sequences:
            if len(begun) <= texts.shape[1]:
                rows = (texts[:, texts.shape[1] - len(begun) :] == host.array(begun, texts.dtype)).all(axis=1)
                scores[rows, last] = -host.inf
        return scores


@dataclass(frozen=True)
class MinimalLength:
    """No text ends before it has ``length`` tokens, the prompt included, and ``new_tokens`` of them were written."""

    ends: tuple[int, ...]
    length: int = 0
    new_tokens: int = 0

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """The scores without the end tokens while a text is too short."""
        too_short = texts.shape[1] < self.length or written < self.new_tokens
        return _without(scores, self.ends) if too_short else scores


@dataclass(frozen=True)
class ForcedAfterStart:
    """This token follows a prompt of one token, such as the language that a translation is in."""

    token: int

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """The scores of this token alone after one token: 0, as it is certain."""
        if texts.shape[1] != 1:
            return scores
        forced = host.full_like(scores, -host.inf)
        forced[:, self.token] = 0.0
        return forced


@dataclass(frozen=True)
class ForbiddenFirst:
    """None of these tokens is the first that is written. ``after_forced``: a first token that ``ForcedAfterStart`` forces does
    not count."""

    tokens: tuple[int, ...]
    after_forced: bool = False

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """The scores without these tokens at the beginning."""
        prompt = texts.shape[1] - written
        return _without(scores, self.tokens) if written == (self.after_forced and prompt == 1) else scores


@dataclass(frozen=True)
class Renormalized:
    """What the rules before it leave becomes log-probabilities whose probabilities sum to 1."""

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """The logarithm of the softmax of the scores. A row in which no token is possible stays."""
        highest = scores.max(axis=-1, keepdims=True)
        shifted = scores - host.where(host.isfinite(highest), highest, 0)
        total = host.exp(shifted).sum(axis=-1, keepdims=True)
        return shifted - host.log(host.where(total > 0, total, 1))


def _without(scores: Any, tokens: Iterable[int]) -> Any:
    scores = scores.copy()
    scores[:, list(tokens)] = -host.inf
    return scores
