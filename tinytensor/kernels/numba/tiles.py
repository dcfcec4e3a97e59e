"""Matrix products inside of loops, for matrices that fit the processor's cache: out = a @ b, one tile of out after the other.

The terms of a tile are added up in registers. LLVM does not vectorise a loop in this way by itself. So this one loop is written
in LLVM's own vectors: it runs about as fast as BLAS does on large matrices.
"""

from __future__ import annotations

import functools
from typing import Any

from tinytensor.kernels.numba.compiling import ByNumba, Later, loop


def _rows() -> int:
    """How many rows of a tile the registers hold: a row of float32 numbers takes one of AVX-512, or several shorter ones.

    It depends on nothing but what Numba compiles for, by which it also tells apart the compiled code that it keeps.
    """
    from numba.core.registry import cpu_target

    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return 8 if "+avx512f" in features.split(",") else 4


ROWS: Any = Later(functools.cache(_rows))  # of a tile: an integer in the loops
COLUMNS = 16  # of a tile, and a multiple of ROWS


@loop
def whole_tiles(count: int, size: int) -> int:
    """``count`` rounded up to a multiple of ROWS or COLUMNS."""
    return (count + size - 1) // size * size


@ByNumba
def contiguous(dtype: Any) -> Any:
    """contiguous(x): x of one axis, a view whose numbers lie side by side. Only if LLVM knows that, it vectorises a loop."""
    from numba.core.imputils import impl_ret_borrowed
    from numba.extending import intrinsic

    def function(typing: Any, x: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

        return x.copy(layout="C")(x), write

    return intrinsic(function)


def _product(dtype: Any, adds: bool) -> Any:
    from numba import types
    from numba.extending import intrinsic

    def function(typing: Any, a: Any, b: Any, start: Any, stop: Any, out: Any, i: Any, j: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            a, b, start, stop, out, i, j = arguments
            kinds = (signature.args[0], signature.args[1], signature.args[4])
            a, b, out = [context.make_array(kind)(context, builder, x) for kind, x in zip(kinds, (a, b, out))]
            number, size = context.get_value_type(kinds[2].dtype), kinds[2].dtype.bitwidth // 8
            _write_product(builder, number, size, a, b, start, stop, out, i, j, adds)
            return context.get_dummy_value()

        return types.void(a, b, types.intp, types.intp, out, types.intp, types.intp), write

    return intrinsic(function)


# (a, b, start, stop, out, i, j): out[i:i+ROWS, j:j+COLUMNS] = a[i:i+ROWS, start:stop] @ b[start:stop, j:j+COLUMNS].
# The last axes of b and out are contiguous. Nothing checks that the arrays hold the whole tile.
set_product = ByNumba(functools.partial(_product, adds=False))
add_product = ByNumba(functools.partial(_product, adds=True))  # out += instead of out =


def _write_product(
    builder: Any, number: Any, alignment: int, a: Any, b: Any, start: Any, stop: Any, out: Any, i: Any, j: Any, adds: bool
) -> None:
    """One loop over the terms: the tile's rows += a's column of numbers times b's row."""
    from llvmlite import ir

    vector, byte, integer = ir.VectorType(number, COLUMNS), ir.IntType(8).as_pointer(), start.type
    rows = ROWS.compute()
    undefined, everywhere = (
        ir.Constant(vector, ir.Undefined),
        ir.Constant(ir.VectorType(ir.IntType(32), COLUMNS), [0] * COLUMNS),
    )

    def moved(pointer: Any, *steps: tuple[Any, Any]) -> Any:
        for stride, count in steps:
            pointer = builder.gep(pointer, [builder.mul(stride, count)])
        return pointer

    def at(array: Any, row: Any, column: Any) -> Any:
        strides = builder.extract_value(array.strides, 0), builder.extract_value(array.strides, 1)
        return moved(builder.bitcast(array.data, byte), (strides[0], row), (strides[1], column))

    def of_rows(array: Any, pointer: Any) -> list[Any]:
        return [moved(pointer, (builder.extract_value(array.strides, 0), integer(row))) for row in range(rows)]

    def load(kind: Any, pointer: Any) -> Any:
        return builder.load(builder.bitcast(pointer, kind.as_pointer()), align=alignment)

    def repeated(x: Any) -> Any:
        return builder.shuffle_vector(builder.insert_element(undefined, x, ir.IntType(32)(0)), undefined, everywhere)

    def multiply_add(x: Any, y: Any, z: Any) -> Any:
        return builder.fadd(builder.fmul(x, y, flags=("contract",)), z, flags=("contract",))

    targets = of_rows(out, at(out, i, j))
    before = [load(vector, target) if adds else ir.Constant(vector, [0.0] * COLUMNS) for target in targets]
    initial = [start, at(a, i, start), at(b, start, j), *before]
    a_step, b_step = builder.extract_value(a.strides, 1), builder.extract_value(b.strides, 0)
    entry, body, end = builder.block, builder.append_basic_block("term"), builder.append_basic_block("end")
    builder.cbranch(builder.icmp_signed("<", start, stop), body, end)

    builder.position_at_end(body)
    phis = [builder.phi(x.type) for x in initial]
    term, of_a, of_b, *sums = phis
    row = load(vector, of_b)
    added = [multiply_add(repeated(load(number, x)), row, total) for x, total in zip(of_rows(a, of_a), sums)]
    following = [builder.add(term, integer(1)), builder.gep(of_a, [a_step]), builder.gep(of_b, [b_step]), *added]
    for phi, x, y in zip(phis, initial, following):
        phi.add_incoming(x, entry)
        phi.add_incoming(y, body)
    builder.cbranch(builder.icmp_signed("<", following[0], stop), body, end)

    builder.position_at_end(end)
    results = [builder.phi(vector) for _ in targets]
    for result, x, y in zip(results, before, added):
        result.add_incoming(x, entry)
        result.add_incoming(y, body)
    for result, target in zip(results, targets):
        builder.store(result, builder.bitcast(target, vector.as_pointer()), align=alignment)
