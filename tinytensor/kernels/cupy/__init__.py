"""The GPU kernels. For now the portable array versions serve on CuPy too, but for what NumPy alone has."""

from __future__ import annotations

from typing import Any

from tinytensor.backend import scatter_add, xp
from tinytensor.kernels.numpy import *
from tinytensor.kernels.numpy import __all__ as __all__


def sum_rows(rows: Any, ids: Any, num_rows: int) -> Any:  # type: ignore[no-redef]
    """For each i below num_rows, the sum of the rows (..., width) whose id is i: (num_rows, width)."""
    out = xp.zeros((num_rows, rows.shape[-1]), dtype=rows.dtype)
    scatter_add(out, ids.reshape(-1), rows.reshape(-1, rows.shape[-1]))
    return out
