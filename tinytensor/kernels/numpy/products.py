"""Matrix products by NumPy. It calls BLAS, which reads transposed matrices without a copy."""

from __future__ import annotations

import math
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over, widened

LONG = 1 << 16  # terms of a contraction; longer ones are cut into blocks
_FEW, _SMALL = 1 << 12, 1 << 20  # so are those of more than _FEW terms, if the product takes at most _SMALL multiplications


def as_rows(x: Any) -> Any:
    """Join all axes of x but the last: (..., width) -> (rows, width)."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def matmul(a: Any, b: Any, out: Any = None, accumulate: bool = False) -> Any:
    """a @ b: (..., n, k) and (..., k, m) -> (..., n, m), with leading axes broadcast.

    The product is written to ``out``, if given; with ``accumulate`` it is added to ``out``. ``out`` must not overlap with a or
    b. The product of half-precision arrays is float32.
    """
    if out is None:
        a, b = widened(a), widened(b)  # NumPy multiplies half precision element by element
    length, size = a.shape[-1], a.shape[-2] * b.shape[-1]
    is_long = length > LONG or (length > _FEW and length * size <= _SMALL)
    if not is_long and not accumulate:
        return xp.matmul(a, b, out=out)
    product = _in_blocks(a, b) if is_long else xp.matmul(a, b)
    return product if out is None else xp.add(out if accumulate else 0, product, out=out)


def _in_blocks(a: Any, b: Any) -> Any:
    """a @ b in blocks of terms. BLAS cuts large matrices into blocks, but adds up vectors and small matrices term by term."""
    length, size = a.shape[-1], 256 if 1 in (a.shape[-2], b.shape[-1]) or a.shape[-2] * b.shape[-1] <= 256 else LONG
    full = length - length % size
    heads = a[..., :full].reshape(*a.shape[:-1], -1, size), b[..., :full, :].reshape(*b.shape[:-2], -1, size, b.shape[-1])
    products = xp.matmul(heads[0].swapaxes(-2, -3), heads[1])
    return sum_over(products, [products.ndim - 3]) + xp.matmul(a[..., full:], b[..., full:, :])


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias over the last axis of x. The other axes are joined: one large product is faster than many small ones.

    A single row uses ``dot``, which reaches BLAS half a microsecond sooner than ``matmul``.
    """
    is_row = x.size and x.size == x.shape[-1] <= LONG
    out = x.reshape(-1).dot(weight.T) if is_row else matmul(as_rows(x), weight.T)
    if bias is not None:
        if bias.dtype == out.dtype:
            out += bias
        else:
            out = out + bias
    return out.reshape((*x.shape[:-1], weight.shape[0]))
