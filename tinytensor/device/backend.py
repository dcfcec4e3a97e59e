"""The choice between NumPy and CuPy.

``TINYTENSOR_BACKEND=numpy`` (the default) or ``cupy`` is read once, at import. Other modules import ``xp`` from here without
knowing which backend it is. Functions in this file hide the differences. The kernels are in ``kernels/numpy`` and
``kernels/cupy``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any

# OpenBLAS's threads wait busily for the next product, by default for 2^28 clock ticks, about 100 ms, and block cores that
# other threads could use. NumPy's OpenBLAS reads this exponent when it is loaded.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "22")  # about 1.5 ms

import numpy

from tinytensor.device.allocator import keep_freed_memory
from tinytensor.device.caches import has_home, of_this_run

host = numpy  # for work that stays on the CPU in both backends: shapes, seeds, token ids
Array = Any  # numpy.ndarray or cupy.ndarray, which have no common base class
DType = Any

default_dtype = numpy.dtype(numpy.float32)
bool_dtype = numpy.dtype(numpy.bool_)
index_dtype = numpy.dtype(numpy.int64)


class BackendError(ImportError):
    """A backend or library selected by an environment variable is not available. The message says how to fix it."""


def _load_backend(name: str) -> Any:
    if name == "numpy":
        keep_freed_memory()
        return numpy
    if name != "cupy":
        raise BackendError(f"TINYTENSOR_BACKEND={name!r} is not a backend: use 'numpy' or 'cupy'")
    try:
        return _load_cupy()
    except BackendError as error:
        raise BackendError(f"TINYTENSOR_BACKEND=cupy, but {error}, or unset TINYTENSOR_BACKEND to run on the CPU") from None


_INSTALL = "pip install 'tinyformer[cuda13]' (or [cuda12])"


def _load_cupy() -> Any:
    """Import CuPy. If something is missing, raise BackendError with instructions to install it."""
    _take_own_gpu()
    try:
        import cupy
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise BackendError(f"CuPy does not load, because the package {error.name!r} is missing: {_INSTALL}") from None
        raise BackendError(f"CuPy is not installed: {_INSTALL}") from None
    except ImportError as error:  # a wheel for another Python, or missing CUDA libraries
        reason = str(error).strip().splitlines()[-1]
        raise BackendError(f"CuPy does not load ({reason}): install it again, {_INSTALL}") from None
    _check_gpu(cupy.cuda.runtime)
    _check_libraries(cupy.cuda)
    _check_headers()
    if not has_home() and not os.environ.get("CUPY_CACHE_DIR"):
        os.environ["CUPY_CACHE_DIR"] = str(of_this_run())  # CuPy would cache compiled kernels in ./~/.cupy
    return cupy


VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
# The number of an MPI process on this machine, as set by MPICH and Intel, Open MPI, and Slurm.
_LOCAL_RANKS = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")


def _local_rank() -> int:
    return next((int(os.environ[name]) for name in _LOCAL_RANKS if os.environ.get(name, "").isdigit()), 0)


def _take_own_gpu() -> None:
    """Make only one GPU visible to each MPI process of this machine, except the first, which uses the first GPU anyway.

    This must happen before CUDA starts: CuPy chooses a GPU only for one thread, and each shard of a batch has its own thread.
    If the launcher assigned a single GPU to this process, keep it.
    """
    rank, visible = _local_rank(), os.environ.get(VISIBLE_GPUS)
    if rank == 0 or (visible is not None and "," not in visible):
        return
    names = visible.split(",") if visible is not None else [str(number) for number in range(rank + 1)]
    if rank >= len(names):
        raise BackendError(
            f"process number {rank + 1} of this machine has no GPU, as {VISIBLE_GPUS}={visible} shows {len(names)}: start at "
            "most one process for each GPU"
        )
    os.environ[VISIBLE_GPUS] = names[rank]


_INSUFFICIENT_DRIVER = 35  # cudaErrorInsufficientDriver
_NO_DEVICE = 100  # cudaErrorNoDevice


def _check_gpu(runtime: Any) -> None:
    """Raise BackendError unless the driver is recent enough and this CUDA version supports the GPU."""
    needed = runtime.runtimeGetVersion()
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        if error.status == _INSUFFICIENT_DRIVER:
            raise BackendError(_driver_problem(runtime.driverGetVersion(), needed)) from None
        if error.status != _NO_DEVICE:
            raise BackendError(f"CUDA does not start ({error}): check that nvidia-smi lists a GPU") from None
        count = 0
    if not count and _local_rank() and os.environ[VISIBLE_GPUS]:
        raise BackendError(
            f"process number {_local_rank() + 1} of this machine has no GPU {os.environ[VISIBLE_GPUS]}: start at most one "
            f"process for each GPU, or let the launcher set {VISIBLE_GPUS} for each process"
        )
    if not count:
        raise BackendError(
            "CuPy finds no usable NVIDIA GPU: check that nvidia-smi lists one and that CUDA_VISIBLE_DEVICES does not hide it"
        )
    device = runtime.getDeviceProperties(runtime.getDevice())
    lowest = (7, 5) if needed >= 13000 else (5, 0)  # CUDA 13 no longer supports Maxwell, Pascal and Volta
    if (device["major"], device["minor"]) < lowest:
        older = " or, from 5.0 on, pip install 'tinyformer[cuda12]'" if needed >= 13000 else ""
        raise BackendError(
            f"the GPU {device['name'].decode()} has compute capability {device['major']}.{device['minor']}, and CUDA "
            f"{_version(needed)} compiles for {lowest[0]}.{lowest[1]} and later: use a newer GPU{older}"
        )


def _driver_problem(installed: int, needed: int) -> str:
    if not installed:
        return "CuPy finds no NVIDIA driver: install one, so that nvidia-smi lists a GPU"
    older = ", or pip install 'tinyformer[cuda12]'" if needed >= 13000 else ""
    return f"the NVIDIA driver is for CUDA {_version(installed)} and this CuPy for {_version(needed)}: update the driver{older}"


def _check_libraries(cuda: Any) -> None:
    """Raise BackendError unless cuBLAS (matrix products) and NVRTC (the kernel compiler) are installed."""
    try:
        library = "cuBLAS"
        from cupy_backends.cuda.libs import cublas  # noqa: F401

        library = "NVRTC"
        cuda.nvrtc.getVersion()
    except (ImportError, RuntimeError):
        raise BackendError(f"CuPy does not find CUDA's library {library}: {_INSTALL} brings it") from None


def _check_headers() -> None:
    """Raise BackendError unless the CUDA headers are installed, including ``cuda_bf16.h`` and ``cuda_fp16.h``.

    CuPy searches for the headers in the same way when it compiles a function on its first call. The bare CuPy wheel does not
    include them (docs.cupy.dev, "Installation": required since CUDA 12.2).
    """
    from cuda.pathfinder import find_nvidia_header_directory  # a package that CuPy requires

    if find_nvidia_header_directory("cudart") is None:
        raise BackendError(f"CuPy does not find CUDA's headers: {_INSTALL} brings them, or set CUDA_PATH to a CUDA toolkit")


def load_nccl() -> Any:
    """Return CuPy's module for NCCL, NVIDIA's library for communication between GPUs. Raises BackendError if it is missing."""
    from cupy.cuda import nccl

    if not nccl.available:
        package = f"nvidia-nccl-cu{xp.cuda.runtime.runtimeGetVersion() // 1000}"
        raise BackendError(f"several GPUs need NVIDIA's NCCL, and CuPy does not find it: pip install {package}, on Linux")
    return nccl


def _version(number: int) -> str:
    """Format a CUDA version number: 12040 becomes "12.4"."""
    return f"{number // 1000}.{number % 1000 // 10}"


name: str = os.environ.get("TINYTENSOR_BACKEND", "") or "numpy"
xp: Any = _load_backend(name)


def _find_bfloat16() -> DType:
    """Return the bfloat16 dtype of ml_dtypes for CuPy. Return None for NumPy or if the package is not installed."""
    if xp is numpy:
        return None
    try:
        import ml_dtypes
    except ImportError:
        return None
    return numpy.dtype(ml_dtypes.bfloat16)


bfloat16: DType = _find_bfloat16()


def is_array(value: object) -> bool:
    """Return True for an array of the backend or a NumPy scalar (the result of NumPy reductions)."""
    return isinstance(value, (xp.ndarray, numpy.generic))


def is_host_array(value: object) -> bool:
    """Return True for a NumPy array or scalar in both backends."""
    return isinstance(value, (numpy.ndarray, numpy.generic))


def from_numpy(array: Any, dtype: DType = None) -> Array:
    """Copy a NumPy array, or anything that ``numpy.asarray`` accepts, to an array of the backend."""
    return xp.array(numpy.asarray(array, dtype=dtype))


def to_numpy(array: Array) -> Any:
    """Return the values as a NumPy array: a view on the CPU, a copy from a GPU."""
    return numpy.asarray(array) if xp is numpy else xp.asnumpy(array)


def owner(array: Array) -> Array:
    """Return the array that owns this array's memory: itself, unless it is a view."""
    while isinstance(array.base, xp.ndarray):
        array = array.base
    return array


