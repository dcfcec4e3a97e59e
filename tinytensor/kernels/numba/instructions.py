"""The instructions of a compiled program, and how they are written from the steps of a trace.

An instruction is some integers, in the order named below: the number of its kernel, the slots of its result and of four
operands, the sizes of its arrays, the heads of queries and of keys, and in how many parts two threads compute it (0: one
thread). Its first operand is (rows, width) and its result (rows, outputs). It also has a setting, a floating-point number: the
eps of a norm, or the scale of attention.

A linear layer also has the bytes of a row of its weight. One in blocks has the code of their type, computes part of the
result's COLUMNS, beginning at START, and reads the weight from byte OFFSET.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

from tinytensor.kernels.numba.block_dots import CODES
from tinytensor.kernels.numba.quantized import rounded_size, whole_width
from tinytensor.kernels.numpy.quantized import cut, num_rows
from tinytensor.kernels.steps import KernelCall

LINEAR, ADD, MULTIPLY, RELU, SILU, GELU_TANH, GELU_EXACT, LAYER_NORM, RMS_NORM = range(9)
NORM_HEADS, ROTATE_HEADS, ATTENTION, ROUND_INPUTS, LINEAR_BLOCKS, LINEAR_BFLOAT16, MEMORY = range(9, 16)
KERNEL, RESULT, FIRST, SECOND, THIRD, FOURTH, ROWS, WIDTH, OUTPUTS, HEADS, KEYS, PARTS = range(12)  # indices in an instruction
ROW_BYTES, CODE, START, COLUMNS, OFFSET = range(12, 17)

_MOST_ROWS = 8  # with more, NumPy's products are faster


class Unfit(Exception):
    """There is no instruction for a step."""


class Assembler:
    """Writes the instructions of a program. ``values`` has the value of each slot in the call that was traced."""

    def __init__(self, values: list[Any]):
        self.values = list(values)  # followed by added constants
        self.instructions: list[list[int]] = []
        self.settings: list[float] = []  # one for each instruction
        self.computed: list[int] = []  # the slots of the instructions' results
        self.same: dict[int, int] = {}  # from the slot of a view of all elements to the slot of its base
        self.stored: set[int] = set()  # the slots of the keys and values in caches
        self.contiguous: set[int] = set()  # the slots of all other operands

    def write(self, step: KernelCall) -> None:
        """Write the instruction of this step. Raises Unfit if there is none."""
        values = [self.values[slot] for slot in step.arguments]
        if step.name not in _WRITERS or not all(x.size for x in values if isinstance(x, numpy.ndarray)):
            raise Unfit
        _WRITERS[step.name](self, step, *values)

    def add(
        self,
        kernel: int,
        step: KernelCall,
        slots: list[int],
        sizes: tuple[int, int, int],
        setting: float = 0.0,
        heads: tuple[int, int] = (0, 0),
        weight: tuple[int, ...] = (0, 0, 0, 0, 0),
    ) -> None:
        """Add an instruction. ``slots`` are its operands, ``sizes`` its rows, width and outputs, and ``weight`` its integers
        from ROW_BYTES on. Raises Unfit as ``write``."""
        contiguous = slots[:1] if kernel in (ATTENTION, MEMORY) else slots
        dtypes = _DTYPES.get(kernel, ())
        for place, slot in enumerate((*contiguous, step.result)):
            if not _is_usual(self.values[slot], dtypes[place] if place < len(dtypes) else "float32"):
                raise Unfit
        self.contiguous.update([self.root(slot) for slot in contiguous])
        four = [self.root(slot) for slot in (*slots, *3 * slots[:1])][:4]  # missing ones repeat the first
        self.instructions.append([kernel, step.result, *four, *sizes, *heads, 0, *weight])
        self.settings.append(setting)
        if step.result not in self.computed[-1:]:  # the columns of a product may be several instructions
            self.computed.append(step.result)

    def operands(self) -> set[int]:
        """Return the slots that instructions read."""
        return {slot for instruction in self.instructions for slot in instruction[FIRST : FOURTH + 1]}

    def root(self, slot: int) -> int:
        """Return the slot that has the elements of this one."""
        return self.same.get(slot, slot)

    def constant(self, array: Any) -> int:
        """Return the slot of a new constant."""
        self.values.append(array)
        return len(self.values) - 1

    def vector(self, slot: int, missing: float, size: int) -> int:
        """Return this slot of a weight or bias; for None, the slot of a vector of ``missing``, which has no effect."""
        return slot if self.values[slot] is not None else self.constant(numpy.full(size, missing, numpy.float32))


_DTYPES = {LINEAR_BLOCKS: ("float32", "uint8"), LINEAR_BFLOAT16: ("float32", "uint8")}  # of operands that are not float32


def _is_usual(x: Any, dtype: str = "float32") -> bool:
    """Return True if a loop can read x by its address: elements of this dtype, contiguous."""
    return type(x) is numpy.ndarray and x.dtype == dtype and x.flags.c_contiguous


def _linear_step(writer: Assembler, step: KernelCall, x: Any, weight: Any, bias: Any) -> None:
    outputs, inputs = weight.shape
    rows, (of_x, of_weight, of_bias) = x.size // inputs, step.arguments
    if rows > _MOST_ROWS:
        raise Unfit
    operands = [of_x, of_weight, writer.vector(of_bias, 0.0, outputs)]
    writer.add(LINEAR, step, operands, (rows, inputs, outputs), weight=(4 * inputs, 0, 0, outputs, 0))


def _blocks_step(
    writer: Assembler, step: KernelCall, x: Any, weight: Any, bias: Any, parts: Any, passes_gradient: bool
) -> None:
    """Add an instruction to round the inputs x for each width of whole blocks, and a product with each part of the weight."""
    inputs, outputs = x.shape[-1], num_rows(parts)
    rows, (of_x, of_weight, of_bias, *_) = x.size // inputs, step.arguments
    if rows > _MOST_ROWS or not weight.flags.c_contiguous:
        raise Unfit
    of_bias, rounded = writer.vector(of_bias, 0.0, outputs), dict[int, int]()
    for width in {whole_width(inputs, block_type) for block_type, _ in parts if block_type in CODES}:
        rounded[width] = writer.constant(numpy.empty(rounded_size(rows, width), numpy.float32))
        writer.add(ROUND_INPUTS, step._replace(result=rounded[width]), [of_x], (rows, inputs, width))
    for block_type, part, blocks in cut(weight, parts, inputs):
        kernel, width = (LINEAR_BLOCKS if block_type in CODES else LINEAR_BFLOAT16), whole_width(inputs, block_type)
        operands, offset = (
            [rounded[width] if kernel == LINEAR_BLOCKS else of_x, of_weight, of_bias],
            blocks.ctypes.data - weight.ctypes.data,
        )
        about = (blocks.shape[1], CODES.get(block_type, 0), part.start, outputs, offset)
        writer.add(kernel, step, operands, (rows, width, len(blocks)), weight=about)


def _binary(kernel: int) -> Callable[..., None]:
    def write(writer: Assembler, step: KernelCall, x: Any, y: Any) -> None:
        of_x, of_y = step.arguments
        if type(y) in (int, float):
            y = numpy.full(1, y, numpy.float32)
            of_y = writer.constant(y)
        if type(x) is not numpy.ndarray or type(y) is not numpy.ndarray or not _is_row_of(y, x):
            raise Unfit
        writer.add(kernel, step, [of_x, of_y], (x.size // y.size, y.size, y.size))

    return write


def _is_row_of(y: Any, x: Any) -> bool:
    """Return True if y has the shape of the last axes of x, or of all. Leading axes of length 1 are ignored."""
    shape = y.shape
    while shape[:1] == (1,):
        shape = shape[1:]
    return y.ndim <= x.ndim and x.shape[x.ndim - len(shape) :] == shape


def _activation(kernel: int) -> Callable[..., None]:
    def write(writer: Assembler, step: KernelCall, *values: Any) -> None:
        size = values[-1].size
        writer.add(kernel, step, [step.arguments[-1]], (1, size, size))

    return write


def _silu_step(writer: Assembler, step: KernelCall, needed: Any, x: Any, factor: Any) -> None:
    of_factor = writer.vector(step.arguments[2], 1.0, x.size)
    writer.add(SILU, step, [step.arguments[1], of_factor], (1, x.size, x.size))


def _norm(kernel: int) -> Callable[..., None]:
    def write(writer: Assembler, step: KernelCall, needed: Any, x: Any, *rest: Any) -> None:
        width = x.shape[-1]
        _, of_x, *vectors, _ = step.arguments
        slots = [of_x, *[writer.vector(slot, missing, width) for slot, missing in zip(vectors, (1.0, 0.0))]]
        writer.add(kernel, step, slots, (x.size // width, width, width), setting=rest[-1])

    return write


def _norm_and_rotate_step(
    writer: Assembler,
    step: KernelCall,
    needed: Any,
    projected: Any,
    query_weight: Any,
    key_weight: Any,
    num_heads: int,
    num_key_value_heads: int,
    eps: float,
    rotation: Any,
) -> None:
    """Add an instruction for the norms, and one for the rotation."""
    batch, length, width = projected.shape
    is_usual = all(_is_usual(x) for x in (query_weight, rotation) if x is not None)
    if length != 1 or not is_usual or (query_weight is None and rotation is None):
        raise Unfit
    _, of_x, of_query, of_key, *_, of_rotation = step.arguments
    sizes, heads = (batch, width, width), (num_heads, num_key_value_heads)
    if query_weight is not None:
        normed = step.result if rotation is None else writer.constant(numpy.empty_like(projected))
        operands = [of_x, of_query, of_key]
        writer.add(NORM_HEADS, step._replace(result=normed), operands, sizes, setting=eps, heads=heads)
        of_x = normed
    if rotation is not None:
        writer.add(ROTATE_HEADS, step, [of_x, of_rotation], sizes, heads=heads)


def is_cache(stored: Any, batch: int, heads: int, width: int) -> bool:
    """Return True for the first keys and values (2, batch, heads, length, width) in memory with room for as many or more."""
    length, plane = stored.shape[3], stored.strides[2]
    contiguous = (batch * heads * plane, heads * plane, plane, 4 * width, 4)
    is_roomy = 0 < length * 4 * width <= plane
    return is_roomy and stored.shape == (2, batch, heads, length, width) and stored.strides == contiguous


def _attention_step(writer: Assembler, step: KernelCall, projected: Any, stored: Any, num_heads: int, is_causal: bool) -> None:
    rows, length, width = projected.shape
    keys, d_head = stored.shape[2], stored.shape[4]
    is_usual = _is_usual(projected) and stored.dtype == numpy.float32
    if length != 1 or not is_usual or not is_cache(stored, rows, keys, d_head):
        raise Unfit
    writer.stored.add(step.arguments[1])
    scale = 1.0 / math.sqrt(d_head)
    sizes = rows, width, num_heads * d_head
    writer.add(ATTENTION, step, list(step.arguments[:2]), sizes, setting=scale, heads=(num_heads, keys))


def _memory_step(writer: Assembler, step: KernelCall, projected: Any, stored: Any, mask: Any, num_heads: int) -> None:
    """The instruction has the rows of the memory in place of the heads of keys."""
    texts, length, width = projected.shape
    _, rows, _, keys, d_head = stored.shape
    is_usual = mask is not None and _is_usual(mask, "bool") and mask.shape == (rows, 1, 1, keys)
    if length != 1 or not is_usual or stored.dtype != numpy.float32 or not is_cache(stored, rows, num_heads, d_head):
        raise Unfit
    _, of_stored, of_mask, _ = step.arguments
    writer.stored.add(of_stored)
    writer.contiguous.add(of_mask)
    setting, heads = 1.0 / math.sqrt(d_head), (num_heads, rows)
    writer.add(MEMORY, step, list(step.arguments[:3]), (texts, width, width), setting=setting, heads=heads)


def _view(writer: Assembler, step: KernelCall, x: Any, *settings: Any) -> None:
    """Write no instruction: it is a view of all elements in the same order, such as x[:, -1] of one position."""
    out = writer.values[step.result]
    if out.size != x.size or out.ctypes.data != x.ctypes.data or not _is_usual(out):
        raise Unfit
    writer.same[step.result] = writer.root(step.arguments[0])


# For each op that a compiled program can compute: the function that writes its instructions. A step with another name runs
# before the program, or keeps it from being compiled.
_WRITERS: dict[str, Callable[..., None]] = {
    "linear": _linear_step,
    "linear_blocks": _blocks_step,
    "add": _binary(ADD),
    "multiply": _binary(MULTIPLY),
    "relu": _activation(RELU),
    "silu": _silu_step,
    "gelu_tanh": _activation(GELU_TANH),
    "gelu_exact": _activation(GELU_EXACT),
    "layer_norm": _norm(LAYER_NORM),
    "rms_norm": _norm(RMS_NORM),
    "norm_and_rotate": _norm_and_rotate_step,
    "cached_attention": _attention_step,
    "memory_attention": _memory_step,
    "getitem": _view,
}
