"""Embeddings. ``kernels/numpy/embedding.py`` has the contracts and formulas.

CuPy's lookup is already a single kernel. For its gradient, ids are sorted, and rows with the same id are added up.
"""

from __future__ import annotations

from typing import Any

from tinytensor.autograd.replaying import current_step
from tinytensor.device.backend import default_dtype, host, index_dtype, xp
from tinytensor.kernels.cupy.loader import accumulator, computed, contiguous, kernel
from tinytensor.kernels.numpy.embedding import negative_sampling_gradients

_THREADS = 256  # as in sorting.cu


def order_of(ids: Any, limit: int) -> Any:
    """Return the positions of int64 ``ids`` (count,), contiguous, sorted by id; equal ids keep their order. Ids not from 0 to
    limit - 1 may come anywhere."""
    if current_step().is_captured:  # CuPy's sort is Thrust's, which may not be capturable
        order = xp.empty(ids.shape, ids.dtype)
        launch = kernel("sorting.cu", "order_of", default_dtype)  # any dtype will do
        launch(-(-ids.size // _THREADS), _THREADS, ids, order, ids.size)
        return order
    # Integers are sorted 8 bits at a time, so shorter ones take fewer passes. CuPy's sort is stable, and since version 14 does
    # not wait for the GPU.
    return xp.argsort(ids.astype(host.min_scalar_type(limit - 1)), kind="stable")


_FILE = "embedding.cu"
_PIECE = 32  # rows that a warp adds up, as in embedding.cu


def sum_rows(rows: Any, ids: Any, out: Any) -> Any:
    """``sum_rows`` of kernels/numpy. Rows whose id is not below num_rows may be added anywhere, or nowhere."""
    rows, count, (num_rows, width) = computed(rows), ids.size, out.shape
    if out.dtype != rows.dtype or not out.flags.c_contiguous:
        out += sum_rows(rows, ids, xp.zeros(out.shape, rows.dtype))
        return out
    if not count or not out.size:
        return out
    rows, ids = contiguous(rows), contiguous(ids.reshape(-1).astype(index_dtype, copy=False))
    order = order_of(ids, num_rows)
    pieces = -(-count // _PIECE)
    parts = xp.empty((pieces, 2, width), accumulator(rows.dtype))
    sizes = (count, width, num_rows)
    tiles = -(-width * rows.itemsize // 512)  # 16 bytes for each lane of a warp
    kernel(_FILE, "sum_pieces", rows.dtype)((-(-pieces // 4), tiles), (32, 4), rows, ids, order, out, parts, *sizes)
    kernel(_FILE, "add_parts", rows.dtype)((pieces - 1, -(-width // 128)), (32, 8), parts, ids, order, out, *sizes)
    return out


def negative_sampling_step(inputs: Any, outputs: Any, contexts: Any, targets: Any, rate: float) -> None:
    """``negative_sampling_step`` of kernels/numpy."""
    d_h, d_rows = negative_sampling_gradients(inputs, outputs, contexts, targets)
    for weights, ids, rows in ((outputs, targets, d_rows), (inputs, contexts, d_h)):
        sum_rows(-rate * rows, xp.maximum(ids, 0), weights)  # the gradient of -1 is 0
