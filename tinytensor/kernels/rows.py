"""Arrays seen as matrices of rows."""

from __future__ import annotations

import math
from typing import Any


def as_rows(x: Any) -> Any:
    """x with all axes but the last joined into one: (..., width) -> (rows, width)."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
