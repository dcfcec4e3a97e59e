"""Recurrent layers through time: the plain network (Elman 1990), the GRU (Cho et al. 2014) and the LSTM (Hochreiter and
Schmidhuber 1997, with the forget gate of Gers et al. 2000).

``projected`` (length, batch, gates * width) holds the inputs' parts of the gates for all steps. Each step adds the previous
state's part, h W^T, and computes the next state. The gates stand side by side, in PyTorch's order.

``mask`` (length, batch) is None or boolean, True = a token. At padding a step keeps the state, so the last step holds the final
states of sequences of any length. ``is_reversed`` runs from the last step to the first.

In the backward pass, each step turns its state's gradient into that of its gates, and adds to the gradient of the previous
state. The gradient of the weight is one product over all steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over
from tinytensor.kernels.numpy.activations import sigmoid
from tinytensor.kernels.numpy.products import as_rows


def steps(length: int, is_reversed: bool) -> range:
    """Return the steps in the order in which they run."""
    return range(length - 1, -1, -1) if is_reversed else range(length)


def state_before(states: Any, first: Any, t: int, is_reversed: bool) -> Any:
    """Return the state before step t: that of the step that ran before it, or ``first``."""
    t += 1 if is_reversed else -1
    return states[t] if 0 <= t < len(states) else first


def weight_gradient(d_gates: Any, states: Any, first: Any, is_reversed: bool) -> Any:
    """Return the sum over the steps of d_gates^T times the state before the step."""
    start, later, before = (-1, d_gates[:-1], states[1:]) if is_reversed else (0, d_gates[1:], states[:-1])
    out = d_gates[start].T @ first
    out += as_rows(later).T @ as_rows(before)
    return out


def _keep(old: Any, new: Any, mask: Any, t: int) -> None:
    """Replace the new state by the old one at padding."""
    if mask is not None:
        xp.copyto(new, old, where=~mask[t][:, None])


def _pass_by(d_new: Any, d_gates: Any, d_old: Any, mask: Any, t: int) -> None:
    """At padding, pass the gradient by the gates to the state before the step."""
    if mask is not None:
        padding = ~mask[t][:, None]
        xp.copyto(d_gates, 0, where=padding)
        xp.copyto(d_old, d_new, where=padding)


# ----------------------------------------------------------------------------------------------------------- plain network


def rnn_forward(
    needed: Sequence[bool], projected: Any, weight: Any, state: Any, mask: Any, is_reversed: bool, activation: str
) -> tuple[Any, Any]:
    """h' = f(projected + h W^T), where f is tanh or relu. Saves the states."""
    states = xp.empty(projected.shape, projected.dtype)
    for t in steps(len(states), is_reversed):
        old, new = state_before(states, state, t, is_reversed), states[t]
        xp.matmul(old, weight.T, out=new)
        new += projected[t]
        if activation == "tanh":
            xp.tanh(new, out=new)
        else:
            xp.maximum(new, 0, out=new)
        _keep(old, new, mask, t)
    return states, states


def rnn_backward(
    g: Any,
    states: Any,
    needed: Sequence[bool],
    projected: Any,
    weight: Any,
    state: Any,
    mask: Any,
    is_reversed: bool,
    activation: str,
) -> Sequence[Any]:
    """With a = projected + h W^T: da = dh' f'(a), and dh = da W. The slope f'(a) is 1 - h'^2 for tanh, and 1 or 0 for relu."""
    d_gates = xp.empty(states.shape, states.dtype)
    d_state = xp.zeros(state.shape, states.dtype)
    for t in steps(len(states), not is_reversed):
        d_new, d_gate, new = d_state + g[t], d_gates[t], states[t]
        d_gate[...] = d_new * (1.0 - new * new) if activation == "tanh" else xp.where(new <= 0, 0, d_new)
        d_state = d_gate @ weight
        _pass_by(d_new, d_gate, d_state, mask, t)
    return d_gates, weight_gradient(d_gates, states, state, is_reversed) if needed[1] else None, d_state


# --------------------------------------------------------------------------------------------------------------------- GRU


def gru_forward(
    needed: Sequence[bool], projected: Any, weight: Any, bias: Any, state: Any, mask: Any, is_reversed: bool
) -> tuple[Any, Any]:
    """With p from the inputs and u = h W^T + bias: r = sigmoid(p_r + u_r), z = sigmoid(p_z + u_z), n = tanh(p_n + r u_n), and
    h' = n + z (h - n). Saves the states, the gates r, z and n, and u_n."""
    (length, batch, _), width = projected.shape, state.shape[-1]
    states = xp.empty((length, batch, width), projected.dtype)
    gates, of_state = xp.empty(projected.shape, projected.dtype), xp.empty(states.shape, projected.dtype)
    for t in steps(length, is_reversed):
        old, new, gate = state_before(states, state, t, is_reversed), states[t], gates[t]
        recurrent = old @ weight.T
        if bias is not None:
            recurrent += bias
        of_state[t] = recurrent[:, 2 * width :]
        gate[:, : 2 * width] = sigmoid(projected[t, :, : 2 * width] + recurrent[:, : 2 * width])
        r, z, n = gate[:, :width], gate[:, width : 2 * width], gate[:, 2 * width :]
        xp.multiply(r, of_state[t], out=n)
        n += projected[t, :, 2 * width :]
        xp.tanh(n, out=n)
        xp.subtract(old, n, out=new)
        new *= z
        new += n
        _keep(old, new, mask, t)
    return states, (states, gates, of_state)


