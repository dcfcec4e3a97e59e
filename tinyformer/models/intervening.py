"""Interventions: disable or replace modules of a model while it runs, to measure what they do.

A disabled module outputs zeros (zero ablation) or its mean over all tokens of another run (mean ablation, ``recording_means``).
Zeros may be unlike anything seen in training. A mean removes only the differences between tokens.

Modules have the names of ``named_modules``, such as "blocks.0.attention". Interventions work on every model with ``Block``
modules, also pretrained or quantized. They are hooks that end with the context. Weights do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.models.attention import MultiHeadAttention
from tinyformer.models.blocks import Block, FeedForward
from tinytensor import Tensor
from tinytensor.common.wording import counted
from tinytensor.nn import Module
from tinytensor.nn.hooks import Hook, hooked

WAYS = ("zero", "mean")
Means = Mapping[str, Tensor]
Watched = tuple[Module, str, Hook]
Part = TypeVar("Part", bound=Module)


class Intervention(Protocol):
    """A change to a module of a running model."""

    def watched(self, model: Module, means: Means) -> Watched:
        """Return the hook that makes the change. Raises UserError if the model has no such module."""


@dataclass(frozen=True)
class HeadOff:
    """Disable one head of the attention ``layer``. Replaces its mixed values before the output projection ``by`` "zero" or
    "mean". The output projection still adds its bias."""

    layer: str
    head: int
    by: str = "zero"

    def watched(self, model: Module, means: Means) -> Watched:
        layer = _head_of(model, self.layer, self.head)
        instead = _instead(self.by, means, self.layer)
        is_head = tt.tensor([i // layer.d_head == self.head for i in range(layer.num_heads * layer.d_head)])
        return layer, "heads", lambda layer, inputs, heads: tt.where(is_head, instead(heads), heads)


@dataclass(frozen=True)
class NetworkOff:
    """Disable a feed-forward network such as "blocks.0.feed_forward". Replaces its output ``by`` "zero" or "mean"."""

    network: str
    by: str = "zero"

    def watched(self, model: Module, means: Means) -> Watched:
        instead = _instead(self.by, means, self.network)
        return _part(model, self.network, FeedForward), "forward", lambda network, inputs, output: instead(output)


@dataclass(frozen=True)
class NeuronOff:
    """Disable one hidden unit of a feed-forward network. Replaces its value, an input of the layer ``down``, ``by`` "zero" or
    "mean"."""

    network: str
    neuron: int
    by: str = "zero"

    def watched(self, model: Module, means: Means) -> Watched:
        down = _part(model, self.network, FeedForward).down
        count = down.weight.shape[1]
        _check_number("neuron", self.neuron, count)
        instead = _instead(self.by, means, f"{self.network}.down")
        unit = tt.tensor([float(i == self.neuron) for i in range(count)])

        def replace(down: Any, inputs: tuple[Any, ...], output: Any) -> Any:
            (inner,) = inputs
            alone = unit.astype(inner.dtype)
            weights = down.forward(alone) - down.forward(tt.zeros_like(alone))  # of the neuron; the bias cancels out
            return output + ((instead(inner) - inner) * alone).sum(-1, keepdims=True) * weights

        return down, "forward", replace


@dataclass(frozen=True)
class BlockOff:
    """Disable a block. Its input passes through unchanged, or plus the "mean" of what the block adds. In a post-norm block
    (``norm_first=False``), its norms are disabled too."""

    block: str
    by: str = "zero"

    def watched(self, model: Module, means: Means) -> Watched:
        instead = _instead(self.by, means, self.block)
        return _part(model, self.block, Block), "forward", lambda block, inputs, output: inputs[0] + instead(output)


@dataclass(frozen=True)
class MeanAttention:
    """Replace one head's attention weights in ``layer`` with their ``mean_attention``. The weights no longer depend on the
    query."""

    layer: str
    head: int

    def watched(self, model: Module, means: Means) -> Watched:
        layer = _head_of(model, self.layer, self.head)
        is_head = (tt.arange(layer.num_heads) == self.head).reshape(-1, 1, 1)
        return layer, "weights", lambda layer, inputs, weights: tt.where(is_head, mean_attention(weights), weights)


@dataclass(frozen=True)
class AttentionRow:
    """Replace the attention weights of the ``query`` position in one head of ``layer``, in every sequence. Pass one weight per
    key, with sum 1. Raises UserError for other weights and, during the run, if a masked key has a weight."""

    layer: str
    head: int
    query: int
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights) or abs(sum(self.weights) - 1) > 1e-3:
            raise UserError(f"weights must be non-negative and sum to 1, got a sum of {sum(self.weights):g}: normalize them")

    def watched(self, model: Module, means: Means) -> Watched:
        layer = _head_of(model, self.layer, self.head)

        def replace(layer: Any, inputs: tuple[Any, ...], weights: Any) -> Any:
            _, heads, queries, keys = weights.shape
            _check_number("query", self.query, queries)
            if len(self.weights) != keys:
                raise UserError(f"{self.layer} needs {counted(keys, 'weight')}, one for each key, got {len(self.weights)}")
            row = tt.tensor(list(self.weights), dtype=weights.dtype)
            if ((weights[:, self.head, self.query] == 0) & (row > 0)).any().item():
                raise UserError(f"query {self.query} cannot attend to all keys with a weight: set the masked ones to 0")
            is_head = (tt.arange(heads) == self.head).reshape(-1, 1, 1)
            return tt.where(is_head & (tt.arange(queries) == self.query).reshape(-1, 1), row, weights)

        return layer, "weights", replace


@dataclass(frozen=True)
class BlockOutput:
    """Replace a block's output at one position per sequence (activation patching). Sequence i gets ``vectors[i]`` (d_model,) at
    ``places[i]``. The vectors may come from another run."""

    block: str
    places: Sequence[int]
    vectors: Tensor

    def watched(self, model: Module, means: Means) -> Watched:
        def replace(block: Any, inputs: tuple[Any, ...], output: Any) -> Any:
            for position in self.places:
                _check_number("place", position, output.shape[1])
            if (len(self.places), *self.vectors.shape) != (len(output), len(output), output.shape[2]):
                rows = counted(len(self.places), "place")
                raise UserError(f"places and vectors must have one row per text, {len(output)}: got {rows}")
            is_replaced = tt.arange(output.shape[1]) == tt.tensor(list(self.places)).reshape(-1, 1)
            return tt.where(is_replaced.reshape(*is_replaced.shape, 1), self.vectors.reshape(len(output), 1, -1), output)

        return _part(model, self.block, Block), "forward", replace


def mean_attention(weights: Tensor) -> Tensor:
    """Average attention weights (..., queries, keys) over queries. Each key gets its mean weight over the queries that may
    attend to it, and rows are rescaled to sum to 1. A weight of exactly 0 counts as masked.

    >>> from tinyformer.models.intervening import mean_attention
    >>> mean_attention(tt.tensor([[1.0, 0.0], [0.5, 0.5]])).tolist()
    [[1.0, 0.0], [0.6000000238418579, 0.4000000059604645]]
    """
    seen = (weights > 0).astype(weights.dtype)
    means = weights.sum(-2, keepdims=True) / tt.maximum(seen.sum(-2, keepdims=True), 1.0)
    rows = means * seen
    sums = rows.sum(-1, keepdims=True)
    return rows / tt.where(sums > 0, sums, 1.0)


@contextmanager
def intervening(model: Module, interventions: Sequence[Intervention], means: Means | None = None) -> Iterator[None]:
    """Run a model with these interventions, applied in order. Interventions by "mean" need the ``means`` from
    ``recording_means``. Raises UserError if the model lacks one of the modules.

    >>> from tinyformer import GPT, GPTConfig, HeadOff, NetworkOff, intervening
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=2, num_heads=2, d_model=32))
    >>> with tt.no_grad(), intervening(model, [HeadOff("blocks.0.attention", 1), NetworkOff("blocks.1.feed_forward")]):
    ...     model(tt.zeros((1, 5), dtype=int)).shape
    (1, 5, 65)
    """
    neurons = {(one.network, one.neuron): one for one in interventions if isinstance(one, NeuronOff)}  # switched off once each
    more = [one for one in interventions if not isinstance(one, NeuronOff)]
    with hooked([one.watched(model, means or {}) for one in [*neurons.values(), *more]]):
        yield


@contextmanager
def recording_means(model: Module) -> Iterator[dict[str, Tensor]]:
    """Record means over all tokens of the last call, including padding. The context yields a dict of means by module name: an
    attention layer's concatenated head values, a network's output, the neurons (under its layer "down"), and what each block
    adds."""
    recorded: dict[str, Tensor] = {}

    def keep(name: str, of: Callable[[Any, Any], Any]) -> Hook:
        def record(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
            recorded[name] = of(inputs, output).detach().mean((0, 1))

        return record

    watched: list[Watched] = []
    for name, module in model.named_modules():
        if isinstance(module, MultiHeadAttention):
            watched.append((module, "heads", keep(name, lambda inputs, heads: heads)))
        elif isinstance(module, FeedForward):
            watched.append((module, "forward", keep(name, lambda inputs, output: output)))
            watched.append((module.down, "forward", keep(f"{name}.down", lambda inputs, output: inputs[0])))
        elif isinstance(module, Block):
            watched.append((module, "forward", keep(name, lambda inputs, output: output - inputs[0])))
    with hooked(watched):
        yield recorded


def _instead(by: str, means: Means, name: str) -> Callable[[Tensor], Tensor]:
    """Return a function that computes the replacement for a module's output."""
    if by not in WAYS:
        raise UserError(f"by must be one of {', '.join(WAYS)}, got {by!r}")
    if by == "mean" and name not in means:
        raise UserError(f"means has no {name}: run the model within recording_means, and pass the dict that it yields")
    return lambda output: tt.zeros_like(output) + means[name] if by == "mean" else tt.zeros_like(output)


def _part(model: Module, name: str, part_type: type[Part]) -> Part:
    """Return the model's module of this name. Raises UserError unless it exists and is of type ``part_type``."""
    parts = {name: module for name, module in model.named_modules() if isinstance(module, part_type)}
    if not parts:
        raise UserError(f"{type(model).__name__} has no {part_type.__name__}: interventions are for Transformers")
    if name not in parts:
        raise UserError(f"{type(model).__name__} has no {part_type.__name__} {name!r}: choose one of {', '.join(parts)}")
    return parts[name]


def _head_of(model: Module, name: str, head: int) -> MultiHeadAttention:
    layer = _part(model, name, MultiHeadAttention)
    _check_number("head", head, layer.num_heads)
    return layer


def _check_number(name: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise UserError(f"{name} must be from 0 to {count - 1}, got {number}")
