"""The gradient of an embedding: the sum of all rows that have the same id. (CuPy's own lookup is already a single kernel.)"""

from __future__ import annotations

from typing import Any

from tinytensor.backend import index_dtype, xp
from tinytensor.kernels.cupy.loader import accumulator, computed, contiguous, kernel
from tinytensor.kernels.cupy.sorting import order_of

_FILE = "embedding.cu"
_PIECE = 32  # rows that a warp adds up, as in embedding.cu


def sum_rows(rows: Any, ids: Any, num_rows: int) -> Any:
    """For each i below num_rows, the sum of the ``rows`` (..., width) whose id is i: (num_rows, width).

    Rows whose id is not below num_rows may be added anywhere in the result, or nowhere.
    """
    count, width = ids.size, rows.shape[-1]
    dtype, rows = rows.dtype, computed(rows)
    out = xp.zeros((num_rows, width), rows.dtype)
    if not count or not out.size:
        return out.astype(dtype, copy=False)
    rows, ids = contiguous(rows), contiguous(ids.reshape(-1).astype(index_dtype, copy=False))
    order = order_of(ids, num_rows)
    pieces = -(-count // _PIECE)
    parts = xp.empty((pieces, 2, width), accumulator(rows.dtype))
    sizes = (count, width, num_rows)
    tiles = -(-width * rows.itemsize // 512)  # 16 bytes for each lane of a warp
    kernel(_FILE, "sum_pieces", rows.dtype)((-(-pieces // 4), tiles), (32, 4), rows, ids, order, out, parts, *sizes)
    kernel(_FILE, "add_parts", rows.dtype)((pieces - 1, -(-width // 128)), (32, 8), parts, ids, order, out, *sizes)
    return out.astype(dtype, copy=False)
