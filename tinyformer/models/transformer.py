"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017): an encoder and a decoder."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.memory import check_cache_fits, check_model_fits
from tinyformer.common.settings import at_least, check_fields, setting, settings_from
from tinyformer.common.vectors import Vectors, check_vectors
from tinyformer.models.activations import CHOICES
from tinyformer.models.attention import padding_mask
from tinyformer.models.blocks import Block, BlockConfig, Cache
from tinyformer.models.positions import RotaryPositions, absolute_positions, add_positions, check_positions, rotary_positions
from tinytensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.nn import Dropout, Embedding, Linear, Module, ModuleList, init
from tinytensor.nn.weights import linear, linear_cross_entropy


@dataclass(frozen=True)
class TransformerConfig:
    """Configuration of an encoder-decoder. The defaults match the paper's base model. Raises SettingError for an invalid value.

    ``scale_embeddings``, ``learn_padding`` and ``output_bias`` support Marian models. See ``TokenAndPosition`` and
    ``Transformer``.

    If ``source_features`` is set, the encoder reads vectors of that size instead of ids (see ``Vectors``), and reduces every
    ``source_stride`` of them to one position. In that case, ``source_vocab_size`` must be 0.
    """

    source_vocab_size: int
    target_vocab_size: int
    source_pad: int = 0
    d_model: int = setting(512, "width of the model")
    num_heads: int = setting(8, "attention heads per block; must divide the width")
    encoder_layers: int = setting(6, "encoder blocks")
    decoder_layers: int = setting(6, "decoder blocks")
    d_ff: int = setting(2048, "hidden width of the feed-forward networks")
    dropout: float = setting(0.1, "dropout probability", changeable=True)
    positions: str = setting("sinusoidal", "learned, sinusoidal, sinusoidal_halves or rotary")
    max_length: int = setting(
        512,
        "maximum length with learned positions, in tokens",
        unless={"positions": ["sinusoidal", "sinusoidal_halves", "rotary"]},
    )
    norm: str = setting("layer", "layer or rms")
    norm_first: bool = setting(False, "normalize before each sub-layer instead of after the residual sum")
    activation: str = setting("relu", CHOICES)
    share_embeddings: bool = setting(False, "share one embedding and vocabulary between both languages")
    tie_output: bool = setting(True, "tie the output layer to the target embedding")
    source_features: int = 0
    source_stride: int = 1
    norm_eps: float = 1e-5
    scale_embeddings: bool = True
    learn_padding: bool = True
    output_bias: bool = False
    query_key_norm: bool = setting(False, "in self-attention, RMS norms of each head's queries and keys")

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, source_features=0, source_stride=1)
        self._check_source()
        at_least(self, target_vocab_size=1, encoder_layers=1, decoder_layers=1, max_length=1)
        _, d_head = self.block.head_sizes  # building ``block`` validates the BlockConfig settings
        check_positions(self, d_head)
        check_shared_vocabulary(self)

    def _check_source(self) -> None:
        """Raise SettingError if source settings do not match the source type (ids or vectors)."""
        if not self.source_features:
            at_least(self, source_vocab_size=1)
            check_padding(self.source_pad, self.source_vocab_size)
            if self.source_stride > 1:
                raise SettingError(f"source_stride must be 1 without source_features, got {self.source_stride}")
        elif self.source_vocab_size or self.share_embeddings:
            names = ("source_vocab_size", "share_embeddings", "source_features")
            raise SettingError("with source_features, source_vocab_size must be 0, and share_embeddings off", *names)

    @property
    def block(self) -> BlockConfig:
        """Configuration of each block, copied from the settings of the same names."""
        return settings_from(BlockConfig, vars(self))

    def num_parameters(self) -> int:
        """Return the number of parameters without building the model."""
        width, source, target = int(self.d_model), int(self.source_vocab_size), int(self.target_vocab_size)
        if self.source_features:  # weight matrix and bias of the convolution
            source = (2 * int(self.source_stride) - 1) * int(self.source_features) + 1
        tables = target if self.share_embeddings else source + target
        tables += 0 if self.tie_output else target
        tables += 2 * int(self.max_length) if self.positions == "learned" else 0
        norms = 2 * self.block.norm_parameters() if self.norm_first else 0
        encoder = int(self.encoder_layers) * self.block.block_parameters()
        decoder = int(self.decoder_layers) * self.block.block_parameters(cross_attention=True)
        return tables * width + norms + encoder + decoder

    def saved_numbers(self) -> int:
        """Return a lower bound on the values that training saves for the backward pass, per source or target token (or vector).
        Cross-attention saves keys and values for encoder tokens, and queries and results for decoder tokens."""
        block, width = self.block.saved_numbers(), int(self.d_model)
        encoder, decoder = int(self.encoder_layers), int(self.decoder_layers)
        return min((encoder * block + decoder * 2 * width) // int(self.source_stride), decoder * (block + 3 * width))


def check_shared_vocabulary(config: Any) -> None:
    """Raise SettingError if ``share_embeddings`` is set but the vocabularies differ."""
    if config.share_embeddings and config.source_vocab_size != config.target_vocab_size:
        sizes = f"{config.source_vocab_size} and {config.target_vocab_size}"
        raise SettingError(f"share_embeddings needs one vocabulary for both languages, got sizes {sizes}")


def check_padding(source_pad: int, source_vocab_size: int) -> None:
    """Raise SettingError unless the padding id is in the source vocabulary."""
    if not 0 <= source_pad < source_vocab_size:
        raise SettingError(f"source_pad must be a source id from 0 to {source_vocab_size - 1}, got {source_pad}")


def check_batch(ids: Tensor, name: str) -> None:
    """Raise ValueError unless the ids have shape (batch, length)."""
    if ids.ndim != 2:
        raise ValueError(f"{name} must be (batch, length), got {ids.shape}: pass a single text as a batch of one, ids[None]")


class TokenAndPosition(Module):
    """Token embeddings times sqrt(d_model), plus positions (unless rotary), then dropout (sections 3.4, 3.5 and 5.4). If
    ``scale_embeddings`` is False, the factor is 1."""

    def __init__(self, tokens: Embedding, config: TransformerConfig):
        self.tokens = tokens
        self.scale = math.sqrt(config.d_model) if config.scale_embeddings else 1.0
        self.positions = absolute_positions(config.positions, config.max_length, config.d_model)
        self.dropout = Dropout(config.dropout)

    @checked
    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Map ids (batch, length) to vectors (batch, length, d_model). If a cache is passed, the ids follow its tokens."""
        return self.dropout(add_positions(self.tokens(ids) * self.scale, self.positions, cache))


class Stack(Module):
    """A sequence of blocks, followed by a norm if ``norm_first``."""

    def __init__(
        self, config: BlockConfig, num_layers: int, cross_attention: bool = False, rotary: RotaryPositions | None = None
    ):
        self.blocks = ModuleList(Block(config, cross_attention, rotary) for _ in range(num_layers))
        self.norm = config.make_norm() if config.norm_first else None

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Map (batch, length, d_model) to the same shape. For the arguments, see ``Block``."""
        return self.normed(self.residual_stream(x, mask, is_causal, memory, memory_mask, cache))

    def residual_stream(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the output of ``forward`` before the final norm."""
        for i, block in enumerate(self.blocks):
            x = block(x, mask, is_causal, memory, memory_mask, None if cache is None else cache.blocks[i])
        return x

    def normed(self, x: Tensor) -> Tensor:
        """Apply the final norm, if any, to the last block's output (..., d_model)."""
        return x if self.norm is None else self.norm(x)


class Transformer(Module):
    """An encoder, a decoder and an output layer. Train with ``forward``. Translate with ``encode`` and ``decode``.

    If ``output_bias`` is set, a fixed bias (target_vocab_size,) is added to the logits. If ``learn_padding`` is False, the
    embeddings of ``source_pad`` get no gradient, even where it is the decoder's start token.

    Raises SettingError if the model does not fit in memory.

    >>> from tinyformer import Transformer, TransformerConfig
    >>> config = TransformerConfig(100, 120, encoder_layers=1, decoder_layers=1, d_model=64)
    >>> sources, targets = tt.ones((3, 7), dtype=int), tt.ones((3, 5), dtype=int)
    >>> Transformer(config)(sources, targets).shape
    (3, 5, 120)
    """

    def __init__(self, config: TransformerConfig):
        layers = config.encoder_layers + config.decoder_layers
        settings = ("d_model", "d_ff", "encoder_layers", "decoder_layers", "max_length")
        check_model_fits(config.num_parameters(), layers, *settings)
        self.config = config
        if config.source_features:
            self.source_embedding: Module = VectorAndPosition(config)
            target = Embedding(config.target_vocab_size, config.d_model)
        else:
            frozen = None if config.learn_padding else config.source_pad
            source = Embedding(config.source_vocab_size, config.d_model, frozen)
            shared = source if config.share_embeddings else None
            target = shared or Embedding(config.target_vocab_size, config.d_model, frozen)
            self.source_embedding = TokenAndPosition(source, config)
        self.target_embedding = TokenAndPosition(target, config)
        rotary = rotary_positions(config.positions, config.d_model // config.num_heads)
        self.encoder = Stack(config.block, config.encoder_layers, rotary=rotary)
        self.decoder = Stack(config.block, config.decoder_layers, cross_attention=True, rotary=rotary)
        self.output = None if config.tie_output else Linear(config.d_model, config.target_vocab_size, bias=False)
        self.output_bias: Tensor | None = None
        if config.output_bias:
            self.register_buffer("output_bias", tt.zeros(config.target_vocab_size))
        self.apply(self._initialise)

    def _initialise(self, module: Module) -> None:
        """Xavier-initialize linear layers. Embeddings get variance 1 / d_model, which scaling by sqrt(d_model) turns into 1."""
        if isinstance(module, Embedding):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)

    @checked
    def forward(self, source: Tensor | Vectors, target: Tensor) -> Tensor:
        """Map ids (batch, source length) and (batch, target length) to logits for the token after each target token, (batch,
        target length, target_vocab_size). Padding must be trailing, and no token attends to it. If ``source_features`` is set,
        the source is ``Vectors``."""
        memory, memory_mask = self.encode(source)
        return self.decode(target, memory, memory_mask)

    @checked
    def encode(self, source: Tensor | Vectors, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map source ids (batch, length) or vectors to the memory (batch, length, d_model) and its padding mask (batch, 1, 1,
        length). For vectors, length is the length after striding.

        A boolean ``mask`` (batch, length) replaces the padding mask. True marks ids to attend to.
        """
        check_vectors(source, self.config.source_features)
        if isinstance(source, Vectors):
            x, lengths = self.source_embedding(source)
            mask = length_mask(lengths, x.shape[1]).reshape(x.shape[0], 1, 1, x.shape[1])
        else:
            check_batch(source, "source ids")
            x = self.source_embedding(source)
            mask = padding_mask(source, self.config.source_pad) if mask is None else mask[:, None, None]
        return self.encoder(x, mask), mask

    def decode(self, target: Tensor, memory: Tensor, memory_mask: Tensor, cache: Cache | None = None) -> Tensor:
        """Map target ids (batch, length) to logits for the token after each, (batch, length, target_vocab_size).

        If a ``cache`` is passed, the target holds only new tokens. Trailing padding needs no mask, since no token attends to
        later tokens.
        """
        return self.logits_of(self._residual_stream(target, memory, memory_mask, cache))

    def logits_of(self, x: Tensor) -> Tensor:
        """Return the logits (..., target_vocab_size) for a decoder residual stream x (..., d_model). Applies the final norm, if
        any, and the output layer. For an earlier block's stream, see ``GPT.logits_of``."""
        return linear(self.decoder.normed(x), self.output_weight(), self.output_bias)

    def loss(
        self,
        source: Tensor | Vectors,
        target_inputs: Tensor,
        target_outputs: Tensor,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> Tensor:
        """Return the cross-entropy loss for ``target_outputs`` (batch, target length). Positions equal to ``ignore_index`` do
        not count. Unless ``output_bias`` is set, logits are computed in chunks to save memory."""
        if self.output_bias is not None:
            logits = self.forward(source, target_inputs)
            return tt.cross_entropy(logits, target_outputs, ignore_index, label_smoothing, reduction)
        features = self.decoder.normed(self._residual_stream(target_inputs, *self.encode(source)))
        return linear_cross_entropy(features, self.output_weight(), target_outputs, ignore_index, label_smoothing, reduction)

    def _residual_stream(self, target: Tensor, memory: Tensor, memory_mask: Tensor, cache: Cache | None = None) -> Tensor:
        """Return the output of the decoder's last block, (batch, target length, d_model)."""
        check_batch(target, "target ids")
        x = self.target_embedding(target, cache)
        return self.decoder.residual_stream(x, is_causal=True, memory=memory, memory_mask=memory_mask, cache=cache)

    def output_weight(self) -> Tensor:
        """Return the output layer's weight (vocab_size, d_model). It may be tied to the token embedding."""
        return self.target_embedding.tokens.weight if self.output is None else self.output.weight

    def new_cache(self, capacity: int, memory_length: int) -> Cache:
        """Return an empty cache for ``capacity`` target tokens and a memory of ``memory_length`` tokens. Raises SettingError if
        it does not fit in memory."""
        numbers = 2 * int(self.config.decoder_layers) * int(capacity) * int(self.config.d_model)
        check_cache_fits(numbers, self.target_embedding.tokens.weight.dtype, "max_tokens")
        return Cache(self.config.decoder_layers, capacity, memory_length)


# --------------------------------------------------------------------------------------------------- vectors instead of tokens


@checked
def length_mask(lengths: Tensor, count: int) -> Tensor:
    """Return a mask (batch, count) that is True before each of the lengths (batch,)."""
    return tt.arange(count) < lengths.reshape(-1, 1)


class StridedConvolution(Module):
    """A convolution over time. Windows are centered on every ``stride``-th frame, and each ends one frame before the next
    center. If the stride is 1, it is a linear layer. Frames outside the sequence count as zeros."""

    def __init__(self, features: int, width: int, stride: int):
        self.stride = stride
        self.projection = Linear((2 * stride - 1) * features, width)

    def forward(self, source: Vectors) -> Vectors:
        """Map vectors (batch, frames, features) to (batch, frames / stride, width). Frame counts and lengths are rounded up."""
        values, lengths = source
        batch, frames, features = values.shape
        count, reach = -(-frames // self.stride), self.stride - 1
        values = tt.where(length_mask(lengths, frames).reshape(batch, frames, 1), values, 0.0)
        padded = tt.pad(values.astype(self.projection.weight.dtype), ((0, 0), (reach, reach), (0, 0)))
        indices = self.stride * tt.arange(count)[:, None] + tt.arange(2 * self.stride - 1)
        windows = padded[:, indices].reshape(batch, count, (2 * self.stride - 1) * features)
        return Vectors(self.projection(windows), (lengths + reach) // self.stride)


class VectorAndPosition(Module):
    """A ``StridedConvolution`` of vectors, plus positions, then dropout: the counterpart of ``TokenAndPosition``."""

    def __init__(self, config: TransformerConfig):
        self.convolution = StridedConvolution(config.source_features, config.d_model, config.source_stride)
        self.positions = absolute_positions(config.positions, config.max_length, config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, source: Vectors) -> Vectors:
        """Map vectors (batch, frames, source_features) to (batch, frames / source_stride, d_model)."""
        x, lengths = self.convolution(source)
        return Vectors(self.dropout(add_positions(x, self.positions)), lengths)
