"""Weights in blocks of a few bits, stored as llama.cpp stores them in its files.

A block holds 32 or 256 neighboring weights of a row: small integers, and float16 scales that all or some of them share. The
formats are those of ggml (ggml-common.h). Each row of a weight is a whole number of blocks; a row that ends earlier is padded
with zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tinytensor.device.backend import xp

LARGEST = 127  # of int8 weights; -128 is not used, so that they lie around 0
LARGEST_WEIGHT = {"int8": 65504.0 * LARGEST, "int4": 65504.0}  # that float16 scales and minima allow
_LEAST = 1e-30  # smaller scales count as 0: their inverse may be infinite
_CANDIDATES = (0.92, 0.96, 1.0)  # factors of the scale of 4-bit weights that are tried


class BlockType(NamedTuple):
    """A format of blocks: the number of weights in a block, its bytes, and what converts blocks."""

    size: int
    bytes: int
    unpack: Callable[[Any], Any]  # (blocks, bytes) uint8 -> (blocks, size) float32
    pack: Callable[[Any], Any] | None = None  # the other way around

    def row_bytes(self, width: int) -> int:
        """The bytes of a row of so many weights."""
        return -(-width // self.size) * self.bytes


def _half(blocks: Any, at: int) -> Any:
    """The float16 number at this byte of each block, as float32 (blocks, 1)."""
    return xp.ascontiguousarray(blocks[:, at : at + 2]).view(xp.float16).astype(xp.float32)


def _nibbles(bytes_: Any, axis: int = 1) -> Any:
    """The lower four bits of all bytes, then the upper four."""
    return xp.concatenate([bytes_ & 15, bytes_ >> 4], axis)


def _unpack_q8_0(blocks: Any) -> Any:
    return _half(blocks, 0) * blocks[:, 2:].astype(xp.int8)


def _unpack_q4_0(blocks: Any) -> Any:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(xp.float32) - 8)


def _unpack_q4_1(blocks: Any) -> Any:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]) + _half(blocks, 2)


def _unpack_q4_k(blocks: Any) -> Any:
    """Eight groups of 32, each with a scale and a minimum of 6 bits, which are multiples of the block's two float16 numbers."""
    low, mid, high = (blocks[:, at : at + 4] for at in (4, 8, 12))
    scales = xp.concatenate([low & 63, (high & 15) | (low >> 6 << 4)], 1)
    minima = xp.concatenate([mid & 63, (high >> 4) | (mid >> 6 << 4)], 1)
    integers = _nibbles(blocks[:, 16:].reshape(-1, 4, 32), 2).reshape(-1, 8, 32)
    scales, minima = _half(blocks, 0) * scales, _half(blocks, 2) * minima
    return (scales[:, :, None] * integers - minima[:, :, None]).reshape(-1, 256)


def _unpack_q6_k(blocks: Any) -> Any:
    """Sixteen groups of 16, each with a scale of 8 bits, which is a multiple of the block's float16 number."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64), 2).reshape(-1, 2, 4, 32)
    bits = blocks[:, 128:192].reshape(-1, 2, 1, 32)
    high = xp.concatenate([bits >> shift & 3 for shift in (0, 2, 4, 6)], 2)
    integers = (low | high << 4).astype(xp.float32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].astype(xp.int8)
    return (scales[:, :, None] * integers.reshape(-1, 16, 16)).reshape(-1, 256)


def _as_halves(values: Any) -> Any:
    """float32 numbers (blocks,) as the bytes of float16 ones (blocks, 2)."""
    return values.astype(xp.float16).reshape(-1, 1).view(xp.uint8)


def _pack_q8_0(x: Any) -> Any:
    scale = (abs(x).max(1) / LARGEST).astype(xp.float16).astype(xp.float32)
    inverse = xp.where(scale > 0, 1 / xp.where(scale > 0, scale, 1), 0)
    integers = xp.rint(x * inverse[:, None]).clip(-LARGEST, LARGEST).astype(xp.int8)
    return xp.concatenate([_as_halves(scale), integers.view(xp.uint8)], 1)


def _rounded(x: Any, scale: Any, minimum: Any) -> Any:
    """The integers from 0 to 15 for which scale * integer + minimum is nearest to x."""
    inverse = xp.where(scale > _LEAST, 1 / xp.where(scale > _LEAST, scale, 1), 0)
    return xp.rint((x - minimum[:, None]) * inverse[:, None]).clip(0, 15)


def _fitted(x: Any, largest_minimum: float) -> tuple[Any, Any]:
    """The scale and the minimum of each group (groups, 32) whose 4-bit integers come nearest to it.

    Several scales are tried. For the integers of each, the best scale and minimum are the least squares' solution.
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
    """The float32 numbers whose upper halves are these uint16."""
    wide = bits.astype("uint32")
    wide <<= 16  # in place: a large weight should not need room for two
    return wide.view("float32")


def to_bfloat16(x: Any) -> Any:
    """The bits of the nearest bfloat16 numbers, as uint16: the upper halves of float32 numbers, rounded to even. All numbers
    of x are finite; those beyond bfloat16's largest become infinite."""
    bits = xp.ascontiguousarray(x, xp.float32).view(xp.uint32)
    return ((bits + ((bits >> 16) & 1) + xp.uint32(0x7FFF)) >> 16).astype(xp.uint16)


def pack_rows(rows: Any, block_type: str) -> Any:
    """The blocks of some rows (rows, width) of a weight: (rows, bytes of a row) uint8, for a type with ``pack``."""
    kind = BLOCK_TYPES[block_type]
    assert kind.pack is not None, f"{block_type} is only read"
    blocks = _padded(rows.astype(xp.float32, copy=False), kind.size).reshape(-1, kind.size)
    return kind.pack(blocks).reshape(len(rows), kind.row_bytes(rows.shape[1]))


def unpack_rows(blocks: Any, block_type: str, width: int) -> Any:
    """The weights (rows, width) float32 that the blocks (rows, bytes of a row) stand for."""
    kind = BLOCK_TYPES[block_type]
    numbers = kind.unpack(blocks.reshape(-1, kind.bytes))
    return numbers.reshape(len(blocks), blocks.shape[1] // kind.bytes * kind.size)[:, :width]


def _padded(x: Any, size: int) -> Any:
    """x with zeros behind its rows, up to whole blocks."""
    missing = -x.shape[1] % size
    return xp.pad(x, ((0, 0), (0, missing))) if missing else x
