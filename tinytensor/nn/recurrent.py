"""Recurrent networks (``RNN``, ``GRU``, ``LSTM``) and their single steps (``RNNCell``, ``GRUCell``, ``LSTMCell``).

Parameters have the same names and shapes as in PyTorch, so PyTorch weights load.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tinytensor import functional, ops
from tinytensor.autograd.inputs import check_probability
from tinytensor.autograd.replaying import value_check
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked, shown
from tinytensor.common.wording import counted
from tinytensor.creation import arange, tensor, zeros
from tinytensor.device import backend
from tinytensor.functional.recurrence import lstm_with_projection
from tinytensor.nn import init
from tinytensor.nn.module import Module, Parameter
from tinytensor.random import uniform

States = Sequence[Tensor]
Weights = Sequence[Any]  # parameters; biases may be None
State = TypeVar("State")  # a tensor (for an LSTM, a pair)

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNCell"]


class Recurrent(Module, Generic[State]):
    """The base class of recurrent networks. ``x`` is (length, batch, input_size), (batch, length, input_size) if
    ``batch_first``, or (length, input_size) for a single sequence.

    Parameters of layer k: ``weight_ih_lk`` (gates * hidden_size, inputs), ``weight_hh_lk`` (gates * hidden_size, hidden_size)
    and, if ``bias``, ``bias_ih_lk`` and ``bias_hh_lk`` (gates * hidden_size,), initialized uniformly between
    -1/sqrt(hidden_size) and 1/sqrt(hidden_size). If ``bidirectional``, each layer also runs in reverse, with parameters whose
    names end in ``_reverse``. The outputs of both directions are concatenated. In training, ``dropout`` is the probability of
    dropping an output of any layer but the last.
    """

    gates: int  # set by subclasses: the blocks of rows in the weights
    num_states = 1  # an LSTM has two states, h and c
    proj_size = 0  # the size of an LSTM's h if it has projections

    if TYPE_CHECKING:  # the names of the parameters depend on the number of layers

        def __getattr__(self, name: str) -> Parameter: ...

    @checked
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ):
        check_probability(dropout)
        if min(input_size, hidden_size, num_layers) < 1:
            raise ValueError(
                f"input_size, hidden_size and num_layers must be at least 1, got {input_size}, {hidden_size} and {num_layers}"
            )
        if dropout and num_layers == 1:
            frames = 3 if type(self).__init__ is Recurrent.__init__ else 5  # this file's and ``checked``'s
            warnings.warn("dropout acts between layers, and there is one layer: it does nothing", stacklevel=frames)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.batch_first, self.dropout, self.directions = batch_first, dropout, 1 + bidirectional
        size, bound = self.gates * hidden_size, 1.0 / math.sqrt(hidden_size)
        for layer in range(num_layers):
            inputs = input_size if layer == 0 else self.directions * self._sizes[0]
            shapes = {"weight_ih": (size, inputs), "weight_hh": (size, self._sizes[0]), "bias_ih": (size,), "bias_hh": (size,)}
            if self.proj_size:
                shapes["weight_hr"] = (self.proj_size, hidden_size)
            for direction in range(self.directions):
                for name, shape in shapes.items():
                    is_there = bias or not name.startswith("bias")
                    value = Parameter(uniform(shape, -bound, bound)) if is_there else None
                    setattr(self, _name(name, layer, direction), value)

    @property
    def _sizes(self) -> list[int]:
        """The sizes of the states. The first is also the size of the outputs."""
        return [self.proj_size or self.hidden_size, self.hidden_size][: self.num_states]

    @checked
    def forward(self, x: Tensor, state: State | None = None, lengths: Any = None) -> tuple[Tensor, State]:
        """Return the last layer's output at every step, (length, batch, directions * hidden_size), and the final state.

        A state is (num_layers * directions, batch, hidden_size). An LSTM has two, the pair (h, c). The initial state defaults
        to zeros. ``lengths`` (batch,) holds the length of each sequence. Later steps are padding: they have no effect and their
        outputs are 0. The final state is taken after the last step of each sequence (in reverse, after its first). The batch
        axis follows x. Raises ValueError for mismatched shapes.
        """
        is_single = x.ndim == 2
        if x.ndim not in (2, 3) or x.shape[-1] != self.input_size:
            name, size = type(self).__name__, self.input_size
            raise ValueError(f"{name} takes (length, batch, {size}) or (length, {size}), got {x.shape}")
        if is_single:
            x = ops.expand_dims(x, 1)
        elif self.batch_first:
            x = ops.swapaxes(x, 0, 1)
        first = self._first(x, state, is_single)
        mask = None if lengths is None else self._mask(lengths, *x.shape[:2])
        if mask is not None:
            x = ops.where(ops.expand_dims(mask, -1), x, 0.0)  # NaN in padding must not reach the weights' gradients
        final: list[list[Tensor]] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = functional.dropout(x, self.dropout, self.training)
            outputs = []
            for direction in range(self.directions):
                initial = [state[len(final)] for state in first]
                states = self.layer_states(x, self._weights(layer, direction), initial, mask, bool(direction))
                if self._forward_hooks is not None:
                    states = self._forward_hooks.show("layer_states", self, (x, initial), states)
                outputs.append(states[0])
                final.append([state[0 if direction else -1] for state in states])
            x = outputs[0] if self.directions == 1 else ops.concatenate(outputs, -1)
        if mask is not None:
            x = ops.where(ops.expand_dims(mask, -1), x, 0.0)
        last = [ops.stack(states) for states in zip(*final)]
        if is_single:
            x, last = x[:, 0], [state[:, 0] for state in last]
        elif self.batch_first:
            x = ops.swapaxes(x, 0, 1)
        final_state: Any = last[0] if self.num_states == 1 else tuple(last)
        return x, final_state

    def _first(self, x: Tensor, state: Any, is_single: bool) -> States:
        """Return the initial states, each (num_layers * directions, batch, its size)."""
        layers = self.num_layers * self.directions
        if state is None:
            return [zeros((layers, x.shape[1], size), x.dtype) for size in self._sizes]
        states = list(state) if self.num_states > 1 and isinstance(state, (tuple, list)) else [state]
        expected = [(layers, size) if is_single else (layers, x.shape[1], size) for size in self._sizes]
        shape = " and ".join(map(str, dict.fromkeys(expected)))
        of = f"{type(self).__name__} takes a {'pair of states' if self.num_states > 1 else 'state'} of shape {shape}"
        if not all(isinstance(s, Tensor) for s in states):
            raise TypeError(f"{of}, as tensors, not {shown(state)}")
        if [s.shape for s in states] != expected:
            raise ValueError(f"{of}, got {[s.shape for s in states]}")
        return [ops.expand_dims(s, 1) for s in states] if is_single else states

    def _mask(self, lengths: Any, length: int, batch: int) -> Tensor:
        """Return a boolean mask (length, batch) that is True at tokens."""
        lengths = lengths if isinstance(lengths, Tensor) else tensor(lengths)
        if lengths.shape != (batch,) or lengths.dtype.kind not in "iu":
            expected = f"{type(self).__name__}: lengths must be {counted(batch, 'integer')}, one for each sequence"
            raise ValueError(f"{expected}, got {lengths.dtype} {lengths.shape}")
        _check_lengths(lengths, length)
        return ops.expand_dims(arange(length), 1) < lengths

    def _weights(self, layer: int, direction: int) -> Weights:
        """Return a layer's weight_ih, weight_hh, bias_ih, bias_hh and, if it exists, weight_hr in one direction."""
        names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh", *(["weight_hr"] if self.proj_size else [])]
        return [getattr(self, _name(name, layer, direction)) for name in names]

    def layer_states(self, x: Tensor, weights: Weights, first: States, mask: Tensor | None, is_reversed: bool) -> States:
        """Run a layer in one direction and return its states after each step."""
        raise TypeError(f"{type(self).__name__} has no layer: use RNN, GRU or LSTM")

    def extra_repr(self) -> str:
        options = {
            "num_layers": self.num_layers,
            "bidirectional": self.directions == 2,
            "dropout": self.dropout,
            "proj_size": self.proj_size,
        }
        plain = {"num_layers": 1, "bidirectional": False, "dropout": 0.0, "proj_size": 0}
        changed = [f"{name}={value}" for name, value in options.items() if value != plain[name]]
        return ", ".join([str(self.input_size), str(self.hidden_size), *changed])


