"""Choose the next token from a model's scores.

``TokenRules`` forbids tokens. The rules below it change scores based on earlier tokens, as in Hugging Face ``generate``.
``Sampling`` picks an allowed token, greedily or at random.

Scores are logits in sampling and log-probabilities in beam search. A score of -inf forbids a token.
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
    """Settings for sampling the next token. Raises SettingError for an invalid value.

    - ``temperature`` divides the logits. Values below 1 make the choice less random. 0 is greedy: it picks the most likely
      token, or the first in a tie.
    - ``top_k`` keeps only the k most likely tokens. 0 keeps all.
    - ``top_p`` then keeps the fewest tokens with total probability of at least p (Holtzman et al. 2020). 1 keeps all.
    - ``min_p`` then drops tokens less than p times as likely as the top token (Nguyen et al. 2024). 0 keeps all.
    - ``typical_p`` then keeps the fewest tokens with total probability of at least p, starting with those whose surprise is
      closest to the entropy (Meister et al. 2022). 1 keeps all.
    - ``seed`` makes sampling reproducible. By default, ``tt.seed`` resets the generator.

    In a tie, top_k and top_p prefer smaller ids. At most k tokens remain, and ``top_k=1`` is greedy. (Hugging Face keeps all
    tokens tied with the k-th.) typical_p keeps all tokens tied with the last one.

    >>> import numpy
    >>> from tinyformer import Sampling
    >>> logits = numpy.array([1.0, 3.0, 2.0])
    >>> Sampling(temperature=0).pick(logits, numpy.random.default_rng(0))
    1
    """

    temperature: float = setting(1.0, "divides the logits; lower is less random, 0 is greedy", unless={"top_k": [1]})
    top_k: int = setting(0, "sample from the k most likely tokens; 0: all", unless={"temperature": [0]})
    top_p: float = setting(
        1.0, "sample from the smallest set of tokens with total probability p (nucleus sampling)", unless=_GREEDY
    )
    seed: int | None = setting(None, "random seed", unless=_GREEDY)
    min_p: float = setting(0.0, "drop tokens less than p times as likely as the top token", unless=_GREEDY)
    typical_p: float = setting(1.0, "sample from the most typical tokens with total probability p", unless=_GREEDY)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.temperature < 0:
            raise SettingError(f"temperature must be 0 (greedy) or more, got {self.temperature}")
        for name in ("top_p", "typical_p"):
            if not 0 < getattr(self, name) <= 1:
                raise SettingError(f"{name} must be above 0 and at most 1, got {getattr(self, name)}")
        if not 0 <= self.min_p <= 1:
            raise SettingError(f"min_p must be between 0 and 1, got {self.min_p}")
        at_least(self, top_k=0, **({} if self.seed is None else {"seed": 0}))

    def pick(self, logits: Any, rng: Any) -> int:
        """Pick a token id from logits (vocab_size,), a NumPy array. Raises UserError if the highest logit is not finite."""
        if self.temperature == 0:
            return _highest(logits)
        weights = self._weights(logits)
        # Pick where the cumulative weight exceeds a uniform random number. NumPy's choice() requires weights that sum to 1.
        cumulative = host.cumsum(weights)
        return int(host.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))

    def probabilities(self, logits: Any) -> Any:
        """Return the probability of each token under ``pick``, (vocab_size,) float64, for logits (vocab_size,), a NumPy array.
        Dropped tokens get 0. Raises UserError as ``pick`` does.

        >>> import numpy
        >>> from tinyformer import Sampling
        >>> Sampling(top_k=2).probabilities(numpy.log([0.2, 0.6, 0.2])).round(2).tolist()
        [0.25, 0.75, 0.0]
        """
        weights = self._weights(logits)
        return weights / weights.sum()

    def _weights(self, logits: Any) -> Any:
        """Return unnormalized probabilities, float64: 1 for the most likely token, 0 for dropped tokens."""
        highest = _highest(logits)
        if self.temperature == 0:
            return host.eye(1, len(logits), highest)[0]
        logits = logits.astype(host.float64)
        with host.errstate(over="ignore"):
            weights = host.exp((logits - logits[highest]) / self.temperature)
        kept = min(self.top_k, len(logits)) if self.top_k else len(logits)
        if kept < len(logits) or self.top_p < 1:
            order = likeliest(logits, kept)
            if self.top_p < 1:  # at 1, rounding could drop tokens: a sum may reach 1 before its last term
                order = order[: _that_reach(self.top_p, weights[order])]
            left = host.zeros_like(weights)
            left[order] = weights[order]
            weights = left
        if self.min_p > 0:
            weights[weights < self.min_p] = 0
        return _typical(weights, self.typical_p) if self.typical_p < 1 else weights


def _that_reach(share: float, weights: Any) -> int:
    """Return how many leading weights make up this share of the sum."""
    reached = host.cumsum(weights)
    return 1 + int(host.searchsorted(reached, share * reached[-1], side="left"))


def _typical(weights: Any, share: float) -> Any:
    """Keep the weights of the most typical tokens that make up this share. Set all others to 0. A token is typical if its
    surprise (negative log-probability) is close to the entropy."""
    ids = host.flatnonzero(weights)
    probabilities = weights[ids] / weights.sum()
    surprise = -host.log(probabilities)
    distance = abs(surprise - (probabilities * surprise).sum())
    order = host.argsort(distance, kind="stable")
    count = min(_that_reach(share, probabilities[order]), len(ids))
    left = host.zeros_like(weights)
    typical = ids[distance <= distance[order[count - 1]]]
    left[typical] = weights[typical]
    return left


def _highest(logits: Any) -> int:
    """Return the id of the highest logit, the first in a tie. Raises UserError if that logit is not finite."""
    highest = int(logits.argmax())  # argmax treats NaN as the highest
    if not math.isfinite(logits[highest]):
        raise useless_logits(logits[highest])
    return highest


def useless_logits(highest: float) -> UserError:
    """Return the error for a NaN or infinite highest logit."""
    problem = "-inf for every allowed token, so that no token is possible"
    if math.isnan(highest):
        problem = "NaN: its training diverged, or its weights are damaged"
    elif highest > 0:
        problem = "infinite: numbers grew too large for their dtype"
    return UserError(f"the model's outputs are {problem}")


_GROUPS = 1024


def likeliest(scores: Any, count: int) -> Any:
    """Return the indices of the ``count`` highest scores (n,), a NumPy array, as int64. The highest comes first; ties stay in
    order. Scores of -inf (probability 0) are omitted."""
    least = host.finfo(scores.dtype).min
    if count < len(scores):
        least = max(least, _reached(scores, count))
    indices = host.flatnonzero(scores >= least)
    return indices[host.argsort(-scores[indices], kind="stable")][:count]


def _reached(scores: Any, count: int) -> Any:
    """Return a threshold that at least ``count`` scores reach, but few more. Much faster than sorting all scores.

    If there are many scores, compare the maxima of groups. The highest scores seldom share a group, so few other scores reach
    the lowest of the top ``count`` maxima.
    """
    size = len(scores) // _GROUPS
    if size > 1 and count <= _GROUPS // 4:
        scores = scores[: size * _GROUPS].reshape(size, _GROUPS).max(axis=0)
    return host.partition(scores, len(scores) - count)[-count]


# -------------------------------------------------------------------------------------------------------------- allowed tokens


class TokenRules:
    """The tokens that sampling and beam search may generate.

    - ``end``: token or tokens that end a sequence. None: no token ends a sequence.
    - ``forbidden``: tokens that are never generated, not even as end tokens.
    - ``rules``: other score changes that depend on earlier tokens; see ``LogitsRule``.
    - ``force_end``: always end a sequence that reaches the maximum length with an end token.

    Raises SettingError for ids that are not integers of at least 0, or if ``force_end`` is set without an end token.
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
        """Return the next-token scores (batch, vocab_size), logits or log-probabilities, with -inf for forbidden tokens.

        ``is_last`` means that only one more token fits. The ``rules`` need the ids of the ``texts`` so far (batch, length) and
        how many of them were generated (``written``). Log-probabilities are not renormalized: allowed tokens keep the model's
        probabilities. A forced end token scores 0, a probability of 1. Hugging Face ``generate`` does the same. Raises
        UserError for ids outside the vocabulary or if all tokens are forbidden.
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
            scores = scores.copy()  # the decoder may still use its logits
            scores[:, self.forbidden] = -host.inf
        for rule in self.rules:
            scores = rule(scores, texts, written)
        return scores


def _checked(name: str, ids: Iterable[int]) -> list[int]:
    """Return the distinct ids, sorted. Raises SettingError for an invalid id."""
    ids = list(ids)
    wrong = [i for i in ids if not isinstance(i, numbers.Integral) or isinstance(i, bool) or i < 0]
    if wrong:
        raise SettingError(f"{name} must be token ids, integers of at least 0, got {wrong[0]!r}")
    return sorted({int(i) for i in ids})


def _check_known(ids: list[int], vocab_size: int) -> None:
    if ids[-1] >= vocab_size:
        raise UserError(
            f"the token {ids[-1]} cannot be forbidden or forced: the vocabulary has only {counted(vocab_size, 'token')}"
        )


# ----------------------------------------------------------------------------------------------- rules based on earlier tokens


class LogitsRule(Protocol):
    """Protocol for rules that change the scores of next tokens."""

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """Return the new scores (batch, vocab_size), or the same array if unchanged. Does not modify ``scores``. ``texts`` are
        the ids so far (batch, length), including the prompt. ``written`` is the number of generated tokens."""


@dataclass(frozen=True)
class RepetitionPenalty:
    """Penalty on tokens that already occur in the sequence (Keskar et al. 2019). It divides positive scores and multiplies
    negative ones. Values below 1 favor repetition. Raises SettingError unless it is positive."""

    penalty: float

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise SettingError(f"repetition_penalty must be a number above 0, got {self.penalty}")

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """Return the scores after the penalty."""
        seen = host.zeros(scores.shape, bool)
        host.put_along_axis(seen, texts, True, axis=1)
        return host.where(seen, host.where(scores < 0, scores * self.penalty, scores / self.penalty), scores)


@dataclass(frozen=True)
class NoRepeatedNgrams:
    """Forbid any n-gram of ``size`` tokens from occurring twice in a sequence. Raises SettingError if ``size`` is below 1."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise SettingError(f"no_repeat_ngram_size must be at least 1, got {self.size}")

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """Forbid tokens that would repeat an n-gram."""
        length = texts.shape[1]
        if length < self.size:
            return scores
        runs = host.lib.stride_tricks.sliding_window_view(texts, self.size, axis=1)
        begun = texts[:, length + 1 - self.size :]  # the next token completes this n-gram
        rows, starts = host.nonzero((runs[..., :-1] == begun[:, None]).all(axis=-1))
        scores = scores.copy()
        scores[rows, runs[rows, starts, -1]] = -host.inf
        return scores


