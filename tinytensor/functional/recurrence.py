"""Recurrent layers: ``rnn``, ``gru`` and ``lstm``. One call runs one layer in one direction over all steps.

``projected`` is the contribution of the inputs to the gates, computed for all steps in one product. Only the contribution of
the state is computed step by step. ``nn.RNN``, ``nn.GRU`` and ``nn.LSTM`` do both.

``mask`` (length, batch) is boolean; True marks a token. Other steps leave the state unchanged, so padding has no effect. If
``is_reversed`` is set, the last step runs first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tinytensor import kernels
from tinytensor.autograd.fused import fused
from tinytensor.kernels.numpy.recurrence import steps
from tinytensor.ops import linear, relu, sigmoid, split, stack, tanh, where

if TYPE_CHECKING:
    from tinytensor.autograd.tensor import Tensor

__all__ = ["gru", "lstm", "rnn"]


def _check(gates: int, projected: Any, weight: Any, *states: Any, bias: Any = None) -> None:
    """Raise ValueError unless the shapes match a layer with this number of gates."""
    length, batch, size = projected.shape if len(projected.shape) == 3 else (0, 0, 0)
    width = size // gates
    fits = length and size == gates * width and weight.shape == (size, width)
    fits = fits and all(state.shape == (batch, width) for state in states)
    if not fits or (bias is not None and bias.shape != (size,)):
        raise ValueError(
            f"projected must be (length, batch, {gates} * width) with a length of at least 1, the weight ({gates} * width, "
            "width), its bias of one row, and each state (batch, width)"
        )


def _through_time(
    step: Callable[..., Sequence[Tensor]], projected: Tensor, first: Sequence[Tensor], mask: Any, is_reversed: bool
) -> list[Tensor]:
    """Run ``step(projected of one step, *states)`` for all steps. Return every state after every step."""
    if mask is not None:
        projected = where(mask[..., None], projected, 0.0)  # otherwise NaN would reach the gradient of a masked step
    history: list[Any] = [None] * projected.shape[0]
    states = first
    for t in steps(len(history), is_reversed):
        new = step(projected[t], *states)
        states = new if mask is None else [where(mask[t][:, None], *pair) for pair in zip(new, states)]
        history[t] = states
    return [stack(states) for states in zip(*history)]


@fused(
    kernels.rnn_forward,
    kernels.rnn_backward,
    inputs=("projected", "weight", "state"),
    check=lambda projected, weight, state: _check(1, projected, weight, state),
)
def rnn(
    projected: Tensor,
    weight: Tensor,
    state: Tensor,
    mask: Tensor | None = None,
    is_reversed: bool = False,
    activation: str = "tanh",
) -> Tensor:
    """Run a plain recurrent network (Elman 1990): h' = f(projected + h weightᵀ), with f = "tanh" or "relu".

    Shapes: projected (length, batch, width), weight (width, width), state (batch, width) -> the states after each step,
    (length, batch, width). Raises ValueError for mismatched shapes.
    """
    function = tanh if activation == "tanh" else relu
    (states,) = _through_time(lambda p, h: [function(p + linear(h, weight))], projected, [state], mask, is_reversed)
    return states


@fused(
    kernels.gru_forward,
    kernels.gru_backward,
    inputs=("projected", "weight", "bias", "state"),
    check=lambda projected, weight, bias, state: _check(3, projected, weight, state, bias=bias),
)
def gru(
    projected: Tensor, weight: Tensor, bias: Tensor | None, state: Tensor, mask: Tensor | None = None, is_reversed: bool = False
) -> Tensor:
    """Run a gated recurrent unit (Cho et al. 2014), with the reset gate after the product, as in PyTorch and cuDNN.

    With u = h weightᵀ + bias and gates in the order r, z, n: r and z are sigmoid(projected + u), n = tanh(projected_n + r u_n),
    and h' = (1 - z) n + z h.

    Shapes: projected (length, batch, 3 * width), weight (3 * width, width), bias (3 * width,), state (batch, width) -> the
    states after each step, (length, batch, width). Raises ValueError for mismatched shapes.
    """

    def step(p: Tensor, h: Tensor) -> list[Tensor]:
        (p_r, p_z, p_n), (u_r, u_z, u_n) = split(p, 3, -1), split(linear(h, weight, bias), 3, -1)
        r, z = sigmoid(p_r + u_r), sigmoid(p_z + u_z)
        n = tanh(p_n + r * u_n)
        return [n + z * (h - n)]

    (states,) = _through_time(step, projected, [state], mask, is_reversed)
    return states


@fused(
    kernels.lstm_forward,
    kernels.lstm_backward,
    inputs=("projected", "weight", "state", "cell"),
    check=lambda projected, weight, state, cell: _check(4, projected, weight, state, cell),
)
def lstm(
    projected: Tensor, weight: Tensor, state: Tensor, cell: Tensor, mask: Tensor | None = None, is_reversed: bool = False
) -> Tensor:
    """Run a long short-term memory (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).

    With a = projected + h weightᵀ and gates in PyTorch's order i, f, u, o (PyTorch calls u g): i, f and o are sigmoids, u is a
    tanh, c' = f c + i u, and h' = o tanh(c').

    Shapes: projected (length, batch, 4 * width), weight (4 * width, width), state and cell (batch, width) -> (2, length, batch,
    width), the states h and cells c after each step. Raises ValueError for mismatched shapes.
    """

    return stack(
        _through_time(lambda p, h, c: _lstm_step(p + linear(h, weight), c), projected, [state, cell], mask, is_reversed)
    )


def _lstm_step(gates: Tensor, cell: Tensor) -> list[Tensor]:
    i, f, u, o = split(gates, 4, -1)
    new = sigmoid(f) * cell + sigmoid(i) * tanh(u)
    return [sigmoid(o) * tanh(new), new]


def lstm_with_projection(
    projected: Tensor,
    weight: Tensor,
    projection: Tensor,
    state: Tensor,
    cell: Tensor,
    mask: Tensor | None = None,
    is_reversed: bool = False,
) -> list[Tensor]:
    """Run an LSTM that multiplies its states h by ``projection`` (size, width) (Sak, Senior and Beaufays 2014), without a
    kernel.

    The weight is (4 * width, size) and the state (batch, size). Returns the states and cells after each step.
    """

    def step(p: Tensor, h: Tensor, c: Tensor) -> list[Tensor]:
        wide, new = _lstm_step(p + linear(h, weight), c)
        return [linear(wide, projection), new]

    if not projected.shape[0]:
        raise ValueError("an LSTM needs a length of at least 1")
    return _through_time(step, projected, [state, cell], mask, is_reversed)
