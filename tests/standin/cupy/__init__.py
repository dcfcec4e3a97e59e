"""A strict stand-in for CuPy: the same names over NumPy, so that code for the GPU is tested where there is none.

Put its folder first on the path (``PYTHONPATH=tests/standin``) and ``import cupy`` finds it. It computes what CuPy computes
and refuses what CuPy refuses: NumPy arrays and lists as operands, silent conversion to NumPy, arguments that CuPy's
functions do not have, and every name that is not listed here (CuPy has all that are). Where CuPy takes something that is
slow or undefined (lists and NumPy arrays as indices, repeated indices in an assignment, the ``at`` of ufuncs), it refuses too.

The kernels that ``RawModule`` is given run too: the same CUDA sources, compiled as C++ for the CPU (``_raw.py``).

It is no model of speed, nor of rounding but for TF32's. Three things that CuPy lacks: ``synchronizations`` counts how often
values were read on the host, which makes the CPU wait for the GPU; ``uploads`` lists the bytes of each copy to the GPU; and
``launches`` the name of each kernel, copy and call of cuBLAS. A function of CuPy counts as one launch, though a few (sorting,
sums of large arrays) take more.
"""

from types import SimpleNamespace as _Namespace

import numpy as _numpy

from . import _array, _functions, cuda, linalg
from ._array import ndarray
from ._functions import array, asarray, asnumpy, clip, concatenate, einsum, stack
from ._raw import RawModule, kernel_launches

__all__ = [
    "RawModule", "array", "asarray", "asnumpy", "clip", "concatenate", "cuda", "einsum", "kernel_launches", "linalg", "ndarray",
    "stack",
]  # fmt: skip

_SHARED = """
    bool_ can_cast dtype finfo float16 float32 float64 iinfo inf int8 int16 int32 int64 nan newaxis pi promote_types
    result_type uint8 uint16 uint32 uint64
"""  # CuPy's are NumPy's own

globals().update({name: getattr(_numpy, name) for name in _SHARED.split()}, **_functions.ufuncs, **_functions.functions)


def get_default_memory_pool():
    return _Namespace(free_bytes=lambda: 0, total_bytes=lambda: 0, free_all_blocks=lambda: None)


def __getattr__(name):
    if name in ("synchronizations", "uploads", "launches"):
        return getattr(_array, name)
    raise AttributeError(f"the fake CuPy has no cupy.{name}: if CuPy has it, add it to the table in cupy/_functions.py")
