"""Sampling: picking the next token, greedily or at random, with temperature, top-k, top-p, min-p and typical-p."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.schema import check_fields
from tinyformer.common.settings import at_least, setting
from tinyformer.decoding.decoders import Decoder, batch_of_ids, language_decoder
from tinyformer.decoding.likeliest import likeliest
from tinyformer.decoding.logits_rules import LogitsRule
from tinyformer.decoding.token_rules import TokenRules
from tinyformer.models.gpt import GPT
from tinyformer.models.recurrent import RecurrentLM
from tinytensor import Tensor, kernels_name, random
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

# -------------------------------------------------------------------------------------------------- picking a token


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


def sample(
    decoder: Decoder,
    prompts: Any,
    num_tokens: int,
    sampling: Sampling,
    end: int | Iterable[int] | None = None,
    forbidden: Iterable[int] = (),
    force_end: bool = False,
    rules: Iterable[LogitsRule] = (),
) -> Iterator[Any]:
    """Continue ``prompts`` (batch, length) by up to ``num_tokens`` tokens. Yields the ids of each step, (batch,).

    ``TokenRules`` explains ``end``, ``forbidden``, ``force_end`` and ``rules``. A row that has written an end token repeats it
    from then on. The iteration stops when all rows have written one. Raises UserError if the prompts have no tokens or
    different lengths, and if num_tokens is negative. A batch without rows yields nothing.
    """
    if num_tokens < 0:
        raise UserError(f"the length must be at least 0, not {num_tokens}")
    tokens = TokenRules(end, forbidden, force_end, rules)
    return _sample(decoder, batch_of_ids(prompts, "prompts"), num_tokens, sampling, tokens) if len(prompts) else iter(())


def _sample(decoder: Decoder, prompts: Any, num_tokens: int, sampling: Sampling, tokens: TokenRules) -> Iterator[Any]:
    rng = random.generator() if sampling.seed is None else host.random.default_rng(sampling.seed)
    texts, new, finished = prompts, prompts, [False] * len(prompts)
    for step in range(1, num_tokens + 1):
        logits = tokens.restrict(decoder.next_logits(new), step == num_tokens, texts, step - 1)
        rows = zip(logits, new[:, -1], finished)
        ids = host.array([last if is_finished else sampling.pick(row, rng) for row, last, is_finished in rows], host.int64)
        yield ids
        finished = [is_finished or i in tokens.ends for i, is_finished in zip(ids.tolist(), finished)]
        if all(finished):
            return
        new = ids[:, None]
        if tokens.rules:
            texts = host.concatenate([texts, new], axis=1)


def generate(
    model: GPT | RecurrentLM,
    prompt: Sequence[int],
    num_tokens: int,
    sampling: Sampling | None = None,
    end: int | Iterable[int] | None = None,
    use_cache: bool = True,
    forbidden: Iterable[int] = (),
    force_end: bool = False,
    rules: Iterable[LogitsRule] = (),
) -> Iterator[int]:
    """Continue ``prompt``, one token id or more, with a language model. Yields up to ``num_tokens`` ids one by one, and stops
    after ``end``, an id or several; ``TokenRules`` explains ``forbidden``, ``force_end`` and ``rules``. Raises
    UserError if the prompt is empty or num_tokens is negative.

    >>> from tinyformer import GPT, GPTConfig, Sampling, generate
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=1, d_model=32)).eval()
    >>> len(list(generate(model, [1, 2, 3], 10, Sampling(temperature=0.8, top_k=5))))
    10
    """
    sampling = Sampling() if sampling is None else sampling
    ids = batch_of_ids([prompt.numpy() if isinstance(prompt, Tensor) else prompt], "prompts")
    decoder = language_decoder(model, use_cache, ids.shape[1] + max(num_tokens, 0))
    steps = sample(decoder, ids, num_tokens, sampling, end, forbidden, force_end, rules)
    return (int(ids[0]) for ids in steps)


def compile_first(model: GPT | RecurrentLM, sampling: Sampling) -> None:
    """Have the kernels compiled that writing takes, if any are: what is said of that on standard error then comes before a
    text, and not in the middle of it."""
    if kernels_name == "numba":
        list(generate(model, [0, 0], 3, replace(sampling, seed=0)))


def note_on_length(model: GPT | RecurrentLM, length: int) -> str:
    """What to tell about a prompt of so many tokens, if that is more than the model reads; "" otherwise."""
    most = model.config.block_size
    if isinstance(model, RecurrentLM) or length <= most:
        return ""
    return f"The prompt has {counted(length, 'token')}. The model reads {most:,}, and so only the end of it."
