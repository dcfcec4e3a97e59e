"""Dot products of inputs with rows of a weight in blocks of a few bits, in the processor's own instructions, and unpacking of
blocks.

The formats are those of ``kernels/numpy/quantized.py``. The input is rounded to 16 bits in blocks of 32, each with its own
scale. Rounding it to 8 bits would cost three times as much accuracy as rounding the weights, and as decoding waits for memory,
16 bits are almost free. So an input is 256 * high + low, two signed bytes.

A vector of 32 weights, as bytes, is multiplied by the bytes of 32 inputs. Groups of four neighbors are added to eight 32-bit
sums. These become float32, are multiplied by the scales of the weights and the input, and added up over the row. Every row is
added up in the same order, whichever rows are read with it.

Instructions: AVX-512 VNNI and AVX-VNNI (vpdpbusd), AVX2 (vpmaddubsw), ARM's dot products (sdot). Elsewhere LLVM chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tinytensor.kernels.numba.compiling import ByNumba
from tinytensor.kernels.numba.pointers import write_fetch
from tinytensor.kernels.numba.processor import has
from tinytensor.kernels.numpy.quantized import BLOCK_TYPES

INPUTS = 32  # that share a scale
VNNI, AVX2, NEON, PLAIN = "vnni", "avx2", "neon", "plain"  # the sets of instructions


def instructions() -> str:
    """Return the best instructions that the processor has for products of bytes."""
    if has("avxvnni") or (has("avx512vnni") and has("avx512vl")):
        return VNNI
    if has("avx2"):
        return AVX2
    return NEON if has("dotprod") else PLAIN


CODES = {name: code for code, name in enumerate(BLOCK_TYPES) if name != "BF16"}  # of the block types, in loops


def block_dots(columns: int, instruction_set: str = "") -> ByNumba:
    """``dots(code, x, factors, sums, weight, row, width, out)``: the products of an input with ``columns`` rows of a weight.

    ``code`` is the block type, ``row`` the bytes from one row of the weight to the next, and ``width`` the size of the input,
    whole blocks. The others are addresses. For each INPUTS inputs, x has as many high bytes and then low ones, ``factors`` a
    float32 scale, and ``sums`` three float32: the scale times the sum of the 16-bit integers, of the first 16 alone, and of the
    last 16. ``out`` takes a float32 for each column.
    """

    def make(dtype: Any) -> Callable[..., Any]:
        from numba import types
        from numba.extending import intrinsic

        def dots(context: Any, code: Any, x: Any, factors: Any, sums: Any, weight: Any, row: Any, width: Any, out: Any) -> Any:
            write = _for_each_type(instruction_set, lambda writer, name, *operands: writer.rows(name, columns, *operands))
            return types.void(*[types.int64] * 8), write

        return intrinsic(dots)

    return ByNumba(make)


def unpack_block(instruction_set: str = "") -> ByNumba:
    """``unpack(code, block, out)``: writes the weights in a block of type ``code`` from one address to another, as float32."""

    def make(dtype: Any) -> Callable[..., Any]:
        from numba import types
        from numba.extending import intrinsic

        def unpack(context: Any, code: Any, block: Any, out: Any) -> Any:
            return types.void(*[types.int64] * 3), _for_each_type(instruction_set, _Writer.unpack)

        return intrinsic(unpack)

    return ByNumba(make)


def _for_each_type(instruction_set: str, write: Callable[..., None]) -> Callable[..., Any]:
    """Return a generator of a function whose first argument is the code of a block type. ``write(writer, type, *others)``
    writes its instructions for a type."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        code, *operands = arguments
        writer, end = _Writer(builder, instruction_set or instructions()), builder.append_basic_block()
        switch = builder.switch(code, end)
        for block_type, number in CODES.items():
            case = builder.append_basic_block()
            switch.add_case(number, case)
            builder.position_at_end(case)
            write(writer, block_type, *operands)
            builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return generate


class Weights(NamedTuple):
    """A multiple of 32 weights, as LLVM's values."""

    weights: list[Any]  # vectors of 32 bytes
    signed: bool
    scales: Any  # a vector with one for each 32 weights, or two, for 16 weights each
    minima: Any = None  # as many, added to the scaled products


