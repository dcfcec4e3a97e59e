"""tinyformer's encoder-decoder in PyTorch, under the same names: what the benchmarks and the parity tests compare with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_gpt import Attention, FeedForward


def sinusoidal(length: int, d_model: int) -> Tensor:
    """The positions of section 3.5 of the paper, (length, d_model)."""
    angles = torch.arange(length)[:, None] / 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


class Embedding(nn.Module):
    """Token embeddings times sqrt(d_model), plus positions, then dropout."""

    def __init__(self, vocab_size: int, d_model: int, dropout: float, max_length: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.scale = math.sqrt(d_model)
        self.register_buffer("positions", sinusoidal(max_length, d_model), persistent=False)
        self.positions: Tensor
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor) -> Tensor:
        """(batch, length) -> (batch, length, d_model)."""
        out: Tensor = self.dropout(self.tokens(ids) * self.scale + self.positions[: ids.shape[1]])
        return out


class Block(nn.Module):
    """A post-norm block of the encoder or, with ``cross``, of the decoder: causal, and attending to the memory, too."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float, cross: bool):
        super().__init__()
        self.attention_norm = nn.LayerNorm(d_model)
        self.attention = Attention(d_model, num_heads, dropout, bias=True)
        self.cross_attention_norm = nn.LayerNorm(d_model) if cross else None
        self.cross_attention = Attention(d_model, num_heads, dropout, bias=True, cross=True) if cross else None
        self.feed_forward_norm = nn.LayerNorm(d_model)
        self.feed_forward = FeedForward(d_model, d_ff, bias=True, activation="relu")
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, source_mask: Tensor, memory: Tensor | None = None) -> Tensor:
        """(batch, length, d_model) -> the same. A target's padding comes after it, where no token of it looks."""
        if self.cross_attention is None or self.cross_attention_norm is None:
            x = self.attention_norm(x + self.dropout(self.attention(x, source_mask)))
        else:
            x = self.attention_norm(x + self.dropout(self.attention(x, is_causal=True)))
            x = self.cross_attention_norm(x + self.dropout(self.cross_attention(x, source_mask, memory=memory)))
        out: Tensor = self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))
        return out


class Stack(nn.Module):
    """Blocks one after the other."""

    def __init__(self, d_model: int, num_heads: int, d_ff: int, dropout: float, num_layers: int, cross: bool = False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d_model, num_heads, d_ff, dropout, cross) for _ in range(num_layers))

    def forward(self, x: Tensor, source_mask: Tensor, memory: Tensor | None = None) -> Tensor:
        """(batch, length, d_model) -> the same; arguments as for ``Block``."""
        for block in self.blocks:
            x = block(x, source_mask, memory)
        return x


class Transformer(nn.Module):
    """The parameters' names and shapes are tinyformer's, and so are the arguments: fields of its ``TransformerConfig``, with
    that class's defaults for the rest. ``max_length`` says how long the table of positions is.

    The weights start as PyTorch's layers make them; copy tinyformer's with ``copy_weights`` of torch_gpt.
    """

    def __init__(
        self,
        source_vocab_size: int,
        target_vocab_size: int,
        source_pad: int,
        d_model: int,
        num_heads: int,
        encoder_layers: int,
        decoder_layers: int,
        d_ff: int,
        max_length: int,
        dropout: float = 0.0,
        label_smoothing: float = 0.0,
    ):
        super().__init__()
        self.pad = source_pad
        self.label_smoothing = label_smoothing
        self.source_embedding = Embedding(source_vocab_size, d_model, dropout, max_length)
        self.target_embedding = Embedding(target_vocab_size, d_model, dropout, max_length)
        self.encoder = Stack(d_model, num_heads, d_ff, dropout, encoder_layers)
        self.decoder = Stack(d_model, num_heads, d_ff, dropout, decoder_layers, cross=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Ids (batch, length) -> logits for the token after each of the target, (batch, length, target_vocab_size)."""
        mask = (source != self.pad)[:, None, None]
        memory = self.encoder(self.source_embedding(source), mask)
        x = self.decoder(self.target_embedding(target), mask, memory)
        return F.linear(x, self.target_embedding.tokens.weight)

    def loss(self, source: Tensor, target_inputs: Tensor, target_outputs: Tensor) -> Tensor:
        """The mean cross-entropy over the targets that are no padding; smoothed while training only."""
        logits = self(source, target_inputs).flatten(0, 1)
        smoothing = self.label_smoothing if self.training else 0.0
        return F.cross_entropy(logits, target_outputs.flatten(), ignore_index=self.pad, label_smoothing=smoothing)
