"""The recurrent layers' loops: a whole sequence in one call, for the rows ``first`` to ``last`` of the batch.
kernels/numpy/recurrence.py has the formulas.

BLAS takes each step as a product by itself: it copies the weight, megabytes, into reading order, and then multiplies a few rows
by it. Here the weight is copied into panels of COLUMNS columns once for all steps, and multiplied by the tiles of ``tiles``.
The other operations of a step are short loops over rows: LLVM vectorises a loop only over few arrays, as any two of them might
overlap.

The gates of padding are neither computed nor read. In the backward pass the gradient of the state is in two parts: d_state
(batch, whole panels) from the products, and ``passed`` (batch, width), which bypasses the gates.
"""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.kernels.numba.activations import sigmoid_of
from tinytensor.kernels.numba.compiling import loop, real
from tinytensor.kernels.numba.functions import copy_row, tanh
from tinytensor.kernels.numba.tiles import COLUMNS, ROWS, set_product

# ------------------------------------------------------------------------------------------------------------- the products


@loop
def panels(matrix: Any, out: Any) -> None:
    """Copy a matrix (rows, columns) into panels: out (panels, rows, COLUMNS), zeros. The last panel may be partly filled."""
    rows, columns = matrix.shape
    for p in range(out.shape[0]):
        for k in range(rows):
            for c in range(min(COLUMNS, columns - p * COLUMNS)):
                out[p, k, c] = matrix[k, p * COLUMNS + c]


@loop
def _multiply(x: Any, panels: Any, first: int, last: int, out: Any) -> None:
    """Multiply x (batch, width) by a matrix in panels, for some rows: out (batch, whole panels). At least ROWS rows are needed:
    the last tile starts early enough to be whole, and recomputes some rows."""
    for p in range(panels.shape[0]):
        columns = out[:, p * COLUMNS : (p + 1) * COLUMNS]
        for i in range(first, last, ROWS):
            set_product(x, panels[p], 0, x.shape[1], columns, min(i, last - ROWS), 0)


# --------------------------------------------------------------------------------------------------------- parts of a step


@loop
def _step(n: int, length: int, is_reversed: bool) -> int:
    """Return the step that is the n-th to run."""
    return length - 1 - n if is_reversed else n


@loop
def _is_padding(mask: Any, t: int, b: int) -> bool:
    """Return True if a row has no token in this step. An empty mask means no padding."""
    return mask.size > 0 and not mask[t, b]


@loop
def _sigmoid_of_sum(x: Any, y: Any, out: Any) -> None:
    for j in range(out.size):
        out[j] = sigmoid_of(x[j] + y[j])


@loop
def _tanh_of_sum(x: Any, y: Any, out: Any) -> None:
    for j in range(out.size):
        out[j] = tanh(x[j] + y[j])


@loop
def _add(x: Any, y: Any, out: Any) -> None:
    for j in range(x.size):
        out[j] += x[j] + y[j]


# ----------------------------------------------------------------------------------------------------------- plain network


@loop
def rnn(
    projected: Any, weight: Any, state: Any, mask: Any, is_reversed: bool, is_relu: bool, first: int, last: int, states: Any
) -> None:
    """Write the states of all steps. ``weight`` is W^T in panels."""
    length, batch, _ = states.shape
    product = numpy.empty((batch, weight.shape[0] * COLUMNS), states.dtype)
    for n in range(length):
        t = _step(n, length, is_reversed)
        old = state if n == 0 else states[_step(n - 1, length, is_reversed)]
        _multiply(old, weight, first, last, product)
        for b in range(first, last):
            if _is_padding(mask, t, b):
                copy_row(old[b], states[t, b])
            elif is_relu:
                _relu_of_sum(projected[t, b], product[b], states[t, b])
            else:
                _tanh_of_sum(projected[t, b], product[b], states[t, b])


@loop
def _relu_of_sum(x: Any, y: Any, out: Any) -> None:
    for j in range(out.size):
        out[j] = max(x[j] + y[j], real(0))


@loop
def rnn_gradients(
    g: Any,
    states: Any,
    weight: Any,
    mask: Any,
    is_reversed: bool,
    is_relu: bool,
    first: int,
    last: int,
    d_gates: Any,
    d_state: Any,
    passed: Any,
) -> None:
    """Write the gradients of the gates of all steps, and of the initial state, d_state + passed. ``weight`` is W in panels."""
    length, _, width = states.shape
    for n in range(length):
        t = _step(n, length, not is_reversed)
        for b in range(first, last):
            d_new = d_state[b, :width]
            _add(g[t, b], passed[b], d_new)
            if _is_padding(mask, t, b):
                copy_row(d_new, passed[b])
                d_gates[t, b] = real(0)
            else:
                passed[b] = real(0)
                _rnn_gradients_of_row(d_new, states[t, b], is_relu, d_gates[t, b])
        _multiply(d_gates[t], weight, first, last, d_state)


