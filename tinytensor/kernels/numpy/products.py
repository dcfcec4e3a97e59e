"""Products of matrices: NumPy's own, which BLAS does, reading transposed and strided operands as they are."""

from __future__ import annotations

import math
from typing import Any

from tinytensor.backend import xp

matmul = xp.matmul


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias over x's last axis, the others being one long axis: a large product is faster than many small ones.

    A single row is a vector: ``dot`` brings it to BLAS half a microsecond sooner than ``matmul``, which at that size counts.
    """
    is_row = x.size and x.size == x.shape[-1]
    out = x.reshape(-1).dot(weight.T) if is_row else matmul(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]), weight.T)
    if bias is not None:
        if bias.dtype == out.dtype:
            out += bias
        else:
            out = out + bias
    return out.reshape((*x.shape[:-1], weight.shape[0]))
