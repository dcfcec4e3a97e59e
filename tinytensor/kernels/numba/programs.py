"""A traced program as one compiled call: a loop over its steps that calls each kernel's loop.

Decoding token by token is such a program: its kernels are so small that calling them from Python would take longer than they
do. The loop is compiled once for all programs with the same kernels: the steps and the addresses of the arrays are data.
instructions.py writes this data, and program_loops.py has the loop. In a large program two threads share the products, see
processor.py. Without compiled kernels ``trace.Program.run`` calls the kernels one by one.

Steps without an instruction, such as the embedding, run before the loop, one by one. If such a step needs a result of the loop,
the program stays as it is.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import numpy

from tinytensor.device import cores
from tinytensor.device.allocator import use_large_pages
from tinytensor.kernels.numba.instructions import (
    ATTENTION,
    HEADS,
    KERNEL,
    OUTPUTS,
    PARTS,
    ROW_BYTES,
    ROWS,
    Assembler,
    Unfit,
    is_cache,
)
from tinytensor.kernels.numba.processor import has_second_core, helper, reads_several_rows
from tinytensor.kernels.numba.program_loops import FLAGS, NOTHING_YET, run_of
from tinytensor.kernels.steps import KernelCall

_FEWEST_STEPS = 8  # with fewer, calling each takes hardly longer
_SHARED = 1 << 25  # bytes of weights from which two threads share the products; fewer are read fast enough from the caches
_PART = 1 << 17  # bytes of a weight that one thread takes at a time
_PAUSE = 5e-5  # seconds that an idle helper sleeps, doubled each time


def fuse(steps: list[KernelCall], values: list[Any], num_inputs: int, result: int) -> list[KernelCall]:
    """Return the steps without an instruction, then one step for all others; or the steps as they are, if that is impossible or
    not worth it.

    ``values`` has each slot's value in the traced call, first the ``num_inputs`` inputs. ``result`` is the slot of the
    program's result.
    """
    writer, before, joined = Assembler(values), [], set()
    for step in steps:
        try:
            writer.write(step)
            joined.add(step.result)
        except Unfit:
            if not joined.isdisjoint(step.arguments):
                return steps
            before.append(step)
    if len(writer.instructions) < _FEWEST_STEPS or writer.root(result) not in writer.computed:
        return steps
    given = [slot for slot in sorted(writer.operands()) if slot < num_inputs or slot in {step.result for step in before}]
    if not writer.stored.issubset(given) or not writer.stored.isdisjoint(writer.contiguous):
        return steps
    return [*before, KernelCall("", _Program(writer, given, result), tuple(given), False, result)]


class _Program:
    """Instructions that run in one call. It takes the arrays of the slots ``given``, and returns a new array."""

    def __init__(self, writer: Assembler, given: list[int], result: int):
        self.instructions = numpy.array(writer.instructions, numpy.int64)
        self.settings = numpy.array(writer.settings, numpy.float32)
        self.parts = self._cut() if has_second_core() else 0  # maximum parts of any instruction
        self.tickets = numpy.full(FLAGS // 8 + self.parts, -1)
        self.tickets[0] = NOTHING_YET
        self.run = run_of(frozenset(self.instructions[:, KERNEL].tolist()), self.parts > 0)
        self.given, self.stored = given, [slot in writer.stored for slot in given]
        self.kinds = [(writer.values[slot].shape, writer.values[slot].dtype) for slot in given]
        constants = writer.operands().difference(given, writer.computed)
        self.constants = {slot: writer.values[slot] for slot in constants}  # which keeps their addresses valid
        if self.parts > 0 and reads_several_rows():  # AMD's processors read large pages no faster
            use_large_pages(self.constants.values())
        # Each call puts all results into one new array, at these byte offsets.
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
        for slot, array, (shape, dtype), is_stored in zip(self.given, arrays, self.kinds, self.stored):
            if is_stored:
                places[1:, slot] = _length_and_capacity(array, shape)
            else:
                array = numpy.asarray(array, dtype, order="C")
                _check(array.shape == shape, array, shape)
            places[0, slot] = array.ctypes.data
            kept.append(array)
        tickets = self.tickets.copy()
        if self.parts > 0 and not cores.are_shared_out:
            helper().call(functools.partial(self._help, space, places, tickets, kept))
        self.run(space, self.settings, self.instructions, places, tickets, True)
        return space[self.place].reshape(self.shape).copy()  # a copy, safe from a late helper

    def _cut(self) -> int:
        """Cut products and attention into parts if the products are large enough. Returns the most parts of an instruction."""
        kernels, rows, outputs, heads, row_bytes = self.instructions[:, [KERNEL, ROWS, OUTPUTS, HEADS, ROW_BYTES]].T
        sizes = row_bytes * outputs
        if sizes.sum() < _SHARED:
            return 0
        parts = numpy.where(sizes > 0, numpy.clip(sizes // _PART, 1, outputs), 0)
        self.instructions[:, PARTS] = numpy.where(kernels == ATTENTION, rows * heads, parts)
        return int(self.instructions[:, PARTS].max())

    def _help(self, space: Any, places: Any, tickets: Any, kept: list[Any]) -> None:
        """Run instructions as the helper. ``kept`` keeps the arrays at the addresses alive meanwhile."""
        pause = _PAUSE
        while not self.run(space, self.settings, self.instructions, places, tickets, False):
            time.sleep(pause)
            pause *= 2


def _check(fits: bool, array: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless the array fits where one of this shape was in the traced call."""
    if not fits:
        raise ValueError(f"in a traced function, an array of shape {shape} now has shape {array.shape}, {array.dtype}")


def _length_and_capacity(stored: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """Return how many keys a cache holds, and its capacity. Everything else must be as in the traced call.

    ``stored`` (2, batch, heads, keys, width) is a view of the cache's memory, and ``shape`` its shape in the traced call.
    """
    _, batch, heads, _, width = shape
    _check(is_cache(stored, batch, heads, width), stored, shape)
    return stored.shape[3], stored.strides[2] // (4 * width)