def _name(name: str, layer: int, direction: int) -> str:
    return f"{name}_l{layer}" + ("_reverse" if direction else "")


@value_check
def _check_lengths(lengths: Tensor, length: int) -> None:
    if backend.name == "numpy" and lengths.size and not 0 <= int(lengths.data.min()) <= int(lengths.data.max()) <= length:
        raise ValueError(f"lengths must be from 0 to {length}, the steps of x, got {lengths.data.tolist()}")


def both_biases(bias_ih: Tensor | None, bias_hh: Tensor | None) -> Tensor | None:
    """Add both biases, which affect the gates in the same way."""
    return None if bias_ih is None or bias_hh is None else bias_ih + bias_hh


class RNN(Recurrent[Tensor]):
    """A plain recurrent network: h' = tanh(x weight_ihᵀ + bias_ih + h weight_hhᵀ + bias_hh). ``nonlinearity`` is "tanh" or
    "relu".

    See ``Recurrent`` for the other arguments, the weights and the shapes.
    """

    gates = 1

    @checked
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        nonlinearity: str = "tanh",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
    ):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)
        self.nonlinearity = nonlinearity

    def layer_states(self, x: Tensor, weights: Weights, first: States, mask: Tensor | None, is_reversed: bool) -> States:
        (weight_ih, weight_hh, *biases), (state,) = weights, first
        projected = ops.linear(x, weight_ih, both_biases(*biases))
        return [functional.rnn(projected, weight_hh, state, mask, is_reversed, self.nonlinearity)]


