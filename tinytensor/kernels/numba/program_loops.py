"""The loops that run a program. ``run`` calls a kernel's loop for each instruction (see instructions.py). As most programs have
few kernels, ``run_of`` leaves out the loops of all others.

Two threads compute linear layers and attention of a large program in parts. They share some integers, the ``tickets``. The
first, the ticket, says what to compute next: instruction * 2**32 + its next free part; at the end it is negative. Then each
part has a flag: the number of the last instruction for which it is done.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy

from tinytensor.kernels.numba.activations import gelu_exact32, gelu_tanh, silu_product
from tinytensor.kernels.numba.compiling import Loop, loop
from tinytensor.kernels.numba.functions import copy_row
from tinytensor.kernels.numba.instructions import (
    ADD,
    ATTENTION,
    CODE,
    COLUMNS,
    FIRST,
    GELU_EXACT,
    GELU_TANH,
    HEADS,
    KERNEL,
    KEYS,
    LAYER_NORM,
    LINEAR,
    LINEAR_BFLOAT16,
    LINEAR_BLOCKS,
    MEMORY,
    MULTIPLY,
    NORM_HEADS,
    OFFSET,
    OUTPUTS,
    PARTS,
    RELU,
    RESULT,
    RMS_NORM,
    ROTATE_HEADS,
    ROUND_INPUTS,
    ROW_BYTES,
    ROWS,
    SECOND,
    SILU,
    START,
    THIRD,
    WIDTH,
)
from tinytensor.kernels.numba.normalization import layer_norm_rows, rms_norm_rows
from tinytensor.kernels.numba.pointers import array_at, atomic_add, atomic_exchange, atomic_load
from tinytensor.kernels.numba.program_kernels import (
    add,
    attend,
    attend_to_memory,
    multiply,
    norm_rows_of_heads,
    relu,
    rotate_rows_of_heads,
)
from tinytensor.kernels.numba.quantized import block_part, round_inputs
from tinytensor.kernels.numba.row_dots import bfloat16_part, float32_part

_PART_BITS = (1 << 32) - 1  # of a ticket
NOTHING_YET = _PART_BITS  # the ticket before the first linear layer: a part that no instruction has
_END = -(1 << 62)  # the ticket at the end: taking it adds 1, and it stays negative
_PATIENCE = 1 << 16  # how often a thread looks for work: about 40 microseconds
FLAGS = 128  # bytes from the ticket to the flags, so that no cache line holds both


# ------------------------------------------------------------------------------------------- linear layers and attention


@loop
def _linear_part(instructions: Any, addresses: Any, i: int, part: int, parts: int) -> None:
    """Compute one part of a linear instruction: some of its outputs. Inputs of a weight in blocks are rounded."""
    rows, width, outputs = instructions[i, ROWS], instructions[i, WIDTH], instructions[i, OUTPUTS]
    row, start, columns = instructions[i, ROW_BYTES], instructions[i, START], instructions[i, COLUMNS]
    first, last = part * outputs // parts, (part + 1) * outputs // parts
    weight = addresses[instructions[i, SECOND]] + instructions[i, OFFSET] + first * row
    first, last = start + first, start + last
    bias = array_at(addresses[instructions[i, THIRD]], columns)[first:last]
    out = array_at(addresses[instructions[i, RESULT]], rows * columns).reshape(rows, columns)[:, first:last]
    x = addresses[instructions[i, FIRST]]
    if instructions[i, KERNEL] == LINEAR_BLOCKS:
        block_part(instructions[i, CODE], x, width, weight, row, bias, out)
    elif instructions[i, KERNEL] == LINEAR_BFLOAT16:
        bfloat16_part(array_at(x, rows * width).reshape(rows, width), weight, bias, out)
    else:
        float32_part(array_at(x, rows * width).reshape(rows, width), weight, bias, out)


@loop
def _attention_part(settings: Any, instructions: Any, places: Any, i: int, part: int, parts: int) -> None:
    """Compute one part of attention, of one token of each text: some heads of the texts. Several neighbouring heads of queries
    may share one of keys and values."""
    texts, heads, shared = instructions[i, ROWS], instructions[i, HEADS], instructions[i, KEYS]
    width, slot = instructions[i, OUTPUTS] // heads, instructions[i, SECOND]
    length, plane = places[1, slot], places[2, slot] * width
    all_heads = heads + 2 * shared
    x = array_at(places[0, instructions[i, FIRST]], texts * all_heads * width).reshape(texts, all_heads, width)
    out = array_at(places[0, instructions[i, RESULT]], texts * heads * width).reshape(texts * heads, width)
    weights = numpy.empty(length, numpy.float32)
    for each in range(part * texts * heads // parts, (part + 1) * texts * heads // parts):
        text, head = each // heads, each % heads
        own = places[0, slot] + 4 * (text * shared + head * shared // heads) * plane
        keys = array_at(own, length * width).reshape(length, width)
        values = array_at(own + 4 * texts * shared * plane, length * width).reshape(length, width)
        attend(x[text, head], keys, values, settings[i], weights, out[each])


@loop
def _store(x: Any, heads: int, stored: int, length: int, capacity: int) -> None:
    """Write the keys and values of one token of each text to position length - 1 of a cache.

    They follow ``heads`` heads of queries in x (texts, all heads, width). ``stored`` is the address of the cache's keys (texts,
    keys, capacity, width), followed by the values.
    """
    texts, all_heads, width = x.shape
    keys = (all_heads - heads) // 2
    cache = array_at(stored, 2 * texts * keys * capacity * width).reshape(2, texts, keys, capacity, width)
    for i in range(texts):
        for h in range(keys):
            copy_row(x[i, heads + h], cache[0, i, h, length - 1])
            copy_row(x[i, heads + keys + h], cache[1, i, h, length - 1])


@loop
def _compute_part(settings: Any, instructions: Any, places: Any, i: int, part: int, parts: int) -> None:
    kernel = instructions[i, KERNEL]
    if kernel in (LINEAR, LINEAR_BLOCKS, LINEAR_BFLOAT16):
        _linear_part(instructions, places[0], i, part, parts)
    elif kernel == ATTENTION:
        _attention_part(settings, instructions, places, i, part, parts)


# ---------------------------------------------------------------------------------------------- two threads, part by part


@loop
def _take_parts(settings: Any, instructions: Any, places: Any, tickets: Any, is_first: bool) -> None:
    """Take and compute parts of the current instruction until all are taken, or for the first thread, until all are done."""
    while True:
        ticket = atomic_add(tickets.ctypes.data, 1)
        if ticket < 0:
            return
        i, part = ticket >> 32, ticket & _PART_BITS
        parts = instructions[i, PARTS]
        if part >= parts:
            part = _undone_part(tickets, i, parts) if is_first else -1
            if part < 0:
                return
        _compute_part(settings, instructions, places, i, part, parts)
        atomic_exchange(_flag(tickets, part), i)


@loop
def _undone_part(tickets: Any, i: int, parts: int) -> int:
    """Return a part of this instruction that the other thread took and has not done; -1 if all are done.

    It gets some time, but it may have lost its core. If it computes the part later, it writes the same values again.
    """
    looks = 0
    for part in range(parts):
        while atomic_load(_flag(tickets, part)) != i:
            looks += 1
            if looks == _PATIENCE:
                return part
    return -1


@loop
def _flag(tickets: Any, part: int) -> Any:
    """Return the address of a part's flag."""
    return tickets.ctypes.data + FLAGS + 8 * part