def is_floating(dtype: DType) -> bool:
    """Return True for real floating-point dtypes. (The kind of bfloat16, which NumPy does not define, is not 'f'.)"""
    return dtype.kind == "f" or (bfloat16 is not None and dtype == bfloat16)


conversions: dict[tuple[DType, DType], Callable[[Array], Array]] = {}  # kernels add functions faster than NumPy's


def converted(array: Array, dtype: DType) -> Array:
    """Convert an array (in gradient rules, a tensor) to another dtype."""
    convert = conversions.get((array.dtype, dtype)) if is_array(array) else None
    return array.astype(dtype) if convert is None else convert(array)


def wide(dtype: DType) -> DType:
    """Return the dtype for sums: float32 for half precision, else None (keep the dtype)."""
    return default_dtype if is_floating(dtype) and dtype.itemsize < default_dtype.itemsize else None


def scatter_add(target: Array, index: Any, values: Array) -> None:
    """Add ``values`` to ``target[index]`` in place, including all values of a repeated index."""
    dtype = wide(target.dtype)  # half precision would round after each addition, and CuPy cannot add bfloat16 here
    parts = index if isinstance(index, tuple) else (index,)
    if is_floating(target.dtype) and target.dtype.itemsize < 8 and any(getattr(i, "size", 0) > 1024 for i in parts):
        dtype = numpy.dtype("float64")  # an index may be repeated many times
    if dtype:
        sums = target.astype(dtype)
        xp.add.at(sums, index, values.astype(dtype))
        target[...] = sums
    else:
        if xp is not numpy and target.dtype == index_dtype:
            # GPUs add only unsigned 64-bit integers. In two's complement the sums are equal.
            target, values = target.view(numpy.uint64), values.astype(target.dtype).view(numpy.uint64)
        xp.add.at(target, index, values)