class GRU(Recurrent[Tensor]):
    """A gated recurrent unit; see ``functional.gru``. See ``Recurrent`` for arguments, weights and shapes.

    >>> outputs, h = tt.nn.GRU(8, 16, bidirectional=True)(tt.zeros((5, 3, 8)))
    >>> outputs.shape, h.shape
    ((5, 3, 32), (2, 3, 16))
    """

    gates = 3

    def layer_states(self, x: Tensor, weights: Weights, first: States, mask: Tensor | None, is_reversed: bool) -> States:
        (weight_ih, weight_hh, bias_ih, bias_hh), (state,) = weights, first
        return [functional.gru(ops.linear(x, weight_ih, bias_ih), weight_hh, bias_hh, state, mask, is_reversed)]


class LSTM(Recurrent[tuple[Tensor, Tensor]]):
    """A long short-term memory; see ``functional.lstm``. The state is a pair (h, c).

    If ``proj_size`` (below hidden_size) is set, each h is multiplied by ``weight_hr_lk`` (proj_size, hidden_size) (Sak, Senior
    and Beaufays 2014). The outputs, h and the rows of ``weight_hh_lk`` then have this length. Such a network runs step by step,
    without a kernel.

    See ``Recurrent`` for the other arguments, the weights and the shapes.

    >>> lstm = tt.nn.LSTM(8, 16, num_layers=2)
    >>> outputs, (h, c) = lstm(tt.zeros((5, 3, 8)))
    >>> outputs.shape, h.shape, c.shape
    ((5, 3, 16), (2, 3, 16), (2, 3, 16))
    """

    gates = 4
    num_states = 2

    @checked
    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
    ):
        if not 0 <= proj_size < max(1, hidden_size):
            raise ValueError(f"proj_size must be at least 0 and below hidden_size {hidden_size}, got {proj_size}")
        self.proj_size = proj_size
        super().__init__(input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional)

    def layer_states(self, x: Tensor, weights: Weights, first: States, mask: Tensor | None, is_reversed: bool) -> States:
        (weight_ih, weight_hh, bias_ih, bias_hh, *projection), (state, cell) = weights, first
        projected = ops.linear(x, weight_ih, both_biases(bias_ih, bias_hh))
        if projection:
            return lstm_with_projection(projected, weight_hh, projection[0], state, cell, mask, is_reversed)
        both = functional.lstm(projected, weight_hh, state, cell, mask, is_reversed)
        return [both[0], both[1]]


# --------------------------------------------------------------------------------------------------------- single steps