def gru_backward(
    g: Any,
    residuals: Any,
    needed: Sequence[bool],
    projected: Any,
    weight: Any,
    bias: Any,
    state: Any,
    mask: Any,
    is_reversed: bool,
) -> Sequence[Any]:
    """Before its activation: dn = dh' (1 - z) (1 - n^2), dr = dn u_n r (1 - r), dz = dh' (h - n) z (1 - z), and du_n = dn r.
    Then dh = dh' z + du W."""
    states, gates, of_state = residuals
    width = state.shape[-1]
    d_projected, d_recurrent = xp.empty(gates.shape, gates.dtype), xp.empty(gates.shape, gates.dtype)
    d_state = xp.zeros(state.shape, states.dtype)
    for t in steps(len(states), not is_reversed):
        d_new, d_gate, d_hidden = d_state + g[t], d_projected[t], d_recurrent[t]
        r, z, n = gates[t, :, :width], gates[t, :, width : 2 * width], gates[t, :, 2 * width :]
        d_n = d_new * (1.0 - z) * (1.0 - n * n)
        d_gate[:, :width] = d_n * of_state[t] * r * (1.0 - r)
        d_gate[:, width : 2 * width] = d_new * (state_before(states, state, t, is_reversed) - n) * z * (1.0 - z)
        d_gate[:, 2 * width :] = d_n
        d_hidden[:, : 2 * width] = d_gate[:, : 2 * width]
        xp.multiply(d_n, r, out=d_hidden[:, 2 * width :])
        d_state = d_hidden @ weight
        d_state += d_new * z
        _pass_by(d_new, d_gate, d_state, mask, t)
        _pass_by(d_new, d_hidden, d_state, mask, t)
    d_weight = weight_gradient(d_recurrent, states, state, is_reversed) if needed[1] else None
    return d_projected, d_weight, sum_over(d_recurrent, (0, 1)) if needed[2] else None, d_state


# -------------------------------------------------------------------------------------------------------------------- LSTM


def lstm_forward(
    needed: Sequence[bool], projected: Any, weight: Any, state: Any, cell: Any, mask: Any, is_reversed: bool
) -> tuple[Any, Any]:
    """With a = projected + h W^T: i, f, o = sigmoid(a_i, a_f, a_o), u = tanh(a_u), c' = f c + i u and h' = o tanh(c').

    The output (2, length, batch, width) holds h' and c'. Saves it, and the gates i, f, u and o.
    """
    (length, batch, _), width = projected.shape, state.shape[-1]
    out = xp.empty((2, length, batch, width), projected.dtype)
    states, cells = out
    gates = xp.empty(projected.shape, projected.dtype)
    for t in steps(length, is_reversed):
        old, old_cell = state_before(states, state, t, is_reversed), state_before(cells, cell, t, is_reversed)
        gate, new, new_cell = gates[t], states[t], cells[t]
        xp.matmul(old, weight.T, out=gate)
        gate += projected[t]
        i, f, u, o = (gate[:, k * width : (k + 1) * width] for k in range(4))
        gate[:, : 2 * width] = sigmoid(gate[:, : 2 * width])
        xp.tanh(u, out=u)
        o[...] = sigmoid(o)
        xp.multiply(f, old_cell, out=new_cell)
        new_cell += i * u
        xp.tanh(new_cell, out=new)
        new *= o
        _keep(old, new, mask, t)
        _keep(old_cell, new_cell, mask, t)
    return out, (out, gates)


def lstm_backward(
    g: Any,
    residuals: Any,
    needed: Sequence[bool],
    projected: Any,
    weight: Any,
    state: Any,
    cell: Any,
    mask: Any,
    is_reversed: bool,
) -> Sequence[Any]:
    """With the whole gradient of the cell, e = dc' + dh' o (1 - tanh(c')^2), the gates' gradients before their activations are
    e u i (1 - i), e c f (1 - f), e i (1 - u^2) and dh' tanh(c') o (1 - o). Then dh = da W and dc = e f."""
    (states, cells), gates = residuals
    width = state.shape[-1]
    d_gates = xp.empty(gates.shape, gates.dtype)
    d_state, d_cell = xp.zeros(state.shape, gates.dtype), xp.zeros(state.shape, gates.dtype)
    for t in steps(len(states), not is_reversed):
        d_new, d_new_cell, d_gate = d_state + g[0, t], d_cell + g[1, t], d_gates[t]
        i, f, u, o = (gates[t, :, k * width : (k + 1) * width] for k in range(4))
        squashed = xp.tanh(cells[t])
        d_total = d_new_cell + d_new * o * (1.0 - squashed * squashed)
        d_gate[:, :width] = d_total * u * i * (1.0 - i)
        d_gate[:, width : 2 * width] = d_total * state_before(cells, cell, t, is_reversed) * f * (1.0 - f)
        d_gate[:, 2 * width : 3 * width] = d_total * i * (1.0 - u * u)
        d_gate[:, 3 * width :] = d_new * squashed * o * (1.0 - o)
        d_state, d_cell = d_gate @ weight, d_total * f
        _pass_by(d_new, d_gate, d_state, mask, t)
        _pass_by(d_new_cell, d_gate, d_cell, mask, t)
    d_weight = weight_gradient(d_gates, states, state, is_reversed) if needed[1] else None
    return d_gates, d_weight, d_state, d_cell
