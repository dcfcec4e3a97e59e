"""Recurrent translation: an encoder reads the source, and a decoder writes the target.

- ``ContextVectorModel`` (Sutskever, Vinyals and Le 2014): the decoder starts from the encoder's final state. That state must
  represent the entire source.
- ``AdditiveAttentionModel`` (Bahdanau, Cho and Bengio 2015): before each word, the decoder averages the encoder's outputs,
  weighted by how well each matches the decoder's state.

Both implement ``forward``, ``loss``, ``encode`` and ``step``. Internally, time is the first axis.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.memory import check_model_fits
from tinyformer.common.settings import at_least, check_fields, one_of, setting
from tinyformer.models.attention import RecordsAttention
from tinyformer.models.recurrent import CELLS, State, check_dropout, count_parameters, kinds_of, make_layers
from tinyformer.models.transformer import check_batch, check_shared_vocabulary
from tinytensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.functional.attention import masked_softmax
from tinytensor.nn import Dropout, Embedding, Linear, Module, ModuleList, init


@dataclass(frozen=True)
class Seq2SeqConfig:
    """Configuration of a recurrent encoder-decoder. Raises SettingError for an invalid value."""

    source_vocab_size: int
    target_vocab_size: int
    attention: bool
    source_pad: int = 0
    cell: str = setting("lstm", "rnn, gru or lstm")
    d_model: int = setting(512, "width of each layer's state")
    d_embedding: int = setting(256, "width of the embeddings")
    num_layers: int = setting(2, "recurrent layers of the encoder and of the decoder")
    dropout: float = setting(0.3, "dropout probability", changeable=True)
    teacher_forcing: float = setting(1.0, "probability of teacher forcing", changeable=True)
    reverse_source: bool = setting(False, "reverse the source (without attention)")
    share_embeddings: bool = setting(False, "share one embedding and vocabulary between both languages")

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, source_vocab_size=1, target_vocab_size=1, d_model=1, d_embedding=1, num_layers=1)
        one_of(self, "cell", CELLS)
        check_dropout(self.dropout)
        if not 0.0 <= self.teacher_forcing <= 1.0:
            raise SettingError(f"teacher_forcing must be from 0 to 1, got {self.teacher_forcing}")
        if self.reverse_source and self.attention:
            raise SettingError("reverse_source has no effect with attention (the encoder is bidirectional): leave it out")
        check_shared_vocabulary(self)

    def num_parameters(self) -> int:
        """Return the number of parameters without building the model."""
        width, embedding, target = int(self.d_model), int(self.d_embedding), int(self.target_vocab_size)
        tables = (target if self.share_embeddings else target + int(self.source_vocab_size)) + target
        memory = 2 * width if self.attention else 0
        layers = count_parameters(self.cell, embedding, width, self.num_layers, directions=2 if self.attention else 1)
        layers += count_parameters(self.cell, embedding + memory, width, self.num_layers)
        bridges = CELLS[self.cell].num_states * (width * width + width) if self.attention else 0
        scores = width * (width + memory + 1) if self.attention else 0
        return tables * embedding + layers + bridges + scores + (width + memory + embedding) * 2 * embedding + 2 * embedding

    def saved_numbers(self) -> int:
        """Return a lower bound on the values per token that training saves for the backward pass: the gates and states of each
        layer."""
        return int(self.num_layers) * (CELLS[self.cell].gates + 1) * int(self.d_model)


class Maxout(Module):
    """A linear layer that computes two values per output and returns the larger one (Goodfellow et al. 2013)."""

    def __init__(self, in_features: int, out_features: int):
        self.linear = Linear(in_features, 2 * out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in_features) to (..., out_features)."""
        both = self.linear(x)
        return tt.maximum(both[..., 0::2], both[..., 1::2])  # nine times faster than max over an axis of two