@loop
def _rnn_gradients_of_row(d_new: Any, new: Any, is_relu: bool, d_gate: Any) -> None:
    if is_relu:
        for j in range(new.size):
            d_gate[j] = real(0) if new[j] <= real(0) else d_new[j]
    else:
        for j in range(new.size):
            d_gate[j] = d_new[j] * (real(1) - new[j] * new[j])


# --------------------------------------------------------------------------------------------------------------------- GRU


@loop
def gru(
    projected: Any,
    weight: Any,
    bias: Any,
    state: Any,
    mask: Any,
    is_reversed: bool,
    first: int,
    last: int,
    states: Any,
    gates: Any,
    of_state: Any,
) -> None:
    """Write the states, the gates r, z and n, and u_n of all steps. ``weight`` is W^T in panels, ``bias`` (3 * width,)."""
    length, batch, _ = states.shape
    product = numpy.empty((batch, weight.shape[0] * COLUMNS), states.dtype)
    for n in range(length):
        t = _step(n, length, is_reversed)
        old = state if n == 0 else states[_step(n - 1, length, is_reversed)]
        _multiply(old, weight, first, last, product)
        for b in range(first, last):
            if _is_padding(mask, t, b):
                copy_row(old[b], states[t, b])
            else:
                _gru_row(projected[t, b], product[b], bias, old[b], gates[t, b], of_state[t, b], states[t, b])


@loop
def _gru_row(projected: Any, product: Any, bias: Any, old: Any, gates: Any, of_state: Any, new: Any) -> None:
    width = old.size
    for j in range(bias.size):
        product[j] += bias[j]
    _sigmoid_of_sum(projected[: 2 * width], product[: 2 * width], gates[: 2 * width])
    copy_row(product[2 * width : 3 * width], of_state)
    r, z, n = gates[:width], gates[width : 2 * width], gates[2 * width :]
    for j in range(width):
        n[j] = r[j] * of_state[j]
    _tanh_of_sum(projected[2 * width :], n, n)
    for j in range(width):
        new[j] = n[j] + z[j] * (old[j] - n[j])


@loop
def gru_gradients(
    g: Any,
    states: Any,
    gates: Any,
    of_state: Any,
    weight: Any,
    state: Any,
    mask: Any,
    is_reversed: bool,
    first: int,
    last: int,
    d_projected: Any,
    d_product: Any,
    d_state: Any,
    passed: Any,
) -> None:
    """Write the gradients of what the inputs and the states add to the gates of all steps, and of the initial state, d_state +
    passed. ``weight`` is W in panels."""
    length, _, width = states.shape
    for n in range(length):
        t = _step(n, length, not is_reversed)
        old = state if n == length - 1 else states[_step(n + 1, length, not is_reversed)]
        for b in range(first, last):
            d_new = d_state[b, :width]
            _add(g[t, b], passed[b], d_new)
            if _is_padding(mask, t, b):
                copy_row(d_new, passed[b])
                d_projected[t, b], d_product[t, b] = real(0), real(0)
            else:
                rows = d_projected[t, b], d_product[t, b], passed[b]
                _gru_gradients_of_row(d_new, gates[t, b], of_state[t, b], old[b], *rows)
        _multiply(d_product[t], weight, first, last, d_state)


@loop
def _gru_gradients_of_row(d_new: Any, gates: Any, u: Any, old: Any, d_p: Any, d_u: Any, passed: Any) -> None:
    width = old.size
    r, z, n = gates[:width], gates[width : 2 * width], gates[2 * width :]
    d_r, d_z, d_n, d_u_n = d_p[:width], d_p[width : 2 * width], d_p[2 * width :], d_u[2 * width :]
    for j in range(width):
        d_n[j] = d_new[j] * (real(1) - z[j]) * (real(1) - n[j] * n[j])
    for j in range(width):
        d_r[j] = d_n[j] * u[j] * r[j] * (real(1) - r[j])
    for j in range(width):
        d_z[j] = d_new[j] * (old[j] - n[j]) * z[j] * (real(1) - z[j])
    copy_row(d_p[: 2 * width], d_u)
    for j in range(width):
        d_u_n[j] = d_n[j] * r[j]
    for j in range(width):
        passed[j] = d_new[j] * z[j]