class Cell(Module, Generic[State]):
    """The base class of cells: one layer, one direction, one step.

    Parameters: ``weight_ih`` (gates * hidden_size, input_size), ``weight_hh`` (gates * hidden_size, hidden_size) and, if
    ``bias``, ``bias_ih`` and ``bias_hh`` (gates * hidden_size,), initialized uniformly between -1/sqrt(hidden_size) and
    1/sqrt(hidden_size).
    """

    gates: int  # set by subclasses: the blocks of rows in the weights
    num_states = 1

    @checked
    def __init__(self, input_size: int, hidden_size: int, bias: bool = True):
        if min(input_size, hidden_size) < 1:
            raise ValueError(f"input_size and hidden_size must be at least 1, got {input_size} and {hidden_size}")
        self.input_size, self.hidden_size = input_size, hidden_size
        size, bound = self.gates * hidden_size, 1.0 / math.sqrt(hidden_size)
        self.weight_ih = init.uniform_(init.new_parameter((size, input_size)), -bound, bound)
        self.weight_hh = init.uniform_(init.new_parameter((size, hidden_size)), -bound, bound)
        self.bias_ih = init.uniform_(init.new_parameter(size), -bound, bound) if bias else None
        self.bias_hh = init.uniform_(init.new_parameter(size), -bound, bound) if bias else None

    @checked
    def forward(self, x: Tensor, state: State | None = None) -> State:
        """Return the new state: (batch, input_size) -> (batch, hidden_size), or both without the batch axis.

        The state of an ``LSTMCell`` is a pair (h, c). The previous state defaults to zeros. Raises ValueError for mismatched
        shapes.
        """
        if x.ndim not in (1, 2) or x.shape[-1] != self.input_size:
            size = self.input_size
            raise ValueError(f"{type(self).__name__} takes (batch, {size}) or ({size},), got {x.shape}")
        states = self._before(x, state)
        if x.ndim == 1:
            x, states = ops.expand_dims(x, 0), [ops.expand_dims(s, 0) for s in states]
            new = [s[0] for s in self.after(x, states)]
        else:
            new = list(self.after(x, states))
        new_state: Any = new[0] if self.num_states == 1 else tuple(new)
        return new_state

    def _before(self, x: Tensor, state: Any) -> Sequence[Tensor]:
        shape = (*x.shape[:-1], self.hidden_size)
        if state is None:
            return [zeros(shape, x.dtype)] * self.num_states
        states = [state] if self.num_states == 1 else list(state)
        if len(states) != self.num_states or any(s.shape != shape for s in states):
            of = "a state" if self.num_states == 1 else "a pair of states"
            raise ValueError(f"{type(self).__name__} takes {of} of shape {shape}, got {[s.shape for s in states]}")
        return states

    def after(self, x: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return a batch's states after one step."""
        raise TypeError(f"{type(self).__name__} has no step: use RNNCell, GRUCell or LSTMCell")

    def _projected(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the input's contribution to the gates, as a sequence of one step."""
        return ops.expand_dims(ops.linear(x, self.weight_ih, bias), 0)

    def extra_repr(self) -> str:
        return f"{self.input_size}, {self.hidden_size}" + ("" if self.bias_ih is not None else ", bias=False")


class RNNCell(Cell[Tensor]):
    """One step of ``nn.RNN``; see ``functional.rnn``. ``nonlinearity`` is "tanh" or "relu"."""

    gates = 1

    @checked
    def __init__(self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh"):
        if nonlinearity not in ("tanh", "relu"):
            raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {nonlinearity!r}")
        super().__init__(input_size, hidden_size, bias)
        self.nonlinearity = nonlinearity

    def after(self, x: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        projected = self._projected(x, both_biases(self.bias_ih, self.bias_hh))
        return [functional.rnn(projected, self.weight_hh, states[0], activation=self.nonlinearity)[0]]


class GRUCell(Cell[Tensor]):
    """One step of ``nn.GRU``; see ``functional.gru``.

    >>> cell, h = tt.nn.GRUCell(8, 16), tt.zeros((3, 16))
    >>> for x in tt.zeros((5, 3, 8)):
    ...     h = cell(x, h)
    >>> h.shape
    (3, 16)
    """

    gates = 3

    def after(self, x: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        return [functional.gru(self._projected(x, self.bias_ih), self.weight_hh, self.bias_hh, states[0])[0]]


class LSTMCell(Cell[tuple[Tensor, Tensor]]):
    """One step of ``nn.LSTM``; see ``functional.lstm``. Its state is a pair (h, c)."""

    gates = 4
    num_states = 2

    def after(self, x: Tensor, states: Sequence[Tensor]) -> Sequence[Tensor]:
        projected = self._projected(x, both_biases(self.bias_ih, self.bias_hh))
        state, cell = states
        both = functional.lstm(projected, self.weight_hh, state, cell)
        return [both[0, 0], both[1, 0]]
