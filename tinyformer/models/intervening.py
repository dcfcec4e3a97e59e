"""Interventions: while a model runs, parts of its blocks are switched off or replaced, to see what it makes of the rest.

A part that is switched off gives nothing (zero ablation), or the same at each token: the mean of what it gave at all tokens of
another run (mean ablation), which ``recording_means`` keeps. With a zero the parts after it may get what they have never seen
in training; with a mean they lack only what the part says of one token and not of others.

Parts are named as ``named_modules`` names them, such as "blocks.0.attention". They are those of ``Block``, so every GPT, BERT
and ``Transformer`` has them, pretrained ones and those with weights of fewer bits included. Nothing is written into the model:
the interventions are hooks, which end with the context.
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
Kind = TypeVar("Kind", bound=Module)


class Intervention(Protocol):
    """What happens to a part of a model while it runs."""

    def watched(self, model: Module, means: Means) -> Watched:
        """The hook that does it. Raises UserError for a part that the model does not have."""


@dataclass(frozen=True)
class HeadOff:
    """A head of the attention ``layer`` is switched off: what its values make, before the output projection, is replaced ``by``
    "zero" or the "mean". The bias of the output projection stays."""

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
    """The feed-forward network of this name, such as "blocks.0.feed_forward", is switched off: what it gives is replaced ``by``
    "zero" or the "mean"."""

    network: str
    by: str = "zero"

    def watched(self, model: Module, means: Means) -> Watched:
        instead = _instead(self.by, means, self.network)
        return _part(model, self.network, FeedForward), "forward", lambda network, inputs, output: instead(output)


@dataclass(frozen=True)
class NeuronOff:
    """A hidden unit of the feed-forward network of this name is switched off: the number that goes into the layer ``down`` is
    replaced ``by`` "zero" or the "mean"."""

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
    """A block is switched off, with its attention and its network: what it gets passes on unchanged, or with the "mean" of what
    it adds. The norms of a block that norms its sums (``norm_first=False``) go with it."""

    block: str
    by: str = "zero"

    def watched(self, model: Module, means: Means) -> Watched:
        instead = _instead(self.by, means, self.block)
        return _part(model, self.block, Block), "forward", lambda block, inputs, output: inputs[0] + instead(output)


@dataclass(frozen=True)
class MeanAttention:
    """A head of the attention ``layer`` no longer chooses where it looks: its weights are those of ``mean_attention``."""

    layer: str
    head: int

    def watched(self, model: Module, means: Means) -> Watched:
        layer = _head_of(model, self.layer, self.head)
        is_head = (tt.arange(layer.num_heads) == self.head).reshape(-1, 1, 1)
        return layer, "weights", lambda layer, inputs, weights: tt.where(is_head, mean_attention(weights), weights)


@dataclass(frozen=True)
class AttentionRow:
    """A head of the attention ``layer`` looks from the token at the place ``query`` as these ``weights`` say: a number for each
    key, which sum to 1. In a batch it is the same for each text. Raises UserError for other weights, and while the model runs
    for a weight of a key that the query cannot see."""

    layer: str
    head: int
    query: int
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if not all(math.isfinite(weight) and weight >= 0 for weight in self.weights) or abs(sum(self.weights) - 1) > 1e-3:
            raise UserError("the weights of a row must be at least 0 and sum to 1: divide them by their sum")

    def watched(self, model: Module, means: Means) -> Watched:
        layer = _head_of(model, self.layer, self.head)

        def replace(layer: Any, inputs: tuple[Any, ...], weights: Any) -> Any:
            _, heads, queries, keys = weights.shape
            _check_number("query", self.query, queries)
            if len(self.weights) != keys:
                raise UserError(f"a row of {self.layer} has {counted(keys, 'weight')}, one a key, not {len(self.weights)}")
            row = tt.tensor(list(self.weights), dtype=weights.dtype)
            if ((weights[:, self.head, self.query] == 0) & (row > 0)).any().item():
                raise UserError(f"the token at place {self.query} cannot see all keys that have a weight: make theirs 0")
            is_head = (tt.arange(heads) == self.head).reshape(-1, 1, 1)
            return tt.where(is_head & (tt.arange(queries) == self.query).reshape(-1, 1), row, weights)

        return layer, "weights", replace


@dataclass(frozen=True)
class BlockOutput:
    """What a block gives at some tokens is replaced (activation patching): in each text of the batch at one of the ``places``,
    by one of the ``vectors`` (batch, d_model), such as those that the block gives in another run."""

    block: str
    places: Sequence[int]
    vectors: Tensor

    def watched(self, model: Module, means: Means) -> Watched:
        def replace(block: Any, inputs: tuple[Any, ...], output: Any) -> Any:
            for place in self.places:
                _check_number("place", place, output.shape[1])
            if (len(self.places), *self.vectors.shape) != (len(output), len(output), output.shape[2]):
                raise UserError(f"there must be a place and a vector for each text, so {len(output)} of each")
            is_place = tt.arange(output.shape[1]) == tt.tensor(list(self.places)).reshape(-1, 1)
            return tt.where(is_place.reshape(*is_place.shape, 1), self.vectors.reshape(len(output), 1, -1), output)

        return _part(model, self.block, Block), "forward", replace


def mean_attention(weights: Tensor) -> Tensor:
    """Attention weights (..., queries, keys) whose rows no longer differ, but for what each query may see: the weight of a key
    is its mean over the queries that may see it, and each row is then divided by its sum. A weight of exactly 0 is that of a
    key which the query may not see.

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
    """A context in which a model runs with these interventions, one after the other where several are at one part. Those by the
    "mean" need ``means``, those of ``recording_means``. Raises UserError for what the model does not have.

    >>> from tinyformer import GPT, GPTConfig, HeadOff, NetworkOff, intervening
    >>> model = GPT(GPTConfig(vocab_size=65, num_layers=2, num_heads=2, d_model=32))
    >>> with tt.no_grad(), intervening(model, [HeadOff("blocks.0.attention", 1), NetworkOff("blocks.1.feed_forward")]):
    ...     model(tt.zeros((1, 5), dtype=int)).shape
    (1, 5, 65)
    """
    neurons = {(one.network, one.neuron): one for one in interventions if isinstance(one, NeuronOff)}  # each is taken away once
    others = [one for one in interventions if not isinstance(one, NeuronOff)]
    with hooked([one.watched(model, means or {}) for one in [*neurons.values(), *others]]):
        yield


