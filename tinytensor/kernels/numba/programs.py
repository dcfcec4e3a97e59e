"""A traced program as one compiled call: a loop over its steps, each of which calls the loop of its kernel.

So it is with a GPT that writes a text token by token: the kernels are so small that calling them one by one from Python would
take longer than they do. The loop is compiled once, and runs every program: the steps are data, and so are the addresses of
the arrays. Of a large program two threads share the products, see helper.py.

Steps that the loop does not know, such as the embedding, run before it, one by one. If one of them needs what the loop
computes, nothing is joined.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import loop, real, reduction
from tinytensor.kernels.numba.exponential import exp
from tinytensor.kernels.numba.gelu import _exact_forward32, _tanh_forward
from tinytensor.kernels.numba.helper import has_second_core, helper
from tinytensor.kernels.numba.normalization import _layer_norm, _rms_norm
from tinytensor.kernels.numba.pointers import array_at, atomic_add, atomic_exchange, atomic_load
from tinytensor.kernels.numba.silu import _silu_product
from tinytensor.kernels.steps import Step

_FEWEST_STEPS = 8  # of fewer, a call of each takes hardly longer
_MOST_ROWS = 8  # with more, NumPy's products are faster
_SHARED = 1 << 25  # bytes of weights from which two threads share the products: fewer are read fast enough from the caches
_PART = 1 << 16  # bytes of a weight that one thread takes at a time

_LINEAR, _ADD, _MULTIPLY, _RELU, _SILU, _GELU_TANH, _GELU_EXACT, _LAYER_NORM, _RMS_NORM, _ATTENTION = range(10)
_ROWS, _WIDTH, _OUTPUTS, _SIZE, _PARTS = range(5, 10)  # places in an instruction
_LAST_PART = (1 << 32) - 1
_END = -(1 << 62)
_PATIENCE = 1 << 16  # how often a thread looks for something to do: some 50 microseconds
_FLAGS = 128  # bytes from the first ticket: no cache line holds both

# ---------------------------------------------------------------------------------------------------------- the loops


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


# ------------------------------------------------------------------------------------------- from steps to instructions


class _Unfit(Exception):
    """The loop cannot do this step."""


class _Writer:
    """Writes the instructions of a program, whose values in the traced call it is given."""

    def __init__(self, values: list[Any]):
        self.values = list(values)  # and then the constants that are added
        self.instructions: list[list[int]] = []
        self.settings: list[float] = []  # a number for each instruction
        self.computed: list[int] = []  # the slots of the instructions' results
        self.same: dict[int, int] = {}  # for the slot of a view of all elements, the slot of what it is a view of
        self.stored: set[int] = set()  # the slots of the keys and values in caches
        self.contiguous: set[int] = set()  # the slots of all other operands

    def write(self, step: Step) -> None:
        """Write the instruction of this step. Raises _Unfit if the loop has none for it."""
        values = [self.values[slot] for slot in step.arguments]
        if step.name not in _WRITERS or not all(x.size for x in values if isinstance(x, numpy.ndarray)):
            raise _Unfit
        _WRITERS[step.name](self, step, *values)

    def add(
        self, kernel: int, step: Step, slots: list[int], sizes: tuple[int, int, int], setting: float = 0.0, more: int = 0
    ) -> None:
        """Add an instruction with these operands."""
        contiguous = slots[:1] if kernel == _ATTENTION else slots
        if not all(_is_usual(self.values[slot]) for slot in (*contiguous, step.result)):
            raise _Unfit
        self.contiguous.update([self.root(slot) for slot in contiguous])
        operands = [self.root(slot) for slot in (*slots, *slots[:1], *slots[:1])]
        self.instructions.append([kernel, step.result, *operands[:3], *sizes, more, 1])
        self.settings.append(setting)
        self.computed.append(step.result)

    def root(self, slot: int) -> int:
        """The slot that has the elements of this one."""
        return self.same.get(slot, slot)

    def constant(self, array: Any) -> int:
        """The slot of a new constant."""
        self.values.append(array)
        return len(self.values) - 1

    def vector(self, slot: int, missing: float, size: int) -> int:
        """The slot of a weight or bias; if it was left out, that of a vector of a number that has no effect."""
        return slot if self.values[slot] is not None else self.constant(numpy.full(size, missing, numpy.float32))


def _is_usual(x: Any) -> bool:
    return type(x) is numpy.ndarray and x.dtype == numpy.float32 and x.flags.c_contiguous


def _linear_step(writer: _Writer, step: Step, x: Any, weight: Any, bias: Any) -> None:
    outputs, inputs = weight.shape
    rows = x.size // inputs
    if rows > _MOST_ROWS:
        raise _Unfit
    of_x, of_weight, of_bias = step.arguments
    writer.add(_LINEAR, step, [of_x, of_weight, writer.vector(of_bias, 0.0, outputs)], (rows, inputs, outputs))


def _binary(kernel: int) -> Callable[..., None]:
    def write(writer: _Writer, step: Step, x: Any, y: Any) -> None:
        of_x, of_y = step.arguments
        if type(y) in (int, float):
            y = numpy.full(1, y, numpy.float32)
            of_y = writer.constant(y)
        if type(x) is not numpy.ndarray or type(y) is not numpy.ndarray or not _is_row_of(y, x):
            raise _Unfit
        writer.add(kernel, step, [of_x, of_y], (x.size // y.size, y.size, y.size))

    return write


def _is_row_of(y: Any, x: Any) -> bool:
    """Whether y has the shape of the last axes of x, or of all."""
    shape = y.shape
    while shape[:1] == (1,) and len(shape) > 0:
        shape = shape[1:]
    return y.ndim <= x.ndim and x.shape[x.ndim - len(shape) :] == shape


def _activation(kernel: int) -> Callable[..., None]:
    def write(writer: _Writer, step: Step, *values: Any) -> None:
        size = values[-1].size
        writer.add(kernel, step, [step.arguments[-1]], (1, size, size))

    return write


def _silu_step(writer: _Writer, step: Step, needed: Any, x: Any, factor: Any) -> None:
    of_factor = writer.vector(step.arguments[2], 1.0, x.size)
    writer.add(_SILU, step, [step.arguments[1], of_factor], (1, x.size, x.size))


def _norm(kernel: int) -> Callable[..., None]:
    def write(writer: _Writer, step: Step, needed: Any, x: Any, *rest: Any) -> None:
        width = x.shape[-1]
        _, of_x, *vectors, _ = step.arguments
        slots = [of_x, *[writer.vector(slot, missing, width) for slot, missing in zip(vectors, (1.0, 0.0))]]
        writer.add(kernel, step, slots, (x.size // width, width, width), setting=rest[-1])

    return write


def _attention_step(writer: _Writer, step: Step, projected: Any, stored: Any, num_heads: int, is_causal: bool) -> None:
    rows, length, width = projected.shape
    d_head = width // (3 * num_heads)
    if (
        length != 1
        or not _is_usual(projected)
        or stored.dtype != numpy.float32
        or not _is_cache(stored, rows, num_heads, d_head)
    ):
        raise _Unfit
    writer.stored.add(step.arguments[1])
    scale = 1.0 / math.sqrt(d_head)
    writer.add(_ATTENTION, step, list(step.arguments[:2]), (rows, width, width // 3), setting=scale, more=num_heads)


def _view(writer: _Writer, step: Step, x: Any, *settings: Any) -> None:
    """A view of all elements in the same order, such as x[:, -1] of one position, needs no instruction."""
    out = writer.values[step.result]
    if out.size != x.size or out.ctypes.data != x.ctypes.data or not _is_usual(out):
        raise _Unfit
    writer.same[step.result] = writer.root(step.arguments[0])


_WRITERS: dict[str, Callable[..., None]] = {
    "linear": _linear_step,
    "add": _binary(_ADD),
    "multiply": _binary(_MULTIPLY),
    "relu": _activation(_RELU),
    "silu": _silu_step,
    "gelu_tanh": _activation(_GELU_TANH),
    "gelu_exact": _activation(_GELU_EXACT),
    "layer_norm": _norm(_LAYER_NORM),
    "rms_norm": _norm(_RMS_NORM),
    "cached_attention": _attention_step,
    "getitem": _view,
}

# ------------------------------------------------------------------------------------------------------- the whole program


def fuse(steps: list[Step], values: list[Any], num_inputs: int, result: int) -> list[Step]:
    """The steps that the loop does not know, and then one that does all others. The steps as they are, where that is impossible
    or not worth it.

    ``values`` has the value of each slot in the call that was traced: first the inputs. ``result`` is the slot of the program's
    result.
    """
    writer, before, later = _Writer(values), [], set()
    for step in steps:
        try:
            writer.write(step)
            later.add(step.result)
        except _Unfit:
            if not later.isdisjoint(step.arguments):
                return steps
            before.append(step)
    if len(writer.instructions) < _FEWEST_STEPS or writer.root(result) not in writer.computed:
        return steps
    used = {slot for instruction in writer.instructions for slot in instruction[2:5]}
    given = [slot for slot in sorted(used) if slot < num_inputs or slot in {step.result for step in before}]
    if not writer.stored.issubset(given) or not writer.stored.isdisjoint(writer.contiguous):
        return steps
    return [*before, Step("", _Program(writer, given, result), tuple(given), False, result)]


class _Program:
    """Instructions that are run with one call. It takes the arrays of the slots ``given``, and returns a new array."""

    def __init__(self, writer: _Writer, given: list[int], result: int):
        self.instructions = numpy.array(writer.instructions, numpy.int64)
        self.settings = numpy.array(writer.settings, numpy.float32)
        self.parts = self._cut() if has_second_core() else 1  # the most of an instruction
        self.tickets = numpy.full(_FLAGS // 8 + self.parts, -1)
        self.tickets[0] = _LAST_PART  # nothing to take yet
        self.given, self.stored = given, [slot in writer.stored for slot in given]
        self.shapes = [writer.values[slot].shape for slot in given]
        used = {slot for instruction in writer.instructions for slot in instruction[2:5]}
        constants = used.difference(given, writer.computed)
        self.constants = {slot: writer.values[slot] for slot in constants}  # which keeps them at their addresses
        # Results lie one after the other in an array that is new in each call: here are their places in it, in bytes.
        sizes = [writer.values[slot].size for slot in writer.computed]
        self.size = sum(sizes)
        self.places = numpy.zeros((3, len(writer.values)), numpy.int64)
        starts = numpy.cumsum(sizes) - sizes
        self.places[0, writer.computed] = 4 * starts
        start, self.shape = starts[writer.computed.index(writer.root(result))], writer.values[result].shape
        self.place = slice(start, start + math.prod(self.shape))
        for slot, array in self.constants.items():
            self.places[0, slot] = array.ctypes.data

    def __call__(self, *arrays: Any) -> Any:
        space = numpy.empty(self.size, numpy.float32)
        places = self.places.copy()
        kept = []
        for slot, array, shape, is_stored in zip(self.given, arrays, self.shapes, self.stored):
            if is_stored:
                places[1:, slot] = _length_and_capacity(array, shape)
            else:
                array = numpy.asarray(array, numpy.float32, order="C")
                _check(array.shape == shape, array, shape)
            places[0, slot] = array.ctypes.data
            kept.append(array)
        tickets = self.tickets.copy()
        if self.parts > 1:
            kept.append(space)
            helper().call(functools.partial(self._help, places[0], tickets, kept))
        _run(space, self.settings, self.instructions, places, tickets)
        return space[self.place].reshape(self.shape).copy()  # a late helper does not write to a copy

    def _cut(self) -> int:
        """Cut the products into parts if there are enough of them. Returns the most parts of an instruction."""
        of_linear = self.instructions[self.instructions[:, 0] == _LINEAR]
        sizes = 4 * of_linear[:, _WIDTH] * of_linear[:, _OUTPUTS]
        if sizes.sum() < _SHARED:
            return 1
        of_linear[:, _PARTS] = numpy.clip(sizes // _PART, 1, of_linear[:, _OUTPUTS])
        self.instructions[self.instructions[:, 0] == _LINEAR] = of_linear
        return int(of_linear[:, _PARTS].max())

    def _help(self, addresses: Any, tickets: Any, kept: list[Any]) -> None:
        """Take part in a call. ``kept`` are the arrays at the addresses, which must not go away as long as this runs."""
        _help(self.settings, self.instructions, addresses, tickets)


def _check(fits: bool, array: Any, shape: tuple[int, ...]) -> None:
    if not fits:
        raise ValueError(f"in a traced function, an array of shape {shape} now has shape {array.shape}, {array.dtype}")


def _is_cache(stored: Any, batch: int, heads: int, width: int) -> bool:
    """Whether these are the first keys and values (2, batch, heads, length, width) in memory with room for as many or more."""
    length, plane = stored.shape[3], stored.strides[2]
    contiguous = (batch * heads * plane, heads * plane, plane, 4 * width, 4)
    is_roomy = 0 < length * 4 * width <= plane
    return is_roomy and stored.shape == (2, batch, heads, length, width) and stored.strides == contiguous


def _length_and_capacity(stored: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """How many keys the caches hold, and for how many there is room. All else must be as in the call that was traced."""
    _, batch, heads, _, width = shape
    _check(_is_cache(stored, batch, heads, width), stored, shape)
    return stored.shape[3], stored.strides[2] // (4 * width)