class _Writer:
    """Writes instructions with an LLVM builder. An "address" is an integer in a register."""

    def __init__(self, builder: Any, instruction_set: str):
        from llvmlite import ir

        self.builder, self.instruction_set, self.ir = builder, instruction_set, ir
        self.byte, self.short, self.word, self.long = (ir.IntType(bits) for bits in (8, 16, 32, 64))
        self.float = ir.FloatType()
        self.bytes, self.words = ir.VectorType(self.byte, 32), ir.VectorType(self.word, 8)
        self.floats = ir.VectorType(self.float, 8)

    # ------------------------------------------------------------------------------------------- single instructions

    def at(self, address: Any, offset: int) -> Any:
        return self.builder.add(address, self.long(offset)) if offset else address

    def load(self, ir_type: Any, address: Any, offset: int = 0, align: int = 1) -> Any:
        return self.builder.load(self.builder.inttoptr(self.at(address, offset), ir_type.as_pointer()), align=align)

    def call(self, name: str, result: Any, *arguments: Any, fastmath: tuple[str, ...] = ()) -> Any:
        """Call one of LLVM's own functions."""
        signature = self.ir.FunctionType(result, [each.type for each in arguments])
        known = self.builder.module.globals
        return self.builder.call(
            known.get(name) or self.ir.Function(self.builder.module, signature, name), arguments, fastmath=fastmath
        )

    def splat(self, value: Any, vector_type: Any) -> Any:
        """Return a vector of equal numbers."""
        if isinstance(value, int):
            return self.ir.Constant(vector_type, [value] * vector_type.count)
        undefined = self.ir.Constant(vector_type, self.ir.Undefined)
        first = self.builder.insert_element(undefined, value, self.word(0))
        return self.pick(first, [0] * vector_type.count)

    def pick(self, vector: Any, positions: list[int], other: Any = None) -> Any:
        """Return the elements at some positions of a vector, or of two vectors joined."""
        mask = self.ir.Constant(self.ir.VectorType(self.word, len(positions)), positions)
        return self.builder.shuffle_vector(vector, vector if other is None else other, mask)

    def join(self, low: Any, high: Any) -> Any:
        return self.pick(low, list(range(2 * low.type.count)), high)

    def add_product(self, total: Any, a: Any, b: Any) -> Any:
        if total is None:  # a product that may be rounded or not would depend on the code around it
            return self.builder.fmul(a, b)
        return self.builder.fadd(total, self.builder.fmul(a, b, flags=("contract",)), flags=("contract",))

    def as_floats(self, bits: Any) -> Any:
        """Convert float16, a vector of bits, to float32."""
        b, count = self.builder, bits.type.count
        floats, words = self.ir.VectorType(self.float, count), self.ir.VectorType(self.word, count)
        if self.instruction_set != PLAIN or has("f16c"):
            return b.fpext(b.bitcast(bits, self.ir.VectorType(self.ir.HalfType(), count)), floats)
        bits = b.zext(bits, words)
        sign = b.shl(b.and_(bits, self.splat(0x8000, words)), self.splat(16, words))
        size = b.bitcast(b.shl(b.and_(bits, self.splat(0x7FFF, words)), self.splat(13, words)), floats)
        size = b.fmul(size, self.splat(self.float(2.0**112), floats))  # the difference of the exponents' biases
        return b.bitcast(b.or_(b.bitcast(size, words), sign), floats)

    def half(self, address: Any, offset: int, vector_type: Any) -> Any:
        """Return a vector filled with a float16 number, as float32."""
        return self.pick(self.as_floats(self.load(self.ir.VectorType(self.short, 1), address, offset)), [0] * vector_type.count)

    def starts(self, bits: int, block: Any, size: int, count: int) -> Any:
        """Return the first bits of ``count`` blocks of this size, as a vector of integers."""
        number = self.ir.IntType(bits)
        out = self.ir.Constant(self.ir.VectorType(number, count), self.ir.Undefined)
        for each in range(count):
            out = self.builder.insert_element(out, self.load(number, block, each * size), self.word(each))
        return out

    # --------------------------------------------------------------------------------------------- products of bytes

    def dot(self, weights: Any, x: Any, signed: bool) -> Any:
        """Return eight sums of four products, float32, of 32 weights and the 32 inputs at the address x. Unsigned weights are
        below 64."""
        b = self.builder
        high, low = (self.load(self.bytes, x, offset) for offset in (0, INPUTS))
        if self.instruction_set in (VNNI, AVX2) and signed:  # one factor must be unsigned: the other takes its sign
            high, low = (self.call("llvm.x86.avx2.psign.b", self.bytes, each, weights) for each in (high, low))
            weights = self.call("llvm.abs.v32i8", self.bytes, weights, self.ir.IntType(1)(0))
        sums = self.add_products(self.splat(0, self.words), weights, high)
        return b.sitofp(self.add_products(b.shl(sums, self.splat(8, self.words)), weights, low), self.floats)

    def add_products(self, sums: Any, weights: Any, x: Any) -> Any:
        """Add four products of the bytes of two vectors to each of the eight sums."""
        b = self.builder
        if self.instruction_set == VNNI:
            four = [b.bitcast(each, self.words) for each in (weights, x)]
            return self.call("llvm.x86.avx512.vpdpbusd.256", self.words, sums, *four)
        if self.instruction_set == AVX2:
            shorts = self.ir.VectorType(self.short, 16)
            pairs = self.call("llvm.x86.avx2.pmadd.ub.sw", shorts, weights, x)
            return b.add(sums, self.call("llvm.x86.avx2.pmadd.wd", self.words, pairs, self.splat(1, shorts)))
        if self.instruction_set == NEON:
            four, parts = self.ir.VectorType(self.word, 4), []
            for half in range(2):
                factors = [self.pick(each, list(range(16 * half, 16 * half + 16))) for each in (weights, x)]
                part_sums = self.pick(sums, list(range(4 * half, 4 * half + 4)))
                parts.append(self.call("llvm.aarch64.neon.sdot.v4i32.v16i8", four, part_sums, *factors))
            return self.join(*parts)
        shorts = self.ir.VectorType(self.short, 32)
        products = b.mul(b.sext(weights, shorts), b.sext(x, shorts))  # at most 128 * 127
        for first in range(4):
            sums = b.add(sums, b.sext(self.pick(products, list(range(first, 32, 4))), self.words))
        return sums

    def nibbles(self, bytes_: Any) -> tuple[Any, Any]:
        """Return the lower and the upper halves of bytes."""
        vector_type = bytes_.type
        return self.builder.and_(bytes_, self.splat(15, vector_type)), self.builder.lshr(bytes_, self.splat(4, vector_type))

    # ------------------------------------------- the next weights of each type: of ``count`` blocks, or of one large block

    def q8_0(self, block: Any, count: int) -> Weights:
        scales = self.as_floats(self.starts(16, block, 34, count))
        return Weights([self.load(self.bytes, block, 34 * each + 2) for each in range(count)], True, scales)

    def q4_0(self, block: Any, count: int) -> Weights:
        scales = self.as_floats(self.starts(16, block, 18, count))
        minima = self.builder.fmul(scales, self.splat(self.float(-8.0), scales.type))
        return Weights([self.four_bits(block, 18 * each + 2) for each in range(count)], False, scales, minima)

    def q4_1(self, block: Any, count: int) -> Weights:
        b, shorts = self.builder, self.ir.VectorType(self.short, count)
        both = self.starts(32, block, 20, count)
        scales, minima = (self.as_floats(b.trunc(bits, shorts)) for bits in (both, b.lshr(both, self.splat(16, both.type))))
        return Weights([self.four_bits(block, 20 * each + 4) for each in range(count)], False, scales, minima)

    def four_bits(self, block: Any, offset: int) -> Any:
        return self.join(*self.nibbles(self.load(self.ir.VectorType(self.byte, 16), block, offset)))

    def q4_k(self, block: Any, count: int) -> Weights:
        b, eight = self.builder, self.ir.VectorType(self.byte, 8)
        low, mid, high = (self.load(self.word, block, offset) for offset in (4, 8, 12))

        def six_bits(lower: Any, upper: Any) -> Any:
            upper = b.or_(upper, b.and_(b.lshr(lower, self.word(2)), self.word(0x30303030)))
            both = b.insert_element(self.ir.Constant(self.ir.VectorType(self.word, 2), self.ir.Undefined), lower, self.word(0))
            both = b.and_(b.insert_element(both, upper, self.word(1)), self.splat(0x3F3F3F3F, both.type))
            return b.uitofp(b.bitcast(both, eight), self.floats)

        nibble = self.word(0x0F0F0F0F)
        scales, minima = six_bits(low, b.and_(high, nibble)), six_bits(mid, b.and_(b.lshr(high, self.word(4)), nibble))
        scales = b.fmul(scales, self.half(block, 0, self.floats))
        minima = b.fneg(b.fmul(minima, self.half(block, 2, self.floats)))
        pairs = [self.nibbles(self.load(self.bytes, block, 16 + 32 * pair)) for pair in range(4)]
        return Weights([weights for pair in pairs for weights in pair], False, scales, minima)

    def q6_k(self, block: Any, count: int) -> Weights:
        b = self.builder
        scales = b.sitofp(self.load(self.ir.VectorType(self.byte, 16), block, 192), self.ir.VectorType(self.float, 16))
        scales = b.fmul(scales, self.half(block, 208, scales.type))
        weights = []
        for part in range(2):
            low = [self.nibbles(self.load(self.bytes, block, 64 * part + 32 * half)) for half in range(2)]
            high = self.load(self.bytes, block, 128 + 32 * part)
            for quarter in range(4):
                two = b.and_(b.lshr(high, self.splat(2 * quarter, self.bytes)), self.splat(3, self.bytes))
                weights.append(b.or_(low[quarter % 2][quarter // 2], b.shl(two, self.splat(4, self.bytes))))
        return Weights(weights, False, scales, b.fmul(scales, self.splat(self.float(-32.0), scales.type)))

    def unpack(self, block_type: str, block: Any, out: Any) -> None:
        """Write the weights of a block to an address, as float32."""
        b, packed = self.builder, getattr(self, block_type.lower())(block, BLOCK_TYPES[block_type].size // INPUTS)
        halves = packed.scales.type.count // len(packed.weights)
        for position in range(0, len(packed.weights) * INPUTS, 8):
            weights = self.pick(packed.weights[position // INPUTS], list(range(position % INPUTS, position % INPUTS + 8)))
            numbers = (b.sitofp if packed.signed else b.uitofp)(weights, self.floats)
            group = [position * halves // INPUTS] * 8
            numbers = b.fmul(numbers, self.pick(packed.scales, group))
            if packed.minima is not None:
                numbers = b.fadd(numbers, self.pick(packed.minima, group))
            target = b.inttoptr(self.at(out, 4 * position), self.floats.as_pointer())
            b.store(numbers, target, align=4)

    # ------------------------------------------------------------------------------------------------------ whole rows

    def add_weights(self, total: Any, packed: Weights, x: Any, factors: Any, sums: Any) -> Any:
        """Add the products of these weights and inputs to the eight sums."""
        b, count = self.builder, len(packed.weights)
        some = self.ir.VectorType(self.float, count)
        of_x, zeros = self.load(some, factors), self.ir.Constant(some, [0.0] * count)
        halves = packed.scales.type.count // count  # scales for each 32 weights
        scales = b.fmul(packed.scales, self.pick(of_x, [each // halves for each in range(halves * count)]))
        if packed.minima is not None:
            for half in range(halves):
                of_half = self.load(some, sums if halves == 1 else b.add(sums, b.mul(self.stride, self.long(1 + half))))
                minima = self.pick(packed.minima, list(range(half, halves * count, halves)))
                correction = self.pick(b.fmul(minima, of_half), [min(each, count) for each in range(8)], zeros)
                total = b.fadd(total, correction)
        parts: list[Any] = [None, None]  # two sums, so that additions wait less for one another
        for each, weights in enumerate(packed.weights):
            product = self.dot(weights, self.at(x, 2 * each * INPUTS), packed.signed)
            scale = self.pick(scales, [halves * each + half for half in range(halves) for _ in range(8 // halves)])
            parts[each % 2] = self.add_product(parts[each % 2], product, scale)
        return b.fadd(total, parts[0] if count == 1 else b.fadd(*parts))

    def rows(
        self, block_type: str, columns: int, x: Any, factors: Any, sums: Any, weight: Any, row: Any, width: Any, out: Any
    ) -> None:
        """Write the products with ``columns`` rows of a weight."""
        self.stride = self.builder.lshr(width, self.long(3))  # of the sums: 4 bytes for each 32 inputs
        values: list[Any] = [width, x, factors, sums, weight] + [self.ir.Constant(self.floats, [0.0] * 8)] * columns
        for count in (1,) if BLOCK_TYPES[block_type].size > INPUTS else (8, 1):
            values = self.loop(block_type, columns, row, values, count)
        for column, total in enumerate(values[5:]):
            zero = self.ir.Constant(self.float, -0.0)
            value = self.call("llvm.vector.reduce.fadd.v8f32", self.float, zero, total, fastmath=("reassoc",))
            self.builder.store(value, self.builder.inttoptr(self.at(out, 4 * column), self.float.as_pointer()), align=4)

    def loop(self, block_type: str, columns: int, row: Any, values: list[Any], count: int) -> list[Any]:
        """Write a loop over ``count`` blocks at a time while so many are left. Returns the values at its end."""
        b, layout = self.builder, BLOCK_TYPES[block_type]
        size, bytes_ = count * layout.size, count * layout.bytes
        before, head, body, end = b.block, *(b.append_basic_block() for _ in range(3))
        b.branch(head)
        b.position_at_end(head)
        phis = [b.phi(value.type) for value in values]
        for phi, value in zip(phis, values):
            phi.add_incoming(value, before)
        left, x, factors, sums, weight, *totals = phis
        b.cbranch(b.icmp_signed(">=", left, self.long(size)), body, end)
        b.position_at_end(body)
        steps = (-size, 2 * size, 4 * size // INPUTS, 4 * size // INPUTS, bytes_)
        after = [self.at(value, step) for value, step in zip(phis, steps)]
        for column, total in enumerate(totals):
            block = b.add(weight, b.mul(row, self.long(column)))
            if columns > 1:  # the processor prefetches only one sequential stream
                for line in range(0, bytes_, 64):
                    write_fetch(b, b.add(self.at(block, line), b.mul(row, self.long(columns))), level=3)
            after.append(self.add_weights(total, getattr(self, block_type.lower())(block, count), x, factors, sums))
        for phi, value in zip(phis, after):
            phi.add_incoming(value, b.block)
        b.branch(head)
        b.position_at_end(end)
        return phis
