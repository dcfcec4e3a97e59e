"""Direct logit attribution: how much each part of a GPT adds to a logit.

In a pre-norm GPT, the residual stream x after the last block is a sum of the token's embedding, its position, the outputs of
all heads and feed-forward networks, and the biases. With u the row of the output layer for a token, and w, b and s the final
norm's weight, bias and scale,

    logit = u . (w * (x - mean(x)) / s + b),    s = sqrt(mean((x - mean(x))^2) + eps)

where an RMS norm has neither mean nor b. With s held fixed this is linear in x, and since (c - mean(c)) . d = c . (d -
mean(d)), the share of a part c of the stream is

    c . (d - mean(d)),    d = w * u / s

All shares, that of b included, sum to the logit (Elhage et al. 2021; Nanda and Bloom 2022, TransformerLens). Hooks read all
values in the model's own forward pass. What a subclass adds to the stream has a share of its own.
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
    """The values of a GPT's pass over a text, with a row for each token.

    - ``embedded``: the token embeddings as they are added.
    - ``streams``: the residual stream before the first block and after each block.
    - ``heads``: each block's mixed values, heads side by side, before the output projection.
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
    """Run a GPT over a text. Raises UserError for a subclass whose ``forward`` may compute other logits than ``logits_of``, or
    that shows hooks no embeddings."""
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
    """The values in a GPT's sub-layers at one position of a text: float64 vectors.

    - ``embedded`` and ``positions``: the token embedding as it is added, and the position embedding or None.
    - ``heads``: each block's mixed values, heads side by side, before the output projection.
    - ``neurons`` and ``feed_forward``: each block's hidden units of the feed-forward network, and its output.
    - ``stream``: the input of the final norm.
    - ``logits``: of all tokens.
    """

    embedded: Any
    positions: Any
    heads: list[Any]
    neurons: list[Any]
    feed_forward: list[Any]
    stream: Any
    logits: Any


def sub_layers(model: GPT, values: Pass, position: int) -> SubLayers:
    """Return the values in the sub-layers at a position, from a pass over the text. The blocks run again on this position
    alone, with the heads' values of the pass, which takes as long as one token."""
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
    """The shares of a logit: of the token's ``embedding``, its ``position`` (or None), each block's ``heads``, each block's
    feed-forward network, all ``biases``, that of the final norm included, and the ``rest`` of the residual stream, which in a
    GPT is only rounding error.

    ``logit`` is the model's own value. It differs from the sum where the model does more after the final norm than multiply by
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
        """The sum of all shares."""
        of_heads = (share for layer in self.heads for share in layer)
        return math.fsum([self.embedding, self.position or 0.0, *of_heads, *self.feed_forward, self.biases, self.rest])


def logit_shares(model: GPT, values: SubLayers, token: int, other: int | None = None) -> Shares:
    """Return each part's share of a token's logit, or with ``other`` of the difference of their logits.

    The biases are those of the attention and feed-forward output layers, and of the final norm. The bias of the values counts
    for the heads. Raises UserError for a final norm of another type.
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
    """Return the direction in a residual stream from which a norm and rows of the output layer (..., d_model) read a logit,
    with the norm's scale fixed for ``stream`` (d_model,): d - mean(d) above. Raises UserError unless the norm is a LayerNorm or
    an RMSNorm."""
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
