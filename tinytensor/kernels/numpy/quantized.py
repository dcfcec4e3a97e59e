"""Products with weights of fewer bits: int8 with a scale for each row, and bfloat16.

A text is written at the speed at which weights are read from memory, so that a quarter of the bytes makes it up to four times
as fast. Compiled kernels read the bytes as they are. These here make float32 of some rows at a time, and give the same numbers.
"""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.products import linear, matmul
from tinytensor.kernels.rows import as_rows

LARGEST = 127  # of the integers; -128 is not used, so that they lie around 0
LEAST = 1e-30  # rows without larger numbers count as zeros: the inverse of such a number may be infinite
_AT_ONCE = 1 << 20  # numbers of a weight that are float32 at the same time
_EXACT = 1024  # so many products of two such integers have a sum below 2**24, which float32 holds exactly


def quantize_rows(x: Any) -> tuple[Any, Any]:
    """Integers (rows, width) int8 and a scale for each row, float32, whose products are nearly x: at most half a scale away.

    The largest number of a row becomes 127 or -127. A row with NaN or infinity has it in its scale, and the integers 0.
    """
    x = x.astype(xp.float32, copy=False)
    largest = abs(x).max(1) if x.size else xp.zeros(len(x), xp.float32)
    is_usual = (largest > LEAST) & xp.isfinite(largest)
    factors = xp.float32(LARGEST) / xp.where(is_usual, largest, xp.float32(1))
    integers = xp.where(is_usual[:, None], xp.rint(x * factors[:, None]), 0)
    return integers.astype(xp.int8), largest / xp.float32(LARGEST)


def linear_int8(x: Any, weight: Any, scale: Any, bias: Any) -> Any:
    """x @ (scale * weight).T + bias, float32, for a weight (outputs, inputs) int8 and a scale (outputs,). The rows of x become
    integers, too, and the sums of products are exact, so that all kernels give the same numbers."""
    rows = as_rows(x)
    integers, row_scales = quantize_rows(rows)
    integers = integers.astype(xp.float32)
    scale = scale.astype(xp.float32, copy=False)
    out = xp.empty((len(rows), len(weight)), xp.float32)
    for part in _parts(weight):
        sums = xp.zeros((len(rows), len(weight[part])), xp.int32)
        for start in range(0, weight.shape[1], _EXACT):
            few = weight[part, start : start + _EXACT].astype(xp.float32)
            sums += (integers[:, start : start + _EXACT] @ few.T).astype(xp.int32)
        out[:, part] = sums.astype(xp.float32) * (row_scales[:, None] * scale[part])
    if bias is not None:
        out += bias.astype(xp.float32, copy=False)
    return out.reshape((*x.shape[:-1], len(weight)))


def linear_bfloat16(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight.T + bias, float32, for a weight (outputs, inputs) that is given by the bits of its bfloat16 numbers."""
    rows = as_rows(x).astype(xp.float32, copy=False)
    bias = None if bias is None else bias.astype(xp.float32, copy=False)
    out = xp.empty((len(rows), len(weight)), xp.float32)
    for part in _parts(weight):
        out[:, part] = linear(rows, from_bfloat16(weight[part]), None if bias is None else bias[part])
    return out.reshape((*x.shape[:-1], len(weight)))


def times_quantized(x: Any, weight: Any, scale: Any, transposed: bool) -> Any:
    """x @ w, or with ``transposed`` x @ w.T, for the numbers w (outputs, inputs) that the weight stands for: those of bfloat16
    bits, or with a scale (outputs,) scale * weight. x is not rounded, and the product is in its dtype."""
    rows = as_rows(x)
    out = xp.zeros((len(rows), weight.shape[0 if transposed else 1]), x.dtype)
    for part in _parts(weight):
        numbers = (from_bfloat16(weight[part]) if scale is None else weight[part]).astype(x.dtype, copy=False)
        if scale is not None:
            numbers *= scale[part, None].astype(x.dtype, copy=False)
        if transposed:
            out[:, part] = matmul(rows, numbers.T)
        else:
            matmul(rows[:, part], numbers, out, accumulate=True)
    return out.reshape((*x.shape[:-1], out.shape[1]))


def from_bfloat16(bits: Any) -> Any:
    """The float32 numbers whose upper halves are these uint16."""
    wide = bits.astype("uint32")
    wide <<= 16  # in place: a large weight should not need room for two
    return wide.view("float32")


def to_bfloat16(x: Any) -> Any:
    """The bits of the nearest bfloat16 numbers, as uint16: the upper halves of float32 numbers, rounded to even. All numbers
    of x are finite; those beyond bfloat16's largest become infinite."""
    bits = xp.ascontiguousarray(x, xp.float32).view(xp.uint32)
    return ((bits + ((bits >> 16) & 1) + xp.uint32(0x7FFF)) >> 16).astype(xp.uint16)


def _parts(weight: Any) -> list[slice]:
    """Some rows of a weight at a time."""
    count = max(1, _AT_ONCE // max(1, weight.shape[1]))
    return [slice(start, start + count) for start in range(0, len(weight), count)]
