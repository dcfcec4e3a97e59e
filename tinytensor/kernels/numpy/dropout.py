"""Dropout (Srivastava et al. 2014). The mask is a pure function of a random key, the element's index and the probability of
keeping it.

So masks can be recomputed instead of stored, and every processor computes the same mask. Element i, in C order, has byte i of
the random key's Philox 4x64-10 stream (Salmon et al. 2011):

* Block j of the stream (j = 0, 1, ...) is Philox of the counter (j + 1, 0, 0, 0), lowest word first, and the two words of the
  random key. It gives four words of 64 bits. The counter starts at 1 because NumPy counts up before it makes a block.
* Word w of the stream is word w % 4 of block w // 4. Byte i is byte i % 8 of word i // 8, counted from the lowest bits.

Write 256 * keep_probability as limit + part, where limit is an integer and 0 <= part < 1. An element is kept if its byte is
below ``limit``. If its byte equals ``limit``, one case in 256, 64 more bits decide: output i of SplitMix64 (Steele, Lea and
Flood 2014), seeded with the second word of the random key, must be below part * 2**64. So the probability is exact, and an
element costs little more than one random byte.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from tinytensor.device.backend import from_numpy, host, xp

# Two words of 64 bits, from tinytensor.random.random_key(). In a captured step they are an array on the GPU.
RandomKey = tuple[int, int]

_LARGEST = (1 << 64) - 1


def keep_mask(random_key: RandomKey, shape: Sequence[int], keep_probability: float) -> Any:
    """Return a boolean mask of this shape, True with this probability, as the module's docstring defines."""
    size = math.prod(shape)
    drawn = _stream(random_key, -(-size // 8)).astype("<u8", copy=False).view(host.uint8)[:size]
    limit, part = divmod(keep_probability * 256, 1)
    keep = drawn < int(limit)
    if part:
        undecided = host.flatnonzero(drawn == int(limit))
        keep[undecided] = _split_mix(random_key[1], undecided) < int(part * 2.0**64)
    return from_numpy(keep.reshape(shape))


class _Philox(threading.local):
    """One generator for each thread, as making one takes longer than making a small mask."""

    def __init__(self) -> None:
        self.generator = host.random.Generator(host.random.Philox(0))


_philox = _Philox()


def _stream(random_key: RandomKey, count: int) -> Any:
    """Return the first ``count`` words of the random key's stream."""
    four = host.zeros(4, host.uint64)
    started = {"counter": four, "key": host.array(random_key, host.uint64)}
    remainder = {"buffer": four, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}  # nothing left over from an earlier block
    _philox.generator.bit_generator.state = {"bit_generator": "Philox", "state": started, **remainder}
    # Integers over the full range are the stream's words. ``random_raw`` gives them too, but blocks all other threads.
    return _philox.generator.integers(0, _LARGEST, count, dtype=host.uint64, endpoint=True)


def _split_mix(seed: int, index: Any) -> Any:
    """Return the outputs of SplitMix64 at these indices, counted from 0."""
    z = (index.astype(host.uint64) + 1) * 0x9E3779B97F4A7C15 + seed
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


def survivors_scale(keep_probability: float) -> float:
    """Return the factor of the kept elements, which preserves the expected value."""
    return 1.0 / keep_probability if keep_probability else 0.0


def dropout_forward(
    needed: Sequence[bool], x: Any, residual: Any, random_key: RandomKey, keep_probability: float
) -> tuple[Any, Any]:
    """x / keep_probability where the mask keeps x, else 0; plus the residual, if any. Saves the mask."""
    keep = keep_mask(random_key, x.shape, keep_probability)
    out = _masked(x, keep, keep_probability)
    if residual is not None:
        out += residual
    return out, keep


def dropout_backward(
    g: Any, keep: Any, needed: Sequence[bool], random_key: RandomKey, keep_probability: float
) -> Sequence[Any]:
    """The gradient of x is g / keep_probability where the mask kept x, else 0. The gradient of the residual is g."""
    return _masked(g, keep, keep_probability) if needed[0] else None, g if needed[1] else None


def _masked(x: Any, keep: Any, keep_probability: float) -> Any:
    out = xp.empty(x.shape, x.dtype)
    bits = f"i{x.dtype.itemsize}"  # bits times 0 is 0, even for infinity and NaN
    xp.multiply(x.view(bits), keep, out=out.view(bits))
    out *= survivors_scale(keep_probability)
    return out
