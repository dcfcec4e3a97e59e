"""Products of float32 matrices by one thread, as when each core computes a shard of the batch.

With AVX-512 they take nine tenths of BLAS's time. If BLAS has several cores, it shares the work out and is faster. BLAS also
does small matrices, and those whose rows and columns are not contiguous.

A linear layer of few rows, as in decoding, is computed as weight @ x.T: then the few rows are copied into reading order, and
the weight is read in place.

A block of b is first copied to panels, which hold the columns of a tile side by side. If a is transposed, some of its rows are
copied to tiles, too. So the innermost loop (``tiles.write_tile``) reads memory in order. BLAS does the same (Goto and van de
Geijn 2008). Here the sums of a tile fill the registers of AVX-512 better, and matrices are transposed in registers, 16 x 16
elements at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy

from tinytensor.device import cores
from tinytensor.kernels.numba.compiling import ByNumba, Later, loop
from tinytensor.kernels.numba.pointers import write_fetch
from tinytensor.kernels.numba.processor import has, has_second_core
from tinytensor.kernels.numba.tiles import COLUMNS, Matrix, write_tile
from tinytensor.kernels.numpy import products as in_numpy
from tinytensor.kernels.numpy.products import as_rows

_FEWEST, _FEW = 9, 64  # rows: only between these limits is the weight read in place
_LEAST = 1 << 18  # multiplications: with fewer, the calls take much of the time
# The sums of a tile fill the registers: 8 x 3 of the 32 of AVX-512, which hold a vector each; 6 x 2 of the 16 of AVX2.
ROWS: Any = Later(lambda: 8 if has("avx512f") else 6)
VECTORS: Any = Later(lambda: 3 if has("avx512f") else 1)
# Limits of a block: rows of b (a panel of them takes 0.2 MB), elements of b, tiles of a. The tiles and a panel fit the second
# cache, and all panels the third.
TERMS, NUMBERS, TILES = 1024, 1 << 21, 12
LINE = 64  # bytes of a cache line


def matmul(a: Any, b: Any, out: Any = None, accumulate: bool = False) -> Any:
    """``matmul`` of kernels/numpy."""
    if not (a.ndim == b.ndim == 2 and a.shape[1] == len(b) and _is_ours(len(a), b, a)):
        return in_numpy.matmul(a, b, out, accumulate)
    shape = (len(a), b.shape[1])
    if out is None:
        out = numpy.empty(shape, a.dtype)
    elif not (out.shape == shape and out.dtype == a.dtype and out.flags.c_contiguous):
        return in_numpy.matmul(a, b, out, accumulate)
    return _product(a, b, numpy.zeros(b.shape[1], a.dtype), out, accumulate)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """``linear`` of kernels/numpy."""
    count = x.size // max(1, x.shape[-1])
    is_few = _FEWEST <= count <= _FEW
    arrays = (x,) if bias is None else (x, bias)
    if not _is_ours(max(count, COLUMNS) if is_few else count, weight.T, *arrays):
        return in_numpy.linear(x, weight, bias)
    rows, bias = as_rows(x), numpy.zeros(len(weight), x.dtype) if bias is None else bias
    if is_few:
        out = _of_few_rows(rows, weight, bias)
    else:
        out = _product(rows, weight.T, bias, numpy.empty((count, len(weight)), x.dtype))
    return out.reshape(*x.shape[:-1], len(weight))


def _is_ours(rows: int, b: Any, *arrays: Any) -> bool:
    """Return True if a product of ``rows`` rows with the matrix b is faster here. All arrays must be float32 and contiguous."""
    if not (cores.are_shared_out or not has_second_core()) or not has("avx512f"):
        return False
    inner, columns = b.shape
    if min(rows, inner, columns) < COLUMNS or rows * inner * columns < _LEAST:
        return False
    return all(x.dtype == numpy.float32 and (x.flags.c_contiguous or x.flags.f_contiguous) for x in (b, *arrays))


def _product(a: Any, b: Any, bias: Any, out: Any, accumulate: bool = False) -> Any:
    """Write a @ b + bias to ``out``, or add a @ b to it. a and b are contiguous by rows or by columns, out by rows."""
    turned = [not x.flags.c_contiguous for x in (a, b)]
    multiply(*[x.T if is_turned else x for x, is_turned in zip((a, b), turned)], bias, out, *turned, accumulate)
    return out


def _of_few_rows(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias, from weight @ x.T."""
    rows = numpy.zeros((max(len(x), COLUMNS), x.shape[1]), x.dtype)
    rows[: len(x)] = x
    out = _product(weight, rows.T, numpy.zeros(len(rows), x.dtype), numpy.empty((len(weight), len(rows)), x.dtype))
    return numpy.add(out.T[: len(x)], bias, order="C")