def out_of_memory(error: MemoryError) -> str:
    """Return the message of a MemoryError. On a GPU it includes the requested and free memory."""
    asked = re.search(r"allocating ([\d,]+) bytes", str(error))
    if xp is numpy or not asked:
        return str(error)
    free, total = xp.cuda.runtime.memGetInfo()
    free += xp.get_default_memory_pool().free_bytes()  # CuPy's pool holds freed memory in blocks that may be too small
    return (
        f"{_gibibytes(int(asked[1].replace(',', '')))} of GPU memory were requested, "
        f"and {_gibibytes(free)} of {_gibibytes(total)} are free"
    )


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.2f} GiB" if count >= 2**27 else f"{count / 2**20:.1f} MiB"


def faults_are_errors() -> AbstractContextManager[Any]:
    """Return a context in which CuPy's linear algebra raises LinAlgError for a singular matrix, as NumPy does.

    By default CuPy returns NaN, because a check would wait for the GPU.
    """
    if xp is numpy:
        return nullcontext()
    import cupyx

    return cupyx.errstate(linalg="raise")


with numpy.errstate(all="ignore"):  # setting its context variable directly is ten times faster
    _errors = [item for item in copy_context().items() if item[0].name == "numpy.ufunc.extobj"] or [(ContextVar("none"), None)]
mute, unmute = partial(_errors[0][0].set, _errors[0][1]), _errors[0][0].reset  # called for each op, faster than a ``with``


class no_warnings:
    """A context without NumPy's floating-point warnings, which GPUs never issue. log(0) is a valid result. Use
    ``tt.detect_anomaly`` to find errors."""

    def __enter__(self) -> None:
        self._before = mute()

    def __exit__(self, *error: object) -> None:
        unmute(self._before)
