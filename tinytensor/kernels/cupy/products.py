"""Matrix products by cuBLAS, through CuPy's bindings (version 13.4 and later).

CuPy's own ``@`` has three faults for batches: it copies transposed operands, it does not use TF32, and it fails in bfloat16
(github.com/cupy/cupy/issues/10317). Here cuBLAS reads every operand in place. The rows or the columns of a matrix must be
contiguous; other strides are free. Only arrays without such a layout (every second element, reversed axes) are copied first.

cuBLAS stores matrices by columns. A matrix stored by rows looks transposed to it, so out = a b is computed as outᵀ = bᵀ aᵀ.
float32 is multiplied in TF32, unless ``tt.full_precision`` is on. Products of bfloat16 and float16 are added up in float32.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from cupy import cuda
from cupy_backends.cuda.libs import cublas

from tinytensor.autograd.modes import modes
from tinytensor.autograd.replaying import current_step
from tinytensor.device.backend import host, xp
from tinytensor.kernels.cupy import cublaslt
from tinytensor.kernels.numpy.products import as_rows

_HALF = (cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_COMPUTE_32F, "float32")

# For each dtype: its cudaDataType, the compute types in full precision and otherwise, and the dtype of the factors.
_ARITHMETIC = {
    "float32": (0, cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_COMPUTE_32F_FAST_TF32, "float32"),
    "float64": (1, cublas.CUBLAS_COMPUTE_64F, cublas.CUBLAS_COMPUTE_64F, "float64"),
    "float16": (2, *_HALF),
    "bfloat16": (14, *_HALF),
}
# cuBLAS takes the addresses of these factors, so they must stay alive.
_FACTORS = {dtype: host.array([1, 0], dtype) for dtype in ("float32", "float64")}


class _Call(NamedTuple):
    """The arguments of a cuBLAS call. "First" and "second" are the operands in the order of cuBLAS."""

    b_is_first: bool
    operations: tuple[int, int]  # whether to transpose the first and the second
    sizes: tuple[int, int, int]  # rows and columns of the result, and terms of its sums
    leading: tuple[int, int, int]  # elements from one column to the next, of the first, the second and the result
    steps: tuple[int, int, int]  # elements from one matrix of a batch to the next, of the same three
    matrices: int  # in a batch
    starts: tuple[tuple[int, ...], ...]  # bytes from the start of the three arrays to each batch


def matmul(a: Any, b: Any, out: Any = None, accumulate: bool = False) -> Any:
    """a @ b: (..., n, k) and (..., k, m) -> (..., n, m), with leading axes broadcast.

    The product is written to ``out``, if given; with ``accumulate`` it is added to ``out``. ``out`` must not overlap with a or
    b. For bfloat16 or float16 it may be float32, and then nothing is rounded. Raises ValueError for shapes that do not fit.
    """
    if a.dtype != b.dtype:
        dtype = xp.promote_types(a.dtype, b.dtype)
        a, b = a.astype(dtype, copy=False), b.astype(dtype, copy=False)
    arithmetic = _arithmetic(a.dtype)
    if arithmetic is None:
        return xp.matmul(a, b, out=out)  # integers, which cuBLAS does not multiply
    shape = _shape(a.shape, b.shape)
    if out is None:
        out = xp.empty(shape, a.dtype)
    elif out.shape != shape or (out.dtype != a.dtype and (a.itemsize, out.dtype.name) != (2, "float32")):
        raise ValueError(f"matmul: out must be {a.dtype}{shape}, got {out.dtype}{out.shape}")
    if out.size == 0:
        return out
    if a.size == 0:
        if not accumulate:
            out.fill(0)
        return out
    call = _plan(a.shape, a.strides, b.shape, b.strides, shape, out.strides, a.itemsize, out.itemsize)
    if call is None:
        return _with_copies(a, b, out, accumulate)
    _run(call, arithmetic, a, b, out, accumulate)
    return out


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias over the last axis of x, with the other axes joined."""
    rows = as_rows(x)
    out = None if bias is None or not _is_by_cublaslt() else _with_bias(rows, weight.T, bias)
    if out is None:
        out = matmul(rows, weight.T)
        if bias is not None:
            if bias.dtype == out.dtype:
                out += bias
            else:
                out = out + bias
    return out.reshape((*x.shape[:-1], weight.shape[0]))


def _with_bias(a: Any, b: Any, bias: Any) -> Any:
    """a @ b + bias, by one call of cuBLASLt. None for mixed dtypes, float64, empty arrays, and layouts that must be copied."""
    arithmetic = _arithmetic(a.dtype) if a.dtype == b.dtype == bias.dtype and a.dtype.name != "float64" else None
    if arithmetic is None or not a.size or not b.size or not bias.flags.c_contiguous:
        return None
    out = xp.empty(_shape(a.shape, b.shape), a.dtype)
    call = _plan(a.shape, a.strides, b.shape, b.strides, out.shape, out.strides, a.itemsize, out.itemsize)
    if call is None:
        return None
    _run_by_cublaslt(call, arithmetic, a, b, out, False, bias)
    return out


