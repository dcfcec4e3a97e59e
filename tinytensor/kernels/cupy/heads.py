"""The heads of attention, copied to where one call of cuBLAS multiplies them all, and back. ``kernels/heads.py`` has the same
as views.

In the view of a linear layer's output the heads of a token are neighbours. From one sequence to the next there is another step
than from head to head, and cuBLAS knows a single step. So each product would take a call for each head, or for each sequence.
"""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.cupy.loader import contiguous, kernel

_THREADS = 256  # the threads and the tile are those of heads.cu
_TILE = 64


def split_heads(packed: Any, parts: int, num_heads: int, last: Any = None) -> Any:
    """(batch, length, parts * width) -> (parts, batch, heads, length, width / heads), C-contiguous.

    ``last`` (batch, length, width) of the same dtype becomes one more part, so that one launch moves both.
    """
    batch, length, width = packed.shape
    shape = (parts + (last is not None), batch, num_heads, length, width // (parts * num_heads))
    split = xp.empty(shape, packed.dtype)
    _move("split_heads", (contiguous(packed), None if last is None else contiguous(last), split), shape)
    return split


def join_heads(split: Any) -> Any:
    """(parts, batch, heads, length, width / heads) -> (batch, length, parts * width). It undoes ``split_heads``."""
    parts, batch, heads, length, width = split.shape
    packed = xp.empty((batch, length, parts * heads * width), split.dtype)
    _move("join_heads", (contiguous(split), packed), split.shape)
    return packed


def _move(name: str, arrays: tuple[Any, ...], split_shape: tuple[int, ...]) -> None:
    parts, batch, heads, length, width = split_shape
    dtype = arrays[0].dtype
    if 0 in split_shape:
        return
    packs = -(-width * dtype.itemsize // 16)
    lanes = next((n for n in (1, 2, 4, 8, 16) if n >= packs), 32)
    blocks = parts * batch * heads * -(-length // _TILE)
    sizes = (batch, length, parts, heads, width)
    kernel("heads.cu", name, dtype)(blocks, (lanes, _THREADS // lanes), *arrays, *sizes)