# ---------------------------------------------------------------------------------------------------- loops


def _tile(dtype: Any, rows: Callable[[], int], vectors: int) -> Any:
    from llvmlite import ir
    from numba import from_dtype, types
    from numba.extending import intrinsic

    def function(
        typing: Any, terms: Any, a: Any, a_row: Any, a_column: Any, b: Any, before: Any, before_row: Any, out: Any, out_row: Any
    ) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            terms, a, a_row, a_column, b, before, before_row, out, out_row = arguments
            a, b, before, out = [builder.inttoptr(x, ir.IntType(8).as_pointer()) for x in (a, b, before, out)]
            size = dtype.itemsize
            factors = Matrix(a, a_row, a_column), Matrix(b, terms.type(size * COLUMNS * vectors), None)
            targets = Matrix(before, before_row, None), Matrix(out, out_row, None)
            write_tile(builder, context.get_value_type(from_dtype(dtype)), size, rows(), vectors, terms, *factors, *targets)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 9), write

    return intrinsic(function)


def tile_of(rows: int, vectors: int) -> ByNumba:
    """tile(terms, a, a_row, a_column, b, before, before_row, out, out_row): out = before + a @ b for a tile of ``rows`` rows
    and ``vectors`` vectors.

    a, b, before and out are addresses, and the others byte strides of rows and columns. b is a panel.
    """
    return ByNumba(functools.partial(_tile, rows=lambda: rows, vectors=vectors))


add_tile_1, add_tile_2, add_tile_3 = [ByNumba(functools.partial(_tile, rows=ROWS.compute, vectors=v)) for v in (1, 2, 3)]


@ByNumba
def turn(dtype: Any) -> Any:
    """turn(x, x_row, out, out_row): transposes COLUMNS x COLUMNS elements from the address x to the address out."""
    from llvmlite import ir
    from numba import from_dtype, types
    from numba.extending import intrinsic

    def function(typing: Any, x: Any, x_row: Any, out: Any, out_row: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, x_row, out, out_row = arguments
            vector = ir.VectorType(context.get_value_type(from_dtype(dtype)), COLUMNS)

            def row(address: Any, stride: Any, i: int) -> Any:
                return builder.inttoptr(builder.add(address, builder.mul(stride, stride.type(i))), vector.as_pointer())

            def mixed(x: Any, y: Any, positions: list[int]) -> Any:
                return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(ir.IntType(32), COLUMNS), positions))

            rows = [builder.load(row(x, x_row, i), align=dtype.itemsize) for i in range(COLUMNS)]
            half = 1
            while half < COLUMNS:  # exchange the off-diagonal quarters of squares of 2 * half elements
                for i in [i for i in range(COLUMNS) if not i & half]:
                    kept = [j if not j & half else COLUMNS + j - half for j in range(COLUMNS)]
                    other = [j + half if not j & half else COLUMNS + j for j in range(COLUMNS)]
                    pair = rows[i], rows[i + half]
                    rows[i], rows[i + half] = mixed(*pair, kept), mixed(*pair, other)
                half *= 2
            for i, values in enumerate(rows):
                builder.store(values, row(out, out_row, i), align=dtype.itemsize)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), write

    return intrinsic(function)


