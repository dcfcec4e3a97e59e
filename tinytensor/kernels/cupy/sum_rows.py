"""The gradient of an embedding: the sum of all rows that have the same id. (CuPy's own lookup is already a single kernel.)"""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import index_dtype, xp
from tinytensor.kernels.cupy.loader import accumulator, computed, contiguous, kernel
from tinytensor.kernels.cupy.sorting import order_of

_FILE = "embedding.cu"
_PIECE = 32  # rows that a warp adds up, as in embedding.cu


def sum_rows(rows: Any, ids: Any, out: Any) -> Any:
    """Add to row i of ``out`` (num_rows, width) the sum of the ``rows`` (..., width) whose id is i. Returns ``out``.

    Rows whose id is not below num_rows may be added anywhere, or nowhere.
    """
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
