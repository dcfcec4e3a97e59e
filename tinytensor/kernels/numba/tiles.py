"""Matrix products in loops, for matrices that fit the processor's cache: out = a @ b, one tile of out after another.

The terms of a tile are added up in registers. LLVM does not vectorise such a loop itself, so it is written in LLVM's vectors.
It runs about as fast as BLAS on large matrices.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from tinytensor.kernels.numba.compiling import ByNumba, Later, loop
from tinytensor.kernels.numba.processor import has

# The rows of a tile that the registers hold, an integer in loops. A row of float32 numbers takes one register of AVX-512, or
# several smaller ones.
ROWS: Any = Later(lambda: 8 if has("avx512f") else 4)
COLUMNS = 16  # of a tile; a multiple of ROWS


@loop
def whole_tiles(count: int, size: int) -> int:
    """Round ``count`` up to a multiple of ROWS or COLUMNS."""
    return (count + size - 1) // size * size


@ByNumba
def contiguous(dtype: Any) -> Any:
    """contiguous(x): a view x of one axis, known to be contiguous. LLVM vectorises a loop only then."""
    from numba.core.imputils import impl_ret_borrowed
    from numba.extending import intrinsic

    def function(typing: Any, x: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

        return x.copy(layout="C")(x), write

    return intrinsic(function)


class Matrix(NamedTuple):
    """The position of a matrix, as LLVM's values: a pointer, and the byte strides of rows and columns."""

    pointer: Any
    row: Any
    column: Any


def _product(dtype: Any, adds: bool) -> Any:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic

    def function(typing: Any, a: Any, b: Any, start: Any, stop: Any, out: Any, i: Any, j: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            def element(argument: int, row: Any, column: Any) -> Matrix:
                """The position of an element of an array."""
                array = context.make_array(signature.args[argument])(context, builder, arguments[argument])
                strides = builder.extract_value(array.strides, 0), builder.extract_value(array.strides, 1)
                pointer = builder.bitcast(array.data, ir.IntType(8).as_pointer())
                for stride, count in zip(strides, (row, column)):
                    pointer = builder.gep(pointer, [builder.mul(stride, count)])
                return Matrix(pointer, *strides)

            _, _, start, stop, _, i, j = arguments
            target = element(4, i, j)
            element_type = context.get_value_type(signature.args[4].dtype), signature.args[4].dtype.bitwidth // 8
            before = target if adds else None
            write_tile(
                builder,
                *element_type,
                ROWS.compute(),
                1,
                builder.sub(stop, start),
                element(0, i, start),
                element(1, start, j),
                before,
                target,
            )
            return context.get_dummy_value()

        return types.void(a, b, types.intp, types.intp, out, types.intp, types.intp), write

    return intrinsic(function)


# (a, b, start, stop, out, i, j): out[i:i+ROWS, j:j+COLUMNS] = a[i:i+ROWS, start:stop] @ b[start:stop, j:j+COLUMNS]. The last
# axes of b and out are contiguous. Bounds are not checked.
set_product = ByNumba(functools.partial(_product, adds=False))
add_product = ByNumba(functools.partial(_product, adds=True))  # out += instead of out =


def write_tile(
    builder: Any,
    number: Any,
    size: int,
    rows: int,
    vectors: int,
    terms: Any,
    a: Matrix,
    b: Matrix,
    before: Matrix | None,
    out: Matrix,
) -> None:
    """Write the instructions of out = before + a @ b: a loop over the terms that adds a's column times b's row to the tile.
    ``size`` is the bytes of an element. The tile's rows have ``vectors`` vectors of COLUMNS elements."""
    from llvmlite import ir

    vector, integer = ir.VectorType(number, COLUMNS), terms.type
    undefined, everywhere = (
        ir.Constant(vector, ir.Undefined),
        ir.Constant(ir.VectorType(ir.IntType(32), COLUMNS), [0] * COLUMNS),
    )
    tile = [(row, v) for row in range(rows) for v in range(vectors)]

    def in_row(matrix: Matrix, row: int) -> Any:
        return builder.gep(matrix.pointer, [builder.mul(matrix.row, integer(row))])

    def in_vector(pointer: Any, v: int) -> Any:
        return builder.bitcast(builder.gep(pointer, [integer(v * COLUMNS * size)]), vector.as_pointer())

    def load(pointer: Any) -> Any:
        return builder.load(pointer, align=size)

    def repeated(x: Any) -> Any:
        return builder.shuffle_vector(builder.insert_element(undefined, x, ir.IntType(32)(0)), undefined, everywhere)

    def multiply_add(x: Any, y: Any, z: Any) -> Any:
        return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))

    initial = [ir.Constant(vector, [0.0] * COLUMNS) for _ in tile]
    entry, body, end = builder.block, builder.append_basic_block("term"), builder.append_basic_block("end")
    builder.cbranch(builder.icmp_signed("<", integer(0), terms), body, end)

    builder.position_at_end(body)
    first = [integer(0), a.pointer, b.pointer, *initial]
    phis = [builder.phi(x.type) for x in first]
    term, of_a, of_b, *sums = phis
    row_of_b = [load(in_vector(of_b, v)) for v in range(vectors)]
    column_of_a = [
        repeated(load(builder.bitcast(in_row(a._replace(pointer=of_a), row), number.as_pointer()))) for row in range(rows)
    ]
    added = [multiply_add(column_of_a[row], row_of_b[v], total) for (row, v), total in zip(tile, sums)]
    following = [builder.add(term, integer(1)), builder.gep(of_a, [a.column]), builder.gep(of_b, [b.row]), *added]
    for phi, x, y in zip(phis, first, following):
        phi.add_incoming(x, entry)
        phi.add_incoming(y, body)
    builder.cbranch(builder.icmp_signed("<", following[0], terms), body, end)

    builder.position_at_end(end)
    results = [builder.phi(vector) for _ in tile]
    for result, x, y in zip(results, initial, added):
        result.add_incoming(x, entry)
        result.add_incoming(y, body)
    for (row, v), result in zip(tile, results):
        # Added last, so that a sum of many blocks is not one running sum of all terms.
        total = builder.fadd(result, load(in_vector(in_row(before, row), v))) if before else result
        builder.store(total, in_vector(in_row(out, row), v), align=size)
