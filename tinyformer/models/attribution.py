"""Direct logit attribution: how much each component of a GPT contributes to a logit.

In a pre-norm GPT, the residual stream x after the last block is a sum: the token and position embeddings, the outputs of all
heads and feed-forward networks, and the biases. Let u be the output layer's row for a token, and w, b and s the final norm's
weight, bias and scale:

    logit = u . (w * (x - mean(x)) / s + b),    s = sqrt(mean((x - mean(x))^2) + eps)

An RMS norm has neither mean nor b. If s is held fixed, the logit is linear in x. Because (c - mean(c)) . d = c . (d - mean(d)),
a component c of the stream contributes

    c . (d - mean(d)),    d = w * u / s

All contributions, including that of b, sum to the logit (Elhage et al. 2021; Nanda and Bloom 2022, TransformerLens). Hooks read
all values during the normal forward pass. Anything a subclass adds to the stream gets its own share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.models.evaluating import evaluating
from tinyformer.models.gpt import GPT
from tinyformer.models.recording import residual_streams
from tinytensor import Tensor
from tinytensor.common.wording import a_or_an
from tinytensor.device.backend import host
from tinytensor.nn import LayerNorm, Module, RMSNorm
from tinytensor.nn.hooks import Hook, hooked
from tinytensor.nn.weights import embedding


@dataclass(frozen=True)
class Pass:
    """Activations recorded in one forward pass of a GPT, with one row per token.

    - ``embedded``: the token embeddings as added to the stream.
    - ``streams``: the residual stream before the first block and after each block.
    - ``heads``: each block's concatenated head values before the output projection.
    - ``normed``: the input of the final norm.
    """

    embedded: Tensor
    streams: list[Tensor]
    heads: list[Tensor]
    normed: Tensor

    @property
    def num_bytes(self) -> int:
        """The size of the arrays in bytes."""
        return sum(x.data.nbytes for x in (self.embedded, *self.streams, *self.heads))


def pass_over(model: GPT, ids: Sequence[int]) -> Pass:
    """Run a GPT on a token sequence. Raises UserError for a subclass whose ``forward`` may not use ``logits_of``, or that
    passes no embeddings to hooks."""
    if type(model).forward is not GPT.forward:
        raise UserError(f"{type(model).__name__} overrides forward: override _residual_stream or logits_of instead")
    embedded: list[Tensor] = []
    heads: list[Tensor] = []
    normed: list[Tensor] = []
    watched: list[tuple[Module, str, Hook]] = [
        (model, "embedded", lambda model, inputs, output: embedded.append(output[0])),
        (model.norm, "forward", lambda norm, inputs, output: normed.append(inputs[0][0])),
    ]
    block: Any
    for block in model.blocks:
        watched.append((block.attention, "heads", lambda attention, inputs, output: heads.append(output[0])))
    with hooked(watched):
        streams = residual_streams(model, tt.tensor([list(ids)], dtype=int))["blocks"]
    if not embedded:
        raise UserError(f'{type(model).__name__} shows hooks no "embedded": call show as GPT._residual_stream does')
    return Pass(embedded[0], [x[0] for x in streams], heads, normed[0])


@dataclass(frozen=True)
class SubLayers:
    """Sub-layer activations of a GPT at one position: float64 vectors.

    - ``embedded`` and ``positions``: the token embedding as added to the stream, and the position embedding or None.
    - ``heads``: each block's concatenated head values before the output projection.
    - ``neurons`` and ``feed_forward``: each feed-forward network's hidden units and its output.
    - ``stream``: the input of the final norm.
    - ``logits``: the logits of all tokens.
    """

    embedded: Any
    positions: Any
    heads: list[Any]
    neurons: list[Any]
    feed_forward: list[Any]
    stream: Any
    logits: Any


def sub_layers(model: GPT, values: Pass, position: int) -> SubLayers:
    """Return the sub-layer activations at one position, given a forward pass over the sequence. Reuses the recorded head values
    and reruns the blocks at this position only, at the cost of one token."""
    neurons: list[Any] = []
    feed_forward: list[Any] = []
    watched: list[tuple[Module, str, Hook]] = []
    blocks: Any = model.blocks
    for block, heads in zip(blocks, values.heads):
        watched += [
            (block.attention, "heads", lambda *_, mixed=heads[position]: mixed[None, None]),
            (block.feed_forward.down, "forward", lambda down, inputs, output: neurons.append(_numbers(inputs[0][0, 0]))),
            (block.feed_forward, "forward", lambda network, inputs, output: feed_forward.append(_numbers(output[0, 0]))),
        ]
    with hooked(watched), tt.no_grad(), evaluating(model):
        for block, stream in zip(blocks, values.streams):
            block(stream[position][None, None])
        logits = model.logits_of(values.normed[position][None])[0]
    embedded = _numbers(values.embedded[position])
    positions = None if model.position_embedding is None else _numbers(values.streams[0][position]) - embedded
    mixed = [_numbers(heads[position]) for heads in values.heads]
    return SubLayers(embedded, positions, mixed, neurons, feed_forward, _numbers(values.normed[position]), _numbers(logits))


@dataclass(frozen=True)
class Shares:
    """Contributions to a logit: the token ``embedding``, the ``position`` (or None), each block's ``heads`` and feed-forward
    network, and all ``biases``, including the final norm's. ``rest`` is the remainder of the residual stream. In a GPT, it is
    only rounding error.

    ``logit`` is the model's actual value. It differs from the sum if the model does more after the final norm than multiply by
    the output layer.
    """

    embedding: float
    position: float | None
    heads: list[list[float]]
    feed_forward: list[float]
    biases: float
    rest: float
    logit: float

    @property
    def sum(self) -> float:
        """The sum of all contributions."""
        of_heads = (share for layer in self.heads for share in layer)
        return math.fsum([self.embedding, self.position or 0.0, *of_heads, *self.feed_forward, self.biases, self.rest])


def logit_shares(model: GPT, values: SubLayers, token: int, other: int | None = None) -> Shares:
    """Return each component's contribution to a token's logit, or to its difference from the logit of ``other``.

    ``biases`` covers the attention and feed-forward output layers and the final norm. The value bias counts toward the heads.
    Raises UserError for an unsupported final norm.
    """
    unembedded = _output_row(model, token) - (0.0 if other is None else _output_row(model, other))
    direction = direction_of(model.norm, unembedded, values.stream)
    biases, heads, feed_forward = 0.0, [], []
    block: Any
    for block, mixed, output in zip(model.blocks, values.heads, values.feed_forward):
        layer, down = block.attention.output, block.feed_forward.down
        through = direction @ _numbers(layer.weight)  # (num_heads * d_head,)
        heads.append((through * mixed).reshape(block.attention.num_heads, -1).sum(-1).tolist())
        down_bias = 0.0 if down.bias is None else float(direction @ _numbers(down.bias))
        feed_forward.append(float(direction @ output) - down_bias)
        biases += down_bias + (0.0 if layer.bias is None else float(direction @ _numbers(layer.bias)))
    position = None if values.positions is None else float(direction @ values.positions)
    logit = float(values.logits[token]) - (0.0 if other is None else float(values.logits[other]))
    shares = Shares(float(direction @ values.embedded), position, heads, feed_forward, biases, 0.0, logit)
    bias = getattr(model.norm, "bias", None)
    of_norm = 0.0 if bias is None else float(unembedded @ _numbers(bias))
    return replace(shares, biases=biases + of_norm, rest=float(direction @ values.stream) - shares.sum)


def direction_of(norm: Any, unembedded: Any, stream: Any) -> Any:
    """Return the direction d - mean(d) (see above) along which the residual stream determines a logit. ``unembedded`` holds
    rows of the output layer (..., d_model). The norm's scale is fixed for ``stream`` (d_model,). Raises UserError unless the
    norm is a LayerNorm or RMSNorm."""
    if type(norm) not in (LayerNorm, RMSNorm):
        raise UserError(f"the final norm must be a LayerNorm or an RMSNorm, got {a_or_an(type(norm).__name__)}")
    centred = isinstance(norm, LayerNorm)
    scale = math.sqrt(float(((stream - stream.mean() if centred else stream) ** 2).mean()) + norm.eps)
    direction = unembedded * _numbers(norm.weight) / scale
    return direction - direction.mean(-1, keepdims=True) if centred else direction


def _numbers(weight: Any) -> Any:
    return weight.numpy().astype(host.float64)


def _output_row(model: GPT, token: int) -> Any:
    with tt.no_grad():
        return _numbers(embedding(tt.tensor([token], dtype=int), model.output_weight())[0])
