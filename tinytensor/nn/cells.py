"""Single steps of recurrent networks: ``RNNCell``, ``GRUCell`` and ``LSTMCell``, with PyTorch's parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic

from tinytensor import functional, ops
from tinytensor.autograd.tensor import Tensor
from tinytensor.common.arguments import checked
from tinytensor.creation import zeros
from tinytensor.nn import init
from tinytensor.nn.module import Module
from tinytensor.nn.recurrent import State, both_biases


class Cell(Module, Generic[State]):
    """The base of the cells: one layer, one direction, one step.

    Parameters: ``weight_ih`` (gates * hidden_size, input_size), ``weight_hh`` (gates * hidden_size, hidden_size) and, with
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

        The state of an ``LSTMCell`` is a pair (h, c). The default previous state is zeros. Raises ValueError for mismatched
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
        """Return the states after one step of a batch."""
        raise TypeError(f"{type(self).__name__} has no step: use RNNCell, GRUCell or LSTMCell")

    def _projected(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Return the input's part of the gates, as a sequence of one step."""
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
