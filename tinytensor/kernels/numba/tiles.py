"""Products of matrices small enough for the processor's cache, computed in loops: a tile of the result stays in registers.

LLVM vectorises a loop over numbers, but it does not keep several rows of a result in registers while it adds up their terms.
So a tile's product is written here in LLVM's own vectors. It reaches what BLAS reaches, in the middle of a loop.
"""

from __future__ import annotations

import functools
from typing import Any

from tinytensor.kernels.numba.compiling import ByDtype, loop

ROWS, COLUMNS = 8, 16  # of a tile: eight AVX-512 registers of float32


@loop
def whole_tiles(count: int, size: int) -> int:
    """``count`` rounded up to a multiple of ROWS or COLUMNS, as arrays that hold whole tiles need it."""
    return (count + size - 1) // size * size


class _Row(ByDtype):
    """row(x, i): x[i], whose elements lie side by side in memory, though x is a view. Only with that knowledge does LLVM vectorise."""

    def __init__(self) -> None:
        pass

    def compile(self, dtype: Any) -> Any:
        return _declare_row()


@functools.cache
def _declare_row() -> Any:
    from numba.core.imputils import impl_ret_borrowed
    from numba.extending import intrinsic

    @intrinsic
    def contiguous(typing: Any, x: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

        return x.copy(layout="C")(x), generate

    return contiguous


contiguous = _Row()


class _Tile(ByDtype):
    """add_product(a, b, start, stop, out, i, j): out[i:i+ROWS, j:j+COLUMNS] += a[i:i+ROWS, start:stop] @ b[start:stop, j:j+COLUMNS],
    and ``set_product``, which does not add. The last axes of b and out are contiguous. All of the tile is in the arrays."""

    def __init__(self, adds: bool):
        self.adds = adds

    def compile(self, dtype: Any) -> Any:
        return _declare(self.adds)


add_product, set_product = _Tile(adds=True), _Tile(adds=False)


@functools.cache
def _declare(adds: bool) -> Any:
    from numba import types
    from numba.extending import intrinsic

    @intrinsic
    def product(typing: Any, a: Any, b: Any, start: Any, stop: Any, out: Any, i: Any, j: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, _, first, last, _, i, j = arguments
            a, b, out = [context.make_array(signature.args[n])(context, builder, arguments[n]) for n in (0, 1, 4)]
            _generate(builder, context.get_value_type(signature.args[0].dtype), a, b, first, last, out, i, j, adds)
            return context.get_dummy_value()

        return types.void(a, b, types.intp, types.intp, out, types.intp, types.intp), generate

    return product


def _generate(
    builder: Any, number: Any, a: Any, b: Any, start: Any, stop: Any, out: Any, i: Any, j: Any, adds: bool
) -> None:
    """Write the tile's product: one loop over the terms, which adds b's row, times a's number, to each row of the tile."""
    from llvmlite import ir

    vector, byte, index = ir.VectorType(number, COLUMNS), ir.IntType(8).as_pointer(), start.type
    everywhere = ir.Constant(ir.VectorType(ir.IntType(32), COLUMNS), [0] * COLUMNS)

    def place(array: Any, row: Any, column: Any) -> Any:
        strides = [builder.extract_value(array.strides, axis) for axis in (0, 1)]
        offset = builder.add(builder.mul(row, strides[0]), builder.mul(column, strides[1]))
        return builder.gep(builder.bitcast(array.data, byte), [offset])

    def next_rows(array: Any, pointer: Any) -> list[Any]:
        stride = builder.extract_value(array.strides, 0)
        return [builder.gep(pointer, [builder.mul(stride, index(row))]) for row in range(ROWS)]

    def load(kind: Any, pointer: Any) -> Any:
        return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=_alignment(number))

    def repeated(x: Any) -> Any:
        empty = ir.Constant(vector, ir.Undefined)
        return builder.shuffle_vector(builder.insert_element(empty, x, ir.IntType(32)(0)), empty, everywhere)

    def multiply_add(x: Any, y: Any, z: Any) -> Any:
        return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))

    targets = next_rows(out, place(out, i, j))
    initial = [load(vector, target) if adds else ir.Constant(vector, [0.0] * COLUMNS) for target in targets]
    before, body, after = builder.block, builder.append_basic_block("terms"), builder.append_basic_block("end")
    of_a, of_b = place(a, i, start), place(b, start, j)
    strides = builder.extract_value(a.strides, 1), builder.extract_value(b.strides, 0)
    builder.cbranch(builder.icmp_signed("<", start, stop), body, after)

    builder.position_at_end(body)
    carried = [builder.phi(x.type) for x in (start, of_a, of_b, *initial)]
    term, p, q, *totals = carried
    row = load(vector, q)
    sums = [multiply_add(repeated(load(number, x)), row, total) for x, total in zip(next_rows(a, p), totals)]
    following = [builder.add(term, index(1)), builder.gep(p, [strides[0]]), builder.gep(q, [strides[1]]), *sums]
    for phi, x, y in zip(carried, (start, of_a, of_b, *initial), following):
        phi.add_incoming(x, before)
        phi.add_incoming(y, body)
    builder.cbranch(builder.icmp_signed("<", following[0], stop), body, after)

    builder.position_at_end(after)
    results = [builder.phi(vector) for _ in sums]
    for result, x, y in zip(results, initial, sums):
        result.add_incoming(x, before)
        result.add_incoming(y, body)
    for result, target in zip(results, targets):
        builder.store(result, builder.bitcast(target, vector.as_pointer()), align=_alignment(number))


def _alignment(number: Any) -> int:
    from llvmlite import ir

    return 4 if number == ir.FloatType() else 8