@loop
def _help_to_run(settings: Any, instructions: Any, places: Any, tickets: Any) -> bool:
    """Compute parts, as the second thread, until the program ends or there is no work for long. Then the first thread may have
    lost its core, and gets it back sooner if nobody waits in a loop. Returns True if the program has ended.

    ``settings`` are float32, which tells Numba the dtype of the arrays at the addresses.
    """
    looks = 0
    while looks < _PATIENCE:
        ticket = atomic_load(tickets.ctypes.data)
        looks += 1
        if ticket < 0:
            return True
        if ticket & _PART_BITS < instructions[ticket >> 32, PARTS]:
            _take_parts(settings, instructions, places, tickets, False)
            looks = 0
    return False


# ------------------------------------------------------------------------------------------------------ the whole program


@loop
def run(space: Any, settings: Any, instructions: Any, places: Any, tickets: Any, is_first: bool) -> bool:
    """Run the instructions (n, 17) with their ``settings`` (n,), or if this thread is not the first, help. Both are one
    function, as it takes seconds to compile. Returns True if the program has ended.

    ``places`` (3, slots) holds the address of each slot's array, and for keys and values in a cache also their number and
    capacity. All results lie in ``space``; their addresses are offsets from its start.
    """
    if not is_first:
        return bool(_help_to_run(settings, instructions, places, tickets))
    addresses = places[0]
    for i in range(len(instructions)):
        if i == 0 or instructions[i, RESULT] != instructions[i - 1, RESULT]:
            addresses[instructions[i, RESULT]] += space.ctypes.data
    for i in range(len(instructions)):
        kernel, parts = instructions[i, KERNEL], instructions[i, PARTS]
        rows, width, outputs = instructions[i, ROWS], instructions[i, WIDTH], instructions[i, OUTPUTS]
        heads, keys = instructions[i, HEADS], instructions[i, KEYS]
        second, third = addresses[instructions[i, SECOND]], addresses[instructions[i, THIRD]]
        flat = array_at(addresses[instructions[i, FIRST]], rows * width)
        flat_out = array_at(addresses[instructions[i, RESULT]], rows * outputs)
        x, out = flat.reshape(rows, width), flat_out.reshape(rows, outputs)
        if kernel == ATTENTION:
            slot, all_heads = instructions[i, SECOND], heads + 2 * keys
            _store(flat.reshape(rows, all_heads, width // all_heads), heads, second, places[1, slot], places[2, slot])
        if parts:
            atomic_exchange(tickets.ctypes.data, i << 32)
            _take_parts(settings, instructions, places, tickets, True)
        elif kernel in (LINEAR, LINEAR_BLOCKS, LINEAR_BFLOAT16, ATTENTION):
            _compute_part(
                settings, instructions, places, i, numpy.int64(0), numpy.int64(1)
            )  # a plain 0 would be compiled again
        elif kernel == MEMORY:
            slot = instructions[i, SECOND]
            attend_to_memory(x, heads, second, keys, places[1, slot], places[2, slot], third, settings[i], out)
        elif kernel == ROUND_INPUTS:
            round_inputs(x, outputs, addresses[instructions[i, RESULT]])
        elif kernel == ADD:
            add(x, array_at(second, width), out)
        elif kernel == MULTIPLY:
            multiply(x, array_at(second, width), out)
        elif kernel == RELU:
            relu(flat, flat_out)
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
            norm_rows_of_heads(x, second, third, heads, keys, settings[i], out)
        elif kernel == ROTATE_HEADS:
            rotate_rows_of_heads(x, second, heads, keys, out)
    atomic_exchange(tickets.ctypes.data, _END)
    return True


_LOOPS = {  # of all kernels
    LINEAR: float32_part,
    LINEAR_BLOCKS: block_part,
    LINEAR_BFLOAT16: bfloat16_part,
    ROUND_INPUTS: round_inputs,
    ATTENTION: _attention_part,
    MEMORY: attend_to_memory,
    ADD: add,
    MULTIPLY: multiply,
    RELU: relu,
    SILU: silu_product,
    GELU_TANH: gelu_tanh,
    GELU_EXACT: gelu_exact32,
    LAYER_NORM: layer_norm_rows,
    RMS_NORM: rms_norm_rows,
    NORM_HEADS: norm_rows_of_heads,
    ROTATE_HEADS: rotate_rows_of_heads,
}


@functools.cache
def run_of(kernels: frozenset[int], in_parts: bool) -> Loop:
    """``run`` for programs of these kernels, with ``in_parts`` for two threads."""
    others = [loop for kernel, loop in _LOOPS.items() if kernel not in kernels]
    return run.without(*others, *([] if in_parts else [_take_parts]), *([] if ATTENTION in kernels else [_store]))
