"""The one place that chooses between NumPy and CuPy.

``TINYTENSOR_BACKEND=numpy`` (the default) or ``cupy`` is read once, at import. Everything else in the library says
``from tinytensor.backend import xp`` and never learns which array package it got. What the two packages spell
differently stands in this file as a function; the hand-written kernels stand in ``kernels/numpy`` and ``kernels/cupy``.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy

from tinytensor.allocator import keep_freed_memory

host = numpy  # for work that stays on the CPU, whichever the backend is: shapes, seeds, token ids
Array = Any  # numpy.ndarray or cupy.ndarray: the two share their interface, not a base class
DType = Any

default_dtype = numpy.dtype(numpy.float32)
bool_dtype = numpy.dtype(numpy.bool_)
index_dtype = numpy.dtype(numpy.int64)


class BackendError(ImportError):
    """The backend that TINYTENSOR_BACKEND asks for cannot be used; the message says what to do."""


def _load_backend(name: str) -> Any:
    if name == "numpy":
        keep_freed_memory()
        return numpy
    if name != "cupy":
        raise BackendError(f"TINYTENSOR_BACKEND={name!r} is not a backend: use 'numpy' or 'cupy'")
    try:
        import cupy
    except ImportError:
        raise BackendError(
            "TINYTENSOR_BACKEND=cupy, but CuPy is not installed: pip install 'tinytensor[cuda13]' "
            "(or [cuda12]), or unset TINYTENSOR_BACKEND to run on the CPU"
        ) from None
    if not cupy.cuda.is_available():
        raise BackendError(
            "TINYTENSOR_BACKEND=cupy, but CuPy finds no usable NVIDIA GPU: check that nvidia-smi lists one and that "
            "its driver is new enough for this CuPy, or unset TINYTENSOR_BACKEND to run on the CPU"
        )
    return cupy


name: str = os.environ.get("TINYTENSOR_BACKEND", "") or "numpy"
xp: Any = _load_backend(name)


def _find_bfloat16() -> DType:
    """The dtype bfloat16, which the package ml_dtypes defines and CuPy computes with; None on NumPy or without the package."""
    if xp is numpy:
        return None
    try:
        import ml_dtypes
    except ImportError:
        return None
    return numpy.dtype(ml_dtypes.bfloat16)


bfloat16: DType = _find_bfloat16()


def is_array(value: object) -> bool:
    """True for an array of the backend, or one of NumPy's scalars (what its reductions return)."""
    return isinstance(value, (xp.ndarray, numpy.generic))


def is_host_array(value: object) -> bool:
    """True for a NumPy array or scalar, whichever the backend is."""
    return isinstance(value, (numpy.ndarray, numpy.generic))


def from_numpy(array: Any, dtype: DType = None) -> Array:
    """Copy a NumPy array (or anything ``numpy.asarray`` takes) to the backend's device."""
    return xp.array(numpy.asarray(array, dtype=dtype))


def to_numpy(array: Array) -> Any:
    """The values as a NumPy array: the same memory on the CPU, a copy from a GPU."""
    return numpy.asarray(array) if xp is numpy else xp.asnumpy(array)


def is_floating(dtype: DType) -> bool:
    """True for real floating-point types. (bfloat16 has the kind 'V' in NumPy; tensors hold no other of that.)"""
    return dtype.kind in "fV"


def wide(dtype: DType) -> DType:
    """The dtype to add up numbers of this one in: float32 for bfloat16, which soon loses what is added; None: its own."""
    return default_dtype if dtype.kind == "V" else None


def scatter_add(target: Array, index: Any, values: Array) -> None:
    """``target[index] += values`` in place, where repeated indices add up instead of the last one winning."""
    if xp is numpy:
        numpy.add.at(target, index, values)
    else:
        import cupyx

        if target.dtype == index_dtype:  # GPUs add unsigned 64-bit integers alone; in two's complement the sum is the same
            target, values = target.view(numpy.uint64), values.astype(target.dtype).view(numpy.uint64)
        cupyx.scatter_add(target, index, values)


def quiet() -> AbstractContextManager[Any]:
    """A context without floating-point warnings, as on GPUs: log(0) is an answer, and ``tt.detect_anomaly`` finds accidents."""
    return numpy.errstate(all="ignore") if xp is numpy else nullcontext()
