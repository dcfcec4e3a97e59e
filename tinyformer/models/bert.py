"""BERT: an encoder-only Transformer (Devlin et al. 2019). Its heads fill in masked tokens, classify sentences, sentence pairs
or tokens, and answer questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.memory import check_model_fits
from tinyformer.common.settings import at_least, check_fields, one_of, setting, settings_from
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.attention import padding_mask
from tinyformer.models.blocks import BlockConfig
from tinyformer.models.positions import (
    LearnedPositions,
    RelativePositions,
    absolute_positions,
    add_positions,
    check_positions,
    rotary_positions,
)
from tinyformer.models.transformer import Stack, check_batch
from tinytensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.nn import Dropout, Embedding, LayerNorm, Linear, Module, Parameter, init
from tinytensor.nn.weights import linear

POOLERS = {"tanh": tt.tanh, "relu": tt.relu, "": None}


@dataclass(frozen=True)
class BertConfig:
    """Configuration of a BERT. The defaults match BERT-base. Raises SettingError for an invalid value.

    The last settings support related architectures:

    - ``num_segments``: number of segments, or 0 to disable them (DistilBERT).
    - ``pooler``: activation of the pooling layer: "tanh", "relu", or "" to omit the layer.
    - ``tie_output``: share the weights of the token embedding with the masked-LM head.
    - ``skip_padding``: count positions only at non-padding tokens, starting at ``pad`` + 1 (RoBERTa).
    - ``relative_ranges``: number of ranges of ``RelativePositions`` (MPNet). 0: no relative positions.
    - ``head_dropout``: dropout before a classifier's last layer (default: ``dropout``). If ``pooler_dropout`` is set, it also
      applies before the pooler (RoBERTa).
    """

    vocab_size: int = 30522
    pad: int = 0
    num_segments: int = 2
    max_length: int = setting(512, "maximum context length, in tokens")
    num_layers: int = setting(12, "number of blocks")
    num_heads: int = setting(12, "attention heads per block; must divide the width")
    d_model: int = setting(768, "width of the model")
    d_ff: int = setting(3072, "hidden width of the feed-forward networks")
    dropout: float = setting(0.1, "dropout probability", changeable=True)
    positions: str = setting("learned", "learned, sinusoidal, sinusoidal_halves or rotary")
    norm_first: bool = setting(False, "normalize before each sub-layer instead of after the residual sum")
    activation: str = "gelu_exact"
    norm_eps: float = 1e-12
    query_key_norm: bool = setting(False, "RMS norms of each head's queries and keys")
    pooler: str = "tanh"
    tie_output: bool = True
    skip_padding: bool = False
    relative_ranges: int = 0
    head_dropout: float | None = None
    pooler_dropout: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, vocab_size=1, num_segments=0, max_length=1, num_layers=1, relative_ranges=0)
        one_of(self, "pooler", POOLERS)
        if self.head_dropout is not None and not 0.0 <= self.head_dropout < 1.0:
            raise SettingError(f"head_dropout must be at least 0 and less than 1, got {self.head_dropout}")
        if self.skip_padding and (self.positions != "learned" or self.pad < 0):
            raise SettingError("skip_padding needs learned positions and a pad of at least 0", "skip_padding", "pad")
        plain = [name for name, activation in ACTIVATIONS.items() if not activation.is_gated]
        one_of(self, "activation", plain)  # the masked-LM head has no gate
        _, d_head = self.block.head_sizes  # building ``block`` validates the BlockConfig settings
        check_positions(self, d_head)

    @property
    def block(self) -> BlockConfig:
        """Configuration of each block, copied from the settings of the same names."""
        return settings_from(BlockConfig, vars(self))

    def num_parameters(self) -> int:
        """Return the number of parameters of ``Bert`` without building it."""
        width = int(self.d_model)
        positions = self.num_positions if self.positions == "learned" else 0
        embeddings = (int(self.vocab_size) + int(self.num_segments) + positions) * width
        norms = self.block.norm_parameters() * (2 if self.norm_first else 1)
        pooler = width * width + width if self.pooler else 0
        relative = int(self.relative_ranges) * int(self.num_heads)
        return embeddings + int(self.num_layers) * self.block.block_parameters() + norms + pooler + relative

    @property
    def num_positions(self) -> int:
        """The number of rows in the table of learned positions."""
        return int(self.max_length) + (int(self.pad) + 1 if self.skip_padding else 0)

    def saved_numbers(self) -> int:
        """Return a lower bound on the values per token that training saves for the backward pass."""
        return int(self.num_layers) * self.block.saved_numbers()

    def initialise(self, module: Module) -> None:
        """Initialize as BERT does: normal weights, zero biases. BERT's standard deviation of 0.02 suits its width of 768 but
        makes narrower models learn slowly. Scale it to 0.02 * sqrt(768 / width)."""
        if isinstance(module, (Linear, Embedding)):
            init.normal_(module.weight, std=0.02 * math.sqrt(768 / self.d_model))
        if isinstance(module, Linear) and module.bias is not None:
            init.zeros_(module.bias)


class Bert(Module):
    """A BERT encoder: token, segment and position embeddings (unless rotary), a norm, and non-causal blocks. Raises
    SettingError if the model does not fit in memory.

    >>> from tinyformer import Bert, BertConfig
    >>> model = Bert(BertConfig(100, num_layers=1, num_heads=4, d_model=32, d_ff=64))
    >>> model(tt.ones((2, 6), dtype=int)).shape
    (2, 6, 32)
    """

    def __init__(self, config: BertConfig):
        check_model_fits(config.num_parameters(), config.num_layers, "d_model", "d_ff", "num_layers", "max_length")
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, config.d_model)
        self.position_embedding = absolute_positions(config.positions, config.num_positions, config.d_model)
        self.segment_embedding = Embedding(config.num_segments, config.d_model) if config.num_segments else None
        ranges = config.relative_ranges
        self.relative_positions = RelativePositions(ranges, config.num_heads) if ranges else None
        self.norm = config.block.make_norm()
        self.dropout = Dropout(config.dropout)
        rotary = rotary_positions(config.positions, config.d_model // config.num_heads)
        self.encoder = Stack(config.block, config.num_layers, rotary=rotary)
        self.pooler = Linear(config.d_model, config.d_model) if config.pooler else None
        self.apply(config.initialise)

    @checked
    def forward(self, ids: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Map ids and segments (batch, length) to vectors (batch, length, d_model). Padding is not attended to. If ``segments``
        is omitted, all tokens belong to the first segment.

        A boolean ``mask`` (batch, length) replaces the padding mask. True marks tokens to attend to.
        """
        return self.encoder.normed(self.residual_stream(ids, segments, mask))

    def residual_stream(self, ids: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Return the output of ``forward`` before the final norm. Only ``norm_first`` models have a final norm."""
        check_batch(ids, "ids")
        x = self._with_segments(self.token_embedding(ids), segments)
        if self.config.positions.startswith("sinusoidal"):
            x = x * math.sqrt(self.config.d_model)  # otherwise sines of size 1 would dwarf the embeddings
        x = self.norm(self._with_positions(x, ids, mask))
        seen = padding_mask(ids, self.config.pad) if mask is None else mask.reshape(len(ids), 1, 1, ids.shape[1])
        if self.relative_positions is not None:
            seen = tt.where(seen, self.relative_positions(ids.shape[1]), float("-inf"))
        return self.encoder.residual_stream(self.dropout(x), seen)

    def _with_segments(self, x: Tensor, segments: Tensor | None) -> Tensor:
        if self.segment_embedding is None:
            if segments is not None:
                raise ValueError("this model has no segments: omit segments")
            return x
        return x + (self.segment_embedding.weight[0] if segments is None else self.segment_embedding(segments))

    def _with_positions(self, x: Tensor, ids: Tensor, mask: Tensor | None) -> Tensor:
        if not self.config.skip_padding:
            return add_positions(x, self.position_embedding)
        assert isinstance(self.position_embedding, LearnedPositions)
        if ids.shape[1] > (longest := self.config.max_length):
            raise ValueError(f"ids must have a length of at most {longest}, got {ids.shape[1]}: crop them")
        is_token = (ids != self.config.pad if mask is None else mask).astype(ids.dtype)
        positions = tt.cumsum(is_token, axis=1) * is_token + self.config.pad  # 0 at padding; 1, 2, ... at tokens
        return x + Embedding.forward(self.position_embedding, positions)

    def pool(self, encoded: Tensor) -> Tensor:
        """Return one vector per sequence, (batch, d_model): a linear layer and an activation applied to the first token's
        vector. Raises ValueError if there is no pooler."""
        activation = POOLERS[self.config.pooler]
        if self.pooler is None or activation is None:
            raise ValueError("this model has no pooler: use the token vectors")
        return activation(self.pooler(encoded[:, 0]))


class BertForMaskedLM(Module):
    """A BERT with a head that predicts masked tokens: linear layer, activation, norm, and an output layer with bias. By
    default, the output layer is tied to the token embedding."""

    def __init__(self, config: BertConfig):
        self.config = config
        self.bert = Bert(config)
        self.transform = Linear(config.d_model, config.d_model)
        self.norm = LayerNorm(config.d_model, config.block.norm_eps)
        self.output = None if config.tie_output else Linear(config.d_model, config.vocab_size, bias=False)
        self.bias = Parameter(tt.zeros(config.vocab_size))
        config.initialise(self.transform)
        if self.output is not None:
            config.initialise(self.output)

    @checked
    def forward(self, ids: Tensor, segments: Tensor | None = None, places: Any = None, mask: Tensor | None = None) -> Tensor:
        """Map ids (batch, length) to logits for the token at each position, (batch, length, vocab_size). For ``segments`` and
        ``mask``, see ``Bert``.

        ``places`` is an index into (batch, length). If it is passed, the head computes logits only at the n selected positions:
        (n, vocab_size).
        """
        x = self.bert.residual_stream(ids, segments, mask)
        return self.logits_of(x if places is None else x[places])

    def logits_of(self, x: Tensor) -> Tensor:
        """Return the logits (..., vocab_size) for a residual stream x (..., d_model). Applies the final norm, if any, and the
        head. For the stream of an earlier block, see ``GPT.logits_of``."""
        x = self.bert.encoder.normed(x)
        x = self.norm(ACTIVATIONS[self.config.activation].function(self.transform(x)))
        return linear(x, self.output_weight(), self.bias)

    def output_weight(self) -> Tensor:
        """Return the output layer's weight (vocab_size, d_model). It may be tied to the token embedding."""
        return self.bert.token_embedding.weight if self.output is None else self.output.weight


class BertHead(Module):
    """Base class of the classification heads: dropout and a linear layer that computes one logit per class.

    ``labels`` are the class names (default: LABEL_0, LABEL_1, ...). Raises SettingError if there are no classes or the number
    of names differs.
    """

    def __init__(self, config: BertConfig, num_classes: int, labels: Sequence[str] = ()):
        self.labels = tuple(labels) or tuple(f"LABEL_{i}" for i in range(num_classes))
        if num_classes < 1 or len(self.labels) != num_classes:
            raise SettingError(f"num_classes must be positive and match labels, got {num_classes} with {len(self.labels)}")
        self.config = config
        self.bert = Bert(config)
        self.dropout = Dropout(config.dropout if config.head_dropout is None else config.head_dropout)
        self.output = Linear(config.d_model, num_classes)
        config.initialise(self.output)


class BertForClassification(BertHead):
    """A BERT with a linear layer on the pooled vector. Raises SettingError if the Bert has no pooler."""

    def __init__(self, config: BertConfig, num_classes: int, labels: Sequence[str] = ()):
        if not config.pooler:
            raise SettingError("pooler must be tanh or relu to classify texts, got ''")
        super().__init__(config, num_classes, labels)

    @checked
    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Map ids (batch, length) to class logits (batch, num_classes)."""
        encoded = self.bert(ids, segments)
        if self.config.pooler_dropout:
            encoded = self.dropout(encoded[:, :1])
        return self.output(self.dropout(self.bert.pool(encoded)))


class BertForNextSentence(BertForClassification):
    """A BERT that predicts whether the second segment follows the first. Returns two logits: yes and no."""

    def __init__(self, config: BertConfig):
        super().__init__(config, 2, ("next", "random"))


class BertForTokenClassification(BertHead):
    """A BERT with a linear layer on each token's vector, for tasks such as named-entity recognition."""

    @checked
    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """Map ids (batch, length) to class logits for each token, (batch, length, num_classes)."""
        return self.output(self.dropout(self.bert(ids, segments)))


class BertForQuestionAnswering(BertForTokenClassification):
    """A BERT that finds the answer to a question (first segment) in a passage (second segment). For each token, ``model(ids,
    segments)[..., 0]`` is the logit of the answer's start, and ``[..., 1]`` of its end."""

    def __init__(self, config: BertConfig):
        super().__init__(config, 2, ("start", "end"))
