"""The loop that runs a program's instructions, each of which calls the loop of its kernel; and what a second thread does.

What an instruction is stands in instructions.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop, real, reduction
from tinytensor.kernels.numba.exponential import exp
from tinytensor.kernels.numba.gelu import _exact_forward32, _tanh_forward
from tinytensor.kernels.numba.instructions import (
    _ADD,
    _ATTENTION,
    _GELU_EXACT,
    _GELU_TANH,
    _LAYER_NORM,
    _LINEAR,
    _MULTIPLY,
    _OUTPUTS,
    _PARTS,
    _RELU,
    _RMS_NORM,
    _ROWS,
    _SILU,
    _SIZE,
    _WIDTH,
)
from tinytensor.kernels.numba.normalization import _layer_norm, _rms_norm
from tinytensor.kernels.numba.pointers import array_at, atomic_add, atomic_exchange, atomic_load
from tinytensor.kernels.numba.silu import _silu_product

_LAST_PART = (1 << 32) - 1
_END = -(1 << 62)
_PATIENCE = 1 << 16  # how often a thread looks for something to do: some 50 microseconds
_FLAGS = 128  # bytes from the first ticket: no cache line holds both


@reduction
def _linear(x: Any, weight: Any, bias: Any, out: Any) -> None:
    """x @ weight.T + bias for a few rows. Each row of the weight is read from memory once, and one after the other."""
    for j in range(weight.shape[0]):
        for i in range(x.shape[0]):
            total = real(0)
            for k in range(x.shape[1]):
                total += x[i, k] * weight[j, k]
            out[i, j] = total + bias[j]


@loop
def _add(x: Any, y: Any, out: Any) -> None:
    """x + y, where the rows of x have the size of y."""
    for i in range(x.shape[0]):
        for j in range(y.size):
            out[i, j] = x[i, j] + y[j]


@loop
def _multiply(x: Any, y: Any, out: Any) -> None:
    """x * y, where the rows of x have the size of y."""
    for i in range(x.shape[0]):
        for j in range(y.size):
            out[i, j] = x[i, j] * y[j]


@loop
def _relu(x: Any, out: Any) -> None:
    for i in range(x.size):
        out[i] = real(0) if x[i] < real(0) else x[i]  # as written, NaN stays NaN


@reduction
def _attend(query: Any, keys: Any, values: Any, scale: float, weights: Any, out: Any) -> None:
    """softmax(query keysᵀ scale) values of one query."""
    length, width = keys.shape
    largest = real(-math.inf)
    for s in range(length):
        score = real(0)
        for j in range(width):
            score += query[j] * keys[s, j]
        weights[s] = score * scale
        largest = weights[s] if weights[s] > largest else largest
    total = real(0)
    for s in range(length):
        weights[s] = exp(weights[s] - largest)
        total += weights[s]
    for j in range(width):
        out[j] = real(0)
    for s in range(length):
        for j in range(width):
            out[j] += weights[s] * values[s, j]
    for j in range(width):
        out[j] /= total


@loop
def _attend_all(x: Any, stored: int, heads: int, length: int, capacity: int, scale: float, out: Any) -> None:
    """One token of each text: x (texts, 3, heads, width), out (texts, heads, width). ``stored`` is the address of the keys
    (texts, heads, capacity, width), behind which lie the values. The token's own are first written to place length - 1."""
    weights = numpy.empty(length, numpy.float32)
    texts, width = x.shape[0], x.shape[3]
    for i in range(texts):
        for h in range(heads):
            own = stored + 4 * (i * heads + h) * capacity * width
            keys = array_at(own, length * width).reshape(length, width)
            values = array_at(own + 4 * texts * heads * capacity * width, length * width).reshape(length, width)
            for j in range(width):
                keys[length - 1, j] = x[i, 1, h, j]
                values[length - 1, j] = x[i, 2, h, j]
            _attend(x[i, 0, h], keys, values, scale, weights, out[i, h])


@loop
def _linear_part(settings: Any, instructions: Any, addresses: Any, i: int, part: int, parts: int) -> None:
    """One of the parts of a linear instruction: some of its outputs."""
    rows, width, outputs = instructions[i, _ROWS], instructions[i, _WIDTH], instructions[i, _OUTPUTS]
    first, last = part * outputs // parts, (part + 1) * outputs // parts
    x = array_at(addresses[instructions[i, 2]], rows * width).reshape(rows, width)
    weight = array_at(addresses[instructions[i, 3]], outputs * width).reshape(outputs, width)
    bias = array_at(addresses[instructions[i, 4]], outputs)
    out = array_at(addresses[instructions[i, 1]], rows * outputs).reshape(rows, outputs)
    _linear(x, weight[first:last], bias[first:last], out[:, first:last])


