"""What Transformers are stacked from: attention, then a feed-forward network, each around a residual connection."""

from __future__ import annotations

from tinyformer.attention import MultiHeadAttention
from tinytensor import Tensor, gelu
from tinytensor.nn import Dropout, LayerNorm, Linear, Module


class FeedForward(Module):
    """Two linear layers with a gelu between them, the same at every position; the inner one is wider (usually four times)."""

    def __init__(self, d_model: int, d_inner: int, dropout: float = 0.0, bias: bool = True):
        self.expand = Linear(d_model, d_inner, bias)
        self.contract = Linear(d_inner, d_model, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(..., d_model) -> (..., d_model)."""
        return self.dropout(self.contract(gelu(self.expand(x), approximate="tanh")))


class Block(Module):
    """A pre-norm Transformer block: x + attention(norm(x)), then x + feed_forward(norm(x)) (Radford et al. 2019)."""

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0, bias: bool = True):
        self.attention_norm = LayerNorm(d_model, bias=bias)
        self.attention = MultiHeadAttention(d_model, num_heads, dropout, bias)
        self.feed_forward_norm = LayerNorm(d_model, bias=bias)
        self.feed_forward = FeedForward(d_model, 4 * d_model, dropout, bias)

    def forward(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(batch, length, d_model) -> the same."""
        x = x + self.attention(self.attention_norm(x), mask, is_causal)
        return x + self.feed_forward(self.feed_forward_norm(x))
