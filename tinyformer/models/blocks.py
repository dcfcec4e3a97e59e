"""What Transformers are stacked from: attention, then a feed-forward network, each around a residual connection."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tinytensor as tt
from tinyformer.errors import SettingError
from tinyformer.models.attention import MultiHeadAttention, check_heads
from tinyformer.models.caches import BlockCache
from tinyformer.models.positions import RotaryPositions
from tinyformer.schema import check_fields
from tinyformer.settings import at_least_one, one_of
from tinytensor import Tensor
from tinytensor.nn import Dropout, LayerNorm, Linear, Module, RMSNorm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": tt.relu,
    "gelu_tanh": lambda x: tt.gelu(x, approximate="tanh"),
    "gelu_exact": tt.gelu,
    "swiglu": tt.silu,
}
NORMS = ("layer", "rms")


@dataclass(frozen=True)
class BlockConfig:
    """What the blocks of a model have in common. Raises SettingError for a choice that does not exist."""

    d_model: int
    num_heads: int
    d_ff: int
    dropout: float = 0.0
    bias: bool = True
    norm: str = "layer"
    norm_first: bool = True
    activation: str = "gelu_tanh"
    norm_eps: float = 1e-5

    def __post_init__(self) -> None:
        check_fields(self)
        at_least_one(self, "d_model", "num_heads", "d_ff")
        check_heads(self.num_heads, self.d_model)
        if not 0.0 <= self.dropout < 1.0:
            raise SettingError(f"dropout must be at least 0 and less than 1, not {self.dropout}")
        one_of(self, "norm", NORMS)
        one_of(self, "activation", ACTIVATIONS)

    def make_norm(self) -> Module:
        """A norm of the chosen kind."""
        if self.norm == "rms":
            return RMSNorm(self.d_model, self.norm_eps)
        return LayerNorm(self.d_model, self.norm_eps, self.bias)

    def norm_parameters(self) -> int:
        """How many parameters a norm has."""
        return int(self.d_model) * (2 if self.norm == "layer" and self.bias else 1)

    def block_parameters(self, cross_attention: bool = False) -> int:
        """How many parameters a block has."""
        width, inner = int(self.d_model), int(self.d_ff)
        attentions, inner_layers = (2 if cross_attention else 1), (2 if self.activation == "swiglu" else 1)
        weights = 4 * width * width * attentions + (inner_layers + 1) * width * inner
        biases = 4 * width * attentions + inner_layers * inner + width if self.bias else 0
        return weights + biases + (attentions + 1) * self.norm_parameters()

    def saved_numbers(self) -> int:
        """How many numbers a block keeps of each token from forward to backward, at least: what its layers multiply with
        their weights, queries, keys and values, and what the activation is computed from."""
        inner = {"relu": 1, "swiglu": 3}.get(self.activation, 2)
        return 6 * int(self.d_model) + inner * int(self.d_ff)


class FeedForward(Module):
    """Two linear layers with a nonlinearity between them, the same at every position; the inner one is wider.

    With "swiglu" a third one gates the inner layer: down(silu(gate(x)) * up(x)) (Shazeer 2020, equation 6).
    """

    def __init__(self, config: BlockConfig):
        self.up = Linear(config.d_model, config.d_ff, config.bias)
        self.gate = Linear(config.d_model, config.d_ff, config.bias) if config.activation == "swiglu" else None
        self.down = Linear(config.d_ff, config.d_model, config.bias)
        self.activation = config.activation

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., d_model)."""
        activation = ACTIVATIONS[self.activation]
        inner = activation(self.up(x)) if self.gate is None else activation(self.gate(x)) * self.up(x)
        return self.down(inner)


class Block(Module):
    """Self-attention, with ``cross_attention`` attention over a memory, and a feed-forward network.

    Around each is a residual connection with a norm and, on what is added, dropout: x + dropout(f(norm(x))) with
    ``norm_first`` (Radford et al. 2019), else norm(x + dropout(f(x))) (Vaswani et al. 2017, section 5.4).
    """

    def __init__(self, config: BlockConfig, cross_attention: bool = False, rotary: RotaryPositions | None = None):
        width, heads = config.d_model, config.num_heads
        self.norm_first = config.norm_first
        self.attention_norm = config.make_norm()
        self.attention = MultiHeadAttention(width, heads, config.dropout, config.bias, rotary=rotary)
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
        """(batch, length, d_model) -> the same; masks as in ``MultiHeadAttention``."""
        own_cache, memory_cache = (None, None) if cache is None else (cache.self_attention, cache.cross_attention)
        x = self._residual(x, self.attention_norm, lambda y: self.attention(y, mask, is_causal, cache=own_cache))
        if self.cross_attention is not None and self.cross_attention_norm is not None:
            attend = self.cross_attention
            look = lambda y: attend(y, memory_mask, memory=memory, cache=memory_cache)  # noqa: E731
            x = self._residual(x, self.cross_attention_norm, look)
        return self._residual(x, self.feed_forward_norm, self.feed_forward)

    def _residual(self, x: Tensor, norm: Module, f: Callable[[Tensor], Tensor]) -> Tensor:
        if self.norm_first:
            return self.dropout(f(norm(x)), residual=x)
        return norm(self.dropout(f(x), residual=x))
