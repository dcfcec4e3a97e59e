"""Transformer blocks: attention and a feed-forward network, each with a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tinyformer.common.errors import SettingError
from tinyformer.common.settings import at_least, check_fields, one_of
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.attention import KeyValueCache, MultiHeadAttention, head_sizes
from tinyformer.models.positions import RotaryPositions
from tinytensor import Tensor
from tinytensor.nn import Dropout, LayerNorm, Linear, Module, RMSNorm

NORMS = ("layer", "rms")


@dataclass(frozen=True)
class BlockConfig:
    """Configuration shared by all blocks of a model. Raises SettingError for an invalid value.

    The settings after ``norm_eps`` apply to self-attention. See ``MultiHeadAttention``.
    """

    d_model: int
    num_heads: int
    d_ff: int
    dropout: float = 0.0
    bias: bool = True
    norm: str = "layer"
    norm_first: bool = True
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-5
    num_key_value_heads: int = 0
    d_head: int = 0
    query_key_value_bias: bool = False
    query_key_norm: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, d_model=1, num_heads=1, d_ff=1, norm_eps=0, num_key_value_heads=0, d_head=0)
        head_sizes(self.d_model, self.num_heads, self.num_key_value_heads, self.d_head)
        if not 0.0 <= self.dropout < 1.0:
            raise SettingError(f"dropout must be at least 0 and less than 1, got {self.dropout}")
        one_of(self, "norm", NORMS)
        one_of(self, "activation", ACTIVATIONS)

    def make_norm(self) -> Module:
        """Return a new norm layer of type ``norm``."""
        if self.norm == "rms":
            return RMSNorm(self.d_model, self.norm_eps)
        return LayerNorm(self.d_model, self.norm_eps, bias=self.bias)

    def norm_parameters(self) -> int:
        """Return the number of parameters of one norm layer."""
        return int(self.d_model) * (2 if self.norm == "layer" and self.bias else 1)

    def block_parameters(self, cross_attention: bool = False) -> int:
        """Return the number of parameters of one block."""
        width, inner = int(self.d_model), int(self.d_ff)
        inner_layers, norms = (2 if ACTIVATIONS[self.activation].is_gated else 1), (3 if cross_attention else 2)
        weights = (inner_layers + 1) * width * inner + (4 * width * width if cross_attention else 0)
        biases = inner_layers * inner + width + (4 * width if cross_attention else 0) if self.bias else 0
        return weights + biases + self._self_attention_parameters() + norms * self.norm_parameters()

    def _self_attention_parameters(self) -> int:
        width, (key_value_heads, d_head) = int(self.d_model), self.head_sizes
        of_queries, of_all = int(self.num_heads) * d_head, (int(self.num_heads) + 2 * key_value_heads) * d_head
        biases = (of_all if self.bias or self.query_key_value_bias else 0) + (width if self.bias else 0)
        return width * (of_all + of_queries) + biases + (2 * d_head if self.query_key_norm else 0)

    @property
    def head_sizes(self) -> tuple[int, int]:
        """The number of key-value heads and the width of each head."""
        return head_sizes(self.d_model, self.num_heads, self.num_key_value_heads, self.d_head)

    def self_attention(self, rotary: RotaryPositions | None = None) -> MultiHeadAttention:
        """Return a new self-attention layer."""
        return MultiHeadAttention(
            self.d_model,
            self.num_heads,
            self.dropout,
            self.bias,
            rotary=rotary,
            num_key_value_heads=self.num_key_value_heads,
            d_head=self.d_head,
            query_key_value_bias=self.query_key_value_bias,
            query_key_norm_eps=self.norm_eps if self.query_key_norm else None,
        )

    def saved_numbers(self) -> int:
        """Return a lower bound on the values per token that a block saves for the backward pass: the inputs of its linear
        layers and activation, the queries, keys and values."""
        return 6 * int(self.d_model) + ACTIVATIONS[self.activation].keeps * int(self.d_ff)


class FeedForward(Module):
    """Feed-forward network applied to each position: down(activation(up(x))). The hidden width is d_ff.

    A gated activation adds a third layer, the gate, for example down(silu(gate(x)) * up(x)) (Shazeer 2020, equation 6).
    """

    def __init__(self, config: BlockConfig):
        self.up = Linear(config.d_model, config.d_ff, config.bias)
        is_gated = ACTIVATIONS[config.activation].is_gated
        self.gate = Linear(config.d_model, config.d_ff, config.bias) if is_gated else None
        self.down = Linear(config.d_ff, config.d_model, config.bias)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d_model) to (..., d_model)."""
        activation = ACTIVATIONS[self.activation].function
        inner = activation(self.up(x)) if self.gate is None else activation(self.gate(x), self.up(x))
        return self.down(inner)


