"""The products of cuBLAS on plain memory: what CuPy's bindings of this name offer, as far as the library uses them.

They get addresses and numbers alone, as on a GPU, and read and write there. What cuBLAS answers with an error, or does not
notice (memory that is nobody's), is an error here.
"""

import ctypes

import numpy
from cupy import _array, _graphs
from cupy.cuda import HANDLE

CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_POINTER_MODE_HOST, CUBLAS_POINTER_MODE_DEVICE = 0, 1
CUBLAS_GEMM_DEFAULT = -1
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32 = 68, 70, 77

_pointer_mode = CUBLAS_POINTER_MODE_HOST
calls = []  # for tests: the names and the numbers of matrices of the calls so far


class CUBLASError(RuntimeError):
    """What CuPy raises for any status of cuBLAS but success."""


def getPointerMode(handle):
    _check(handle == HANDLE, "NOT_INITIALIZED", f"the handle {handle}")
    return _pointer_mode


def setPointerMode(handle, mode):
    global _pointer_mode
    _check(handle == HANDLE, "NOT_INITIALIZED", f"the handle {handle}")
    _pointer_mode = mode


def _types():
    """The dtypes by their number as a cudaDataType, with the compute types that each may be multiplied in."""
    single = (CUBLAS_COMPUTE_32F,)
    types = {
        0: (numpy.dtype("float32"), (CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F_FAST_TF32)),
        1: (numpy.dtype("float64"), (CUBLAS_COMPUTE_64F,)),
        2: (numpy.dtype("float16"), single),
    }
    try:
        import ml_dtypes
    except ImportError:
        return types
    return {**types, 14: (numpy.dtype(ml_dtypes.bfloat16), single)}


TYPES = _types()


def gemmEx(
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc, computeType, algo, /
):  # fmt: skip
    """C = alpha op(A) op(B) + beta C, matrices being stored by columns: op(A) is m by k, op(B) k by n."""
    _refuse_to_be_captured()
    calls.append(("gemmEx", 1))
    _array.launched("gemmEx")
    product(
        handle, transa, transb, m, n, k, alpha, A, Atype, lda, 0, B, Btype, ldb, 0, beta, C, Ctype, ldc, 0, 1,
        computeType, algo,
    )()  # fmt: skip


def gemmStridedBatchedEx(
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype, ldc, strideC,
    batchCount, computeType, algo, /,
):  # fmt: skip
    """The same for ``batchCount`` matrices, each so many elements after the one before."""
    _refuse_to_be_captured()
    calls.append(("gemmStridedBatchedEx", batchCount))
    _array.launched("gemmStridedBatchedEx")
    product(
        handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype, ldc,
        strideC, batchCount, computeType, algo,
    )()  # fmt: skip


def _refuse_to_be_captured():
    if _graphs.here.capture is not None:
        raise NotImplementedError("CuPy calls no function of cuBLAS while a stream is captured")


def product(
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype, ldc, strideC,
    batchCount, computeType, algo, bias=0,
):  # fmt: skip
    """A function that computes the product, whose arguments are checked now. ``bias`` is the address of a column to add."""
    _check(handle == HANDLE, "NOT_INITIALIZED", f"the handle {handle}")
    _check(transa in (0, 1) and transb in (0, 1), "INVALID_VALUE", f"the operations {transa}, {transb}")
    _check(algo == CUBLAS_GEMM_DEFAULT, "INVALID_VALUE", f"the algorithm {algo}")
    _check(Atype == Btype and Atype in TYPES, "NOT_SUPPORTED", f"the types {Atype}, {Btype}")
    _check(Ctype == Atype or (Ctype == 0 and Atype in (2, 14)), "NOT_SUPPORTED", f"the types {Atype}, {Btype}, {Ctype}")
    dtype, computed_in = TYPES[Atype]
    _check(computeType in computed_in, "NOT_SUPPORTED", f"the compute type {computeType} for {dtype}")
    _check(min(m, n, k, batchCount) > 0, "INVALID_VALUE", f"the sizes {m}, {n}, {k}, {batchCount}")
    _check(batchCount == 1 or strideC != 0, "INVALID_VALUE", "all results in one place")
    _check(min(strideA, strideB, strideC) >= 0, "INVALID_VALUE", f"the steps {strideA}, {strideB}, {strideC}")
    a = _matrices("A", A, dtype, (k, m) if transa else (m, k), lda, strideA, batchCount)
    b = _matrices("B", B, dtype, (n, k) if transb else (k, n), ldb, strideB, batchCount)
    c = _matrices("C", C, TYPES[Ctype][0], (m, n), ldc, strideC, batchCount)
    added = _matrices("the bias", bias, TYPES[Ctype][0], (m, 1), m, 0, 1) if bias else None
    number = numpy.float64 if computeType == CUBLAS_COMPUTE_64F else numpy.float32
    one, zero = _factor(alpha, number), _factor(beta, number)

    def multiply():
        factors = [x.array().swapaxes(1, 2) if turned else x.array() for x, turned in ((a, transa), (b, transb))]
        first, second = [_rounded(x, number, computeType) for x in factors]
        result = c.array()
        with numpy.errstate(all="ignore"):
            product = one * (first @ second)
            if zero != 0:  # with 0, C is not even read
                product = product + zero * result.astype(number)
            result[...] = product if added is None else product + added.array().astype(number)

    return multiply


def _check(holds, status, what):
    if not holds:
        raise CUBLASError(f"CUBLAS_STATUS_{status}: {what}")


def _matrices(name, address, dtype, shape, leading, step, count):
    """The place of the matrices stored by columns at an address, as an array (count, rows, columns)."""
    rows, columns = shape
    _check(address, "INVALID_VALUE", f"no address of {name}")
    _check(address % dtype.itemsize == 0, "INVALID_VALUE", f"{name} is not aligned to its numbers")
    _check(leading >= rows, "INVALID_VALUE", f"columns of {name} that overlap: {leading} from one to the next, {rows} long")
    _check(max(leading, rows, columns, count) < 2**31, "INVALID_VALUE", f"more of {name} than an int counts")
    length = (count - 1) * step + (columns - 1) * leading + rows
    end = address + length * dtype.itemsize
    around = [memory() for first, last, memory in _array.here.handed_out if first <= address and end <= last]
    alive = [memory for memory in around if memory is not None]
    _check(alive, "EXECUTION_FAILED", f"{name} reaches beyond its array")
    strides = tuple([x * dtype.itemsize for x in (step, 1, leading)])
    return _graphs.Place(alive[-1], address, dtype, (count, rows, columns), strides)


def _factor(address, number):
    """One number: on the host, unless the pointer mode says that it is the GPU's."""
    _check(_pointer_mode == CUBLAS_POINTER_MODE_HOST, "EXECUTION_FAILED", "a factor of the host read on the GPU")
    _check(address, "INVALID_VALUE", "no address of a factor")
    kind = ctypes.c_double if number is numpy.float64 else ctypes.c_float
    return number(kind.from_address(address).value)


def _rounded(x, number, compute_type):
    """The factors as they are multiplied: in TF32 with 10 bits of mantissa, rounded half to even."""
    x = x.astype(number, copy=False)
    if compute_type != CUBLAS_COMPUTE_32F_FAST_TF32:
        return x
    bits = x.copy().view(numpy.uint32)
    rounded = (bits + 0xFFF + ((bits >> 13) & 1)) & numpy.uint32(0xFFFFE000)
    return numpy.where(numpy.isfinite(x), rounded.view(numpy.float32), x)
