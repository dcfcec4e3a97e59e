"""Multi-head attention (Vaswani et al. 2017, section 3.2.2)."""

from __future__ import annotations

from tinyformer.errors import UserError
from tinytensor import Tensor, scaled_dot_product_attention
from tinytensor.nn import Dropout, Linear, Module


class MultiHeadAttention(Module):
    """Every position looks at the others through ``num_heads`` attentions, each over d_model / num_heads dimensions.

    ``dropout`` acts on the attention weights and on the output. Raises UserError where the heads do not divide the width.
    """

    def __init__(self, d_model: int, num_heads: int, dropout: float = 0.0, bias: bool = True):
        if num_heads < 1 or d_model % num_heads:
            raise UserError(f"{num_heads} heads do not divide the width {d_model}: choose num_heads so that they do")
        self.num_heads = num_heads
        self.query_key_value = Linear(d_model, 3 * d_model, bias)
        self.output = Linear(d_model, d_model, bias)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(batch, length, d_model) -> the same. ``mask`` (True = may attend) broadcasts to (batch, heads, length, length)."""
        batch, length, d_model = x.shape
        projected = self.query_key_value(x).reshape(batch, length, 3, self.num_heads, d_model // self.num_heads)
        query, key, value = projected.transpose(2, 0, 3, 1, 4)  # each (batch, heads, length, d_head)
        dropout_p = self.dropout.p if self.training else 0.0
        mixed = scaled_dot_product_attention(query, key, value, mask, is_causal, dropout_p)
        joined = mixed.transpose(0, 2, 1, 3).reshape(batch, length, d_model)
        return self.dropout(self.output(joined))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}"
