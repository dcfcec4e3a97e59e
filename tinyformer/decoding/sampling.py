"""The next token, from a model's scores: which tokens may be written, and which of these is picked.

``TokenRules`` leaves out tokens; the rules below it change scores by what was written so far, as those of Hugging Face's
``generate`` do. ``Sampling`` picks one of what is left, greedily or at random.

Scores are logits when a token is sampled, and log-probabilities in beam search. -inf is a token that may not be written.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.settings import at_least, check_fields, setting
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

# ------------------------------------------------------------------------------------------------------------- picking a token

_GREEDY = {"temperature": [0], "top_k": [1]}


@dataclass(frozen=True)
class Sampling:
    """How the next token is picked. Raises SettingError for a value that is not allowed.

    - ``temperature`` divides the logits. Below 1 the choice is more careful. 0 is greedy: the likeliest token, or the first of
      several that are equally likely.
    - ``top_k`` keeps only the k likeliest tokens. 0 keeps all.
    - ``top_p`` then keeps the fewest tokens whose probabilities together reach p (Holtzman et al. 2020). 1 keeps all.
    - ``min_p`` then leaves out the tokens that are less than p times as likely as the likeliest (Nguyen et al. 2024). 0 keeps
      all.
    - ``typical_p`` then keeps the fewest tokens that together reach p, those first whose surprise is closest to the expected
      one (Meister et al. 2022). 1 keeps all.
    - The same ``seed`` picks the same tokens. Without one the tokens come from the generator that ``tt.seed`` restarts.

    Among equally likely tokens, both top_k and top_p keep those with the smaller ids. So there are never more than k, and
    ``top_k=1`` is greedy. (Hugging Face keeps all tokens that are as likely as the k-th.) typical_p keeps all that are as
    typical as the last one.

    >>> import numpy
    >>> from tinyformer import Sampling
    >>> logits = numpy.array([1.0, 3.0, 2.0])
    >>> Sampling(temperature=0).pick(logits, numpy.random.default_rng(0))
    1
    """

    temperature: float = setting(1.0, "divides the logits; lower is less random, 0 is greedy", unless={"top_k": [1]})
    top_k: int = setting(0, "sample from the k likeliest tokens; 0: all", unless={"temperature": [0]})
    top_p: float = setting(
        1.0, "sample from the smallest set of tokens with total probability p (nucleus sampling)", unless=_GREEDY
    )
    seed: int | None = setting(None, "random seed", unless=_GREEDY)
    min_p: float = setting(0.0, "drop tokens less than p times as likely as the likeliest", unless=_GREEDY)
    typical_p: float = setting(1.0, "sample from the most typical tokens with total probability p", unless=_GREEDY)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.temperature < 0:
            raise SettingError(f"temperature must be 0 (greedy) or more, not {self.temperature}")
        for name in ("top_p", "typical_p"):
            if not 0 < getattr(self, name) <= 1:
                raise SettingError(f"{name} must be above 0 and at most 1, not {getattr(self, name)}")
        if not 0 <= self.min_p <= 1:
            raise SettingError(f"min_p must be between 0 and 1, not {self.min_p}")
        at_least(self, top_k=0, **({} if self.seed is None else {"seed": 0}))

    def pick(self, logits: Any, rng: Any) -> int:
        """One token id, picked from logits (vocab_size,), a NumPy array. Raises UserError if the highest logit is NaN or
        infinite."""
        if self.temperature == 0:
            return _highest(logits)
        weights = self._weights(logits)
        # Pick where the cumulative weight passes a uniform random number. NumPy's choice() does the same, but needs weights
        # that sum to exactly 1.
        cumulative = host.cumsum(weights)
        return int(host.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))

    def probabilities(self, logits: Any) -> Any:
        """The probability with which ``pick`` picks each token, (vocab_size,) float64, from logits (vocab_size,), a NumPy
        array. It is 0 for the tokens that are left out. Raises UserError as ``pick`` does.

        >>> import numpy
        >>> from tinyformer import Sampling
        >>> Sampling(top_k=2).probabilities(numpy.log([0.2, 0.6, 0.2])).round(2).tolist()
        [0.25, 0.75, 0.0]
        """
        weights = self._weights(logits)
        return weights / weights.sum()

    def _weights(self, logits: Any) -> Any:
        """Unnormalised probabilities, float64: 1 for the likeliest token, and 0 for those that are left out."""
        highest = _highest(logits)
        if self.temperature == 0:
            return host.eye(1, len(logits), highest)[0]
        logits = logits.astype(host.float64)
        with host.errstate(over="ignore"):
            weights = host.exp((logits - logits[highest]) / self.temperature)
        kept = min(self.top_k, len(logits)) if self.top_k else len(logits)
        if kept < len(logits) or self.top_p < 1:
            order = likeliest(logits, kept)
            if self.top_p < 1:  # at 1 rounding could leave tokens out, as a sum may reach 1 before its last term
                order = order[: _that_reach(self.top_p, weights[order])]
            left = host.zeros_like(weights)
            left[order] = weights[order]
            weights = left
        if self.min_p > 0:
            weights[weights < self.min_p] = 0
        return _typical(weights, self.typical_p) if self.typical_p < 1 else weights


def _that_reach(share: float, weights: Any) -> int:
    """How many of the weights, from the first on, it takes to reach this share of their sum."""
    reached = host.cumsum(weights)
    return 1 + int(host.searchsorted(reached, share * reached[-1], side="left"))


def _typical(weights: Any, share: float) -> Any:
    """The weights of the most typical tokens, which together reach this share; 0 for the others. A token is typical if its
    surprise, the negative logarithm of its probability, is close to the expected one, the entropy."""
    places = host.flatnonzero(weights)
    probabilities = weights[places] / weights.sum()
    surprise = -host.log(probabilities)
    distance = abs(surprise - (probabilities * surprise).sum())
    order = host.argsort(distance, kind="stable")
    count = min(_that_reach(share, probabilities[order]), len(places))
    left = host.zeros_like(weights)
    typical = places[distance <= distance[order[count - 1]]]
    left[typical] = weights[typical]
    return left


def _highest(logits: Any) -> int:
    """The id of the highest logit, the first of equal ones. Raises UserError if that logit is NaN or infinite."""
    highest = int(logits.argmax())  # NumPy takes a NaN for the highest
    if not math.isfinite(logits[highest]):
        raise useless_logits(logits[highest])
    return highest


def useless_logits(highest: float) -> UserError:
    """The error for logits from which no token can be picked, because the highest of them is NaN or infinite."""
    problem = "-inf for every token that may be written, so that no token is possible"
    if math.isnan(highest):
        problem = "NaN: its training diverged, or its weights are damaged"
    elif highest > 0:
        problem = "infinite: numbers grew too large for their dtype"
    return UserError(f"the model's outputs are {problem}")


_GROUPS = 1024


def likeliest(scores: Any, count: int) -> Any:
    """The places of the ``count`` highest of some scores (n,), a NumPy array: the highest first, and the first of equal ones
    first. Those that are -inf, as the logarithm of probability 0 is, are left out. Returns int64 (count or fewer,)."""
    least = host.finfo(scores.dtype).min
    if count < len(scores):
        least = max(least, _reached(scores, count))
    places = host.flatnonzero(scores >= least)
    return places[host.argsort(-scores[places], kind="stable")][:count]


def _reached(scores: Any, count: int) -> Any:
    """A number that at least ``count`` scores reach, and few more: it takes much less time than to sort all.

    Of many scores, groups are compared by their highest. The highest of all seldom share a group, so that few scores besides
    them reach the lowest of the ``count`` highest groups.
    """
    size = len(scores) // _GROUPS
    if size > 1 and count <= _GROUPS // 4:
        scores = scores[: size * _GROUPS].reshape(size, _GROUPS).max(axis=0)
    return host.partition(scores, len(scores) - count)[-count]


# ------------------------------------------------------------------------------------------------- which tokens may be written


class TokenRules:
    """What sampling and beam search may write.

    - ``end``: a text ends with this token, or with any of these. None: no token ends a text.
    - ``forbidden``: these tokens are never written. Forbidding an end token keeps texts from ending with it.
    - ``rules``: what else changes the scores, by what was written so far; see ``logits_rules``.
    - ``force_end``: the last token that there is room for is an end token, whatever the model says.

    Raises SettingError for ids that are not integers of at least 0, and if an end is forced and there is none.
    """

    def __init__(
        self,
        end: int | Iterable[int] | None,
        forbidden: Iterable[int] = (),
        force_end: bool = False,
        rules: Iterable[LogitsRule] = (),
    ):
        ends = () if end is None else end
        self.ends = _checked("end", ends if isinstance(ends, Iterable) else (ends,))
        self.forbidden = _checked("forbidden", forbidden)
        self.force_end = force_end
        self.rules = tuple(rules)
        if force_end and not self.ends:
            raise SettingError("force_end needs an end token: pass its id as end", "force_end", "end")

    def restrict(self, scores: Any, is_last: bool, texts: Any = None, written: int = 0) -> Any:
        """The scores (batch, vocab_size) of the next tokens, logits or log-probabilities, with -inf for those that may not be
        written. ``is_last`` says that there is room for one token only. The ``rules`` need the ids of the ``texts`` so far
        (batch, length), and how many of them were ``written``.

        What is left of log-probabilities is not normalised again: the other tokens keep the model's probabilities. A forced end
        counts as certain; its score is 0. Hugging Face's ``generate`` does both in the same way. Raises UserError for ids
        outside the vocabulary, and if all of it is forbidden.
        """
        if is_last and self.force_end:
            _check_known(self.ends, scores.shape[1])
            forced = host.full_like(scores, -host.inf)
            forced[:, self.ends] = 0.0
            return forced
        if self.forbidden:
            _check_known(self.forbidden, scores.shape[1])
            if len(self.forbidden) == scores.shape[1]:
                raise UserError(f"every token of the vocabulary is forbidden, {scores.shape[1]:,} in all: allow at least one")
            scores = scores.copy()  # the decoder may go on using its logits
            scores[:, self.forbidden] = -host.inf
        for rule in self.rules:
            scores = rule(scores, texts, written)
        return scores


def _checked(name: str, ids: Iterable[int]) -> list[int]:
    """The distinct ids. Raises SettingError for what is no id."""
    ids = list(ids)
    wrong = [i for i in ids if not isinstance(i, numbers.Integral) or isinstance(i, bool) or i < 0]
    if wrong:
        raise SettingError(f"{name} must be ids of tokens, integers of at least 0, not {wrong[0]!r}")
    return sorted({int(i) for i in ids})


def _check_known(ids: list[int], vocab_size: int) -> None:
    if ids[-1] >= vocab_size:
        raise UserError(
            f"the token {ids[-1]} cannot be forbidden or forced: the vocabulary has only {counted(vocab_size, 'token')}"
        )


# -------------------------------------------------------------------------------------------- rules by what was written so far


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
