"""Recurrent layers: a whole sequence in one compiled call (``recurrence_loops``), except for small batches and few steps.

kernels/numpy/recurrence.py has the formulas and residuals, and computes the small ones. The sequences of a batch are
independent: if a core is free, a second thread computes half of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from tinytensor.device import cores
from tinytensor.device.summation import sum_over
from tinytensor.kernels import numpy as in_numpy
from tinytensor.kernels.numba import recurrence_loops as loops
from tinytensor.kernels.numba.processor import has_second_core, helper
from tinytensor.kernels.numba.tiles import COLUMNS, ROWS
from tinytensor.kernels.numpy.recurrence import weight_gradient

_FEWEST_ROWS = 32  # of all steps together: with fewer, BLAS is as fast as copying the weight into panels
_LARGE = 1 << 25  # multiplications: half a millisecond, far longer than waking a thread


def _is_small(projected: Any) -> bool:
    """Return True if NumPy's kernels are faster, or the batch is smaller than a tile."""
    length, batch, width = projected.shape
    return length * batch < _FEWEST_ROWS or not width or batch < ROWS.compute()


def _panels(matrix: Any) -> Any:
    """Copy a matrix (rows, columns) into the loops' panels: (panels, rows, COLUMNS)."""
    rows, columns = matrix.shape
    out = numpy.zeros((-(-columns // COLUMNS), rows, COLUMNS), matrix.dtype)
    loops.panels(matrix, out)
    return out


def _zeros(panels: Any, like: Any) -> tuple[Any, Any]:
    """Return the initial ``d_state`` and ``passed`` of the loops, for states like ``like``."""
    return numpy.zeros((len(like), len(panels) * COLUMNS), like.dtype), numpy.zeros(like.shape, like.dtype)


def _for_all_rows(run: Callable[[int, int], None], projected: Any, width: int) -> None:
    """Call run(first, last) for all rows of the batch, or for both halves in two threads."""
    batch = projected.shape[1]
    middle = batch // 2 // ROWS.compute() * ROWS.compute()
    if cores.are_shared_out or not has_second_core() or not middle or projected.size * width < _LARGE:
        run(0, batch)
        return
    pending, lock = [(middle, batch)], threading.Lock()

    def run_the_rest() -> None:
        with lock:
            if pending:
                run(*pending.pop())

    helper().call(run_the_rest)
    run(0, middle)
    run_the_rest()  # or wait if the helper has begun


def _mask(mask: Any) -> Any:
    """Return the mask as the loops take it."""
    return numpy.empty((0, 0), bool) if mask is None else numpy.ascontiguousarray(mask)


def _contiguous(*arrays: Any) -> list[Any]:
    return [numpy.ascontiguousarray(x) for x in arrays]


def rnn_forward(
    needed: Sequence[bool], projected: Any, weight: Any, state: Any, mask: Any, is_reversed: bool, activation: str
) -> tuple[Any, Any]:
    """``rnn_forward`` of kernels/numpy."""
    if _is_small(projected):
        return in_numpy.rnn_forward(needed, projected, weight, state, mask, is_reversed, activation)
    projected, state = _contiguous(projected, state)
    states = numpy.empty(projected.shape, projected.dtype)
    inputs = (projected, _panels(weight.T), state, _mask(mask), is_reversed, activation == "relu")
    _for_all_rows(lambda first, last: loops.rnn(*inputs, first, last, states), projected, state.shape[-1])
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
    if _is_small(projected):
        return in_numpy.rnn_backward(g, states, needed, projected, weight, state, mask, is_reversed, activation)
    panels = _panels(weight)
    d_gates, (d_state, passed) = numpy.empty(states.shape, states.dtype), _zeros(panels, state)
    inputs = (*_contiguous(g), states, panels, _mask(mask), is_reversed, activation == "relu")
    made = (d_gates, d_state, passed)
    _for_all_rows(lambda first, last: loops.rnn_gradients(*inputs, first, last, *made), projected, state.shape[-1])
    passed += d_state[:, : state.shape[-1]]
    return d_gates, weight_gradient(d_gates, states, state, is_reversed) if needed[1] else None, passed


def gru_forward(
    needed: Sequence[bool], projected: Any, weight: Any, bias: Any, state: Any, mask: Any, is_reversed: bool
) -> tuple[Any, Any]:
    """``gru_forward`` of kernels/numpy."""
    if _is_small(projected):
        return in_numpy.gru_forward(needed, projected, weight, bias, state, mask, is_reversed)
    projected, state = _contiguous(projected, state)
    bias = numpy.zeros(len(weight), weight.dtype) if bias is None else numpy.ascontiguousarray(bias)
    states, of_state = (numpy.empty((len(projected), *state.shape), state.dtype) for _ in range(2))
    gates = numpy.empty(projected.shape, projected.dtype)
    inputs, made = (projected, _panels(weight.T), bias, state, _mask(mask), is_reversed), (states, gates, of_state)
    _for_all_rows(lambda first, last: loops.gru(*inputs, first, last, *made), projected, state.shape[-1])
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
    """``gru_backward`` of kernels/numpy."""
    if _is_small(projected):
        return in_numpy.gru_backward(g, residuals, needed, projected, weight, bias, state, mask, is_reversed)
    g, state = _contiguous(g, state)
    (states, gates, of_state), panels = residuals, _panels(weight)
    d_projected, d_product = numpy.empty(gates.shape, gates.dtype), numpy.empty(gates.shape, gates.dtype)
    d_state, passed = _zeros(panels, state)
    inputs = (g, states, gates, of_state, panels, state, _mask(mask), is_reversed)
    made = (d_projected, d_product, d_state, passed)
    _for_all_rows(lambda first, last: loops.gru_gradients(*inputs, first, last, *made), projected, state.shape[-1])
    passed += d_state[:, : state.shape[-1]]
    d_weight = weight_gradient(d_product, states, state, is_reversed) if needed[1] else None
    return d_projected, d_weight, sum_over(d_product, (0, 1)) if needed[2] else None, passed


def lstm_forward(
    needed: Sequence[bool], projected: Any, weight: Any, state: Any, cell: Any, mask: Any, is_reversed: bool
) -> tuple[Any, Any]:
    """``lstm_forward`` of kernels/numpy."""
    if _is_small(projected):
        return in_numpy.lstm_forward(needed, projected, weight, state, cell, mask, is_reversed)
    projected, state, cell = _contiguous(projected, state, cell)
    out = numpy.empty((2, len(projected), *state.shape), projected.dtype)
    gates = numpy.empty(projected.shape, projected.dtype)
    inputs = (projected, _panels(weight.T), state, cell, _mask(mask), is_reversed)
    _for_all_rows(lambda first, last: loops.lstm(*inputs, first, last, *out, gates), projected, state.shape[-1])
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
    """``lstm_backward`` of kernels/numpy."""
    if _is_small(projected):
        return in_numpy.lstm_backward(g, residuals, needed, projected, weight, state, cell, mask, is_reversed)
    ((states, cells), gates), (g, cell) = residuals, _contiguous(g, cell)
    panels, d_gates, d_cell = _panels(weight), numpy.empty(gates.shape, gates.dtype), numpy.zeros(cell.shape, cell.dtype)
    d_state, passed = _zeros(panels, state)
    inputs, made = (g, cells, gates, panels, cell, _mask(mask), is_reversed), (d_gates, d_state, d_cell, passed)
    _for_all_rows(lambda first, last: loops.lstm_gradients(*inputs, first, last, *made), projected, state.shape[-1])
    passed += d_state[:, : state.shape[-1]]
    d_weight = weight_gradient(d_gates, states, state, is_reversed) if needed[1] else None
    return d_gates, d_weight, passed, d_cell
