"""GPT: a decoder-only Transformer that predicts the next token (Radford et al. 2019). Read it from top to bottom."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tinytensor as tt
from tinyformer.errors import SettingError
from tinyformer.memory import check_cache_fits, check_model_fits
from tinyformer.models.blocks import Block, BlockConfig
from tinyformer.models.caches import Cache
from tinyformer.models.positions import KINDS, LearnedPositions, RotaryPositions, SinusoidalPositions, add_positions
from tinyformer.schema import check_fields
from tinyformer.settings import at_least, one_of, setting
from tinytensor import Tensor
from tinytensor.nn import Dropout, Embedding, Linear, Module, ModuleList, init


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. Raises SettingError for a value that is not allowed."""

    vocab_size: int
    block_size: int = setting(64, "the longest context, in tokens")
    num_layers: int = setting(4, "blocks")
    num_heads: int = setting(4, "attention heads in a block; must divide the width")
    d_model: int = setting(128, "the width: numbers for each position")
    dropout: float = setting(0.0, "probability of dropping a value while training", changeable=True)
    bias: bool = setting(False, "biases in linear layers and norms")
    positions: str = setting("learned", "learned, sinusoidal or rotary")
    norm: str = setting("layer", "layer or rms")
    activation: str = setting("gelu_tanh", "relu, gelu_tanh, gelu_exact or swiglu")

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, vocab_size=1, block_size=1, num_layers=1)
        heads = self.block.num_heads  # ``block`` makes a BlockConfig, which checks its settings
        one_of(self, "positions", KINDS)
        if self.positions == "rotary" and self.d_model // heads % 2:
            message = f"d_model / num_heads must be even for rotary positions, not {self.d_model // heads}"
            raise SettingError(message, "d_model", "num_heads")

    @property
    def block(self) -> BlockConfig:
        """The configuration of each block. The feed-forward network is four times as wide as the model."""
        return BlockConfig(
            self.d_model, self.num_heads, 4 * self.d_model, self.dropout, self.bias, self.norm, True, self.activation
        )

    def num_parameters(self) -> int:
        """The number of parameters of the model, computed without building it."""
        positions = int(self.block_size) if self.positions == "learned" else 0
        embeddings = (int(self.vocab_size) + positions) * int(self.d_model)
        return embeddings + int(self.num_layers) * self.block.block_parameters() + self.block.norm_parameters()

    def saved_numbers(self) -> int:
        """A lower bound for how many numbers training keeps for each token of a batch."""
        return int(self.num_layers) * self.block.saved_numbers()


class GPT(Module):
    """Token and position embeddings, pre-norm blocks, a final norm, and the token embedding again as the output layer.

    Raises SettingError if the model does not fit in memory.
    """

    def __init__(self, config: GPTConfig):
        check_model_fits(config.num_parameters(), config.num_layers, "d_model", "num_layers", "block_size")
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, config.d_model)
        self.position_embedding: Module | None = None
        rotary = None
        if config.positions == "learned":
            self.position_embedding = LearnedPositions(config.block_size, config.d_model)
        elif config.positions == "sinusoidal":
            self.position_embedding = SinusoidalPositions(config.d_model)
        else:
            rotary = RotaryPositions(config.d_model // config.num_heads)
        self.dropout = Dropout(config.dropout)
        self.blocks = ModuleList(Block(config.block, rotary=rotary) for _ in range(config.num_layers))
        self.norm = config.block.make_norm()
        self.apply(self._initialise)

    def _initialise(self, module: Module) -> None:
        """Initialise as GPT-2 does: normal weights, zero biases.

        There are 2 * num_layers layers whose output is added to the residual stream. Their weights are smaller by a factor of
        sqrt(2 * num_layers). GPT-2's standard deviation of 0.02 suits its width of 768. In a narrower model it would make small
        outputs and slow learning, so here the standard deviation of linear layers is 0.02 * sqrt(768 / width).
        """
        std = 0.02 * math.sqrt(768 / self.config.d_model)
        if isinstance(module, Embedding):
            init.normal_(module.weight, std=0.02)
        if isinstance(module, Linear):
            init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        if isinstance(module, Block):
            for layer in (module.attention.output, module.feed_forward.down):
                init.normal_(layer.weight, std=std / math.sqrt(2 * self.config.num_layers))

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """Token ids (batch, length) -> logits for each next token, (batch, length, vocab_size).

        With a ``cache``, the ids are only the tokens that follow those in the cache. Raises ValueError if there are more than
        block_size tokens, those in the cache included.
        """
        return tt.linear(self._features(ids, cache), self.token_embedding.weight)

    def loss(self, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """The cross-entropy of the predictions for ``targets`` (batch, length), the tokens that follow each of ``ids``.

        The logits are computed in parts, never all at once: with a large vocabulary they would take most of the memory.
        """
        return tt.linear_cross_entropy(self._features(ids), self.token_embedding.weight, targets, reduction=reduction)

    def _features(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """The input of the output layer: (batch, length, d_model)."""
        start = cache.length if cache is not None else 0
        if ids.ndim != 2 or not 1 <= ids.shape[1] <= self.config.block_size - start:
            limit = self.config.block_size - start
            raise ValueError(f"GPT takes ids (batch, length), length 1 to {limit}, not {ids.shape}: crop them")
        x = self.token_embedding(ids)  # (batch, length, d_model)
        if self.config.positions == "sinusoidal":
            x = x * math.sqrt(self.config.d_model)  # otherwise the embeddings would be tiny beside sines of size 1
        if self.position_embedding is not None:
            x = add_positions(x, self.position_embedding, cache)
        x = self.dropout(x)
        for i, block in enumerate(self.blocks):
            x = block(x, is_causal=True, cache=cache.blocks[i] if cache is not None else None)
        return self.norm(x)

    def new_cache(self) -> Cache:
        """An empty cache for this model, for up to block_size tokens. Raises SettingError if it does not fit in memory."""
        numbers = 2 * int(self.config.num_layers) * int(self.config.block_size) * int(self.config.d_model)
        check_cache_fits(numbers, self.token_embedding.weight.dtype, "block_size")
        return Cache(self.config.num_layers, self.config.block_size)
