"""Recurrent layers through time: for each step a matrix product by cuBLAS, and one kernel for the rest.
``kernels/numpy/recurrence.py`` has the formulas.

From bfloat16 inputs the gates, the LSTM's cells and the gradients of the states are computed and saved in float32. The states
are rounded, as the next step's product reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over
from tinytensor.kernels.cupy.loader import accumulator, contiguous, kernel
from tinytensor.kernels.cupy.products import matmul
from tinytensor.kernels.numpy.products import as_rows
from tinytensor.kernels.numpy.recurrence import state_before, steps

_THREADS = 256


def _run(name: str, dtype: Any, shape: tuple[int, int], *arguments: Any) -> None:
    """Run a kernel of recurrence.cu for states of this shape, (batch, width)."""
    batch, width = shape
    kernel("recurrence.cu", name, dtype)(-(-batch * width // _THREADS), _THREADS, *arguments, *shape)


def _of_step(mask: Any, t: int) -> Any:
    return None if mask is None else mask[t]


def _mask(mask: Any) -> Any:
    return None if mask is None else contiguous(mask)


def _empty(like: Any, is_wanted: bool = True, blocks: int = 1) -> Any:
    """Return memory in the accumulators' dtype like ``like``, with the last axis ``blocks`` times as long; or None."""
    return xp.empty((*like.shape[:-1], blocks * like.shape[-1]), accumulator(like.dtype)) if is_wanted else None


def _weight_gradient(d_gates: Any, states: Any, first: Any, is_reversed: bool) -> Any:
    """Return the sum over the steps of d_gates^T times the state before the step."""
    start, later, before = (-1, d_gates[:-1], states[1:]) if is_reversed else (0, d_gates[1:], states[:-1])
    out = xp.empty((d_gates.shape[-1], states.shape[-1]), accumulator(states.dtype))
    matmul(d_gates[start].T, first, out)
    return matmul(as_rows(later).T, as_rows(before), out, accumulate=True)


# ----------------------------------------------------------------------------------------------------------- plain network


def rnn_forward(
    needed: Sequence[bool], projected: Any, weight: Any, state: Any, mask: Any, is_reversed: bool, activation: str
) -> tuple[Any, Any]:
    """``rnn_forward`` of kernels/numpy."""
    projected, state, mask = contiguous(projected), contiguous(state), _mask(mask)
    states, product = xp.empty(projected.shape, projected.dtype), _empty(state)
    for t in steps(len(states), is_reversed):
        old = state_before(states, state, t, is_reversed)
        matmul(old, weight.T, product)
        step = (projected[t], product, old, _of_step(mask, t), states[t], activation == "relu")
        _run("rnn_forward", states.dtype, state.shape, *step)
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
    """``rnn_backward`` of kernels/numpy."""
    g, mask = contiguous(g), _mask(mask)
    d_gates = xp.empty(states.shape, states.dtype)
    d_state = xp.zeros(state.shape, accumulator(states.dtype))
    for t in steps(len(states), not is_reversed):
        step = (g[t], states[t], _of_step(mask, t), d_state, d_gates[t], activation == "relu")
        _run("rnn_backward", states.dtype, state.shape, *step)
        matmul(d_gates[t], weight, d_state, accumulate=True)
    return d_gates, _weight_gradient(d_gates, states, state, is_reversed) if needed[1] else None, d_state


# --------------------------------------------------------------------------------------------------------------------- GRU


def gru_forward(
    needed: Sequence[bool], projected: Any, weight: Any, bias: Any, state: Any, mask: Any, is_reversed: bool
) -> tuple[Any, Any]:
    """``gru_forward`` of kernels/numpy. Saves the states, and r, z, n and u_n side by side."""
    projected, state, mask = contiguous(projected), contiguous(state), _mask(mask)
    bias = None if bias is None else contiguous(bias)
    states = xp.empty((len(projected), *state.shape), projected.dtype)
    saved, product = _empty(states, any(needed), 4), _empty(state, blocks=3)
    for t in steps(len(states), is_reversed):
        old = state_before(states, state, t, is_reversed)
        matmul(old, weight.T, product)
        of_step = None if saved is None else saved[t]
        step = (projected[t], product, bias, old, _of_step(mask, t), states[t], of_step)
        _run("gru_forward", states.dtype, state.shape, *step)
    return states, (states, saved)


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
    """``gru_backward`` of kernels/numpy."""
    (states, saved), g, state, mask = residuals, contiguous(g), contiguous(state), _mask(mask)
    d_projected, d_product = xp.empty(projected.shape, states.dtype), xp.empty(projected.shape, states.dtype)
    d_state = xp.zeros(state.shape, accumulator(states.dtype))
    for t in steps(len(states), not is_reversed):
        old = state_before(states, state, t, is_reversed)
        step = (g[t], saved[t], old, _of_step(mask, t), d_state, d_projected[t], d_product[t])
        _run("gru_backward", states.dtype, state.shape, *step)
        matmul(d_product[t], weight, d_state, accumulate=True)
    d_weight = _weight_gradient(d_product, states, state, is_reversed) if needed[1] else None
    return d_projected, d_weight, sum_over(d_product, (0, 1)) if needed[2] else None, d_state


# -------------------------------------------------------------------------------------------------------------------- LSTM


def lstm_forward(
    needed: Sequence[bool], projected: Any, weight: Any, state: Any, cell: Any, mask: Any, is_reversed: bool
) -> tuple[Any, Any]:
    """``lstm_forward`` of kernels/numpy. Saves h', c' (not rounded to bfloat16), and the gates i, f, u and o."""
    projected, state, mask = contiguous(projected), contiguous(state), _mask(mask)
    out = xp.empty((2, len(projected), *state.shape), projected.dtype)
    states, is_exact = out[0], out.dtype == accumulator(out.dtype)
    cells = out[1] if is_exact else _empty(states)
    cell = contiguous(cell.astype(cells.dtype, copy=False))
    gates, product = _empty(projected, any(needed)), _empty(state, blocks=4)
    for t in steps(len(states), is_reversed):
        old, old_cell = state_before(states, state, t, is_reversed), state_before(cells, cell, t, is_reversed)
        matmul(old, weight.T, product)
        of_step = None if gates is None else gates[t]
        step = (projected[t], product, old, old_cell, _of_step(mask, t), states[t], cells[t], of_step)
        _run("lstm_forward", states.dtype, state.shape, *step)
    if not is_exact:
        out[1] = cells
    return out, (states, cells, gates)


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
    """``lstm_backward`` of kernels/numpy."""
    (states, cells, gates), g, mask = residuals, contiguous(g), _mask(mask)
    cell = contiguous(cell.astype(cells.dtype, copy=False))
    d_gates = xp.empty(gates.shape, states.dtype)
    d_state, d_cell = xp.zeros(state.shape, cells.dtype), xp.zeros(state.shape, cells.dtype)
    for t in steps(len(states), not is_reversed):
        old_cell = state_before(cells, cell, t, is_reversed)
        step = (g[0, t], g[1, t], gates[t], cells[t], old_cell, _of_step(mask, t), d_state, d_cell, d_gates[t])
        _run("lstm_backward", states.dtype, state.shape, *step)
        matmul(d_gates[t], weight, d_state, accumulate=True)
    d_weight = _weight_gradient(d_gates, states, state, is_reversed) if needed[1] else None
    return d_gates, d_weight, d_state, d_cell