def _copy(dtype: Any, size: Any, count: int) -> Any:
    from llvmlite import ir
    from numba import from_dtype, types
    from numba.extending import intrinsic

    def function(typing: Any, x: Any, out: Any, step: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            x, out, step = arguments
            vector = ir.VectorType(context.get_value_type(from_dtype(dtype)), size())
            for i in range(count):
                source = builder.add(x, step.type(i * size() * dtype.itemsize))
                target = builder.add(out, builder.mul(step, step.type(i)))
                values = builder.load(builder.inttoptr(source, vector.as_pointer()), align=dtype.itemsize)
                builder.store(values, builder.inttoptr(target, vector.as_pointer()), align=dtype.itemsize)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.int64), write

    return intrinsic(function)


# (x, out, step): copies the elements at the address x to the addresses out, out + step, ...: COLUMNS, ROWS, or TILES times
# ROWS.
copy_columns = ByNumba(functools.partial(_copy, size=lambda: COLUMNS, count=1))
copy_rows = ByNumba(functools.partial(_copy, size=ROWS.compute, count=1))
copy_tiles = ByNumba(functools.partial(_copy, size=ROWS.compute, count=TILES))


@ByNumba
def fetch_line(dtype: Any) -> Any:
    """fetch_line(address): prefetches the cache line of this address."""
    from numba import types
    from numba.extending import intrinsic

    def function(typing: Any, address: Any) -> Any:
        def write(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            write_fetch(builder, arguments[0], level=2)
            return context.get_dummy_value()

        return types.void(types.int64), write

    return intrinsic(function)


@loop
def fetch(address: int, row: int, rows: int, size: int) -> None:
    """Prefetch ``size`` bytes in each of ``rows`` rows, whose addresses are ``row`` apart."""
    for i in range(rows):
        for j in range(0, size, LINE):
            fetch_line(address + i * row + j)


@loop
def multiply(a: Any, b: Any, before: Any, out: Any, a_is_turned: bool, b_is_turned: bool, accumulate: bool) -> None:
    """out = before + a @ b, adding the row ``before`` (columns,) to each row of out (rows, columns). With ``accumulate``, out
    += a @ b.

    All are C-contiguous. a (rows, inner) and b (inner, columns) may be given transposed. All three sizes are at least COLUMNS.
    """
    (rows, columns), size = out.shape, out.itemsize
    inner = a.shape[0] if a_is_turned else a.shape[1]
    blocks = -(-inner // TERMS)
    longest = -(-inner // blocks)
    step = max(1, NUMBERS // (COLUMNS * VECTORS * longest)) * COLUMNS * VECTORS
    panels = numpy.empty((min(columns, step) + COLUMNS) * longest, a.dtype)
    turned = numpy.empty(TILES * ROWS * longest if a_is_turned else 0, a.dtype)
    for left in range(0, columns, step):
        right = min(columns, left + step)
        for block in range(blocks):
            start, stop = block * inner // blocks, (block + 1) * inner // blocks
            terms = stop - start
            if b_is_turned:
                _turn_to_panels(b[:, start:stop], left, right, panels)
            else:
                _copy_to_panels(b[start:stop], left, right, panels)
            for top in range(0, rows, TILES * ROWS):
                if a_is_turned:
                    _copy_to_tiles(a[start:stop], top, turned)
                    of_a, a_tile, a_row, a_column = turned.ctypes.data, ROWS * terms * size, size, ROWS * size
                else:
                    of_a, a_tile = a.ctypes.data + top * a.strides[0] + start * size, ROWS * a.strides[0]
                    a_row, a_column = a.strides[0], size
                _multiply_rows(
                    of_a, a_tile, a_row, a_column, terms, panels, left, right, before, out, top, accumulate or start > 0
                )


@loop
def _panel(column: int, right: int) -> tuple[int, int]:
    """Return the first column and the width of the next panel: VECTORS vectors, or one or two at the end, or the last COLUMNS,
    which share columns with the panel before."""
    vectors = min(VECTORS, (right - column) // COLUMNS)
    return (column, vectors * COLUMNS) if vectors else (right - COLUMNS, COLUMNS)


@loop
def _copy_to_panels(b: Any, left: int, right: int, panels: Any) -> None:
    """Copy the columns ``left`` to ``right`` of b (terms, columns) to consecutive panels, each (terms, width)."""
    terms, size = b.shape[0], b.itemsize
    for k in range(terms):
        column, panel = left, panels.ctypes.data
        while column < right:
            first, width = _panel(column, right)
            source, target = b.ctypes.data + k * b.strides[0] + first * size, panel + k * width * size
            for j in range(0, width * size, COLUMNS * size):
                copy_columns(source + j, target + j, 0)
            column, panel = first + width, panel + terms * width * size


@loop
def _turn_to_panels(b: Any, left: int, right: int, panels: Any) -> None:
    """``_copy_to_panels`` for b transposed: (columns, terms)."""
    terms, size, column, panel = b.shape[1], b.itemsize, left, panels.ctypes.data
    while column < right:
        first, width = _panel(column, right)
        for j in range(0, width, COLUMNS):
            source = b.ctypes.data + (first + j) * b.strides[0]
            for k in range(0, terms, COLUMNS):
                term = min(k, terms - COLUMNS)  # the last square may share terms with the previous one
                turn(source + term * size, b.strides[0], panel + (term * width + j) * size, width * size)
        column, panel = first + width, panel + terms * width * size


@loop
def _copy_to_tiles(a: Any, top: int, out: Any) -> None:
    """Copy the columns of a (terms, rows), starting at ``top``, to at most TILES tiles, each (terms, ROWS)."""
    (terms, rows), size = a.shape, a.itemsize
    tiles, step = min(TILES, -(-(rows - top) // ROWS)), terms * ROWS * size
    for k in range(terms):
        source, target = a.ctypes.data + k * a.strides[0], out.ctypes.data + k * ROWS * size
        if top + TILES * ROWS <= rows:
            copy_tiles(source + top * size, target, step)
        else:
            for tile in range(tiles):
                copy_rows(source + min(top + tile * ROWS, rows - ROWS) * size, target + tile * step, 0)


@loop
def _multiply_rows(
    a: int,
    a_tile: int,
    a_row: int,
    a_column: int,
    terms: int,
    panels: Any,
    left: int,
    right: int,
    before: Any,
    out: Any,
    top: int,
    adds: bool,
) -> None:
    """Set, or with ``adds`` increase, the rows of out starting at ``top``, at most TILES tiles, in the columns ``left`` to
    ``right``.

    a is the address of the rows' elements, with byte strides of tiles, rows and columns. The last rows share a tile with
    earlier rows, which are computed twice, and so do the last columns. Of such a tile only the new elements are kept.
    """
    rows, size = out.shape[0], out.itemsize
    edge = numpy.empty((ROWS, COLUMNS * VECTORS), out.dtype)
    column, panel = left, panels.ctypes.data
    while column < right:
        first, width = _panel(column, right)
        for new in range(top, min(rows, top + TILES * ROWS), ROWS):
            row, of_a = min(new, rows - ROWS), a + (new - top) // ROWS * a_tile
            if a_column == size:  # a lies in rows; in tiles, the last one has the shared rows already
                of_a -= (new - row) * a_row
            target, stride = out.ctypes.data + row * out.strides[0] + first * size, out.strides[0]
            sums, sums_stride = (target, stride) if adds else (before.ctypes.data + first * size, 0)
            fetch(target, stride, ROWS, width * size)
            is_whole = row == new and first == column
            if not is_whole:
                target, stride = edge.ctypes.data, edge.strides[0]
            if width == COLUMNS:
                add_tile_1(terms, of_a, a_row, a_column, panel, sums, sums_stride, target, stride)
            elif width == 2 * COLUMNS:
                add_tile_2(terms, of_a, a_row, a_column, panel, sums, sums_stride, target, stride)
            else:
                add_tile_3(terms, of_a, a_row, a_column, panel, sums, sums_stride, target, stride)
            if not is_whole:
                for i in range(new - row, ROWS):
                    for j in range(column - first, width):
                        out[row + i, first + j] = edge[i, j]
        column, panel = first + width, panel + terms * width * size
