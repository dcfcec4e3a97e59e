"""The heads of attention, copied into the order for one cuBLAS call, and back. ``kernels/attention.py`` cuts them out as views.

In a linear layer's output the heads of a token are neighbours, and the step between sequences is not that between heads. As
cuBLAS takes a single step, views would need a call for each head or each sequence.
"""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import xp
from tinytensor.kernels.cupy.loader import contiguous, kernel

_THREADS = 256  # as in heads.cu
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
    """(parts, batch, heads, length, width / heads) -> (batch, length, parts * width). Undoes ``split_heads``."""
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