@loop
def _take_parts(settings: Any, instructions: Any, addresses: Any, tickets: Any) -> None:
    """Compute parts of the current instruction until all are taken."""
    while True:
        ticket = atomic_add(tickets.ctypes.data, 1)
        if ticket < 0:
            return
        i, part = ticket >> 32, ticket & _LAST_PART
        if part >= instructions[i, _PARTS]:
            return
        _linear_part(settings, instructions, addresses, i, part, instructions[i, _PARTS])
        atomic_exchange(_flag(tickets, part), i)


@loop
def _flag(tickets: Any, part: int) -> Any:
    """The address of the number of the last instruction of which this part is done."""
    return tickets.ctypes.data + _FLAGS + 8 * part


@loop
def _take_over(settings: Any, instructions: Any, addresses: Any, tickets: Any, i: int) -> None:
    """Compute the parts of an instruction that another thread took and has not done: it may have lost its core for long. If it
    computes them later, it writes the same numbers to the same places once more."""
    for part in range(instructions[i, _PARTS]):
        if atomic_load(_flag(tickets, part)) != i:
            _linear_part(settings, instructions, addresses, i, part, instructions[i, _PARTS])


@loop
def _help(settings: Any, instructions: Any, addresses: Any, tickets: Any) -> None:
    """What the second thread does: it computes parts until the program ends, or until there was nothing to do for long. Then
    the first thread may have lost its core, and gets it back sooner if nobody waits in a loop."""
    looks = 0
    while looks < _PATIENCE:
        ticket = atomic_load(tickets.ctypes.data)
        looks += 1
        if ticket < 0:
            return
        if ticket & _LAST_PART < instructions[ticket >> 32, _PARTS]:
            _take_parts(settings, instructions, addresses, tickets)
            looks = 0


@loop
def _run(space: Any, settings: Any, instructions: Any, places: Any, tickets: Any) -> None:
    """Run the program. An instruction is (kernel, result, three operands, rows, width, outputs, size, parts). Results and
    operands are slots. ``places`` has the address of each slot, and if it is of stored keys and values their length and the
    capacity. The addresses of results are given as distances from the start of ``space``, an array for all of them.

    ``tickets`` are integers that threads share: the first is the current instruction * 2**32 + the next part of it that is
    free, and negative at the end; for the others see ``_flag``."""
    addresses, lengths, capacities = places[0], places[1], places[2]
    for i in range(len(instructions)):
        addresses[instructions[i, 1]] += space.ctypes.data
    for i in range(len(instructions)):
        kernel, parts = instructions[i, 0], instructions[i, _PARTS]
        rows, width, outputs = instructions[i, _ROWS], instructions[i, _WIDTH], instructions[i, _OUTPUTS]
        first, second, third = addresses[instructions[i, 2]], addresses[instructions[i, 3]], addresses[instructions[i, 4]]
        size = instructions[i, _SIZE]
        flat = array_at(first, rows * width)
        flat_out = array_at(addresses[instructions[i, 1]], rows * outputs)
        x, out = flat.reshape(rows, width), flat_out.reshape(rows, outputs)
        if kernel == _LINEAR and parts == 1:
            _linear_part(settings, instructions, addresses, i, 0, 1)
        elif kernel == _LINEAR:
            atomic_exchange(tickets.ctypes.data, i << 32)
            _take_parts(settings, instructions, addresses, tickets)
            _take_over(settings, instructions, addresses, tickets, i)
        elif kernel == _ADD:
            _add(x, array_at(second, width), out)
        elif kernel == _MULTIPLY:
            _multiply(x, array_at(second, width), out)
        elif kernel == _RELU:
            _relu(flat, flat_out)
        elif kernel == _SILU:
            _silu_product(flat, array_at(second, flat.size), flat_out)
        elif kernel == _GELU_TANH:
            _tanh_forward(flat, numpy.empty(flat.size, numpy.float32), flat_out)
        elif kernel == _GELU_EXACT:
            _exact_forward32(flat, numpy.empty(flat.size, numpy.float32), flat_out)
        elif kernel == _LAYER_NORM:
            mean, rstd = numpy.empty(rows, numpy.float32), numpy.empty(rows, numpy.float32)
            _layer_norm(x, array_at(second, width), array_at(third, width), settings[i], out, mean, rstd)
        elif kernel == _RMS_NORM:
            _rms_norm(x, array_at(second, width), settings[i], out, numpy.empty(rows, numpy.float32))
        elif kernel == _ATTENTION:
            heads, slot = size, instructions[i, 3]
            split, joined = flat.reshape(rows, 3, heads, outputs // heads), flat_out.reshape(rows, heads, outputs // heads)
            _attend_all(split, second, heads, lengths[slot], capacities[slot], settings[i], joined)
    atomic_exchange(tickets.ctypes.data, _END)
