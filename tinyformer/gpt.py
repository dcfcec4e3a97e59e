"""GPT: a decoder-only Transformer that predicts the next token (Radford et al. 2019). Read from top to bottom."""

from __future__ import annotations

import math
from dataclasses import dataclass

import tinytensor as tt
from tinyformer.blocks import Block
from tinyformer.command_line import setting
from tinyformer.errors import UserError
from tinytensor import Tensor
from tinytensor.nn import Dropout, Embedding, LayerNorm, Linear, Module, ModuleList, init


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT. Raises UserError for values that make no model."""

    vocab_size: int
    block_size: int = setting(64, "the longest context, in tokens")
    num_layers: int = setting(4, "blocks")
    num_heads: int = setting(4, "attention heads in a block; must divide the width")
    d_model: int = setting(128, "the width: numbers for each position")
    dropout: float = setting(0.0, "probability of dropping, while training")
    bias: bool = setting(False, "biases in linear layers and norms")

    def __post_init__(self) -> None:
        for name in ("vocab_size", "block_size", "num_layers", "num_heads", "d_model"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.d_model % self.num_heads:
            raise UserError(f"num_heads={self.num_heads} does not divide d_model={self.d_model}: choose heads that do")
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"dropout must be at least 0 and less than 1, not {self.dropout}")


class GPT(Module):
    """Token and position embeddings, pre-norm blocks, a last norm, and the token embedding again as the output layer."""

    def __init__(self, config: GPTConfig):
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, config.d_model)
        self.position_embedding = Embedding(config.block_size, config.d_model)
        self.dropout = Dropout(config.dropout)
        self.blocks = ModuleList(
            Block(config.d_model, config.num_heads, config.dropout, config.bias) for _ in range(config.num_layers)
        )
        self.norm = LayerNorm(config.d_model, bias=config.bias)
        self.apply(self._initialise)

    def _initialise(self, module: Module) -> None:
        """GPT-2's: normal, biases zero, and smaller by sqrt(2 * num_layers), the number of residual additions, for the
        layers that feed them. GPT-2's standard deviation, 0.02, suits its width of 768: with it, the outputs of a narrower
        layer start out small, and it learns slowly. So for linear layers it grows as 1/sqrt(width)."""
        std = 0.02 * math.sqrt(768 / self.config.d_model)
        if isinstance(module, Embedding):
            init.normal_(module.weight, std=0.02)
        if isinstance(module, Linear):
            init.normal_(module.weight, std=std)
            if module.bias is not None:
                init.zeros_(module.bias)
        if isinstance(module, Block):
            for layer in (module.attention.output, module.feed_forward.contract):
                init.normal_(layer.weight, std=std / math.sqrt(2 * self.config.num_layers))

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (batch, length), length at most block_size -> logits for each next token, (batch, length, vocab_size)."""
        length = ids.shape[-1]
        if ids.ndim != 2 or not 1 <= length <= self.config.block_size:
            raise ValueError(f"GPT takes ids (batch, length), length 1 to {self.config.block_size}, not {ids.shape}: crop them")
        x = self.token_embedding(ids) + self.position_embedding.weight[:length]  # (batch, length, d_model)
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x, is_causal=True)
        return tt.linear(self.norm(x), self.token_embedding.weight)
