"""The models that the training benchmarks measure, their data, and the arithmetic of their training step.

A to C are GPTs on characters; D is the encoder-decoder of "Attention Is All You Need", half as wide as the paper's base model.

Floating-point operations of a training step, with a multiplication and an addition counted as two: a matrix (outputs, inputs)
that multiplies the activations of so many tokens takes

    6 tokens outputs inputs

2 in the forward pass, and in the backward pass twice that, for the gradients of the activations and of the matrix. Looking up
embeddings multiplies nothing, but the embedding of the GPT, or of the target language, is also the output layer. And an
attention of so many queries over so many keys takes, in all its heads together,

    12 batch queries keys width

as its two products, query keyᵀ and weights value, each take 2 batch queries keys width forward and twice that backward. A
causal attention counts as if it were not.

- GPT, with N parameters in matrices and T = batch * block tokens: 6 N T + 12 layers T block width.
- Encoder-decoder: the encoder's matrices multiply source tokens, and its attentions have as many queries and keys as the
  source has tokens. Each decoder layer has two attentions, over the target and across to the source. The matrix that makes
  the latter's keys and values multiplies source tokens; the decoder's others, and the output layer, target tokens. Padding
  counts, as it is computed, too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

BATCHES = 16  # different batches, used in turn
VOCAB_SIZE = 65  # of the GPTs
LABEL_SMOOTHING = 0.1  # of the encoder-decoder
PAD = 0

Self = TypeVar("Self", bound="Configuration")


class Matrix(NamedTuple):
    """A matrix that multiplies the activations of ``tokens`` tokens."""

    tokens: int
    outputs: int
    inputs: int


class Attention(NamedTuple):
    """How many queries of a sequence look at how many keys."""

    queries: int
    keys: int


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

    def matrices(self) -> list[Matrix]:
        """Every matrix that multiplies activations."""
        raise self._not_written("matrices")

    def attentions(self) -> list[Attention]:
        """Every attention."""
        raise self._not_written("attentions")

    def product_operations(self) -> float:
        """Floating-point operations of the matrices in a step."""
        return 6.0 * sum(m.tokens * m.outputs * m.inputs for m in self.matrices())

    def operations(self) -> float:
        """Floating-point operations of a step's products, attention's included: the formulas at the top."""
        pairs = sum(a.queries * a.keys for a in self.attentions())
        return self.product_operations() + 12.0 * self.batch_size * pairs * self.d_model

    def _not_written(self, method: str) -> TypeError:
        return TypeError(f"{type(self).__name__} has no {method} method: write one")


@dataclass(frozen=True)
class GPTConfiguration(Configuration):
    """A GPT that predicts each next token."""

    def model(self) -> dict[str, Any]:
        return {
            "vocab_size": VOCAB_SIZE,
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
        windows = numpy.random.default_rng(0).integers(0, VOCAB_SIZE, shape)
        return [(w[:, :-1].copy(), w[:, 1:].copy()) for w in windows]

    def tinyformer(self) -> tuple[Any, list[Any], Any]:
        import tinytensor as tt
        from tinyformer.data import Batch
        from tinyformer.gpt import GPT, GPTConfig
        from tinyformer.training import next_token_loss

        batches = [Batch(tt.tensor(ids), tt.tensor(targets), targets.size) for ids, targets in self.batches()]
        return GPT(GPTConfig(**self.model())), batches, next_token_loss

    def pytorch(self) -> Any:
        from torch_gpt import GPT

        return GPT(**self.model())

    def matrices(self) -> list[Matrix]:
        d, tokens = self.d_model, self.batch_size * self.block_size
        layer = [Matrix(tokens, 3 * d, d), Matrix(tokens, d, d), Matrix(tokens, 4 * d, d), Matrix(tokens, d, 4 * d)]
        return [*layer * self.num_layers, Matrix(tokens, VOCAB_SIZE, d)]

    def attentions(self) -> list[Attention]:
        return [Attention(self.block_size, self.block_size)] * self.num_layers


@dataclass(frozen=True)
class TransformerConfiguration(Configuration):
    """An encoder-decoder with as many layers in either; sources and targets are ``block_size`` tokens long, padding included."""

    dropout: float = 0.1
    d_inner: int = 512
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
            "d_inner": self.d_inner,
            "dropout": self.dropout,
        }

    def shape(self) -> str:
        return (
            f"encoder and decoder of {self.num_layers} layers each, {self.num_heads} heads, {self.d_model} wide, "
            f"{self.d_inner} inside, sources and targets of {self.block_size}, vocabularies of {self.vocab_size}"
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
        from tinyformer.pairs import PairBatch, translation_loss
        from tinyformer.transformer import Transformer, TransformerConfig

        batches = [
            PairBatch(tt.tensor(source), tt.tensor(inputs), tt.tensor(outputs), int((outputs != PAD).sum()))
            for source, inputs, outputs in self.batches()
        ]
        return Transformer(TransformerConfig(**self.model())), batches, translation_loss(LABEL_SMOOTHING, PAD)

    def pytorch(self) -> Any:
        from torch_transformer import Transformer

        return Transformer(**self.model(), max_length=self.block_size, label_smoothing=LABEL_SMOOTHING)

    def matrices(self) -> list[Matrix]:
        d, inner = self.d_model, self.d_inner
        source = target = self.batch_size * self.block_size
        encoder = [Matrix(source, 3 * d, d), Matrix(source, d, d), *self._feed_forward(source, inner)]
        own = [Matrix(target, 3 * d, d), Matrix(target, d, d)]
        across = [Matrix(target, d, d), Matrix(source, 2 * d, d), Matrix(target, d, d)]  # query, key and value, output
        decoder = [*own, *across, *self._feed_forward(target, inner)]
        return [*(encoder + decoder) * self.num_layers, Matrix(target, self.vocab_size, d)]

    def _feed_forward(self, tokens: int, inner: int) -> list[Matrix]:
        return [Matrix(tokens, inner, self.d_model), Matrix(tokens, self.d_model, inner)]

    def attentions(self) -> list[Attention]:
        # the encoder's, the decoder's own, and the one across: as sources and targets are equally long, all are alike
        return [Attention(self.block_size, self.block_size)] * (3 * self.num_layers)


GPTS = {
    "A": GPTConfiguration(num_layers=4, num_heads=4, d_model=128, block_size=64, batch_size=12),
    "B": GPTConfiguration(num_layers=6, num_heads=6, d_model=192, block_size=128, batch_size=16),
    "C": GPTConfiguration(num_layers=6, num_heads=6, d_model=384, block_size=256, batch_size=8),
}
CONFIGURATIONS: dict[str, Configuration] = {
    **GPTS,
    "D": TransformerConfiguration(num_layers=3, num_heads=8, d_model=256, block_size=24, batch_size=128),
}
