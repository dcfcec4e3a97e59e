"""The models that the benchmarks measure, their data, and the arithmetic of their training step.

A to C are character GPTs. D is the encoder-decoder of "Attention Is All You Need", half as wide as the paper's base model.
The GPU's are nanoGPT's character GPT, and GPT-2 with its vocabulary rounded up to a multiple of 64.

Floating-point operations of a training step, where a multiplication and an addition count as two, N is the number of
parameters in matrices that multiply activations (including the output layer), and T = batch * block is the number of tokens:

    6 N T + 12 attentions T block width

The first term is the matrices: 2 N T forward, and twice that backward. The second is attention's two products, each
2 T block width forward and twice that backward, counted as if no attention were causal. A GPT has one attention per layer. An
encoder-decoder has three per pair of layers: encoder self-attention, decoder self-attention and cross-attention.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

BATCHES = 16  # different batches, used in turn
LABEL_SMOOTHING = 0.1  # of the encoder-decoder
PAD = 0


@dataclass(frozen=True)
class Sizes(ABC):
    """The size of a model and of its batches."""

    num_layers: int
    num_heads: int
    d_model: int
    block_size: int
    batch_size: int
    dropout: float = 0.0
    vocab_size: int = 65
    attentions_in_a_layer: ClassVar[int] = 1

    @abstractmethod
    def shape(self) -> str:
        """Describe the model's size."""

    @abstractmethod
    def matrices(self) -> list[tuple[int, int]]:
        """Return (outputs, inputs) of every matrix that multiplies activations."""

    def num_attentions(self) -> int:
        """Return the number of attentions."""
        return self.attentions_in_a_layer * self.num_layers

    def num_tokens(self) -> int:
        """Return the number of tokens of a batch."""
        return self.batch_size * self.block_size

    def product_operations(self) -> float:
        """Return the floating-point operations of these matrices in a step."""
        return 6.0 * sum(n * k for n, k in self.matrices()) * self.num_tokens()

    def operations(self) -> float:
        """Return the floating-point operations of a step's products with attention: the formula at the top."""
        attention = 12.0 * self.num_tokens() * self.block_size * self.d_model
        return self.product_operations() + self.num_attentions() * attention

    def described(self) -> str:
        """Describe the size and the arithmetic in a sentence."""
        dropout = f"dropout {self.dropout:g}" if self.dropout else "no dropout"
        return f"{self.shape()}, batch {self.batch_size}, {dropout}; {self.operations() / 1e9:.1f} GFLOP a step."


@dataclass(frozen=True)
class GPTConfiguration(Sizes):
    """A GPT that predicts each next token."""

    def model(self) -> dict[str, Any]:
        """Return the arguments of both libraries' models."""
        return {name: value for name, value in vars(self).items() if name != "batch_size"} | {"bias": False}

    def shape(self) -> str:
        return f"{self.num_layers} layers, {self.num_heads} heads, {self.d_model} wide, block {self.block_size}"

    def batches(self) -> list[tuple[Any, ...]]:
        """Return random (ids, targets), the same on every call."""
        import numpy

        shape = (BATCHES, self.batch_size, self.block_size + 1)
        windows = numpy.random.default_rng(0).integers(0, self.vocab_size, shape)
        return [(w[:, :-1].copy(), w[:, 1:].copy()) for w in windows]

    def tinyformer(self) -> tuple[Any, list[Any], Any]:
        """Return the model, the batches and the loss function for tinyformer's trainer."""
        import tinytensor as tt
        from tinyformer.data.batches import Batch
        from tinyformer.models.gpt import GPT, GPTConfig
        from tinyformer.training.losses import next_token_loss

        batches = [Batch(tt.tensor(ids), tt.tensor(targets), targets.size) for ids, targets in self.batches()]
        return GPT(GPTConfig(**self.model())), batches, next_token_loss

    def pytorch(self) -> Any:
        """Return the model. Its ``loss`` takes a batch's arrays as tensors."""
        from torch_models import GPT

        return GPT(**self.model())

    def matrices(self) -> list[tuple[int, int]]:
        d = self.d_model
        return [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)] * self.num_layers + [(self.vocab_size, d)]


