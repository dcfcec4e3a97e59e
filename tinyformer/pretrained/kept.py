"""The weights of a pretrained model, in its files and in the model: float32, bfloat16, or blocks of 8 or 4 bits.

A folder with low-precision weights has their blocks as bytes (rows, bytes of a row), by their usual names with the type of the
blocks behind them, such as "lm_head.weight.Q8_0". config.json says so in ``quantization_config``, so that no other reader takes
them for weights. Folders of older versions have int8 values by the usual names, and a scale for each row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tinyformer.common.errors import UserError, shortened
from tinyformer.models.quantizing import DTYPES, dtype_of, names_to_round
from tinyformer.pretrained.settings import PretrainedSettings
from tinytensor.device.backend import Array, host, to_numpy, xp
from tinytensor.kernels.numpy.blocks import BLOCK_TYPES, unpack_rows
from tinytensor.nn import Module

SCALE = "_scale"  # behind the name of a weight of an older version's integers: that of its scales
_METHOD = "tinyformer"


@dataclass(frozen=True)
class PackedArray:
    """A tensor in blocks of a few bits, as a file has it. Its numbers, which are float32, are made when they are asked for.

    ``stored`` are its bytes, mapped from the file, (..., bytes of a row), and ``unpack`` makes numbers of them. Where ``heads``
    are given, the rows of each head are those of one half and the other by turns, as llama.cpp has queries and keys of a Llama.
    """

    stored: Array
    shape: tuple[int, ...]
    block_type: str
    unpack: Callable[[Array], Array]
    heads: int = 0
    is_padded: bool = False  # whether the width is that of whole blocks
    dtype: ClassVar[Any] = host.dtype(host.float32)

    @property
    def nbytes(self) -> int:
        """The bytes of its numbers."""
        return math.prod(self.shape) * self.dtype.itemsize

    def numbers(self) -> Array:
        """The values, float32. They are a view of the file where it has them so."""
        return self._in_order(self.unpack(self.stored).reshape(self.shape))

    def rows(self) -> Array:
        """The bytes of the rows, in the order of ``numbers``."""
        return self._in_order(self.stored)

    def as_wide_as(self, width: int) -> PackedArray:
        """The same rows without what pads the last block, if a weight with so many inputs has rows of these bytes."""
        if not self.is_padded or self.stored.shape[1] != BLOCK_TYPES[self.block_type].row_bytes(width):
            return self
        return replace(self, shape=(len(self.stored), width), unpack=_unpack(self.block_type, width))

    def _in_order(self, rows: Array) -> Array:
        if not self.heads:
            return rows
        return rows.reshape(self.heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def packed(tensors: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The tensors of a folder, with those in blocks by their usual names. Raises UserError where two have the same name."""
    found = dict[str, Any]()
    for name, array in tensors.items():
        base, _, block_type = name.rpartition(".")
        kind = BLOCK_TYPES.get(block_type)
        if kind is None or array.ndim != 2 or array.dtype != host.uint8 or array.shape[1] % kind.bytes:
            base = name
        if base in found:
            raise UserError(f"{folder} has {base} twice, in different types: save the model again")
        if base != name and kind is not None:
            width = array.shape[1] // kind.bytes * kind.size
            array = PackedArray(array, (len(array), width), block_type, _unpack(block_type, width), is_padded=True)
        found[base] = array
    return found


def _unpack(block_type: str, width: int) -> Callable[[Array], Array]:
    return lambda stored: to_numpy(unpack_rows(xp.asarray(stored), block_type, width))


@dataclass(frozen=True)
class Kept:
    """The ``dtype`` that the weights of a model get: None for the one that they have in their files, blocks or float32."""

    dtype: str | None = "float32"

    def names(self, model: Module, found: Mapping[str, Any]) -> list[str]:
        """The names of the weights that may become low-precision ones."""
        is_low = any(is_packed(array) or name.endswith(SCALE) for name, array in found.items())
        if self.dtype == "float32" or (self.dtype is None and not is_low):
            return []
        return names_to_round(model, self.dtype or "int8")

    def takes(self, array: Any) -> bool:
        """Return True if a tensor of a file is used in the blocks that it has."""
        dtype = {"Q8_0": "int8", "BF16": "bfloat16"}.get(array.block_type, "int4") if is_packed(array) else ""
        return bool(dtype) and self.dtype in (None, dtype)


def is_packed(array: Any) -> bool:
    """Return True for a tensor in blocks that products can read."""
    return isinstance(array, PackedArray) and array.block_type in BLOCK_TYPES


AS_FLOAT32 = Kept()


def kept_for(settings: PretrainedSettings, dtype: str | None) -> Kept:
    """What the weights of a folder become. Without a ``dtype`` they are what they are there.

    Raises UserError for an unknown dtype, and for weights that others quantized.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype must be one of {', '.join(DTYPES)}, not {shortened(repr(dtype), 40)}")
    described = settings.values.get("quantization_config")
    if described and not (isinstance(described, dict) and described.get("quant_method") == _METHOD):
        raise settings.error("quantized weights cannot be read: pass a folder with weights in float32, float16 or bfloat16")
    return Kept(dtype)


def described(model: Module) -> dict[str, Any]:
    """What config.json says of the weights of a model. bfloat16 weights are written as the float32 numbers that they are."""
    dtype = dtype_of(model)
    return {"quantization_config": {"quant_method": _METHOD, "dtype": dtype}} if dtype in ("int8", "int4") else {}
