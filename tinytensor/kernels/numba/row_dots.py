"""Dot products of a float32 row with rows of a weight, in vectors as wide as a cache line.

With AVX-512, LLVM's own vectors are half as wide, and its loop over 16-bit numbers is slower than memory. Each row of the
weight is added up in the same order, whichever rows are read with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy

from tinytensor.kernels.numba.compiling import ByNumba, Later, loop
from tinytensor.kernels.numba.pointers import array_at, bits_at, write_fetch
from tinytensor.kernels.numba.processor import reads_several_rows

_LANES = 16  # float32 numbers in a line
_LINE = 4 * _LANES
_SEVERAL: Any = Later(lambda: _several())
_HALF = numpy.uint32(16)  # bits


def _several() -> int:
    """Return how many rows of the weight are read at a time."""
    return 4 if reads_several_rows() else 1


def _dots(is_bfloat16: bool) -> ByNumba:
    """``dots(x, weight, row, size, out)``: the sums over the first ``size`` bytes of ``_several()`` rows of a weight. Rows
    begin ``row`` bytes apart. All lines must be whole.

    x, weight and out are addresses. In bfloat16 a line of the weight holds twice as many numbers, so x has two parts of
    ``size`` bytes: the elements at even positions, then those at odd ones.
    """

    def make(dtype: Any) -> Callable[..., Any]:
        from numba import types
        from numba.extending import intrinsic

        def dots(context: Any, x: Any, weight: Any, row: Any, size: Any, out: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                write_dots(builder, is_bfloat16, _several(), *arguments)
                return context.get_dummy_value()

            return types.void(*[types.int64] * 5), generate

        return intrinsic(dots)

    return ByNumba(make)


def write_dots(builder: Any, is_bfloat16: bool, rows: int, x: Any, weight: Any, row: Any, size: Any, out: Any) -> None:
    """Write the instructions of ``_dots``."""
    from llvmlite import ir

    long, word, number = ir.IntType(64), ir.IntType(32), ir.FloatType()
    words, numbers = ir.VectorType(word, _LANES), ir.VectorType(number, _LANES)
    unrolled = max(1, 4 // rows)  # sums of one row, so that they need not wait for one another
    halves = 2 if is_bfloat16 else 1

    def load(address: Any, ir_type: Any) -> Any:
        return builder.load(builder.inttoptr(address, ir_type.as_pointer()), align=4 // halves)

    def of_weight(address: Any) -> list[Any]:
        """Return the numbers of a line as float32 vectors: those at even positions, then at odd ones."""
        if not is_bfloat16:
            return [load(address, numbers)]
        both = load(address, words)  # the second of two neighbours has the upper half
        even = builder.shl(both, ir.Constant(words, [16] * _LANES))
        odd = builder.and_(both, ir.Constant(words, [0xFFFF0000] * _LANES))
        return [builder.bitcast(each, numbers) for each in (even, odd)]

    def add_product(total: Any, a: Any, b: Any) -> Any:
        return builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))

    def add_line(at: Any, sums: list[Any]) -> list[Any]:
        """Return the sums (rows, halves) after one more line of each row."""
        of_x = [load(builder.add(x, builder.add(at, builder.mul(size, long(half)))), numbers) for half in range(halves)]
        new = []
        for i in range(rows):
            address = builder.add(builder.add(weight, builder.mul(row, long(i))), at)
            if rows > 1:  # the processor prefetches only one sequential stream
                write_fetch(builder, builder.add(address, builder.mul(row, long(rows))), level=3)
            line = of_weight(address)
            new += [add_product(sums[i * halves + half], of_x[half], line[half]) for half in range(halves)]
        return new

    def add_lines(count: int, first: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
        """Write a loop that adds ``count`` lines at a time while so many are left. Returns where it ends, and the sums."""
        before, head, body, end = builder.block, *(builder.append_basic_block() for _ in range(3))
        builder.branch(head)
        builder.position_at_end(head)
        phis = [builder.phi(value.type) for value in (first, *sums)]
        for phi, value in zip(phis, (first, *sums)):
            phi.add_incoming(value, before)
        at, held = phis[0], phis[1:]
        after, each = builder.add(at, long(count * _LINE)), rows * halves
        builder.cbranch(builder.icmp_signed("<=", after, size), body, end)
        builder.position_at_end(body)
        new = list(held)
        for step in range(count):
            part = slice(step * each, (step + 1) * each)
            new[part] = add_line(builder.add(at, long(step * _LINE)), new[part])
        for phi, value in zip(phis, (after, *new)):
            phi.add_incoming(value, body)
        builder.branch(head)
        builder.position_at_end(end)
        return at, held

    sums: list[Any] = [ir.Constant(numbers, [0.0] * _LANES)] * (unrolled * rows * halves)
    at, sums = add_lines(unrolled, long(0), sums)
    if unrolled > 1:
        at, sums = add_lines(1, at, sums)
    name = f"llvm.vector.reduce.fadd.v{_LANES}f32"
    signature = ir.FunctionType(number, [number, numbers])
    add_up = builder.module.globals.get(name) or ir.Function(builder.module, signature, name)
    for i in range(rows):
        partial_sums = [sums[step * rows * halves + i * halves + half] for step in range(unrolled) for half in range(halves)]
        while len(partial_sums) > 1:
            partial_sums = [builder.fadd(a, b) for a, b in zip(partial_sums[::2], partial_sums[1::2])]
        total = builder.call(add_up, [ir.Constant(number, -0.0), partial_sums[0]], fastmath=("reassoc",))
        builder.store(total, builder.inttoptr(builder.add(out, long(4 * i)), number.as_pointer()), align=4)


_float32_dots, _bfloat16_dots = _dots(False), _dots(True)


@loop
def float32_part(x: Any, weight: int, bias: Any, out: Any) -> None:
    """Compute outputs of a linear layer: out (rows, count) from x (rows, width) and ``count`` rows of the weight at an address.

    The last rows may be read twice, so that all are added up in the same order.
    """
    rows, width = x.shape
    full, count = width // _LANES * _LANES, bias.size
    together = _SEVERAL if count >= _SEVERAL else 1
    sums = numpy.empty(_SEVERAL, numpy.float32)
    for j in range(0, count, together):
        first = min(j, count - together)
        row = 4 * width if together == _SEVERAL else 0
        for i in range(rows):
            _float32_dots(x.ctypes.data + 4 * i * width, weight + 4 * first * width, row, 4 * full, sums.ctypes.data)
            for each in range(together):
                total, weight_row = sums[each], array_at(weight + 4 * (first + each) * width, width)
                for k in range(full, width):
                    total += x[i, k] * weight_row[k]
                out[i, first + each] = total + bias[first + each]


@loop
def bfloat16_part(x: Any, weight: int, bias: Any, out: Any) -> None:
    """``float32_part`` with a weight in bfloat16."""
    rows, width = x.shape
    full, count = width // (2 * _LANES) * (2 * _LANES), bias.size
    together = _SEVERAL if count >= _SEVERAL else 1
    sums, halves = numpy.empty(_SEVERAL, numpy.float32), numpy.empty((rows, 2, full // 2), numpy.float32)
    for i in range(rows):
        for k in range(full // 2):
            halves[i, 0, k], halves[i, 1, k] = x[i, 2 * k], x[i, 2 * k + 1]
    for j in range(0, count, together):
        first = min(j, count - together)
        row = 2 * width if together == _SEVERAL else 0
        for i in range(rows):
            _bfloat16_dots(halves.ctypes.data + 4 * i * full, weight + 2 * first * width, row, 2 * full, sums.ctypes.data)
            for each in range(together):
                total, weight_row = sums[each], bits_at(weight + 2 * (first + each) * width, width)
                for k in range(full, width):
                    total += x[i, k] * numpy.uint32(numpy.uint32(weight_row[k]) << _HALF).view(numpy.float32)
                out[i, first + each] = total + bias[first + each]
