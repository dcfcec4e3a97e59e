"""Matrix products by cuBLASLt, the part of cuBLAS whose calls take their stream and working memory.

CuPy has no binding of it, so ctypes calls the library. Its calls can be captured in a CUDA graph (see ``capture.py``), where
CuPy refuses its own calls of cuBLAS (github.com/cupy/cupy/issues/6290). It can also add a bias before storing the result, which
saves a pass over it.

A call takes descriptions of the product and its matrices, and a suitable algorithm. These are cached for each type of product.
``TINYTENSOR_CUBLASLT=1`` sends all products here, to compare the speed. By default only captured steps use it.

The names and numbers are those of cublasLt.h (docs.nvidia.com/cuda/cublas, "Using the cuBLASLt API").
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from cupy import cuda

from tinytensor.device.backend import BackendError, xp
from tinytensor.device.forks import free_in_forks

_WORKSPACE = 32 << 20  # bytes, as NVIDIA recommends for its largest GPUs

# Attributes of a product, a matrix layout, and the preferences for an algorithm.
_TRANSPOSE_FIRST, _TRANSPOSE_SECOND, _EPILOGUE, _BIAS = 3, 4, 7, 8
_ADD_BIAS = 4  # an epilogue: an operation on the result before it is stored
_BATCH_COUNT, _BATCH_STEP = 5, 6
_MOST_WORKSPACE, _ALIGNMENTS = 1, (5, 6, 7, 8)  # of the first, the second, the summand, and the result
_WIDEST_ALIGNMENT = 16  # bytes of the widest load

_handle = ctypes.c_void_p
_made = ctypes.POINTER(_handle)  # where a function stores a new handle
_attribute = [_handle, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
_SIGNATURES = {
    "cublasLtCreate": [_made],
    "cublasLtMatmulDescCreate": [_made, ctypes.c_int, ctypes.c_int],
    "cublasLtMatmulDescSetAttribute": _attribute,
    "cublasLtMatmulDescDestroy": [_handle],
    "cublasLtMatrixLayoutCreate": [_made, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64],
    "cublasLtMatrixLayoutSetAttribute": _attribute,
    "cublasLtMatrixLayoutDestroy": [_handle],
    "cublasLtMatmulPreferenceCreate": [_made],
    "cublasLtMatmulPreferenceSetAttribute": _attribute,
    "cublasLtMatmulPreferenceDestroy": [_handle],
    "cublasLtMatmulAlgoGetHeuristic": [*[_handle] * 7, ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)],
    "cublasLtMatmul": [*[ctypes.c_void_p] * 14, ctypes.c_size_t, ctypes.c_void_p],
}


class _Algorithm(ctypes.Structure):
    """An algorithm, as cublasLtMatmulAlgoGetHeuristic describes it."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


class CublasLtError(RuntimeError):
    """cuBLASLt refused a call."""


class Matrices(NamedTuple):
    """A batch of matrices as they are stored, by columns."""

    data_type: int  # a cudaDataType
    shape: tuple[int, ...]  # rows, columns
    leading: int  # elements from one column to the next
    step: int  # elements from one matrix to the next
    alignment: int  # of the address, in bytes


class Product(NamedTuple):
    """All that an algorithm depends on. The result is op(first) op(second), or its sum with the result's old values."""

    first: Matrices
    second: Matrices
    result: Matrices
    operations: tuple[int, int]  # for each factor: 1 to transpose it, else 0
    matrices: int  # in a batch
    compute: int  # a cublasComputeType_t
    factors: int  # the cudaDataType of the factors of the product and the summand
    bias_alignment: int = 0  # of the address of a vector that is added to each column of the result; 0 without one


def alignment(address: int) -> int:
    """Return the largest power of 2 that divides the address, at most 16."""
    return min(address & -address, _WIDEST_ALIGNMENT)


# ------------------------------------------------------------------------------------------------------ descriptions


