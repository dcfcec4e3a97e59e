"""Low-precision weights in blocks of a few bits or in bfloat16: their formats, and products with them.

A block holds 32 or 256 neighboring weights of a row: small integers, and float16 scales that all or some of them share. The
formats are those of llama.cpp (ggml-common.h). Each row of a weight is a whole number of blocks, padded with zeros. A weight is
its bytes, row after row, and its ``parts``: a block type and a number of rows each, such as (("Q4_K", 512), ("Q6_K", 128)).

Decoding is as fast as weights are read from memory, so a quarter of the bytes makes it up to four times as fast. Compiled
kernels read the bytes directly. Here some rows at a time are converted to float32, with the same values to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tinytensor.device.backend import xp
from tinytensor.kernels.numpy.products import as_rows, linear, matmul

LARGEST = 127  # of int8 weights; -128 is not used, so that the range is symmetric
LARGEST_WEIGHT = {"int8": 65504.0 * LARGEST, "int4": 65504.0}  # limited by float16 scales and minima
_LEAST = 1e-30  # smaller scales count as 0: their inverse may be infinite
_CANDIDATES = (0.92, 0.96, 1.0)  # factors that are tried for the scale of 4-bit weights


class BlockType(NamedTuple):
    """A format of blocks: the number of weights in a block, its bytes, and functions that convert blocks."""

    size: int
    bytes: int
    unpack: Callable[[Any], Any]  # (blocks, bytes) uint8 -> (blocks, size) float32
    pack: Callable[[Any], Any] | None = None  # the inverse

    def row_bytes(self, width: int) -> int:
        """Return the bytes of a row of ``width`` weights."""
        return -(-width // self.size) * self.bytes


def _half(blocks: Any, at: int) -> Any:
    """Return the float16 number at a byte of each block, as float32 (blocks, 1)."""
    return xp.ascontiguousarray(blocks[:, at : at + 2]).view(xp.float16).astype(xp.float32)


def _nibbles(bytes_: Any, axis: int = 1) -> Any:
    """Return the lower four bits of all bytes, then the upper four."""
    return xp.concatenate([bytes_ & 15, bytes_ >> 4], axis)


def _unpack_q8_0(blocks: Any) -> Any:
    return _half(blocks, 0) * blocks[:, 2:].astype(xp.int8)


def _unpack_q4_0(blocks: Any) -> Any:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(xp.float32) - 8)


def _unpack_q4_1(blocks: Any) -> Any:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _unpack_q4_k(blocks: Any) -> Any:
    """Eight groups of 32, each with a scale and a minimum of 6 bits, multiples of the block's two float16 numbers."""
    low, mid, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = xp.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], 1)
    minima = xp.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], 1)
    integers = _nibbles(blocks[:, 16:].reshape(-1, 4, 32), 2).reshape(-1, 8, 32)
    scales, minima = _half(blocks, 0) * scales, _half(blocks, 2) * minima
    return (scales[:, :, None] * integers - minima[:, :, None]).reshape(-1, 256)


