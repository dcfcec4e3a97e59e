"""Dropout (Srivastava et al. 2014), its mask a pure function of a key, the element's index and the probability.

A mask needs no memory where it can be computed again, and one written for another processor comes out the same. Element i,
counted in C order, has byte i of the Philox 4x64-10 stream (Salmon et al. 2011) of the key:

* Block j of the stream, j = 0, 1, ..., is Philox of the counter (j + 1, 0, 0, 0), lowest word first, and the key (key[0],
  key[1]): four words of 64 bits. NumPy counts up before each block, so its first, from the counter 0, is that of 1.
* Word w is word w % 4 of block w // 4, and byte i is byte i % 8 of word i // 8, the lowest bits first.

With whole + part = 256 * probability, whole being an integer and 0 <= part < 1, an element is kept where its byte is below
``whole``. Where it is equal, in one of 256 cases, 64 further bits decide: output i of SplitMix64 (Steele, Lea and Flood 2014)
from the seed key[1], kept where below part * 2**64. So an element is kept with exactly that probability, for little more than
a random byte each.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from tinytensor.backend import from_numpy, host, xp

Key = tuple[int, int]  # two words of 64 bits, from tinytensor.random.dropout_key()

_LARGEST = (1 << 64) - 1


def keep_mask(key: Key, shape: Sequence[int], probability: float) -> Any:
    """The boolean mask of that shape whose elements are True with this probability, as the top of this file defines it."""
    size = math.prod(shape)
    drawn = _stream(key, -(-size // 8)).astype("<u8", copy=False).view(host.uint8)[:size]
    whole, part = divmod(probability * 256, 1)
    keep = drawn < int(whole)
    if part:
        undecided = host.flatnonzero(drawn == int(whole))
        keep[undecided] = _split_mix(key[1], undecided) < int(part * 2.0**64)
    return from_numpy(keep.reshape(shape))


class _Philox(threading.local):
    """A generator for each thread, as to make one takes longer than a small mask."""

    def __init__(self) -> None:
        self.generator = host.random.Generator(host.random.Philox(0))


_philox = _Philox()


def _stream(key: Key, count: int) -> Any:
    """The first words of the key's stream."""
    four = host.zeros(4, host.uint64)
    started = {"counter": four, "key": host.array(key, host.uint64)}
    rest = {"buffer": four, "buffer_pos": 4, "has_uint32": 0, "uinteger": 0}  # nothing is left of an earlier block
    _philox.generator.bit_generator.state = {"bit_generator": "Philox", "state": started, **rest}
    # All of the range is what makes these the stream's own words; random_raw has them too, but stops all other threads.
    return _philox.generator.integers(0, _LARGEST, count, dtype=host.uint64, endpoint=True)


def _split_mix(seed: int, index: Any) -> Any:
    """The outputs of SplitMix64 with these numbers, the first being 0."""
    z = (index.astype(host.uint64) + 1) * 0x9E3779B97F4A7C15 + seed
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


def survivors_scale(probability: float) -> float:
    """What makes up for those dropped, so that the expected value stays."""
    return 1.0 / probability if probability else 0.0


def dropout_forward(needed: Sequence[bool], x: Any, residual: Any, key: Key, probability: float) -> tuple[Any, Any]:
    """x / probability where the key's mask keeps it, else 0, plus the residual if there is one; keeps the mask."""
    keep = keep_mask(key, x.shape, probability)
    out = _masked(x, keep, probability)
    if residual is not None:
        out += residual
    return out, keep


def dropout_backward(
    g: Any, keep: Any, needed: Sequence[bool], x: Any, residual: Any, key: Key, probability: float
) -> Sequence[Any]:
    """g / probability where the mask kept x, else 0; the residual's is g itself."""
    return _masked(g, keep, probability) if needed[0] else None, g if needed[1] else None


def _masked(x: Any, keep: Any, probability: float) -> Any:
    out = xp.empty(x.shape, x.dtype)
    xp.multiply(x, keep, out=out)
    out *= survivors_scale(probability)
    return out