class Plan:
    """The descriptions of a product and its matrices, and the fastest algorithm according to cuBLASLt."""

    def __init__(self, product: Product):
        self._lock = free_in_forks(threading.Lock())
        self._product = _made_by("cublasLtMatmulDescCreate", product.compute, product.factors)
        for attribute, operation in zip((_TRANSPOSE_FIRST, _TRANSPOSE_SECOND), product.operations):
            _set("cublasLtMatmulDescSetAttribute", self._product, attribute, ctypes.c_int32(operation))
        if product.bias_alignment:
            _set("cublasLtMatmulDescSetAttribute", self._product, _EPILOGUE, ctypes.c_uint32(_ADD_BIAS))
            self._set_bias(product.bias_alignment)  # not read: the algorithm depends only on the alignment
        self._layouts = [_layout(each, product.matrices) for each in (product.first, product.second, product.result)]
        weakref.finalize(self, _destroy, self._product, *self._layouts).atexit = False
        self._algorithm = self._fastest(product)

    def multiply(self, addresses: Sequence[int], one: int, before: int, bias: int = 0) -> None:
        """Multiply the matrices at these addresses on the current stream.

        ``one`` is the address of the number 1, and ``before`` of the factor of the result's old values. ``bias`` is the address
        of a vector of the result's type, if the product has one.
        """
        first, second, result = addresses
        of_first, of_second, of_result = self._layouts
        algorithm = ctypes.addressof(self._algorithm)  # its first field
        workspace = _workspace()
        with self._lock:  # the bias's address is part of the description, which threads share
            if bias:
                self._set_bias(bias)
            _call(
                "cublasLtMatmul",
                *(_library_handle(), self._product, one, first, of_first, second, of_second),
                *(before, result, of_result, result, of_result, algorithm),
                *(workspace.data.ptr, workspace.nbytes, cuda.get_current_stream().ptr),
            )

    def _set_bias(self, address: int) -> None:
        _set("cublasLtMatmulDescSetAttribute", self._product, _BIAS, ctypes.c_void_p(address))

    def _fastest(self, product: Product) -> _Algorithm:
        preference = _made_by("cublasLtMatmulPreferenceCreate")
        _set("cublasLtMatmulPreferenceSetAttribute", preference, _MOST_WORKSPACE, ctypes.c_uint64(_WORKSPACE))
        matrices = (product.first, product.second, product.result, product.result)
        for attribute, its in zip(_ALIGNMENTS, matrices):
            _set("cublasLtMatmulPreferenceSetAttribute", preference, attribute, ctypes.c_uint32(its.alignment))
        algorithm, count = _Algorithm(), ctypes.c_int()
        layouts = (*self._layouts, self._layouts[-1])
        _call(
            "cublasLtMatmulAlgoGetHeuristic",
            *(_library_handle(), self._product, *layouts, preference, 1, ctypes.addressof(algorithm), ctypes.byref(count)),
        )
        _call("cublasLtMatmulPreferenceDestroy", preference)
        if not count.value or algorithm.status:
            remedy = "unset TINYTENSOR_CUBLASLT and TINYTENSOR_CAPTURE"
            raise CublasLtError(f"cuBLASLt has no algorithm for {product}: {remedy}")
        return algorithm


def _destroy(product: Any, *layouts: Any) -> None:
    for layout in layouts:
        _call("cublasLtMatrixLayoutDestroy", layout)
    _call("cublasLtMatmulDescDestroy", product)


def _layout(matrices: Matrices, count: int) -> Any:
    layout = _made_by("cublasLtMatrixLayoutCreate", matrices.data_type, *matrices.shape, matrices.leading)
    if count > 1:
        _set("cublasLtMatrixLayoutSetAttribute", layout, _BATCH_COUNT, ctypes.c_int32(count))
        _set("cublasLtMatrixLayoutSetAttribute", layout, _BATCH_STEP, ctypes.c_int64(matrices.step))
    return layout


# ------------------------------------------------------------------------------------------------------- the library


@functools.cache
def _library() -> ctypes.CDLL:
    """Load the library on which CuPy's cuBLAS is built."""
    from cuda.pathfinder import load_nvidia_dynamic_lib  # a package that CuPy requires

    library = ctypes.CDLL(load_nvidia_dynamic_lib("cublasLt").abs_path)
    for name, types in _SIGNATURES.items():
        getattr(library, name).argtypes = types
    library.cublasLtGetStatusString.argtypes = [ctypes.c_int]
    library.cublasLtGetStatusString.restype = ctypes.c_char_p
    return library


def _call(name: str, *arguments: Any) -> None:
    """Call a function of the library. Raises CublasLtError if it refuses."""
    status = getattr(_library(), name)(*arguments)
    if status:
        raise CublasLtError(f"{name}: {_library().cublasLtGetStatusString(status).decode()}")


def _made_by(name: str, *arguments: Any) -> int | None:
    made = _handle()
    _call(name, ctypes.byref(made), *arguments)
    return made.value


def _set(name: str, described: Any, attribute: int, value: Any) -> None:
    _call(name, described, attribute, ctypes.addressof(value), ctypes.sizeof(value))


@functools.cache
def _library_handle() -> int | None:
    return _made_by("cublasLtCreate")


@functools.cache
def _workspace() -> Any:
    """Return the working memory of all products. They share it, as a process does its work in order."""
    return xp.empty(_WORKSPACE, xp.uint8)


def _is_on_everywhere() -> bool:
    value = os.environ.get("TINYTENSOR_CUBLASLT", "") or "0"
    if value not in ("0", "1"):
        raise BackendError(f"TINYTENSOR_CUBLASLT must be '0' (the default) or '1' (all products by cuBLASLt), got {value!r}")
    return value == "1"


is_on_everywhere = _is_on_everywhere()
