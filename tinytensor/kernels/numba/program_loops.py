"""The loops that run a program. ``run`` calls the loop of a kernel for each of its instructions (see instructions.py).

Linear layers of a large program are computed by two threads, in parts. The threads share some integers, the ``tickets``. The
first is the ticket, which says what to compute next: instruction * 2**32 + the next part of it that is free; at the end it is
negative. After it there is a flag for each part: the number of the last instruction of which that part is done.
"""

from __future__ import annotations

import math
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop, real, reduction
from tinytensor.kernels.numba.exponential import exp
from tinytensor.kernels.numba.gelu import gelu_exact32, gelu_tanh
from tinytensor.kernels.numba.instructions import (
    ADD,
    ATTENTION,
    FIRST,
    GELU_EXACT,
    GELU_TANH,
    HEADS,
    KERNEL,
    LAYER_NORM,
    LINEAR,
    MULTIPLY,
    NORM_HEADS,
    OUTPUTS,
    PARTS,
    RELU,
    RESULT,
    RMS_NORM,
    ROTATE_HEADS,
    ROWS,
    SECOND,
    SILU,
    THIRD,
    WIDTH,
)
from tinytensor.kernels.numba.normalization import layer_norm_rows, rms_norm_rows
from tinytensor.kernels.numba.pointers import array_at, atomic_add, atomic_exchange, atomic_load
from tinytensor.kernels.numba.rotation import norm_and_rotate_rows
from tinytensor.kernels.numba.silu import silu_product

_PART_BITS = (1 << 32) - 1  # of a ticket
NOTHING_YET = _PART_BITS  # the ticket before the first linear layer: a part that no instruction has
_END = -(1 << 62)  # the ticket at the end: taking it adds 1, and it stays negative
_PATIENCE = 1 << 16  # how often a thread looks for something to do: some 50 microseconds
FLAGS = 128  # bytes from the ticket to the flags: no cache line holds both


# ------------------------------------------------------------------------------------- the kernels of single instructions


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
        out[i] = real(0) if x[i] <= real(0) else x[i]  # as written, NaN stays NaN, and -0.0 becomes 0.0


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
def _norm_heads(x: Any, query_weight: int, key_weight: int, heads: int, eps: float, out: Any) -> None:
    """Norm the heads of queries and keys in x (rows, 3 * heads * width). The weights are given by their addresses."""
    width = x.shape[1] // (3 * heads)
    query, key, no_rotation = array_at(query_weight, width), array_at(key_weight, width), numpy.empty((0, 0), numpy.float32)
    norm_and_rotate_rows(x, query, key, no_rotation, heads, eps, out, numpy.empty((x.shape[0], 2 * heads), numpy.float32))


@loop
def _rotate_heads(x: Any, rotation: int, heads: int, out: Any) -> None:
    """Rotate the heads of queries and keys in x (rows, 3 * heads * width), all by the same angles."""
    width = x.shape[1] // (3 * heads)
    angles, no_weight = array_at(rotation, width).reshape(1, width), numpy.empty(0, numpy.float32)
    rstd = numpy.empty((x.shape[0], 2 * heads), numpy.float32)
    norm_and_rotate_rows(x, no_weight, no_weight, angles, heads, real(0), out, rstd)


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


# ------------------------------------------------------------------------------------------------ linear layers in parts


@loop
def _linear_part(instructions: Any, addresses: Any, i: int, part: int, parts: int) -> None:
    """Compute one of the parts of a linear instruction: some of its outputs."""
    rows, width, outputs = instructions[i, ROWS], instructions[i, WIDTH], instructions[i, OUTPUTS]
    first, last = part * outputs // parts, (part + 1) * outputs // parts
    x = array_at(addresses[instructions[i, FIRST]], rows * width).reshape(rows, width)
    weight = array_at(addresses[instructions[i, SECOND]], outputs * width).reshape(outputs, width)
    bias = array_at(addresses[instructions[i, THIRD]], outputs)
    out = array_at(addresses[instructions[i, RESULT]], rows * outputs).reshape(rows, outputs)
    _linear(x, weight[first:last], bias[first:last], out[:, first:last])


@loop
def _take_parts(instructions: Any, addresses: Any, tickets: Any) -> None:
    """Take parts of the current instruction and compute them, until all are taken."""
    while True:
        ticket = atomic_add(tickets.ctypes.data, 1)
        if ticket < 0:
            return
        i, part = ticket >> 32, ticket & _PART_BITS
        if part >= instructions[i, PARTS]:
            return
        _linear_part(instructions, addresses, i, part, instructions[i, PARTS])
        atomic_exchange(_flag(tickets, part), i)


