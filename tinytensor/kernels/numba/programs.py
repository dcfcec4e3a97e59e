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
from typing import Any

import numpy

from tinytensor.kernels.numba.helper import has_second_core, helper
from tinytensor.kernels.numba.instructions import _LINEAR, _OUTPUTS, _PARTS, _WIDTH, _Unfit, _Writer
from tinytensor.kernels.numba.program_loops import _FLAGS, _LAST_PART, _help, _run
from tinytensor.kernels.steps import Step

_FEWEST_STEPS = 8  # of fewer, a call of each takes hardly longer
_SHARED = 1 << 25  # bytes of weights from which two threads share the products: fewer are read fast enough from the caches
_PART = 1 << 16  # bytes of a weight that one thread takes at a time


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


def _length_and_capacity(stored: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """How many keys the caches hold, and for how many there is room. All else must be as in the call that was traced."""
    two, batch, heads, _, width = shape
    length = stored.shape[3]
    plane = stored.strides[2]
    contiguous = (batch * heads * plane, heads * plane, plane, 4 * width, 4)
    _check(stored.shape == (two, batch, heads, length, width) and stored.strides == contiguous, stored, shape)
    return length, plane // (4 * width)
