"""From logits to tokens: greedy, or sampled with a temperature and top-k."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tinytensor as tt
from tinyformer.errors import UserError
from tinyformer.gpt import GPT
from tinytensor.backend import host


def generate(
    model: GPT,
    prompt: Sequence[int],
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int | None = None,
) -> Iterator[int]:
    """Continue ``prompt`` (token ids, at least one) by ``num_tokens`` ids, yielded one by one.

    ``temperature`` divides the logits: below 1 is more careful, 0 is greedy (the likeliest token each time). ``top_k``
    keeps only the k likeliest tokens; 0 keeps all. The model sees the last block_size ids. The same ``seed`` gives the
    same ids. Raises UserError for settings that make no sense.
    """
    if len(prompt) == 0:
        raise UserError("the prompt is empty: give at least one token to continue")
    if not temperature >= 0:  # NaN, too
        raise UserError(f"the temperature must be 0 (greedy) or more, not {temperature}")
    if num_tokens < 0 or top_k < 0:
        raise UserError(f"the length and top_k must not be negative: {num_tokens}, {top_k}")
    if seed is not None and seed < 0:
        raise UserError(f"the seed must not be negative: {seed}")
    return _generate(model, [int(i) for i in prompt], num_tokens, temperature, top_k, seed)


def _generate(model: GPT, ids: list[int], num_tokens: int, temperature: float, top_k: int, seed: int | None) -> Iterator[int]:
    rng = host.random.default_rng(seed)
    for _ in range(num_tokens):
        with tt.no_grad(), evaluating(model):
            logits = model(tt.tensor([ids[-model.config.block_size :]]))[0, -1].numpy()
        ids.append(pick(logits, temperature, top_k, rng))
        yield ids[-1]


class evaluating:
    """A context in which the model is in evaluation mode; the mode that each of its modules was in comes back afterwards."""

    def __init__(self, model: tt.nn.Module):
        self.model = model

    def __enter__(self) -> None:
        self.modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()

    def __exit__(self, *error: object) -> None:
        for module, was_training in self.modes:
            module.training = was_training


def pick(logits: Any, temperature: float, top_k: int, rng: Any) -> int:
    """One token id from logits (vocab_size,), a NumPy array. Of equal logits, greedy takes the first."""
    if temperature == 0:
        return int(logits.argmax())
    scaled = (logits.astype(host.float64) - logits.max()) / temperature
    if 0 < top_k < len(scaled):
        kept = host.argsort(-scaled, kind="stable")[:top_k]
        masked = host.full_like(scaled, -host.inf)
        masked[kept] = scaled[kept]
        scaled = masked
    weights = host.exp(scaled)
    # Where the cumulative weight passes a uniform number: as choice() does, but exact for weights that do not sum to 1.
    cumulative = host.cumsum(weights)
    return int(host.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