def _is_by_cublaslt() -> bool:
    return cublaslt.is_on_everywhere or current_step().is_captured


@functools.lru_cache(maxsize=16)
def _arithmetic(dtype: Any) -> tuple[int, int, int, int, int] | None:
    """Return the cudaDataType, the compute types in full precision and otherwise, and the addresses of 1 and 0, or None."""
    if dtype.name not in _ARITHMETIC:
        return None
    if dtype.name == "bfloat16" and int(cuda.Device().compute_capability) < 80:
        raise TypeError(
            f"bfloat16 needs a GPU of compute capability 8.0 (Ampere) or later, got "
            f"{int(cuda.Device().compute_capability) / 10}: use float32"
        )
    data_type, full, fast, factors = _ARITHMETIC[dtype.name]
    one = _FACTORS[factors].ctypes.data
    return data_type, full, fast, one, one + _FACTORS[factors].itemsize


@functools.lru_cache(maxsize=4096)
def _shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if min(len(a), len(b)) < 2 or a[-1] != b[-2]:
        raise ValueError(f"matmul needs (..., n, k) and (..., k, m), got {a} and {b}")
    return (*host.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


def _run(call: _Call, arithmetic: tuple[int, int, int, int, int], a: Any, b: Any, out: Any, accumulate: bool) -> None:
    if _is_by_cublaslt():
        return _run_by_cublaslt(call, arithmetic, a, b, out, accumulate)
    handle = cuda.get_cublas_handle()  # this thread's; its stream is the current one
    data_type, full, fast, one, zero = arithmetic
    result_type = _ARITHMETIC[out.dtype.name][0]
    before = one if accumulate else zero  # the factor of out's old values
    compute = full if modes().full_precision else fast
    p, q, r = (b.data.ptr, a.data.ptr, out.data.ptr) if call.b_is_first else (a.data.ptr, b.data.ptr, out.data.ptr)
    lead_p, lead_q, lead_r = call.leading
    step_p, step_q, step_r = call.steps
    head = (handle, *call.operations, *call.sizes, one)
    tail = (compute, cublas.CUBLAS_GEMM_DEFAULT)
    for i, j, k in call.starts:
        if call.matrices == 1:
            operands = (p + i, data_type, lead_p, q + j, data_type, lead_q)
            cublas.gemmEx(*head, *operands, before, r + k, result_type, lead_r, *tail)
        else:
            batches = (p + i, data_type, lead_p, step_p, q + j, data_type, lead_q, step_q)
            cublas.gemmStridedBatchedEx(*head, *batches, before, r + k, result_type, lead_r, step_r, call.matrices, *tail)


def _run_by_cublaslt(
    call: _Call, arithmetic: tuple[int, int, int, int, int], a: Any, b: Any, out: Any, accumulate: bool, bias: Any = None
) -> None:
    """Compute a product by cuBLASLt. A bias is added to each row of ``out``, which must be C-contiguous."""
    data_type, full, fast, one, zero = arithmetic
    types = (data_type, data_type, _ARITHMETIC[out.dtype.name][0])
    compute = full if modes().full_precision else fast
    arrays = (b, a, out) if call.b_is_first else (a, b, out)
    added = 0 if bias is None else bias.data.ptr
    for starts in call.starts:
        addresses = [array.data.ptr + start for array, start in zip(arrays, starts)]
        alignments = tuple([cublaslt.alignment(address) for address in addresses])
        plan = _plan_of_cublaslt(call, types, compute, alignments, cublaslt.alignment(added) if added else 0)
        plan.multiply(addresses, one, one if accumulate else zero, added)


@functools.lru_cache(maxsize=4096)
def _plan_of_cublaslt(
    call: _Call, types: tuple[int, ...], compute: int, alignments: tuple[int, ...], bias_alignment: int
) -> cublaslt.Plan:
    """Return the plan of cuBLASLt for such a call."""
    rows, columns, summed = call.sizes
    shapes = ((rows, summed), (summed, columns), (rows, columns))
    stored = [shape[::-1] if turned else shape for shape, turned in zip(shapes, (*call.operations, 0))]
    first, second, result = map(cublaslt.Matrices, types, stored, call.leading, call.steps, alignments)
    factors = types[0] if compute == cublas.CUBLAS_COMPUTE_64F else _ARITHMETIC["float32"][0]
    settings = (call.operations, call.matrices, compute, factors, bias_alignment)
    return cublaslt.Plan(cublaslt.Product(first, second, result, *settings))


def _with_copies(a: Any, b: Any, out: Any, accumulate: bool) -> Any:
    """The product if some array has no layout that cuBLAS can read or write."""
    a, b = [x if _fits(x) else x.copy() for x in (a, b)]
    if _fits(out):
        return matmul(a, b, out, accumulate)
    out[...] = matmul(a, b, out.copy() if accumulate else xp.empty(out.shape, out.dtype), accumulate)
    return out


def _fits(x: Any) -> bool:
    return _layout(x.shape, _in_elements(x.strides, x.itemsize)) is not None


# ------------------------------------------------------------------------------- from shapes and strides to a call


@functools.lru_cache(maxsize=4096)
def _plan(
    a_shape: tuple[int, ...],
    a_strides: tuple[int, ...],
    b_shape: tuple[int, ...],
    b_strides: tuple[int, ...],
    out_shape: tuple[int, ...],
    out_strides: tuple[int, ...],
    itemsize: int,
    out_itemsize: int,
) -> _Call | None:
    """Return the cuBLAS call for arrays of these shapes and strides (in bytes). None if one of them must be copied first."""
    shapes = (a_shape, b_shape, out_shape)
    itemsizes = (itemsize, itemsize, out_itemsize)
    strides = [_in_elements(s, size) for s, size in zip((a_strides, b_strides, out_strides), itemsizes)]
    layouts = [_layout(shape, steps) for shape, steps in zip(shapes, strides)]
    a, b, out = layouts
    if a is None or b is None or out is None:
        return None
    in_rows = not out.in_columns
    order = (1, 0, 2) if in_rows else (0, 1, 2)
    first, second = (b, a) if in_rows else (a, b)
    (n, k), m = a_shape[-2:], b_shape[-1]
    axes = [_along(shape, steps, out_shape) for shape, steps in zip(shapes, strides)]
    count, steps, starts = _batches(out_shape[:-2], [axes[i] for i in order])
    return _Call(
        b_is_first=in_rows,
        # Reading a matrix stored by rows as columns transposes it, which is right if the result is stored by rows, too.
        operations=(_operation(first, in_rows), _operation(second, in_rows)),
        sizes=(m, n, k) if in_rows else (n, m, k),
        leading=(first.leading, second.leading, out.leading),
        steps=steps,
        matrices=count,
        starts=tuple([tuple([offset * size for offset, size in zip(start, itemsizes)]) for start in starts]),
    )


class _Layout(NamedTuple):
    """The layout of a matrix: by columns or by rows, and the number of elements from one of them to the next."""

    in_columns: bool
    leading: int


def _in_elements(strides: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple([stride // itemsize for stride in strides])


def _layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> _Layout | None:
    """Return the layout of the last two axes, or None if cuBLAS cannot read it. Strides of axes of length 1 are ignored."""
    (rows, columns), (down, across) = shape[-2:], strides[-2:]
    if any(step < 0 for step in strides[:-2]):
        return None
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return _Layout(False, down if rows > 1 else columns)
    if (down == 1 or rows == 1) and across >= rows:
        return _Layout(True, across)
    return None


def _operation(layout: _Layout, in_rows: bool) -> int:
    return cublas.CUBLAS_OP_N if layout.in_columns != in_rows else cublas.CUBLAS_OP_T


def _along(shape: tuple[int, ...], strides: tuple[int, ...], out_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return an array's strides along the leading axes of the result, 0 for broadcast axes."""
    missing = len(out_shape) - len(shape)
    return (0,) * missing + tuple([0 if n == 1 else step for n, step in zip(shape[:-2], strides)])


def _batches(
    lengths: tuple[int, ...], strides: Sequence[tuple[int, ...]]
) -> tuple[int, tuple[int, int, int], list[tuple[int, ...]]]:
    """Cut the leading axes into batches of evenly spaced matrices. Returns a batch's number of matrices, their steps in the
    three arrays, and the start of each batch.

    Neighbouring axes that are evenly spaced in all arrays are merged. The longest axis that then remains is the batch, and each
    index of the other axes takes a call.
    """
    axes: list[tuple[int, tuple[int, ...]]] = []
    for n, steps in reversed(list(zip(lengths, zip(*strides)))):
        if n == 1:
            continue
        if axes and all(step == inner * axes[-1][0] for step, inner in zip(steps, axes[-1][1])):
            axes[-1] = (n * axes[-1][0], axes[-1][1])
        else:
            axes.append((n, steps))
    longest = max(axes, default=(1, (0, 0, 0)))
    count, batch = axes.pop(axes.index(longest)) if axes else longest
    starts = [
        tuple([sum(i * steps[array] for i, (_, steps) in zip(indices, axes)) for array in range(3)])
        for indices in itertools.product(*[range(n) for n, _ in axes])
    ]
    return count, (batch[0], batch[1], batch[2]), starts
