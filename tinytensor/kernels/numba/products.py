"""Products of matrices of float32 by one thread, as while each core computes a shard of the batch.

On processors with AVX-512 they take nine tenths of the time that BLAS takes. Where BLAS has several cores it shares the work
out, and is faster. So it is for matrices that are small or lie in memory in another way than in rows or in columns.

A linear layer of few rows, as while texts are written token by token, is computed as weight @ x.T: then the rows are copied to
the order in which they are read, and the weight, which has more numbers, is read as it lies.
"""

from __future__ import annotations

from typing import Any

import numpy

from tinytensor.device import cores
from tinytensor.kernels.numba.helper import has_second_core
from tinytensor.kernels.numba.processor import has
from tinytensor.kernels.numba.product_loops import multiply
from tinytensor.kernels.numba.tiles import COLUMNS
from tinytensor.kernels.numpy import products as in_numpy
from tinytensor.kernels.rows import as_rows

_FEWEST, _FEW = 9, 64  # rows: with fewer, or more, than these the weight is not read as it lies
_LEAST = 1 << 18  # products of two numbers: with fewer, the calls take much of the time


def matmul(a: Any, b: Any, out: Any = None, accumulate: bool = False) -> Any:
    """a @ b for stacks of matrices, as in kernels/numpy/products.py."""
    if not (a.ndim == b.ndim == 2 and a.shape[1] == len(b) and _is_ours(len(a), b, a)):
        return in_numpy.matmul(a, b, out, accumulate)
    shape = (len(a), b.shape[1])
    if out is None:
        out = numpy.empty(shape, a.dtype)
    elif not (out.shape == shape and out.dtype == a.dtype and out.flags.c_contiguous):
        return in_numpy.matmul(a, b, out, accumulate)
    return _product(a, b, numpy.zeros(b.shape[1], a.dtype), out, accumulate)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias over the last axis of x, as in kernels/numpy/products.py."""
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


def _is_ours(rows: int, b: Any, *others: Any) -> bool:
    """Whether a product of so many rows with the matrix b is faster here. The other arrays that take part must fit, too."""
    if not (cores.are_shared_out or not has_second_core()) or not has("avx512f"):
        return False
    inner, columns = b.shape
    if min(rows, inner, columns) < COLUMNS or rows * inner * columns < _LEAST:
        return False
    return all(x.dtype == numpy.float32 and (x.flags.c_contiguous or x.flags.f_contiguous) for x in (b, *others))


def _product(a: Any, b: Any, bias: Any, out: Any, accumulate: bool = False) -> Any:
    """a @ b + bias, written to ``out``, or a @ b added to it. All lie in rows or in columns, out in rows."""
    turned = [not x.flags.c_contiguous for x in (a, b)]
    multiply(*[x.T if is_turned else x for x, is_turned in zip((a, b), turned)], bias, out, *turned, accumulate)
    return out


def _of_few_rows(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias, from weight @ x.T."""
    rows = numpy.zeros((max(len(x), COLUMNS), x.shape[1]), x.dtype)
    rows[: len(x)] = x
    out = _product(weight, rows.T, numpy.zeros(len(rows), x.dtype), numpy.empty((len(weight), len(rows)), x.dtype))
    return numpy.add(out.T[: len(x)], bias, order="C")
