"""Direct logit attribution: what each part of a GPT adds to a logit.

In a GPT with norms before the sub-layers, the residual stream after the last block is a sum: of the token's embedding, its
position, what each head and each feed-forward network added, and the biases. With x that sum at one place, u the row of the
output layer for a token, w and b the weight and the bias of the final norm, and s its scale,

    logit = u . (w * (x - mean(x)) / s + b),    s = sqrt(mean((x - mean(x))^2) + eps)

where an RMS norm has neither mean nor b. With s held at what it is there, this is linear in x. The mean needs no part of its
own: c - mean(c) times a direction d is c times d - mean(d). So the share of a part c of the stream is

    c . (d - mean(d)),    d = w * u / s

and all shares, that of b included, sum to the logit (Elhage et al. 2021; Nanda and Bloom 2022, TransformerLens).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinytensor import Tensor
from tinytensor.device.backend import host
from tinytensor.nn import LayerNorm, Module
from tinytensor.nn.hooks import Hook, hooked
from tinytensor.nn.weights import embedding


@dataclass(frozen=True)
class SubLayers:
    """What the sub-layers of a GPT computed at some places of a text, the first of which is ``first``: float32 arrays with a
    row for each place.

    - ``embedded`` and ``positions``: the token embeddings as they are added, and what is added for the position; None without.
    - ``heads``: of each block, what its heads mixed, side by side, before the output projection.
    - ``neurons`` and ``feed_forward``: of each block, the units inside its feed-forward network, and what that gave.
    - ``stream``: the residual stream after the last block.
    """

    first: int
    embedded: Any
    positions: Any
    heads: list[Any]
    neurons: list[Any]
    feed_forward: list[Any]
    stream: Any

    @property
    def num_bytes(self) -> int:
        """The bytes of the arrays."""
        return sum(x.nbytes for x in (self.stream, self.embedded, *self.heads, *self.neurons, *self.feed_forward))


def sub_layers(model: GPT, ids: Sequence[int], places: slice = slice(None)) -> SubLayers:
    """What the sub-layers of a GPT compute at these places of a text."""
    heads: list[Any] = []
    neurons: list[Any] = []
    feed_forward: list[Any] = []
    streams: list[Any] = []

    def of(x: Any) -> Any:
        return x.numpy()[0, places].astype(host.float32)

    def keep_output(kept: list[Any]) -> Hook:
        return lambda module, inputs, output: kept.append(of(output))

    def keep_input(kept: list[Any]) -> Hook:
        return lambda module, inputs, output: kept.append(of(inputs[0]))

    watched: list[tuple[Module, str, Hook]] = [(model.norm, "forward", keep_input(streams))]
    block: Any
    for block in model.blocks:
        down = block.feed_forward.down
        watched += [
            (block.attention, "heads", keep_output(heads)),
            (down, "forward", keep_input(neurons)),
            (down, "forward", keep_output(feed_forward)),
        ]
    text = tt.tensor([list(ids)], dtype=int)
    with hooked(watched), tt.no_grad(), evaluating(model):
        model.vectors(text)
    first, stop, _ = places.indices(len(ids))
    return SubLayers(first, *_embedded(model, ids[first:stop], first), heads, neurons, feed_forward, streams[0])


def sub_layers_at(model: GPT, ids: Sequence[int], place: int, streams: Sequence[Tensor], heads: Sequence[Tensor]) -> SubLayers:
    """The same at one place, from what a pass over the text left: the residual ``streams`` (length, d_model) before the first
    block and after each one, and what the ``heads`` (length, num_heads * d_head) of each block mixed. No other place is
    computed, so it takes as long as a token."""
    row = slice(place, place + 1)
    neurons: list[Any] = []
    feed_forward: list[Any] = []

    def keep(module: Module, inputs: tuple[Any, ...], output: Any) -> None:
        neurons.append(inputs[0].numpy().astype(host.float32))
        feed_forward.append(output.numpy().astype(host.float32))

    blocks: Any = model.blocks
    watched: list[tuple[Module, str, Hook]] = [(block.feed_forward.down, "forward", keep) for block in blocks]
    with hooked(watched), tt.no_grad(), evaluating(model):
        for block, x, mixed in zip(blocks, streams, heads):
            block.feed_forward(block.feed_forward_norm(x[row] + block.attention.output(mixed[row])))
    kept = [mixed[row].numpy().astype(host.float32) for mixed in heads]
    stream = streams[-1][row].numpy().astype(host.float32)
    return SubLayers(place, *_embedded(model, ids[row], place), kept, neurons, feed_forward, stream)


def _embedded(model: GPT, ids: Sequence[int], first: int) -> tuple[Any, Any]:
    """The embeddings of tokens as they are added, (places, d_model), and what is added for their positions; None without."""
    with tt.no_grad():
        embedded = model.token_embedding(tt.tensor(list(ids), dtype=int)).numpy().astype(host.float32)
        added = None if model.position_embedding is None else model.position_embedding(len(ids), first)
    embedded = embedded * model.config.embedding_scale
    return embedded, None if added is None else added.numpy().astype(host.float32)


@dataclass(frozen=True)
class Shares:
    """The shares of a logit: of the token's ``embedding``, its ``position`` (None without), each head of each block
    (``heads``), each block's feed-forward network, and all ``biases``, that of the final norm included."""

    embedding: float
    position: float | None
    heads: list[list[float]]
    feed_forward: list[float]
    biases: float

    @property
    def sum(self) -> float:
        """The sum of all shares."""
        of_heads = (share for layer in self.heads for share in layer)
        return math.fsum([self.embedding, self.position or 0.0, *of_heads, *self.feed_forward, self.biases])


