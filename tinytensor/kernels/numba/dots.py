"""Dot products of 8-bit integers, by the instructions that processors have for them.

Such an instruction multiplies four neighbouring integers of one vector by those of another, and adds the four products to a
32-bit sum. Those of x86-64 take one factor without a sign: it gets the weights plus 128, and the sums begin at what that adds
too much. On other processors a plain loop does the same. All are exact, and so give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tinytensor.kernels.numba.compiling import ByNumba, Later
from tinytensor.kernels.numba.pointers import bytes_at, integers_at, write_fetch
from tinytensor.kernels.numba.processor import has


class Way(NamedTuple):
    """An instruction: its name in LLVM, how many sums are in its vectors, and what is added to weights (bit 7 is inverted)."""

    instruction: str
    sums: int
    added: int

    @property
    def bytes(self) -> int:
        """The bytes of a vector."""
        return 4 * self.sums


AVX512 = Way("llvm.x86.avx512.vpdpbusd.512", 16, 128)
AVX = Way("llvm.x86.avx512.vpdpbusd.256", 8, 128)
NEON = Way("llvm.aarch64.neon.sdot.v4i32.v16i8", 4, 0)
PLAIN = Way("", 1, 0)


def way() -> Way:
    """The widest that the processor has."""
    if has("avx512vnni"):
        return AVX512 if has("avx512f") else PLAIN
    if has("avxvnni"):
        return AVX
    return NEON if has("dotprod") else PLAIN


START = Later(lambda: -way().added)  # of sums, times the sum of the factors
BYTES = Later(lambda: way().bytes)


def dots(rows: int, columns: int) -> ByNumba:
    """``dots(x, starts, weight, width, out, stride)``: the dot products of some ``rows`` of x and some ``columns``, which are
    rows of a weight.

    All are addresses: of x (rows, width) int8, of the weight (columns, width) int8, and of the sums (rows, stride) int32, of
    which the first ``columns`` in each row are written. At ``starts`` there is an int32 for each row of x: -128 times the sum
    of its first numbers, as many as whole vectors have, where the way adds 128 to weights; otherwise 0.
    """
    return ByNumba(lambda dtype: compiled_dots(way(), rows, columns))


def compiled_dots(way: Way, rows: int, columns: int) -> Callable[..., Any]:
    """The function for one way. Numba compiles it together with what calls it."""
    import numba
    from numba import types
    from numba.extending import intrinsic

    vectors = write_vectors(way, rows, columns)

    @intrinsic  # type: ignore[untyped-decorator]
    def whole_vectors(context: Any, x: Any, starts: Any, weight: Any, width: Any, out: Any, stride: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vectors(builder, *arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 6), generate

    size, is_plain, int32 = way.bytes, way is PLAIN, numba.int32
    bytes_of, integers_of = bytes_at.compile(None), integers_at.compile(None)

    @numba.njit
    def dots(x, starts, weight, width, out, stride):  # type: ignore[no-untyped-def]
        of_x, of_weight = bytes_of(x, rows * width), bytes_of(weight, columns * width)
        sums = integers_of(out, rows * stride)
        whole = 0
        if not is_plain:
            whole = width // size * size
            whole_vectors(x, starts, weight, width, out, stride)
        if is_plain or whole < width:
            for i in range(rows):
                for j in range(columns):
                    total = int32(0)
                    for k in range(whole, width):
                        total += int32(of_x[i * width + k]) * int32(of_weight[j * width + k])
                    sums[i * stride + j] = total if is_plain else sums[i * stride + j] + total

    return dots


def write_vectors(way: Way, rows: int, columns: int) -> Callable[..., None]:
    """A function that writes the instructions for all whole vectors, with a builder of LLVM's, to where the builder is. Its
    other arguments are the six of ``dots``."""
    from llvmlite import ir

    one, long, byte = ir.IntType(32), ir.IntType(64), ir.IntType(8)
    ones = ir.VectorType(one, way.sums)
    bytes_ = ir.VectorType(byte, way.bytes)
    factors = bytes_ if way is NEON else ones  # how LLVM declares the instruction
    unrolled = max(1, 4 // (rows * columns))  # sums of the same product, so that the next need not wait for the one before

    def write(builder: Any, x: Any, starts: Any, weight: Any, width: Any, out: Any, stride: Any) -> None:
        def number(value: int) -> Any:
            return ir.Constant(long, value)

        def function(name: str, kind: Any) -> Any:
            return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)

        def place(base: Any, row: int, k: Any, step: int) -> Any:
            return builder.add(builder.add(base, builder.mul(width, number(row))), builder.add(k, number(step * way.bytes)))

        def vector(base: Any, row: int, k: Any, step: int) -> Any:
            return builder.load(builder.inttoptr(place(base, row, k, step), factors.as_pointer()), align=1)

        def unsigned(values: Any) -> Any:
            return builder.xor(values, ir.Constant(factors, [0x80808080] * way.sums)) if way.added else values

        multiply = function(way.instruction, ir.FunctionType(ones, [ones, factors, factors]))
        add_up = function(f"llvm.vector.reduce.add.v{way.sums}i32", ir.FunctionType(one, [ones]))

        def steps(count: int, k: Any, sums: list[Any]) -> list[Any]:
            """The sums after so many more vectors."""
            new = list(sums)
            for step in range(count):
                if rows == 1 and columns > 1:  # from memory; see row_dots.py
                    for j in range(columns, 2 * columns):
                        write_fetch(builder, place(weight, j, k, step), level=3)
                of_weight = [unsigned(vector(weight, j, k, step)) for j in range(columns)]
                for i in range(rows):
                    of_x = vector(x, i, k, step)
                    for j in range(columns):
                        at = (step * rows + i) * columns + j
                        new[at] = builder.call(multiply, [new[at], of_weight[j], of_x])
            return new

        def loop(count: int, first: Any, last: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
            """Steps of ``count`` vectors as long as they are whole: where they end, and the sums."""
            before = builder.block
            head, body, end = (builder.append_basic_block() for _ in range(3))
            builder.branch(head)
            builder.position_at_end(head)
            k = builder.phi(long)
            k.add_incoming(first, before)
            held = [builder.phi(ones) for _ in sums]
            for phi, value in zip(held, sums):
                phi.add_incoming(value, before)
            after = builder.add(k, number(count * way.bytes))
            builder.cbranch(builder.icmp_signed("<=", after, last), body, end)
            builder.position_at_end(body)
            for phi, value in zip(held, steps(count, k, held)):
                phi.add_incoming(value, body)
            k.add_incoming(after, body)
            builder.branch(head)
            builder.position_at_end(end)
            return k, held

        zeros = ir.Constant(ones, [0] * way.sums)
        sums = [zeros] * (unrolled * rows * columns)
        for i in range(rows):
            start = builder.load(builder.inttoptr(builder.add(starts, number(4 * i)), one.as_pointer()))
            sums[i * columns : (i + 1) * columns] = [builder.insert_element(zeros, start, ir.Constant(one, 0))] * columns
        k, sums = loop(unrolled, number(0), width, sums)
        if unrolled > 1:
            k, sums = loop(1, k, width, sums)
        for i in range(rows):
            for j in range(columns):
                total = sums[i * columns + j]
                for more in sums[rows * columns + i * columns + j :: rows * columns]:
                    total = builder.add(total, more)
                at = builder.add(builder.mul(stride, number(4 * i)), number(4 * j))
                builder.store(builder.call(add_up, [total]), builder.inttoptr(builder.add(out, at), one.as_pointer()))

    return write
