"""BERT: an encoder-only Transformer that fills in masked tokens, or classifies texts (Devlin et al. 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.memory import check_model_fits
from tinyformer.common.schema import check_fields
from tinyformer.common.settings import at_least, one_of, setting, settings_from
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.attention import padding_mask
from tinyformer.models.blocks import BlockConfig
from tinyformer.models.positions import absolute_positions, add_positions, check_positions, rotary_positions
from tinyformer.models.transformer import Stack, check_batch
from tinytensor import Tensor
from tinytensor.common.arguments import composite
from tinytensor.nn import Dropout, Embedding, LayerNorm, Linear, Module, Parameter, init


@dataclass(frozen=True)
class BertConfig:
    """The shape of a BERT. The defaults are those of BERT-base. Raises SettingError for a value that is not allowed."""

    vocab_size: int = 30522
    pad: int = 0
    num_segments: int = 2
    max_length: int = setting(512, "the longest text, in tokens")
    num_layers: int = setting(12, "blocks")
    num_heads: int = setting(12, "attention heads in a block; must divide the width")
    d_model: int = setting(768, "the width: numbers for each position")
    d_ff: int = setting(3072, "the width inside the feed-forward networks")
    dropout: float = setting(0.1, "probability of dropping a value while training", changeable=True)
    positions: str = setting("learned", "learned, sinusoidal, sinusoidal_halves or rotary")
    norm_first: bool = setting(False, "norms before the sub-layers instead of after the residual sums")
    activation: str = "gelu_exact"
    norm_eps: float = 1e-12
    query_key_norm: bool = setting(False, "an RMS norm of each head's queries, and one of its keys")

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, vocab_size=1, num_segments=1, max_length=1, num_layers=1)
        plain = [name for name, activation in ACTIVATIONS.items() if not activation.is_gated]
        one_of(self, "activation", plain)  # the head for masks has no gate
        _, d_head = self.block.head_sizes  # ``block`` makes a BlockConfig, which checks the settings that both have
        check_positions(self, d_head)

    @property
    def block(self) -> BlockConfig:
        """The configuration of each block: the model's settings of the same names."""
        return settings_from(BlockConfig, vars(self))

    def num_parameters(self) -> int:
        """The number of parameters of ``Bert``, computed without building it."""
        width = int(self.d_model)
        positions = int(self.max_length) if self.positions == "learned" else 0
        embeddings = (int(self.vocab_size) + int(self.num_segments) + positions) * width
        norms = self.block.norm_parameters() * (2 if self.norm_first else 1)
        return embeddings + int(self.num_layers) * self.block.block_parameters() + norms + width * width + width

    def saved_numbers(self) -> int:
        """A lower bound for how many numbers training keeps for each token of a batch."""
        return int(self.num_layers) * self.block.saved_numbers()

    def initialise(self, module: Module) -> None:
        """Initialise as BERT does: normal weights, zero biases. BERT's standard deviation of 0.02 suits its width of 768. In a
        narrower model it would make small outputs and slow learning, so here it is 0.02 * sqrt(768 / width)."""
        if isinstance(module, (Linear, Embedding)):
            init.normal_(module.weight, std=0.02 * math.sqrt(768 / self.d_model))
        if isinstance(module, Linear) and module.bias is not None:
            init.zeros_(module.bias)


class Bert(Module):
    """The encoder. It adds the embeddings of token, segment and position (none of rotary ones), applies a norm, and then the
    blocks, in which every token sees every other. Raises SettingError if the model does not fit in memory.

    >>> from tinyformer import Bert, BertConfig
    >>> model = Bert(BertConfig(100, num_layers=1, num_heads=4, d_model=32, d_ff=64))
    >>> model(tt.ones((2, 6), dtype=int)).shape
    (2, 6, 32)
    """

    def __init__(self, config: BertConfig):
        check_model_fits(config.num_parameters(), config.num_layers, "d_model", "d_ff", "num_layers", "max_length")
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, config.d_model)
        self.position_embedding = absolute_positions(config.positions, config.max_length, config.d_model)
        self.segment_embedding = Embedding(config.num_segments, config.d_model)
        self.norm = config.block.make_norm()
        self.dropout = Dropout(config.dropout)
        rotary = rotary_positions(config.positions, config.d_model // config.num_heads)
        self.encoder = Stack(config.block, config.num_layers, rotary=rotary)
        self.pooler = Linear(config.d_model, config.d_model)
        self.apply(config.initialise)

    @composite
    def forward(self, ids: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Ids and segments (batch, length) -> (batch, length, d_model). No token attends to padding.

        A boolean ``mask`` (batch, length), True for the tokens that may be attended to, replaces that of the padding.
        """
        return self.encoder.normed(self.residual_stream(ids, segments, mask))

    def residual_stream(self, ids: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """``forward`` without the norm after the last block, which only ``norm_first`` has."""
        check_batch(ids, "ids")
        segments = tt.zeros_like(ids) if segments is None else segments
        x = self.token_embedding(ids) + self.segment_embedding(segments)
        if self.config.positions.startswith("sinusoidal"):
            x = x * math.sqrt(self.config.d_model)  # otherwise the embeddings would be tiny beside sines of size 1
        x = self.norm(add_positions(x, self.position_embedding))
        seen = padding_mask(ids, self.config.pad) if mask is None else mask.reshape(len(ids), 1, 1, ids.shape[1])
        return self.encoder.residual_stream(self.dropout(x), seen)

    def pool(self, encoded: Tensor) -> Tensor:
        """One vector for the whole text, (batch, d_model): the first token's vector after a linear layer and tanh."""
        return tt.tanh(self.pooler(encoded[:, 0]))


class BertForMaskedLM(Module):
    """Bert with the head that predicts tokens: a linear layer, the activation, a norm, then the token embedding and a bias as
    output."""

    def __init__(self, config: BertConfig):
        self.config = config
        self.bert = Bert(config)
        self.transform = Linear(config.d_model, config.d_model)
        self.norm = LayerNorm(config.d_model, config.block.norm_eps)
        self.bias = Parameter(tt.zeros(config.vocab_size))
        config.initialise(self.transform)

    @composite
    def forward(self, ids: Tensor, segments: Tensor | None = None, places: Any = None, mask: Tensor | None = None) -> Tensor:
        """Ids (batch, length) -> logits for the token at each position, (batch, length, vocab_size). ``segments`` and ``mask``
        are those of ``Bert``.

        ``places`` is an index into (batch, length). With it, only the n positions that it picks get logits, (n, vocab_size),
        and the head computes no others.
        """
        x = self.bert.residual_stream(ids, segments, mask)
        return self.logits_of(x if places is None else x[places])  # or only of (n, d_model)

    def logits_of(self, x: Tensor) -> Tensor:
        """The logits (..., vocab_size) that the encoder's final norm, if it has one, and the head make of a residual stream x
        (..., d_model). For that after an earlier block: see ``GPT.logits_of``."""
        x = self.bert.encoder.normed(x)
        x = self.norm(ACTIVATIONS[self.config.activation].function(self.transform(x)))
        return tt.linear(x, self.bert.token_embedding.weight, self.bias)


class BertForClassification(Module):
    """Bert with a linear layer that reads the vector of the whole text."""

    def __init__(self, config: BertConfig, num_classes: int):
        self.config = config
        self.bert = Bert(config)
        self.dropout = Dropout(config.dropout)
        self.output = Linear(config.d_model, num_classes)
        config.initialise(self.output)

    @composite
    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Ids (batch, length) -> logits for each class, (batch, num_classes)."""
        return self.output(self.dropout(self.bert.pool(self.bert(ids, segments))))