class EncoderDecoder(Module):
    """Base class of both models: embeddings, output layer, loss and decoding.

    Before the output layer, a maxout layer combines the decoder's state, its last input word and, with attention, the context
    (Bahdanau et al. 2015, appendix A.2.2). Raises SettingError if the model does not fit in memory or ``config.attention``
    belongs to the other model.
    """

    def __init__(self, config: Seq2SeqConfig, context: int):
        if config.attention != bool(context):
            raise SettingError(f"attention must be {bool(context)} for {type(self).__name__}, got {config.attention}")
        settings = ("d_model", "d_embedding", "num_layers")
        check_model_fits(config.num_parameters(), 2 * config.num_layers, *settings)
        self.config = config
        self.source_embedding = Embedding(config.source_vocab_size, config.d_embedding)
        shared = self.source_embedding if config.share_embeddings else None
        self.target_embedding = shared or Embedding(config.target_vocab_size, config.d_embedding)
        self.readout = Maxout(config.d_model + context + config.d_embedding, config.d_embedding)
        self.output = Linear(config.d_embedding, config.target_vocab_size, bias=False)
        self.dropout = Dropout(config.dropout)
        for embedding in (self.source_embedding, self.target_embedding):
            init.normal_(embedding.weight, std=0.1)
        for layer in (self.readout.linear, self.output):
            init.xavier_uniform_(layer.weight)

    @checked
    def encode(self, source: Tensor) -> State:
        """Map source ids (batch, length) to the decoder's initial state."""
        raise TypeError(f"{type(self).__name__} has no encoder: use ContextVectorModel or AdditiveAttentionModel")

    def _read(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the decoder's outputs for embedded target words (length, batch, d_embedding), concatenated with the context if
        there is attention: (length, batch, d_model + context). Also return the final state."""
        raise TypeError(f"{type(self).__name__} has no decoder: use ContextVectorModel or AdditiveAttentionModel")

    @checked
    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map ids (batch, source length) and (batch, target length) to logits for the token after each target token, (batch,
        target length, target_vocab_size). Trailing padding has no effect."""
        check_batch(target, "target ids")
        features, _ = self._features(target, self.encode(source))
        return self._logits(features).swapaxes(0, 1)

    def step(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Read the next target ids (batch, length). Return the logits after the last, (batch, target_vocab_size), and the new
        state. Start with the state from ``encode``. Raises ValueError without a state."""
        if state is None:
            raise ValueError("the decoder needs a state to start from: pass model.encode(source)")
        features, state = self._features(ids, state)
        return self._logits(features[-1]), state

    def loss(
        self,
        source: Tensor,
        target_inputs: Tensor,
        target_outputs: Tensor,
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
        reduction: str = "mean",
    ) -> Tensor:
        """Return the cross-entropy loss for ``target_outputs`` (batch, target length). Positions equal to ``ignore_index`` do
        not count.

        In training, the decoder reads each word of ``target_inputs`` with probability ``teacher_forcing``, and its own best
        guess otherwise (Bengio et al. 2015).
        """
        check_batch(target_inputs, "target ids")
        state = self.encode(source)
        if self.training and self.config.teacher_forcing < 1.0:
            features = self._features_of_guesses(target_inputs, state)
        else:
            features, _ = self._features(target_inputs, state)
        return tt.linear_cross_entropy(
            features, self.output.weight, target_outputs.swapaxes(0, 1), ignore_index, label_smoothing, reduction
        )

    def _features(self, target: Tensor, state: State) -> tuple[Tensor, State]:
        """Map target ids (batch, length) to the input of the output layer, (length, batch, d_embedding), and the final
        state."""
        if target.ndim != 2 or len(target) != state.batch_size or not target.shape[1]:
            rows = f"({state.batch_size}, length)"
            raise ValueError(f"target ids must be {rows} with a length of at least 1, got {target.shape}")
        words = self.dropout(self.target_embedding(target.swapaxes(0, 1)))
        outputs, state = self._read(words, state)
        return self.dropout(self.readout(tt.concatenate([outputs, words], -1))), state

    def _features_of_guesses(self, target: Tensor, state: State) -> Tensor:
        """Return ``_features``, but let the decoder read some of its own guesses instead of the target."""
        features, state = self._features(target[:, :1], state)
        steps = [features]
        for i in range(1, target.shape[1]):
            with tt.no_grad():
                guess = self._logits(features[0]).argmax(-1)
                is_right_one = tt.random.uniform(len(guess)) < self.config.teacher_forcing
                ids = tt.where(is_right_one, target[:, i], guess)[:, None]
            features, state = self._features(ids, state)
            steps.append(features)
        return tt.concatenate(steps)

    def _logits(self, features: Tensor) -> Tensor:
        return tt.linear(features, self.output.weight)

    def _embedded(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the embeddings (length, batch, d_embedding) of source ids (batch, length), and the length of each row."""
        check_batch(source, "source ids")
        lengths = (source != self.config.source_pad).sum(1)
        if self.config.reverse_source:
            source = reversed_words(source, lengths)
        return self.dropout(self.source_embedding(source.swapaxes(0, 1))), lengths


def reversed_words(source: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the words of each row (batch, length). The end token, the last one within ``lengths``, and the padding do not
    move."""
    position = tt.arange(source.shape[1])
    last = lengths[:, None] - 2
    return tt.take_along_axis(source, tt.where(position <= last, last - position, position), 1)


class ContextVectorModel(EncoderDecoder):
    """The encoder-decoder of Sutskever et al. (2014), in which only a state connects encoder and decoder."""

    def __init__(self, config: Seq2SeqConfig):
        super().__init__(config, context=0)
        sizes = config.d_embedding, config.d_model, config.num_layers, config.dropout
        self.encoder = make_layers(config.cell, *sizes)
        self.decoder = make_layers(config.cell, *sizes)

    @checked
    def encode(self, source: Tensor) -> State:
        """Map source ids (batch, length) to the encoder's final state, the decoder's initial state."""
        words, lengths = self._embedded(source)
        _, last = self.encoder(words, lengths=lengths)
        return State(kinds_of(last))

    def _read(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        outputs, last = self.decoder(words, state.as_cells_take_it())
        return outputs, State(kinds_of(last))


@dataclass(frozen=True)
class AttentionState(State):
    """The decoder's state and memory: the encoder outputs (batch, source length, 2 * d_model), their keys (batch, source
    length, d_model), and a mask of tokens (batch, source length)."""

    memory: Tensor
    keys: Tensor
    mask: Tensor

    def select(self, rows: Any) -> AttentionState:
        """Return the state of these rows of the batch, in this order. A row may be repeated."""
        index = tt.tensor(rows)
        hidden = super().select(rows).hidden
        return AttentionState(hidden, self.memory[index], self.keys[index], self.mask[index])

    def detached(self) -> AttentionState:
        """Return the state and the memory detached from the graph."""
        hidden = super().detached().hidden
        return AttentionState(hidden, self.memory.detach(), self.keys.detach(), self.mask)


class AdditiveAttention(RecordsAttention):
    """Additive attention: score = v · tanh(W query + U memory) (Bahdanau et al. 2015, A.1.2)."""

    def __init__(self, query_width: int, memory_width: int, width: int):
        super().__init__()
        self.query = Linear(query_width, width, bias=False)
        self.key = Linear(memory_width, width, bias=False)
        self.score = Linear(width, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        """Return the context (batch, memory_width), a weighted mean of memory (batch, length, memory_width). The weights are
        the masked softmax of the scores of query (batch, query_width) and keys = self.key(memory) (batch, length, width). The
        mask is (batch, length)."""
        scores = self.score(tt.tanh(keys + self.query(query)[:, None]))  # (batch, length, 1)
        weights = masked_softmax(scores.swapaxes(-1, -2), mask[:, None])  # (batch, 1, length)
        return (self.record(weights[:, None])[:, 0] @ memory)[:, 0]


class AdditiveAttentionModel(EncoderDecoder):
    """The model of Bahdanau et al. (2015): a bidirectional encoder, and a decoder that attends to all encoder outputs.

    The context is an input of the recurrent cell, with the last word, and of the output layer.
    """

    def __init__(self, config: Seq2SeqConfig):
        width, memory = config.d_model, 2 * config.d_model
        super().__init__(config, context=memory)
        layers = config.num_layers, config.dropout
        self.encoder = make_layers(config.cell, config.d_embedding, width, *layers, bidirectional=True)
        self.decoder = make_layers(config.cell, config.d_embedding + memory, width, *layers)
        self.bridges = ModuleList(Linear(width, width) for _ in range(self.decoder.num_states))
        self.cross_attention = AdditiveAttention(width, memory, width)

    @checked
    def encode(self, source: Tensor) -> AttentionState:
        """Map source ids (batch, length) to the encoder's outputs and the decoder's initial state. The state is computed from
        the backward direction's final state, at the first word (section A.2.2)."""
        words, lengths = self._embedded(source)
        outputs, last = self.encoder(words, lengths=lengths)
        hidden = [tt.tanh(bridge(tensor[1::2])) for bridge, tensor in zip(self.bridges, kinds_of(last))]
        memory = outputs.swapaxes(0, 1)
        return AttentionState(hidden, memory, self.cross_attention.key(memory), source != self.config.source_pad)

    def _read(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        assert isinstance(state, AttentionState)
        results = []
        for word in words:
            context = self.cross_attention(state.hidden[0][-1], state.keys, state.memory, state.mask)
            outputs, last = self.decoder(tt.concatenate([word, context], -1)[None], state.as_cells_take_it())
            results.append(tt.concatenate([outputs[0], context], -1))
            state = replace(state, hidden=kinds_of(last))
        return tt.stack(results), state