@loop
def _flag(tickets: Any, part: int) -> Any:
    """The address of a part's flag."""
    return tickets.ctypes.data + FLAGS + 8 * part


@loop
def _take_over(instructions: Any, addresses: Any, tickets: Any, i: int) -> None:
    """Compute the parts of an instruction that the other thread took and has not done: it may have lost its core for long. If
    it computes them later, it writes the same numbers to the same places once more."""
    for part in range(instructions[i, PARTS]):
        if atomic_load(_flag(tickets, part)) != i:
            _linear_part(instructions, addresses, i, part, instructions[i, PARTS])


@loop
def help_to_run(settings: Any, instructions: Any, addresses: Any, tickets: Any) -> None:
    """What the second thread does: it computes parts until the program ends, or until there was nothing to do for long. Then
    the first thread may have lost its core, and gets it back sooner if nobody waits in a loop.

    ``settings`` are float32, which tells Numba the dtype of the arrays at the addresses.
    """
    looks = 0
    while looks < _PATIENCE:
        ticket = atomic_load(tickets.ctypes.data)
        looks += 1
        if ticket < 0:
            return
        if ticket & _PART_BITS < instructions[ticket >> 32, PARTS]:
            _take_parts(instructions, addresses, tickets)
            looks = 0


# ------------------------------------------------------------------------------------------------------ the whole program


@loop
def run(space: Any, settings: Any, instructions: Any, places: Any, tickets: Any) -> None:
    """Run the instructions (n, 10), with their ``settings`` (n,).

    ``places`` (3, slots) holds the address of each slot's array; and of keys and values in a cache also how many it has, and
    for how many there is room. All results lie in ``space``: their addresses are given as distances from its start.
    """
    addresses, lengths, capacities = places[0], places[1], places[2]
    for i in range(len(instructions)):
        addresses[instructions[i, RESULT]] += space.ctypes.data
    for i in range(len(instructions)):
        kernel, parts = instructions[i, KERNEL], instructions[i, PARTS]
        rows, width, outputs = instructions[i, ROWS], instructions[i, WIDTH], instructions[i, OUTPUTS]
        second, third = addresses[instructions[i, SECOND]], addresses[instructions[i, THIRD]]
        flat = array_at(addresses[instructions[i, FIRST]], rows * width)
        flat_out = array_at(addresses[instructions[i, RESULT]], rows * outputs)
        x, out = flat.reshape(rows, width), flat_out.reshape(rows, outputs)
        if kernel == LINEAR and parts == 1:
            _linear_part(instructions, addresses, i, 0, 1)
        elif kernel == LINEAR:
            atomic_exchange(tickets.ctypes.data, i << 32)
            _take_parts(instructions, addresses, tickets)
            _take_over(instructions, addresses, tickets, i)
        elif kernel == ADD:
            _add(x, array_at(second, width), out)
        elif kernel == MULTIPLY:
            _multiply(x, array_at(second, width), out)
        elif kernel == RELU:
            _relu(flat, flat_out)
        elif kernel == SILU:
            silu_product(flat, array_at(second, flat.size), flat_out)
        elif kernel == GELU_TANH:
            gelu_tanh(flat, numpy.empty(flat.size, numpy.float32), flat_out)
        elif kernel == GELU_EXACT:
            gelu_exact32(flat, numpy.empty(flat.size, numpy.float32), flat_out)
        elif kernel == LAYER_NORM:
            unused = numpy.empty((3, rows), numpy.float32)
            weight, bias = array_at(second, width), array_at(third, width)
            layer_norm_rows(x, weight, bias, settings[i], out, unused[0], unused[1], unused[2])
        elif kernel == RMS_NORM:
            rms_norm_rows(x, array_at(second, width), settings[i], out, numpy.empty(rows, numpy.float32))
        elif kernel == NORM_HEADS:
            _norm_heads(x, second, third, instructions[i, HEADS], settings[i], out)
        elif kernel == ROTATE_HEADS:
            _rotate_heads(x, second, instructions[i, HEADS], out)
        elif kernel == ATTENTION:
            heads, slot = instructions[i, HEADS], instructions[i, SECOND]
            split, joined = flat.reshape(rows, 3, heads, outputs // heads), flat_out.reshape(rows, heads, outputs // heads)
            _attend_all(split, second, heads, lengths[slot], capacities[slot], settings[i], joined)
    atomic_exchange(tickets.ctypes.data, _END)
