"""Products of matrices, by NumPy. NumPy calls BLAS, which reads transposed matrices without a copy."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import xp
from tinytensor.device.summation import sum_over, widened
from tinytensor.kernels.rows import as_rows

LONG = 1 << 16  # a contraction of more terms is cut into blocks
_FEW, _SMALL = 1 << 12, 1 << 20  # and one of more than these few terms, if the product takes no more multiplications than this


def matmul(a: Any, b: Any, out: Any = None, accumulate: bool = False) -> Any:
    """a @ b: (..., n, k) and (..., k, m) -> (..., n, m), with leading axes broadcast. The product is written to ``out`` if it
    is given; with ``accumulate`` it is added to what ``out`` holds. ``out`` must not overlap with a or b. Of half precision
    the product is float32."""
    if out is None:
        a, b = widened(a), widened(b)  # NumPy multiplies half precision number by number
    length, size = a.shape[-1], a.shape[-2] * b.shape[-1]
    is_long = length > LONG or (length > _FEW and length * size <= _SMALL)
    if not is_long and not accumulate:
        return xp.matmul(a, b, out=out)
    product = _in_blocks(a, b) if is_long else xp.matmul(a, b)
    return product if out is None else xp.add(out if accumulate else 0, product, out=out)


def _in_blocks(a: Any, b: Any) -> Any:
    """a @ b in blocks of terms. BLAS multiplies large matrices in blocks, but vectors and small ones by a running sum."""
    length, size = a.shape[-1], 256 if 1 in (a.shape[-2], b.shape[-1]) or a.shape[-2] * b.shape[-1] <= 256 else LONG
    whole = length - length % size
    heads = a[..., :whole].reshape(*a.shape[:-1], -1, size), b[..., :whole, :].reshape(*b.shape[:-2], -1, size, b.shape[-1])
    products = xp.matmul(heads[0].swapaxes(-2, -3), heads[1])
    return sum_over(products, [products.ndim - 3]) + xp.matmul(a[..., whole:], b[..., whole:, :])


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias over the last axis of x. The other axes are joined: one large product is faster than many small ones.

    A single row goes through ``dot``: it reaches BLAS half a microsecond sooner than ``matmul``, which matters at that size.
    """
    is_row = x.size and x.size == x.shape[-1] <= LONG
    out = x.reshape(-1).dot(weight.T) if is_row else matmul(as_rows(x), weight.T)
    if bias is not None:
        if bias.dtype == out.dtype:
            out += bias
        else:
            out = out + bias
    return out.reshape((*x.shape[:-1], weight.shape[0]))
