"""The order of ids: which rows an embedding's gradient adds up one after the other."""

from __future__ import annotations

from typing import Any

from tinytensor.autograd.replaying import current_step
from tinytensor.device.backend import default_dtype, host, xp
from tinytensor.kernels.cupy.loader import kernel

_THREADS = 256  # as in sorting.cu


def order_of(ids: Any, limit: int) -> Any:
    """The places of int64 ``ids`` (count,), sorted by id; equal ids stay in their order. Those not from 0 to limit - 1 may come
    anywhere. ``ids`` are contiguous."""
    if current_step().is_captured:  # CuPy's sort is Thrust's, which does not promise that it can be captured
        order = xp.empty(ids.shape, ids.dtype)
        launch = kernel("sorting.cu", "order_of", default_dtype)  # compiled for any dtype: it has none
        launch(-(-ids.size // _THREADS), _THREADS, ids, order, ids.size)
        return order
    # Integers are sorted 8 bits at a time, so shorter integers take fewer passes. CuPy's sort is stable. Since version 14 it
    # does not wait for the GPU.
    return xp.argsort(ids.astype(host.min_scalar_type(limit - 1)), kind="stable")