@dataclass(frozen=True)
class ForbiddenSequences:
    """Forbid these token sequences."""

    sequences: tuple[tuple[int, ...], ...]

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """Forbid tokens that would complete one of the sequences."""
        scores = scores.copy()
        for *begun, last in self.sequences:
            if len(begun) <= texts.shape[1]:
                rows = (texts[:, texts.shape[1] - len(begun) :] == host.array(begun, texts.dtype)).all(axis=1)
                scores[rows, last] = -host.inf
        return scores


@dataclass(frozen=True)
class MinimalLength:
    """Require ``length`` tokens, including the prompt, and ``new_tokens`` generated tokens before a sequence may end."""

    ends: tuple[int, ...]
    length: int = 0
    new_tokens: int = 0

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """Forbid end tokens while a sequence is too short."""
        too_short = texts.shape[1] < self.length or written < self.new_tokens
        return _without(scores, self.ends) if too_short else scores


@dataclass(frozen=True)
class ForcedAfterStart:
    """Force a token after a prompt of one token, such as the language of a translation."""

    token: int

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """After one token, forbid all tokens except the forced one, which scores 0 (probability 1)."""
        if texts.shape[1] != 1:
            return scores
        forced = host.full_like(scores, -host.inf)
        forced[:, self.token] = 0.0
        return forced


@dataclass(frozen=True)
class ForbiddenFirst:
    """Forbid these tokens as the first generated token. If ``after_forced`` is set, a token from ``ForcedAfterStart`` does not
    count."""

    tokens: tuple[int, ...]
    after_forced: bool = False

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """Forbid these tokens at the start."""
        prompt = texts.shape[1] - written
        return _without(scores, self.tokens) if written == (self.after_forced and prompt == 1) else scores


@dataclass(frozen=True)
class Renormalized:
    """Renormalize log-probabilities after earlier rules, so that the probabilities sum to 1."""

    def __call__(self, scores: Any, texts: Any, written: int) -> Any:
        """Return log(softmax(scores)). Rows without an allowed token are unchanged."""
        highest = scores.max(axis=-1, keepdims=True)
        shifted = scores - host.where(host.isfinite(highest), highest, 0)
        total = host.exp(shifted).sum(axis=-1, keepdims=True)
        return shifted - host.log(host.where(total > 0, total, 1))


def _without(scores: Any, tokens: Iterable[int]) -> Any:
    scores = scores.copy()
    scores[:, list(tokens)] = -host.inf
    return scores
