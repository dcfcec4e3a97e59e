"""tinyformer's GPT and encoder-decoder in PyTorch: what the benchmarks and the parity tests compare with.

The parameters' names and shapes are tinyformer's, and so are the arguments: the fields of its configurations. The weights
start as PyTorch's layers make them; ``load_weights`` gives them tinyformer's.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
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
        """(batch, length, d_model) -> the same. A query sees the keys that are True in ``mask``, (batch, 1, 1, keys)."""
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


class Block(nn.Module):
    """A block of a GPT (pre-norm, gelu) or of the encoder-decoder (post-norm, relu); with ``cross``, one of its decoder."""

    def __init__(
        self, d_model: int, num_heads: int, d_ff: int, dropout: float, bias: bool, pre_norm: bool, cross: bool = False
    ):
        super().__init__()
        self.pre_norm = pre_norm
        self.attention_norm = nn.LayerNorm(d_model, bias=bias)
        self.attention = Attention(d_model, num_heads, dropout, bias)
        if cross:
            self.cross_attention_norm = nn.LayerNorm(d_model, bias=bias)
            self.cross_attention = Attention(d_model, num_heads, dropout, bias, cross=True)
        self.feed_forward_norm = nn.LayerNorm(d_model, bias=bias)
        up, down = nn.Linear(d_model, d_ff, bias), nn.Linear(d_ff, d_model, bias)
        activation = nn.GELU("tanh") if pre_norm else nn.ReLU()
        self.feed_forward = nn.Sequential(OrderedDict(up=up, activation=activation, down=down))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, memory: Tensor | None = None) -> Tensor:
        """Without a mask, or with a memory (then the mask is the memory's), no token of x sees those after it."""
        is_causal = mask is None or memory is not None
        own_mask = None if is_causal else mask
        x = self._add(x, self.attention_norm, lambda y: self.attention(y, own_mask, is_causal))
        if memory is not None:
            x = self._add(x, self.cross_attention_norm, lambda y: self.cross_attention(y, mask, memory=memory))
        return self._add(x, self.feed_forward_norm, self.feed_forward)

    def _add(self, x: Tensor, norm: nn.LayerNorm, layer: Callable[[Tensor], Tensor]) -> Tensor:
        return x + self.dropout(layer(norm(x))) if self.pre_norm else norm(x + self.dropout(layer(x)))


class GPT(nn.Module):
    """tinyformer's ``GPT``; the arguments are fields of its ``GPTConfig``."""

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
        sizes = (d_model, num_heads, 4 * d_model, dropout, bias)
        self.blocks = nn.ModuleList(Block(*sizes, pre_norm=True) for _ in range(num_layers))
        self.norm = nn.LayerNorm(d_model, bias=bias)

    def forward(self, ids: Tensor) -> Tensor:
        """Token ids (batch, length) -> logits for each next token, (batch, length, vocab_size)."""
        x = self.dropout(self.token_embedding(ids) + self.position_embedding.weight[: ids.shape[1]])
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.token_embedding.weight)

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of predicting ``targets`` (batch, length)."""
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten())


class Embedding(nn.Module):
    """Token embeddings times sqrt(d_model), plus the positions of section 3.5 of the paper, then dropout."""

    def __init__(self, vocab_size: int, d_model: int, dropout: float, max_length: int):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.dropout = nn.Dropout(dropout)
        angles = torch.arange(max_length)[:, None] / 10000.0 ** (torch.arange(0, d_model, 2, dtype=torch.float64) / d_model)
        positions = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()
        self.register_buffer("positions", positions, persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.tokens(ids) * math.sqrt(self.tokens.embedding_dim)
        return self.dropout(embedded + self.get_buffer("positions")[: ids.shape[1]])


class Transformer(nn.Module):
    """tinyformer's ``Transformer``; the arguments are fields of its ``TransformerConfig``, with that class's defaults for the
    rest. ``max_length`` says how long the table of positions is."""

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
        self.pad, self.label_smoothing = source_pad, label_smoothing
        self.source_embedding = Embedding(source_vocab_size, d_model, dropout, max_length)
        self.target_embedding = Embedding(target_vocab_size, d_model, dropout, max_length)

        def stack(layers: int, cross: bool) -> nn.ModuleDict:
            sizes = (d_model, num_heads, d_ff, dropout, True)
            return nn.ModuleDict({"blocks": nn.ModuleList(Block(*sizes, pre_norm=False, cross=cross) for _ in range(layers))})

        self.encoder, self.decoder = stack(encoder_layers, cross=False), stack(decoder_layers, cross=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Ids (batch, length) -> logits for the token after each of the target, (batch, length, target_vocab_size)."""
        mask = (source != self.pad)[:, None, None]
        memory, x = self.source_embedding(source), self.target_embedding(target)
        for block in self.encoder["blocks"].children():
            memory = block(memory, mask)
        for block in self.decoder["blocks"].children():
            x = block(x, mask, memory)
        return F.linear(x, self.target_embedding.tokens.weight)

    def loss(self, source: Tensor, target_inputs: Tensor, target_outputs: Tensor) -> Tensor:
        """The mean cross-entropy over the targets that are no padding; smoothed while training only."""
        logits = self(source, target_inputs).flatten(0, 1)
        smoothing = self.label_smoothing if self.training else 0.0
        return F.cross_entropy(logits, target_outputs.flatten(), ignore_index=self.pad, label_smoothing=smoothing)


def load_weights(weights: Mapping[str, Any], twin: nn.Module) -> None:
    """Load NumPy arrays into the PyTorch model. Raises RuntimeError that lists every name or shape that differs."""
    twin.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})


def copy_weights(ours: Module, twin: nn.Module) -> None:
    """Copy the weights of tinyformer's model."""
    load_weights({name: value.numpy() for name, value in ours.state_dict().items()}, twin)


# tinyformer's names -> GPT-2's. Those of a block stand behind "blocks.N." and "h.N.".
_OUTSIDE_BLOCKS = {"token_embedding": "wte", "position_embedding": "wpe", "norm": "ln_f"}
_IN_A_BLOCK = {
    "attention_norm": "ln_1",
    "attention.query_key_value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward.up": "mlp.c_fc",
    "feed_forward.down": "mlp.c_proj",
}


def gpt2_weights(weights: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """GPT-2's names and values of the same. The matrices of its linear layers are (inputs, outputs), its embeddings as here."""
    for name, array in weights.items():
        module, _, kind = name.rpartition(".")
        if module in _OUTSIDE_BLOCKS:
            yield f"{_OUTSIDE_BLOCKS[module]}.{kind}", array
        else:
            _, number, layer = module.split(".", 2)
            yield f"h.{number}.{_IN_A_BLOCK[layer]}.{kind}", array.T


def nanogpt_weights(model: GPT) -> None:
    """Give the model the first weights of nanoGPT's ``GPT``: normal with a standard deviation of 0.02, and of
    0.02 / sqrt(2 * layers) where a layer's output is added to the residual stream."""
    for name, p in model.named_parameters():
        if p.ndim >= 2:  # norms keep their weights of 1
            is_added = name.endswith(("attention.output.weight", "feed_forward.down.weight"))
            nn.init.normal_(p, std=0.02 / math.sqrt(2 * len(model.blocks)) if is_added else 0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(p)


def adamw_for(
    model: nn.Module, learning_rate: float, betas: tuple[float, float], weight_decay: float, **options: Any
) -> torch.optim.AdamW:
    """AdamW that decays matrices but not biases and norms, as tinyformer's trainer does."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, **options)