# -------------------------------------------------------------------------------------------------------------------- LSTM


@loop
def lstm(
    projected: Any,
    weight: Any,
    state: Any,
    cell: Any,
    mask: Any,
    is_reversed: bool,
    first: int,
    last: int,
    states: Any,
    cells: Any,
    gates: Any,
) -> None:
    """Write the states, the cells, and the gates i, f, u and o of all steps. ``weight`` is W^T in panels."""
    length, batch, _ = states.shape
    product = numpy.empty((batch, weight.shape[0] * COLUMNS), states.dtype)
    for n in range(length):
        t, before = _step(n, length, is_reversed), _step(n - 1, length, is_reversed)
        old, old_cell = (state, cell) if n == 0 else (states[before], cells[before])
        _multiply(old, weight, first, last, product)
        for b in range(first, last):
            if _is_padding(mask, t, b):
                copy_row(old[b], states[t, b])
                copy_row(old_cell[b], cells[t, b])
            else:
                _lstm_row(projected[t, b], product[b], old_cell[b], gates[t, b], cells[t, b], states[t, b])


@loop
def _lstm_row(projected: Any, product: Any, old_cell: Any, gates: Any, new_cell: Any, new: Any) -> None:
    width = new.size
    _sigmoid_of_sum(projected[: 2 * width], product[: 2 * width], gates[: 2 * width])
    _tanh_of_sum(projected[2 * width : 3 * width], product[2 * width : 3 * width], gates[2 * width : 3 * width])
    _sigmoid_of_sum(projected[3 * width :], product[3 * width : 4 * width], gates[3 * width :])
    i, f, u, o = gates[:width], gates[width : 2 * width], gates[2 * width : 3 * width], gates[3 * width :]
    for j in range(width):
        new_cell[j] = f[j] * old_cell[j] + i[j] * u[j]
    for j in range(width):
        new[j] = o[j] * tanh(new_cell[j])


@loop
def lstm_gradients(
    g: Any,
    cells: Any,
    gates: Any,
    weight: Any,
    cell: Any,
    mask: Any,
    is_reversed: bool,
    first: int,
    last: int,
    d_gates: Any,
    d_state: Any,
    d_cell: Any,
    passed: Any,
) -> None:
    """Write the gradients of the gates of all steps, of the initial state, d_state + passed, and of the initial cell, d_cell.
    ``weight`` is W in panels."""
    length, _, width = cells.shape
    squashed, d_total = numpy.empty(width, cells.dtype), numpy.empty(width, cells.dtype)
    for n in range(length):
        t = _step(n, length, not is_reversed)
        old_cell = cell if n == length - 1 else cells[_step(n + 1, length, not is_reversed)]
        for b in range(first, last):
            d_new = d_state[b, :width]
            _add(g[0, t, b], passed[b], d_new)
            for j in range(width):
                d_cell[b, j] += g[1, t, b, j]
            if _is_padding(mask, t, b):
                copy_row(d_new, passed[b])
                d_gates[t, b] = real(0)
            else:
                passed[b] = real(0)
                rows = gates[t, b], cells[t, b], old_cell[b], squashed, d_total, d_cell[b], d_gates[t, b]
                _lstm_gradients_of_row(d_new, *rows)
        _multiply(d_gates[t], weight, first, last, d_state)


@loop
def _lstm_gradients_of_row(
    d_new: Any, gates: Any, new_cell: Any, old_cell: Any, squashed: Any, d_total: Any, d_cell: Any, d_gate: Any
) -> None:
    width = new_cell.size
    i, f, u, o = gates[:width], gates[width : 2 * width], gates[2 * width : 3 * width], gates[3 * width :]
    d_i, d_f, d_u, d_o = d_gate[:width], d_gate[width : 2 * width], d_gate[2 * width : 3 * width], d_gate[3 * width :]
    for j in range(width):
        squashed[j] = tanh(new_cell[j])
    for j in range(width):
        d_total[j] = d_cell[j] + d_new[j] * o[j] * (real(1) - squashed[j] * squashed[j])
    for j in range(width):
        d_i[j] = d_total[j] * u[j] * i[j] * (real(1) - i[j])
    for j in range(width):
        d_f[j] = d_total[j] * old_cell[j] * f[j] * (real(1) - f[j])
    for j in range(width):
        d_u[j] = d_total[j] * i[j] * (real(1) - u[j] * u[j])
    for j in range(width):
        d_o[j] = d_new[j] * squashed[j] * o[j] * (real(1) - o[j])
    for j in range(width):
        d_cell[j] = d_total[j] * f[j]
