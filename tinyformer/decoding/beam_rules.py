"""How beam search compares texts of different lengths, and when it is done: Wu et al.'s rule, and Hugging Face's.

The probability of a text falls with each token, so a rule has to say how a long text compares with a short one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from tinyformer.common.errors import SettingError


class BeamRule(Protocol):
    """A way to score texts. Lengths are in tokens that were written; the end token counts, the prompt does not."""

    @property
    def stops_when_full(self) -> bool:
        """Whether a search is done as soon as as many texts have ended as the beam is wide."""

    def num_kept(self, beam: int, n_best: int) -> int:
        """How many of the best ended texts are kept. A text has to beat the worst of them to count."""

    def score(self, log_probability: float, length: int) -> float:
        """The score of a text that has ended. A higher score is better."""

    def attainable(self, log_probability: float, length: int, max_tokens: int) -> float:
        """The highest score that is expected of an unfinished text of this length. If that is not above the worst ended text
        that is kept, the search is done."""


@dataclass(frozen=True)
class WuRule:
    """log P / ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14). A search never stops before an ended text that it would
    still find among the n best, except that it stops when as many texts have ended as the beam is wide."""

    alpha: float = 0.6

    stops_when_full = True

    def __post_init__(self) -> None:
        _check_exponent("alpha", self.alpha)

    def num_kept(self, beam: int, n_best: int) -> int:
        """Only those that are asked for."""
        return n_best

    def score(self, log_probability: float, length: int) -> float:
        """Without the division, short texts would have an advantage."""
        return log_probability / ((5 + length) / 6) ** self.alpha

    def attainable(self, log_probability: float, length: int, max_tokens: int) -> float:
        """A text that grows cannot become more probable. So its score can reach at most what its present probability gives at
        the shortest or at the longest possible length, whichever is higher."""
        return max(self.score(log_probability, length + 1), self.score(log_probability, max_tokens))


@dataclass(frozen=True)
class HuggingFaceRule:
    """log P / length^length_penalty, and the end of a search as in ``generate`` of Hugging Face's transformers.

    ``early_stopping``: True: a search is done when as many texts have ended as the beam is wide. False: it is done when the
    best unfinished text, scored as if it ended where it is, does not beat the worst ended text. "never": the same, but scored
    with the length that favours it most. Both of the latter wait until as many texts have ended as the beam is wide.
    """

    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        _check_exponent("length_penalty", self.length_penalty)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise SettingError(f'early_stopping must be True, False or "never", not {self.early_stopping!r}')

    @property
    def stops_when_full(self) -> bool:
        """Only with early stopping."""
        return self.early_stopping is True

    def num_kept(self, beam: int, n_best: int) -> int:
        """As many as the beam is wide, whatever is asked for."""
        return beam

    def score(self, log_probability: float, length: int) -> float:
        """A negative penalty favours short texts."""
        return float(log_probability / length**self.length_penalty)

    def attainable(self, log_probability: float, length: int, max_tokens: int) -> float:
        """An estimate. A longer text may turn out better than it, unless ``early_stopping`` is "never"."""
        is_longest_best = self.early_stopping == "never" and self.length_penalty > 0
        return self.score(log_probability, max_tokens if is_longest_best else length)


def _check_exponent(name: str, value: float) -> None:
    """Raise SettingError unless the value is a number whose powers do not overflow."""
    if not math.isfinite(value) or abs(value) > 50:
        raise SettingError(f"{name} must be a number from -50 to 50, not {value}")