def logit_shares(model: GPT, found: SubLayers, place: int, token: int, other: int | None = None) -> Shares:
    """What each part adds to the logit of a token at a place; with an ``other`` token, to the difference of their logits.

    The biases are those of the output projections of attention and feed-forward networks, and of the final norm. The bias of
    the values is in the heads, whose weights pass it on.
    """
    row = place - found.first
    unembedded = _output_row(model, token) - (0.0 if other is None else _output_row(model, other))
    direction = direction_of(model.norm, unembedded, found.stream[row])
    bias = getattr(model.norm, "bias", None)
    biases = 0.0 if bias is None else float(unembedded @ _numbers(bias))
    heads, feed_forward = [], []
    block: Any
    for i, block in enumerate(model.blocks):
        layer, down = block.attention.output, block.feed_forward.down
        through = direction @ _numbers(layer.weight)  # (num_heads * d_head,)
        parts = (through * found.heads[i][row]).reshape(block.attention.num_heads, -1)
        heads.append(parts.sum(-1).tolist())
        own = 0.0 if down.bias is None else float(direction @ _numbers(down.bias))
        feed_forward.append(float(direction @ found.feed_forward[i][row].astype(host.float64)) - own)
        biases += own + (0.0 if layer.bias is None else float(direction @ _numbers(layer.bias)))
    position = None if found.positions is None else float(direction @ found.positions[row].astype(host.float64))
    return Shares(float(direction @ found.embedded[row].astype(host.float64)), position, heads, feed_forward, biases)


def direction_of(norm: Any, unembedded: Any, stream: Any) -> Any:
    """The direction in a residual stream that a norm and rows of the output layer (..., d_model) read a logit from, with the
    norm's scale held at what it is for this ``stream`` (d_model,). See the top of this file."""
    centred = isinstance(norm, LayerNorm)
    x = stream.astype(host.float64)
    scale = math.sqrt(float(((x - x.mean() if centred else x) ** 2).mean()) + norm.eps)
    direction = unembedded * _numbers(norm.weight) / scale
    return direction - direction.mean(-1, keepdims=True) if centred else direction


def _numbers(weight: Any) -> Any:
    return weight.numpy().astype(host.float64)


def _output_row(model: GPT, token: int) -> Any:
    with tt.no_grad():
        return _numbers(embedding(tt.tensor([token], dtype=int), model.output_weight())[0])
