"""A recurrent language model (embedding, recurrent layers, output layer), and code shared by all recurrent models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.common.memory import check_model_fits
from tinyformer.common.settings import at_least, check_fields, one_of, setting
from tinytensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.nn import GRU, LSTM, RNN, Dropout, Embedding, Linear, Module, init

CELLS: dict[str, type[RNN] | type[GRU] | type[LSTM]] = {"rnn": RNN, "gru": GRU, "lstm": LSTM}


def check_dropout(dropout: float) -> None:
    """Raise SettingError unless 0 <= dropout < 1."""
    if not 0.0 <= dropout < 1.0:
        raise SettingError(f"dropout must be at least 0 and less than 1, got {dropout}")


def make_layers(
    cell: str, inputs: int, width: int, num_layers: int, dropout: float = 0.0, bidirectional: bool = False
) -> RNN | GRU | LSTM:
    """Return new recurrent layers. LSTM forget gates start with a bias of 1, almost open, so that a new network remembers
    (Jozefowicz et al. 2015)."""
    dropout = dropout if num_layers > 1 else 0.0
    layers = CELLS[cell](inputs, width, num_layers, dropout=dropout, bidirectional=bidirectional)
    if cell == "lstm":
        for name, bias in layers.named_parameters():
            if name.startswith("bias"):
                value = bias.numpy().copy()
                value[width : 2 * width] = name.startswith("bias_ih")  # the other bias is added to it
                bias.assign(value)
    return layers


def count_parameters(cell: str, inputs: int, width: int, num_layers: int, directions: int = 1) -> int:
    """Return the number of parameters of recurrent layers without building them."""
    inputs, width, num_layers = int(inputs), int(width), int(num_layers)  # NumPy integers would overflow
    all_inputs = directions * (inputs + (num_layers - 1) * directions * width)
    gates = CELLS[cell].gates
    return gates * width * (all_inputs + num_layers * directions * (width + 2))


@dataclass(frozen=True)
class State:
    """State that a recurrent model passes from token to token: one tensor (layers, batch, width) per cell state."""

    hidden: Sequence[Tensor]

    @property
    def batch_size(self) -> int:
        """The batch size."""
        return self.hidden[0].shape[1]

    def select(self, rows: Any) -> State:
        """Return the state of these rows of the batch, in this order. A row may be repeated."""
        index = tt.tensor(rows)
        return replace(self, hidden=[tensor[:, index] for tensor in self.hidden])

    def detached(self) -> State:
        """Return the state detached from the graph."""
        return replace(self, hidden=[tensor.detach() for tensor in self.hidden])

    def as_cells_take_it(self) -> Any:
        """Return the state in the format that ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` expect."""
        return tuple(self.hidden) if len(self.hidden) > 1 else self.hidden[0]


def kinds_of(state: Any) -> Sequence[Tensor]:
    """Return the state tensors of recurrent layers: two for an LSTM, otherwise one."""
    return state if isinstance(state, tuple) else (state,)


@dataclass(frozen=True)
class RecurrentConfig:
    """Configuration of a recurrent language model. Raises SettingError for an invalid value."""

    vocab_size: int
    cell: str
    block_size: int = setting(64, "tokens predicted per sequence (truncated backpropagation)")
    context: int = setting(64, "tokens before them that only warm up the state, without gradients")
    num_layers: int = setting(2, "number of recurrent layers")
    d_model: int = setting(224, "width of the embeddings and of each layer's state")
    dropout: float = setting(0.0, "dropout probability", changeable=True)

    def __post_init__(self) -> None:
        check_fields(self)
        one_of(self, "cell", CELLS)
        at_least(self, vocab_size=1, block_size=1, context=0, num_layers=1, d_model=1)
        check_dropout(self.dropout)

    def num_parameters(self) -> int:
        """Return the number of parameters without building the model."""
        width = int(self.d_model)
        return 2 * int(self.vocab_size) * width + count_parameters(self.cell, width, width, self.num_layers)

    def saved_numbers(self) -> int:
        """Return a lower bound on the values per token that training saves for the backward pass: the gates and states of each
        layer."""
        return int(self.num_layers) * (CELLS[self.cell].gates + 1) * int(self.d_model)


class RecurrentLM(Module):
    """A language model that reads one token at a time and summarizes the sequence in a fixed-size state (Mikolov et al. 2010;
    LSTM: Graves 2013). Raises SettingError if the model does not fit in memory.

    >>> from tinyformer import RecurrentConfig, RecurrentLM
    >>> model = RecurrentLM(RecurrentConfig(65, cell="gru", num_layers=1, d_model=32))
    >>> logits, state = model(tt.zeros((8, 64), dtype=int))
    >>> logits.shape
    (8, 64, 65)
    """

    def __init__(self, config: RecurrentConfig):
        check_model_fits(config.num_parameters(), config.num_layers, "d_model", "num_layers")
        self.config = config
        self.token_embedding = Embedding(config.vocab_size, config.d_model)
        self.layers = make_layers(config.cell, config.d_model, config.d_model, config.num_layers, config.dropout)
        self.dropout = Dropout(config.dropout)
        self.output = Linear(config.d_model, config.vocab_size, bias=False)
        init.xavier_uniform_(self.output.weight)

    @checked
    def forward(self, ids: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """Map token ids (batch, length) to logits for each next token, (batch, length, vocab_size), and the final state.

        If ``state`` is passed, the ids continue the sequence that led to it. For truncated backpropagation through time, pass
        ``state.detached()``.
        """
        features, state = self._features(ids, state)
        return self.logits_of(features).swapaxes(0, 1), state

    def logits_of(self, x: Tensor) -> Tensor:
        """Return the output layer's logits (..., vocab_size) for hidden states x (..., d_model). For an earlier layer's states,
        see ``GPT.logits_of``."""
        return tt.linear(x, self.output.weight)

    def step(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Read the next ids (batch, length). Return the logits after the last, (batch, vocab_size), and the new state."""
        features, state = self._features(ids, state)
        return self.logits_of(features[-1]), state

    @checked
    def loss(self, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Return the cross-entropy loss for ``targets`` (batch, length), the tokens that follow the last ids.

        Extra ids at the front only set the state. Backpropagation through time is truncated there (Williams and Peng 1990).
        Raises ValueError for mismatched shapes.
        """
        if not ids.ndim == targets.ndim == 2 or len(ids) != len(targets) or ids.shape[1] < targets.shape[1]:
            raise ValueError(f"targets must be (batch, length), at most as long as the ids {ids.shape}, got {targets.shape}")
        context = ids.shape[1] - targets.shape[1]
        state = None
        if context:
            with tt.no_grad():
                _, state = self._features(ids[:, :context], None)
        features, _ = self._features(ids[:, context:], state)
        return tt.linear_cross_entropy(features, self.output.weight, targets.swapaxes(0, 1), reduction=reduction)

    def _features(self, ids: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return the input of the output layer, (length, batch, d_model), and the final state."""
        if ids.ndim != 2 or not ids.shape[1]:
            raise ValueError(f"ids must be (batch, length) with a length of at least 1, got {ids.shape}")
        x = self.dropout(self.token_embedding(ids.swapaxes(0, 1)))
        x, last = self.layers(x, None if state is None else state.as_cells_take_it())
        return self.dropout(x), State(kinds_of(last))