def _unpack_q6_k(blocks: Any) -> Any:
    """Sixteen groups of 16, each with a scale of 8 bits, a multiple of the block's float16 number."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64), 2).reshape(-1, 2, 4, 32)
    bits = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = xp.concatenate([bits >> shift & 3 for shift in (0, 2, 4, 6)], 2)
    integers = (low | high << 4).astype(xp.float32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].astype(xp.int8)
    return (scales[:, :, None] * integers.reshape(-1, 16, 16)).reshape(-1, 256)


def _as_halves(values: Any) -> Any:
    """Convert float32 numbers (blocks,) to the bytes of float16 (blocks, 2)."""
    return values.astype(xp.float16).reshape(-1, 1).view(xp.uint8)


def _pack_q8_0(x: Any) -> Any:
    scale = (abs(x).max(1) / LARGEST).astype(xp.float16).astype(xp.float32)
    inverse = xp.where(scale > 0, 1 / xp.where(scale > 0, scale, 1), 0)
    integers = xp.rint(x * inverse[:, None]).clip(-LARGEST, LARGEST).astype(xp.int8)
    return xp.concatenate([_as_halves(scale), integers.view(xp.uint8)], 1)


def _rounded(x: Any, scale: Any, minimum: Any) -> Any:
    """Return the integers from 0 to 15 for which scale * integer + minimum is nearest to x."""
    inverse = xp.where(scale > _LEAST, 1 / xp.where(scale > _LEAST, scale, 1), 0)
    return xp.rint((x - minimum[:, None]) * inverse[:, None]).clip(0, 15)


def _fitted(x: Any, largest_minimum: float) -> tuple[Any, Any]:
    """Return the scale and minimum of each group (groups, 32) whose 4-bit integers come nearest to it.

    For the integers of several candidate scales, least squares give the best scale and minimum.
    """
    first = x.min(1).clip(None, largest_minimum)
    scale = (x.max(1) - first) / 15
    best = (scale, first, ((scale[:, None] * _rounded(x, scale, first) + first[:, None] - x) ** 2).sum(1))
    for candidate in _CANDIDATES:
        integers = _rounded(x, scale * candidate, first)
        mean, mean_x = integers.mean(1), x.mean(1)
        spread = ((integers - mean[:, None]) ** 2).sum(1)
        slope = ((integers - mean[:, None]) * x).sum(1) / xp.where(spread > 0, spread, 1)
        minimum = (mean_x - slope * mean).clip(None, largest_minimum)
        error = ((slope[:, None] * integers + minimum[:, None] - x) ** 2).sum(1)
        is_better = (error < best[2]) & (slope > 0)
        best = tuple([xp.where(is_better, new, old) for new, old in zip((slope, minimum, error), best)])
    return best[0], best[1]


def _pack_q4_1(x: Any) -> Any:
    scale, minimum = (each.astype(xp.float16) for each in _fitted(x, xp.inf))
    integers = _rounded(x, scale.astype(xp.float32), minimum.astype(xp.float32)).astype(xp.uint8)
    return xp.concatenate([_as_halves(scale), _as_halves(minimum), integers[:, :16] | integers[:, 16:] << 4], 1)


def _pack_q4_k(x: Any) -> Any:
    groups = x.reshape(-1, 32)
    scales, minima = _fitted(groups, 0.0)  # a minimum can only be subtracted
    halves, sixes = [], []
    for values in (scales, -minima):
        values = values.reshape(-1, 8)
        step = (values.max(1) / 63).astype(xp.float16)
        usable = xp.where(step > 0, step, 1).astype(xp.float32)[:, None]
        halves.append(step)
        sixes.append(xp.where(step[:, None] > 0, xp.rint(values / usable).clip(0, 63), 0).astype(xp.uint8))
    scales, minima = ((half.astype(xp.float32)[:, None] * six).ravel() for half, six in zip(halves, sixes))
    integers = _rounded(groups, scales, -minima).astype(xp.uint8).reshape(-1, 4, 2, 32)
    (s, m), nibbles = sixes, integers[:, :, 0] | integers[:, :, 1] << 4
    packed = [s[:, :4] | s[:, 4:] >> 4 << 6, m[:, :4] | m[:, 4:] >> 4 << 6, s[:, 4:] & 15 | m[:, 4:] << 4]
    return xp.concatenate([_as_halves(half) for half in halves] + packed + [nibbles.reshape(-1, 128)], 1)


def _pack_q6_k(x: Any) -> Any:
    groups = x.reshape(-1, 16, 16)
    scales = abs(groups).max(2) / 31
    step = (scales.max(1) / LARGEST).astype(xp.float16)
    usable = xp.where(step > 0, step, 1).astype(xp.float32)[:, None]
    eights = xp.where(step[:, None] > 0, xp.rint(scales / usable).clip(0, LARGEST), 0).astype(xp.int8)
    scales = (usable * eights)[:, :, None]
    integers = xp.rint(groups / xp.where(scales > 0, scales, 1) * (scales > 0)).clip(-32, 31) + 32
    quarters = integers.astype(xp.uint8).reshape(-1, 2, 4, 32)
    low = quarters[:, :, :2] & 15 | quarters[:, :, 2:] << 4
    first, second, third, fourth = (quarters[:, :, quarter] >> 4 for quarter in range(4))
    high = first | second << 2 | third << 4 | fourth << 6
    return xp.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), eights.view(xp.uint8), _as_halves(step)], 1)


BLOCK_TYPES = {
    "Q8_0": BlockType(32, 34, _unpack_q8_0, _pack_q8_0),
    "Q4_0": BlockType(32, 18, _unpack_q4_0),
    "Q4_1": BlockType(32, 20, _unpack_q4_1, _pack_q4_1),
    "Q4_K": BlockType(256, 144, _unpack_q4_k, _pack_q4_k),
    "Q6_K": BlockType(256, 210, _unpack_q6_k, _pack_q6_k),
    "BF16": BlockType(1, 2, lambda blocks: from_bfloat16(blocks.view(xp.uint16)), lambda x: to_bfloat16(x).view(xp.uint8)),
}


def from_bfloat16(bits: Any) -> Any:
    """Return the float32 numbers whose upper halves are these uint16."""
    wide = bits.astype("uint32")
    wide <<= 16  # in place, to save memory for large weights
    return wide.view("float32")


def to_bfloat16(x: Any) -> Any:
    """Return the bits of the nearest bfloat16 numbers, as uint16: the upper halves of float32 numbers, ties to even.

    All elements of x are finite; those beyond bfloat16's largest become infinite.
    """
    bits = xp.ascontiguousarray(x, xp.float32).view(xp.uint32)
    return ((bits + ((bits >> 16) & 1) + xp.uint32(0x7FFF)) >> 16).astype(xp.uint16)


def pack_rows(rows: Any, block_type: str) -> Any:
    """Convert rows of a weight (rows, width) to blocks: (rows, bytes of a row) uint8. The type must have ``pack``."""
    layout = BLOCK_TYPES[block_type]
    assert layout.pack is not None, f"{block_type} is only read"
    blocks = _padded(rows.astype(xp.float32, copy=False), layout.size).reshape(-1, layout.size)
    return layout.pack(blocks).reshape(len(rows), layout.row_bytes(rows.shape[1]))


def unpack_rows(blocks: Any, block_type: str, width: int) -> Any:
    """Convert blocks (rows, bytes of a row) to weights (rows, width) float32."""
    layout = BLOCK_TYPES[block_type]
    numbers = layout.unpack(blocks.reshape(-1, layout.bytes))
    return numbers.reshape(len(blocks), blocks.shape[1] // layout.bytes * layout.size)[:, :width]


def _padded(x: Any, size: int) -> Any:
    """Pad the rows of x with zeros to whole blocks."""
    missing = -x.shape[1] % size
    return xp.pad(x, ((0, 0), (0, missing))) if missing else x


Parts = tuple[tuple[str, int], ...]
Unpack = Callable[[Any, str, int], Any]  # ``unpack_rows``, or its compiled version
_AT_ONCE = 1 << 20  # weights converted to float32 at a time


def linear_blocks(x: Any, weight: Any, bias: Any, parts: Parts, unpack: Unpack = unpack_rows) -> Any:
    """x @ w.T + bias, float32, for a weight w (outputs, inputs) in blocks."""
    rows = as_rows(x).astype(xp.float32, copy=False)
    bias = None if bias is None else bias.astype(xp.float32, copy=False)
    out = xp.empty((len(rows), num_rows(parts)), xp.float32)
    for part, numbers in unpacked(weight, parts, x.shape[-1], unpack):
        out[:, part] = linear(rows, numbers, None if bias is None else bias[part])
    return out.reshape((*x.shape[:-1], out.shape[1]))


def times_quantized(x: Any, weight: Any, parts: Parts, inputs: int, transposed: bool, unpack: Unpack = unpack_rows) -> Any:
    """x @ w, or with ``transposed`` x @ w.T, for a weight w (outputs, inputs) in blocks, in the dtype of x, without rounding
    x."""
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
    """Return the number of rows of a weight."""
    return sum(rows for _, rows in parts)


def cut(weight: Any, parts: Parts, inputs: int) -> Iterator[tuple[str, slice, Any]]:
    """Yield for each part of a weight its block type, its rows, and its bytes (rows, bytes of a row)."""
    first = start = 0
    for block_type, rows in parts:
        size = BLOCK_TYPES[block_type].row_bytes(inputs)
        yield block_type, slice(first, first + rows), weight[start : start + rows * size].reshape(rows, size)
        first, start = first + rows, start + rows * size


def unpacked(weight: Any, parts: Parts, inputs: int, unpack: Unpack) -> Iterator[tuple[slice, Any]]:
    """Yield consecutive rows of a weight: their slice, and their values (rows, inputs) float32."""
    count = max(1, _AT_ONCE // max(1, inputs))
    for block_type, part, blocks in cut(weight, parts, inputs):
        for start in range(0, len(blocks), count):
            some = blocks[start : start + count]
            first = part.start + start
            yield slice(first, first + len(some)), unpack(some, block_type, inputs)


def block_rows(ids: Any, weight: Any, parts: Parts, inputs: int, unpack: Unpack = unpack_rows) -> Any:
    """Return the rows at integer ids (...) of a weight in blocks: (..., inputs) float32."""
    flat = ids.reshape(-1)
    out = xp.empty((flat.size, inputs), xp.float32)
    for block_type, part, blocks in cut(weight, parts, inputs):
        rows = unpack(blocks[(flat - part.start).clip(0, len(blocks) - 1)], block_type, inputs)
        out = xp.where(((flat >= part.start) & (flat < part.stop))[:, None], rows, out)
    return out.reshape(*ids.shape, inputs)
