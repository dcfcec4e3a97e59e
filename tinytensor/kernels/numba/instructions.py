"""From the steps of a traced program to the instructions that program_loops.py runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy

from tinytensor.kernels.steps import Step

_LINEAR, _ADD, _MULTIPLY, _RELU, _SILU, _GELU_TANH, _GELU_EXACT, _LAYER_NORM, _RMS_NORM, _ATTENTION = range(10)
_ROWS, _WIDTH, _OUTPUTS, _SIZE, _PARTS = range(5, 10)  # places in an instruction

_MOST_ROWS = 8  # with more, NumPy's products are faster


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
        for slot in {*slots, step.result} - (self.stored if kernel == _ATTENTION else set()):
            if not _is_usual(self.values[slot]):
                raise _Unfit
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
    if length != 1 or stored.dtype != numpy.float32:
        raise _Unfit
    writer.stored.add(step.arguments[1])
    scale = 1.0 / math.sqrt(width // (3 * num_heads))
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
