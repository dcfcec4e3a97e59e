"""tinyformer's GPT in PyTorch, under the same names: what the benchmarks and the parity tests compare with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:  # a process that measures PyTorch must not load tinytensor, too
    from tinytensor.nn import Module


class Attention(nn.Module):
    """Multi-head attention; with ``cross``, from x to a memory."""

    def __init__(self, d_model: int, num_heads: int, dropout: float, bias: bool, cross: bool = False):
        super().__init__()
        self.num_heads = num_heads
        if cross:
            self.query = nn.Linear(d_model, d_model, bias)
            self.key_value = nn.Linear(d_model, 2 * d_model, bias)
        else:
            self.query_key_value = nn.Linear(d_model, 3 * d_model, bias)
        self.output = nn.Linear(d_model, d_model, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, is_causal: bool = False, memory: Tensor | None = None) -> Tensor:
        """(batch, length, d_model) -> the same; a query sees what is True in ``mask``, (batch, 1, 1, keys)."""
        if memory is None:
            query, key, value = self._heads(self.query_key_value(x), 3)
        else:
            (query,) = self._heads(self.query(x), 1)
            key, value = self._heads(self.key_value(memory), 2)
        dropout_p = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal)
        return self.output(mixed.transpose(1, 2).reshape(x.shape))

    def _heads(self, projected: Tensor, parts: int) -> tuple[Tensor, ...]:
        """(batch, length, parts * d_model) -> parts, each (batch, heads, length, d_head)."""
        batch, length, width = projected.shape
        cut = projected.view(batch, length, parts, self.num_heads, width // (parts * self.num_heads))
        return cut.permute(2, 0, 3, 1, 4).unbind()


class FeedForward(nn.Module):
    """Two linear layers with a nonlinearity between them, gelu (the tanh form) or relu."""

    def __init__(self, d_model: int, d_ff: int, bias: bool, activation: str):
        super().__init__()
        self.up = nn.Linear(d_model, d_ff, bias)
        self.down = nn.Linear(d_ff, d_model, bias)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same."""
        inner = self.up(x)
        inner = F.relu(inner) if self.activation == "relu" else F.gelu(inner, approximate="tanh")
        return self.down(inner)


class Block(nn.Module):
    """A pre-norm block."""

    def __init__(self, d_model: int, num_heads: int, dropout: float, bias: bool):
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model, bias=bias)
        self.attention = Attention(d_model, num_heads, dropout, bias)
        self.feed_forward_norm = nn.LayerNorm(d_model, bias=bias)
        self.feed_forward = FeedForward(d_model, 4 * d_model, bias, "gelu")
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, d_model) -> the same."""
        x = x + self.dropout(self.attention(self.attention_norm(x), is_causal=True))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))


class GPT(nn.Module):
    """The parameters' names and shapes are tinyformer's, and so are the arguments: the fields of its ``GPTConfig``.

    The weights start as PyTorch's layers make them; copy tinyformer's with ``copy_weights``.
    """

    def __init__(
        self,
        vocab_size: int,
        block_size: int,
        num_layers: int,
        num_heads: int,
        d_model: int,
        dropout: float = 0.0,
        bias: bool = False,
    ):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, d_model)
        self.position_embedding = nn.Embedding(block_size, d_model)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(d_model, num_heads, dropout, bias) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model, bias=bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (batch, length) -> logits for each next token, (batch, length, vocab_size)."""
        x = self.token_embedding(ids) + self.position_embedding.weight[: ids.shape[1]]
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of predicting ``targets`` (batch, length)."""
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())


def load_weights(weights: Mapping[str, Any], twin: nn.Module) -> None:
    """Give the twin the values of NumPy arrays. Raises RuntimeError that lists every name or shape that differs."""
    twin.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})


def copy_weights(ours: Module, twin: nn.Module) -> None:
    """Give the twin the values of tinyformer's model."""
    load_weights({name: value.numpy() for name, value in ours.state_dict().items()}, twin)


def adamw_for(
    model: nn.Module, learning_rate: float, betas: tuple[float, float], weight_decay: float, **options: Any
) -> torch.optim.AdamW:
    """AdamW that decays matrices but not biases and norms, as in tinyformer.training."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, **options)
