"""Products with low-precision weights, in blocks of a few bits or in bfloat16 (blocks.py).

Decoding is as fast as weights are read from memory, so a quarter of the bytes makes it up to four times as fast. Compiled
kernels read the bytes as they are. The kernels here convert some rows at a time to float32, with the same values to rounding.

A weight in blocks is its bytes, one row after the other, and its ``parts``: for some rows each, the type of their blocks and
how many rows they are, such as (("Q4_K", 512), ("Q6_K", 128)).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.blocks import BLOCK_TYPES, unpack_rows
from tinytensor.kernels.numpy.products import linear, matmul
from tinytensor.kernels.rows import as_rows

Parts = tuple[tuple[str, int], ...]
Unpack = Callable[[Any, str, int], Any]  # ``unpack_rows``, or the same in compiled loops
_AT_ONCE = 1 << 20  # weights that are float32 at the same time


def linear_blocks(x: Any, weight: Any, bias: Any, parts: Parts, unpack: Unpack = unpack_rows) -> Any:
    """x @ w.T + bias, float32, for a weight w (outputs, inputs) in blocks."""
    rows = as_rows(x).astype(xp.float32, copy=False)
    bias = None if bias is None else bias.astype(xp.float32, copy=False)
    out = xp.empty((len(rows), num_rows(parts)), xp.float32)
    for part, numbers in unpacked(weight, parts, x.shape[-1], unpack):
        out[:, part] = linear(rows, numbers, None if bias is None else bias[part])
    return out.reshape((*x.shape[:-1], out.shape[1]))


def times_quantized(x: Any, weight: Any, parts: Parts, inputs: int, transposed: bool, unpack: Unpack = unpack_rows) -> Any:
    """x @ w, or with ``transposed`` x @ w.T, for the weight w (outputs, inputs) in blocks. x is not
    rounded, and the product is in its dtype."""
    rows = as_rows(x)
    out = xp.zeros((len(rows), num_rows(parts) if transposed else inputs), x.dtype)
    for part, numbers in unpacked(weight, parts, inputs, unpack):
        numbers = numbers.astype(x.dtype, copy=False)
        if transposed:
            out[:, part] = matmul(rows, numbers.T)
        else:
            matmul(rows[:, part], numbers, out, accumulate=True)
    return out.reshape((*x.shape[:-1], out.shape[1]))


def num_rows(parts: Parts) -> int:
    """The rows of a weight."""
    return sum(rows for _, rows in parts)


def cut(weight: Any, parts: Parts, inputs: int) -> Iterator[tuple[str, slice, Any]]:
    """For each part of a weight in blocks its type, its rows, and its bytes (rows, bytes of a row)."""
    first = start = 0
    for block_type, rows in parts:
        size = BLOCK_TYPES[block_type].row_bytes(inputs)
        yield block_type, slice(first, first + rows), weight[start : start + rows * size].reshape(rows, size)
        first, start = first + rows, start + rows * size


def unpacked(weight: Any, parts: Parts, inputs: int, unpack: Unpack) -> Iterator[tuple[slice, Any]]:
    """Some rows of a weight after the other: which they are, and their numbers (rows, inputs) float32."""
    count = max(1, _AT_ONCE // max(1, inputs))
    for block_type, part, blocks in cut(weight, parts, inputs):
        for start in range(0, len(blocks), count):
            some = blocks[start : start + count]
            first = part.start + start
            yield slice(first, first + len(some)), unpack(some, block_type, inputs)


def block_rows(ids: Any, weight: Any, parts: Parts, inputs: int, unpack: Unpack = unpack_rows) -> Any:
    """The rows at integer ids (...) of a weight in blocks: (..., inputs) float32."""
    flat = ids.reshape(-1)
    out = xp.empty((flat.size, inputs), xp.float32)
    for block_type, part, blocks in cut(weight, parts, inputs):
        rows = unpack(blocks[(flat - part.start).clip(0, len(blocks) - 1)], block_type, inputs)
        out = xp.where(((flat >= part.start) & (flat < part.stop))[:, None], rows, out)
    return out.reshape(*ids.shape, inputs)
