"""The models that the training benchmarks measure, their data, and the arithmetic of their training step.

A to C are GPTs on characters; D is the encoder-decoder of "Attention Is All You Need", half as wide as the paper's base model.
Those for a GPU are nanoGPT's GPT on characters, and GPT-2 with its vocabulary rounded up to a multiple of 64.

Floating-point operations of a training step, with N parameters in matrices that multiply activations, T = batch * block tokens,
and a multiplication and an addition counted as two:

    6 N T + 12 attentions T block width

The first part is the matrices: 2 N T for the forward pass, and twice that for the backward pass, which makes the gradients of
the activations and of the matrix. Looking up embeddings multiplies nothing, but the GPT's embedding, and the encoder-decoder's
of the target, is in N as the output layer. The second is attention's two products, query keyᵀ and weights value, each
2 T block width forward, in all heads together, and twice that backward, as if no attention were causal.

A GPT has one attention in each layer. An encoder-decoder has three in each pair of an encoder's and a decoder's layer: that
of the source, that of the target, and the one from the target to the source, whose matrices are as many as another's. Some of
its matrices multiply the source's tokens (the encoder's, and the one that makes the keys and values of the attention between
the two), the others the target's; but here both are block tokens long, so that T is the number for either. Padding counts,
as it is computed, too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, TypeVar

BATCHES = 16  # different batches, used in turn
VOCAB_SIZE = 65  # of the GPTs on characters
LABEL_SMOOTHING = 0.1  # of the encoder-decoder
PAD = 0

Self = TypeVar("Self", bound="Configuration")


@dataclass(frozen=True)
class Configuration:
    """The size of a model and of its batches. Each kind of model writes the methods that raise TypeError here."""

    num_layers: int
    num_heads: int
    d_model: int
    block_size: int
    batch_size: int
    dropout: float = 0.0

    def times(self: Self, batch: int = 1, block: int = 1, layers: int = 1) -> Self:
        """The same with this many times as many sequences in a batch, tokens in a sequence, and layers."""
        return dataclasses.replace(
            self,
            batch_size=batch * self.batch_size,
            block_size=block * self.block_size,
            num_layers=layers * self.num_layers,
        )

    def model(self) -> dict[str, Any]:
        """The arguments of both libraries' models."""
        raise self._not_written("model")

    def shape(self) -> str:
        """The model's size in words."""
        raise self._not_written("shape")

    def batches(self) -> list[tuple[Any, ...]]:
        """Random batches, each a tuple of arrays of ids whose last is the targets; the same on every call."""
        raise self._not_written("batches")

    def tinyformer(self) -> tuple[Any, list[Any], Any]:
        """tinyformer's model, and for its trainer the batches and the loss function."""
        raise self._not_written("tinyformer")

    def pytorch(self) -> Any:
        """PyTorch's model, whose ``loss`` takes a batch's arrays as tensors."""
        raise self._not_written("pytorch")

    def matrices(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of every matrix that multiplies activations."""
        raise self._not_written("matrices")

    def num_attentions(self) -> int:
        """How many attentions there are."""
        raise self._not_written("num_attentions")

    def num_tokens(self) -> int:
        """How many tokens every matrix multiplies."""
        return self.batch_size * self.block_size

    def product_operations(self) -> float:
        """Floating-point operations of these matrices in a step."""
        return 6.0 * sum(n * k for n, k in self.matrices()) * self.num_tokens()

    def operations(self) -> float:
        """Floating-point operations of a step's products, attention's included: the formula at the top."""
        attention = 12.0 * self.num_tokens() * self.block_size * self.d_model
        return self.product_operations() + self.num_attentions() * attention

    def _not_written(self, method: str) -> TypeError:
        return TypeError(f"{type(self).__name__} has no {method} method: write one")


@dataclass(frozen=True)
class GPTConfiguration(Configuration):
    """A GPT that predicts each next token."""

    vocab_size: int = VOCAB_SIZE

    def model(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "block_size": self.block_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "d_model": self.d_model,
            "dropout": self.dropout,
            "bias": False,
        }

    def shape(self) -> str:
        return f"{self.num_layers} layers, {self.num_heads} heads, {self.d_model} wide, block {self.block_size}"

    def batches(self) -> list[tuple[Any, ...]]:
        """(ids, targets), each (batch, block)."""
        import numpy

        shape = (BATCHES, self.batch_size, self.block_size + 1)
        windows = numpy.random.default_rng(0).integers(0, self.vocab_size, shape)
        return [(w[:, :-1].copy(), w[:, 1:].copy()) for w in windows]

    def tinyformer(self) -> tuple[Any, list[Any], Any]:
        import tinytensor as tt
        from tinyformer.data.batches import Batch
        from tinyformer.models.gpt import GPT, GPTConfig
        from tinyformer.training.losses import next_token_loss

        batches = [Batch(tt.tensor(ids), tt.tensor(targets), targets.size) for ids, targets in self.batches()]
        return GPT(GPTConfig(**self.model())), batches, next_token_loss

    def pytorch(self) -> Any:
        from torch_gpt import GPT

        return GPT(**self.model())

    def matrices(self) -> list[tuple[int, int]]:
        d = self.d_model
        return [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)] * self.num_layers + [(self.vocab_size, d)]

    def num_attentions(self) -> int:
        return self.num_layers


@dataclass(frozen=True)
class TransformerConfiguration(Configuration):
    """An encoder-decoder with ``num_layers`` in either; sources and targets are ``block_size`` tokens long, with padding."""

    dropout: float = 0.1
    d_ff: int = 512
    vocab_size: int = 8000

    def model(self) -> dict[str, Any]:
        return {
            "source_vocab_size": self.vocab_size,
            "target_vocab_size": self.vocab_size,
            "source_pad": PAD,
            "d_model": self.d_model,
            "num_heads": self.num_heads,
            "encoder_layers": self.num_layers,
            "decoder_layers": self.num_layers,
            "d_ff": self.d_ff,
            "dropout": self.dropout,
        }

    def shape(self) -> str:
        return (
            f"encoder and decoder of {self.num_layers} layers each, {self.num_heads} heads, {self.d_model} wide, "
            f"{self.d_ff} inside, sources and targets of {self.block_size}, vocabularies of {self.vocab_size}"
        )

    def batches(self) -> list[tuple[Any, ...]]:
        """(source, target inputs, target outputs), each (batch, block). Up to a sixth of a row is padding at its end: little,
        as in batches of sentences of similar length."""
        import numpy

        rng = numpy.random.default_rng(0)
        places, rows = numpy.arange(self.block_size), (self.batch_size, 1)

        def sentences() -> tuple[Any, Any]:
            words = rng.integers(1, self.vocab_size, (self.batch_size, self.block_size + 1))
            lengths = rng.integers(self.block_size - self.block_size // 6, self.block_size, rows, endpoint=True)
            return words, places < lengths

        found = []
        for _ in range(BATCHES):
            source, is_source = sentences()
            target, is_target = sentences()
            found.append(
                (
                    numpy.where(is_source, source[:, 1:], PAD),
                    numpy.where(is_target, target[:, :-1], PAD),
                    numpy.where(is_target, target[:, 1:], PAD),
                )
            )
        return found

    def tinyformer(self) -> tuple[Any, list[Any], Any]:
        import tinytensor as tt
        from tinyformer.data.pairs import PairBatch
        from tinyformer.models.transformer import Transformer, TransformerConfig
        from tinyformer.training.losses import translation_loss

        batches = [
            PairBatch(tt.tensor(source), tt.tensor(inputs), tt.tensor(outputs), int((outputs != PAD).sum()))
            for source, inputs, outputs in self.batches()
        ]
        return Transformer(TransformerConfig(**self.model())), batches, translation_loss(LABEL_SMOOTHING, PAD)

    def pytorch(self) -> Any:
        from torch_transformer import Transformer

        return Transformer(**self.model(), max_length=self.block_size, label_smoothing=LABEL_SMOOTHING)

    def matrices(self) -> list[tuple[int, int]]:
        d = self.d_model
        own = [(3 * d, d), (d, d)]
        between = [(d, d), (2 * d, d), (d, d)]  # query; key and value; output
        feed_forward = [(self.d_ff, d), (d, self.d_ff)]
        return (2 * own + between + 2 * feed_forward) * self.num_layers + [(self.vocab_size, d)]

    def num_attentions(self) -> int:
        return 3 * self.num_layers


GPTS = {
    "A": GPTConfiguration(num_layers=4, num_heads=4, d_model=128, block_size=64, batch_size=12),
    "B": GPTConfiguration(num_layers=6, num_heads=6, d_model=192, block_size=128, batch_size=16),
    "C": GPTConfiguration(num_layers=6, num_heads=6, d_model=384, block_size=256, batch_size=8),
}
GPU_GPTS = {
    "shakespeare_char": GPTConfiguration(num_layers=6, num_heads=6, d_model=384, block_size=256, batch_size=64, dropout=0.2),
    "GPT-2 124M": GPTConfiguration(num_layers=12, num_heads=12, d_model=768, block_size=1024, batch_size=8, vocab_size=50304),
}
CONFIGURATIONS: dict[str, Configuration] = {
    **GPTS,
    "D": TransformerConfiguration(num_layers=3, num_heads=8, d_model=256, block_size=24, batch_size=128),
}