@dataclass(frozen=True)
class TransformerConfiguration(Sizes):
    """An encoder-decoder with ``num_layers`` each. Sources and targets have ``block_size`` tokens with padding."""

    dropout: float = 0.1
    vocab_size: int = 8000
    d_ff: int = 512
    attentions_in_a_layer: ClassVar[int] = 3

    def model(self) -> dict[str, Any]:
        """Return the arguments of both libraries' models."""
        sizes = {name: getattr(self, name) for name in ("d_model", "num_heads", "d_ff", "dropout")}
        vocabularies = dict.fromkeys(("source_vocab_size", "target_vocab_size"), self.vocab_size)
        layers = dict.fromkeys(("encoder_layers", "decoder_layers"), self.num_layers)
        return {**sizes, **vocabularies, **layers, "source_pad": PAD}

    def shape(self) -> str:
        return (
            f"Encoder and decoder of {self.num_layers} layers each, {self.num_heads} heads, {self.d_model} wide, "
            f"{self.d_ff} inside, sources and targets of {self.block_size}, vocabularies of {self.vocab_size}"
        )

    def batches(self) -> list[tuple[Any, ...]]:
        """Return random (source, target inputs, target outputs), the same on every call. At most a sixth of a row is padding,
        as in batches of sentences of similar length."""
        import numpy

        rng = numpy.random.default_rng(0)
        shortest = self.block_size - self.block_size // 6

        def sentences() -> tuple[Any, Any]:
            words = rng.integers(1, self.vocab_size, (self.batch_size, self.block_size + 1))
            lengths = rng.integers(shortest, self.block_size, (self.batch_size, 1), endpoint=True)
            is_word = numpy.arange(self.block_size) < lengths
            return numpy.where(is_word, words[:, :-1], PAD), numpy.where(is_word, words[:, 1:], PAD)

        return [(sentences()[1], *sentences()) for _ in range(BATCHES)]

    def tinyformer(self) -> tuple[Any, list[Any], Any]:
        """Return the model, the batches and the loss function for tinyformer's trainer."""
        import tinytensor as tt
        from tinyformer.data.pairs import PairBatch
        from tinyformer.models.transformer import Transformer, TransformerConfig
        from tinyformer.training.losses import translation_loss

        batches = [PairBatch(tt.tensor(a), tt.tensor(b), tt.tensor(c), int((c != PAD).sum())) for a, b, c in self.batches()]
        return Transformer(TransformerConfig(**self.model())), batches, translation_loss(LABEL_SMOOTHING, PAD)

    def pytorch(self) -> Any:
        """Return the model. Its ``loss`` takes a batch's arrays as tensors."""
        from torch_models import Transformer

        return Transformer(**self.model(), max_length=self.block_size, label_smoothing=LABEL_SMOOTHING)

    def matrices(self) -> list[tuple[int, int]]:
        d = self.d_model
        self_attention = [(3 * d, d), (d, d)]
        cross_attention = [(d, d), (2 * d, d), (d, d)]  # query; key and value; output
        feed_forward = [(self.d_ff, d), (d, self.d_ff)]
        return (2 * self_attention + cross_attention + 2 * feed_forward) * self.num_layers + [(self.vocab_size, d)]


Configuration = GPTConfiguration | TransformerConfiguration

GPTS = {
    "A": GPTConfiguration(num_layers=4, num_heads=4, d_model=128, block_size=64, batch_size=12),
    "B": GPTConfiguration(num_layers=6, num_heads=6, d_model=192, block_size=128, batch_size=16),
    "C": GPTConfiguration(num_layers=6, num_heads=6, d_model=384, block_size=256, batch_size=8),
}
CONFIGURATIONS: dict[str, Configuration] = {
    **GPTS,
    "D": TransformerConfiguration(num_layers=3, num_heads=8, d_model=256, block_size=24, batch_size=128),
}
GPU_GPTS = {
    "shakespeare_char": GPTConfiguration(num_layers=6, num_heads=6, d_model=384, block_size=256, batch_size=64, dropout=0.2),
    "GPT-2 124M": GPTConfiguration(num_layers=12, num_heads=12, d_model=768, block_size=1024, batch_size=8, vocab_size=50304),
}