@contextmanager
def recording_means(model: Module) -> Iterator[dict[str, Tensor]]:
    """A context that keeps what the parts of a model's blocks give, each as the mean over all tokens of the last call, padding
    included: of an attention layer what its heads make, side by side; of a network its output; of its layer "down" the neurons;
    of a block what it adds. The dict that it yields has the names of the parts as keys."""
    found: dict[str, Tensor] = {}

    def keep(name: str, of: Callable[[Any, Any], Any]) -> Hook:
        def record(module: Any, inputs: tuple[Any, ...], output: Any) -> None:
            found[name] = of(inputs, output).detach().mean((0, 1))

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
        yield found


def _instead(by: str, means: Means, name: str) -> Callable[[Tensor], Tensor]:
    """A function that gives what takes the place of what a part gives."""
    if by not in WAYS:
        raise UserError(f"by must be one of {', '.join(WAYS)}, not {by!r}")
    if by == "mean" and name not in means:
        raise UserError(f"there is no mean of {name}: run the model within recording_means, and pass what it yields")
    return lambda output: tt.zeros_like(output) + means[name] if by == "mean" else tt.zeros_like(output)


def _part(model: Module, name: str, kind: type[Kind]) -> Kind:
    """The model's part of this name. Raises UserError if there is none of its kind."""
    parts = {name: module for name, module in model.named_modules() if isinstance(module, kind)}
    if not parts:
        raise UserError(f"{type(model).__name__} has no {kind.__name__}: interventions are for Transformers")
    if name not in parts:
        raise UserError(f"{type(model).__name__} has no {kind.__name__} {name!r}: choose one of {', '.join(parts)}")
    return parts[name]


def _head_of(model: Module, name: str, head: int) -> MultiHeadAttention:
    layer = _part(model, name, MultiHeadAttention)
    _check_number("head", head, layer.num_heads)
    return layer


def _check_number(what: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise UserError(f"{what} must be from 0 to {count - 1}, not {number}")