class Block(Module):
    """A block: self-attention, attention to a memory if ``cross_attention``, and a feed-forward network.

    Each sub-layer f has a residual connection, a norm and dropout. If ``norm_first``, it computes x + dropout(f(norm(x)))
    (Radford et al. 2019). Otherwise it computes norm(x + dropout(f(x))) (Vaswani et al. 2017, section 5.4).
    """

    def __init__(self, config: BlockConfig, cross_attention: bool = False, rotary: RotaryPositions | None = None):
        width, heads = config.d_model, config.num_heads
        self.norm_first = config.norm_first
        self.attention_norm = config.make_norm()
        self.attention = config.self_attention(rotary)
        self.cross_attention_norm = config.make_norm() if cross_attention else None
        self.cross_attention = (
            MultiHeadAttention(width, heads, config.dropout, config.bias, cross=True) if cross_attention else None
        )
        self.feed_forward_norm = config.make_norm()
        self.feed_forward = FeedForward(config)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        is_causal: bool = False,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        cache: BlockCache | None = None,
    ) -> Tensor:
        """Map (batch, length, d_model) to the same shape. For the masks, see ``MultiHeadAttention``."""
        self_cache, memory_cache = (None, None) if cache is None else (cache.self_attention, cache.cross_attention)
        x = self._residual(x, self.attention_norm, lambda y: self.attention(y, mask, is_causal, cache=self_cache))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            attend = self.cross_attention
            to_memory = lambda y: attend(y, memory_mask, memory=memory, cache=memory_cache)  # noqa: E731
            x = self._residual(x, self.cross_attention_norm, to_memory)
        return self._residual(x, self.feed_forward_norm, self.feed_forward)

    def _residual(self, x: Tensor, norm: Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return self.dropout(f(norm(x)), residual=x)
        return norm(self.dropout(f(x), residual=x))


class BlockCache:
    """The caches of one block. The first call fills the cross-attention cache."""

    def __init__(self, capacity: int, memory_length: int = 0):
        self.self_attention = KeyValueCache(capacity)
        self.cross_attention = KeyValueCache(memory_length)


class Cache:
    """The caches of all blocks of a model, with room for ``capacity`` tokens."""

    def __init__(self, num_blocks: int, capacity: int, memory_length: int = 0):
        self.blocks = [BlockCache(capacity, memory_length) for _ in range(num_blocks)]
        self.capacity = capacity

    @property
    def length(self) -> int:
        """The number of cached tokens."""
        return self.blocks[0].self_attention.length

    def keep(self, count: int) -> None:
        """Keep only the first ``count`` tokens."""
        for block in self.blocks:
            block.self_attention.length = count

    def select(self, rows: Any, shared: int = 0, of_memory: Any = None) -> None:
        """Keep these rows of the batch, in this order. For ``shared``, see ``KeyValueCache.select``. Of the memory, keep the
        rows ``of_memory`` (default: the same rows)."""
        for block in self.blocks:
            block.self_attention.select(rows, shared)
            block.cross_attention.select(rows if of_memory is None else of_memory)
