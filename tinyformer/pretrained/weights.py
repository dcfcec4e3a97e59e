"""Pretrained weights, in files and in models: float32, bfloat16, or blocks of 8 or 4 bits.

A folder stores quantized weights as blocks of bytes (rows, bytes per row), under the usual names plus the block type, such as
"lm_head.weight.Q8_0". ``quantization_config`` in config.json keeps other readers from misreading them. Folders of older
versions store int8 values under the usual names, with one scale per row.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from tinyformer.common.errors import UserError, shortened
from tinyformer.models.quantizing import DTYPES, dtype_of, names_to_round, plain_errors_of_quantizing
from tinyformer.pretrained.families import Family, PretrainedSettings, Source
from tinytensor.autograd.tensor import wrap
from tinytensor.device.backend import Array, default_dtype, host, to_numpy, xp
from tinytensor.io import HALVES, as_numbers, give_back
from tinytensor.kernels.numpy.quantized import BLOCK_TYPES, unpack_rows
from tinytensor.nn import Module
from tinytensor.nn.quantization import put_weight, quantize_weight
from tinytensor.nn.weights import BlockWeight

SCALE = "_scale"  # appended to an old int8 weight's name for its scales
_METHOD = "tinyformer"
_MOST_NAMED = 3  # tensors or files in a message


@dataclass(frozen=True)
class PackedArray:
    """A quantized tensor as stored in a file. Its float32 values are computed on use.

    ``stored`` holds the file-mapped bytes (..., bytes per row), and ``unpack`` dequantizes them. If ``heads`` is set, each
    head's rows alternate between its two halves, the order of queries and keys in llama.cpp's Llama.
    """

    stored: Array
    shape: tuple[int, ...]
    block_type: str
    unpack: Callable[[Array], Array]
    heads: int = 0
    is_padded: bool = False  # the width is rounded up to full blocks
    dtype: ClassVar[Any] = host.dtype(host.float32)

    @property
    def nbytes(self) -> int:
        """The size of the stored values in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def numbers(self) -> Array:
        """Return the float32 values, as a view of the file if possible."""
        return self._in_order(self.unpack(self.stored).reshape(self.shape))

    def rows(self) -> Array:
        """Return the bytes of the rows, in the order of ``numbers``."""
        return self._in_order(self.stored)

    def as_wide_as(self, width: int) -> PackedArray:
        """Return the rows without padding in the last block, if a weight with ``width`` inputs has rows of this size."""
        if not self.is_padded or self.stored.shape[1] != BLOCK_TYPES[self.block_type].row_bytes(width):
            return self
        return replace(self, shape=(len(self.stored), width), unpack=_unpack(self.block_type, width))

    def _in_order(self, rows: Array) -> Array:
        if not self.heads:
            return rows
        return rows.reshape(self.heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def packed(tensors: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a folder's tensors, with quantized tensors under their usual names. Raises UserError if two have the same name."""
    arrays = dict[str, Any]()
    for name, array in tensors.items():
        base, _, block_type = name.rpartition(".")
        block = BLOCK_TYPES.get(block_type)
        if block is None or array.ndim != 2 or array.dtype != host.uint8 or array.shape[1] % block.bytes:
            base = name
        if base in arrays:
            raise UserError(f"{folder} has {base} twice, in different types: save the model again")
        if base != name and block is not None:
            width = array.shape[1] // block.bytes * block.size
            array = PackedArray(array, (len(array), width), block_type, _unpack(block_type, width), is_padded=True)
        arrays[base] = array
    return arrays


def _unpack(block_type: str, width: int) -> Callable[[Array], Array]:
    return lambda stored: to_numpy(unpack_rows(xp.asarray(stored), block_type, width))


Weights = dict[str, Array | PackedArray]


@dataclass(frozen=True)
class Kept:
    """The ``dtype`` of a model's loaded weights. None: as in the files, blocks or float32."""

    dtype: str | None = "float32"

    def names(self, model: Module, tensors: Mapping[str, Any]) -> list[str]:
        """Return the names of the weights that may get a low-precision dtype."""
        is_low = any(is_packed(array) or name.endswith(SCALE) for name, array in tensors.items())
        if self.dtype == "float32" or (self.dtype is None and not is_low):
            return []
        return names_to_round(model, self.dtype or "int8")

    def takes(self, array: Any) -> bool:
        """Return True if a tensor's blocks are used as stored in the file."""
        dtype = {"Q8_0": "int8", "BF16": "bfloat16"}.get(array.block_type, "int4") if is_packed(array) else ""
        return bool(dtype) and self.dtype in (None, dtype)


def is_packed(array: Any) -> bool:
    """Return True for a quantized tensor that matrix products can read."""
    return isinstance(array, PackedArray) and array.block_type in BLOCK_TYPES


AS_FLOAT32 = Kept()


def kept_for(settings: PretrainedSettings, dtype: str | None) -> Kept:
    """Return the dtype choice for a folder's weights. If ``dtype`` is None, use the files' dtype.

    Raises UserError for an unknown dtype, and for weights quantized by another program.
    """
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"dtype must be one of {', '.join(DTYPES)}, got {shortened(repr(dtype), 40)}")
    described = settings.values.get("quantization_config")
    if described and not (isinstance(described, dict) and described.get("quant_method") == _METHOD):
        raise settings.error("quantization_config is not supported: pass a folder with float32, float16 or bfloat16 weights")
    return Kept(dtype)


def described(model: Module) -> dict[str, Any]:
    """Return the config.json entries for a model's weights. bfloat16 weights are written as float32."""
    dtype = dtype_of(model)
    return {"quantization_config": {"quant_method": _METHOD, "dtype": dtype}} if dtype in ("int8", "int4") else {}


# ------------------------------------------------------------------------------------------------------ loading into the model


def load_into(model: Module, family: Family, tensors: Weights, where: object, kept: Kept = AS_FLOAT32) -> list[str]:
    """Load a file's tensors into a model of this family. Tensors that need no conversion are not copied. ``kept`` chooses the
    dtype. Weights are rounded one at a time to save memory.

    Returns our names of optional tensors missing from the file. The "tinyformer" logger warns about unused layers, such as
    another head. Raises UserError, with the file name ``where``, for weights that cannot be rounded, or with a list of all
    missing, unexpected and misshapen tensors.
    """
    sources = {name: family.source(name) for name in model.state_dict()}
    needed = {theirs for source in sources.values() for theirs in source.names}
    scaled = {theirs for theirs in needed if theirs + SCALE in tensors}  # stored as int8, with scales
    needed |= {theirs + SCALE for theirs in scaled}
    copies = {copy: original for copy, original in family.copies.items() if copy not in needed}
    tensors = _renamed(tensors, family.prefix, needed | set(copies))
    problems = _drop_copies(tensors, copies, needed)
    left_out, rounded = list[str](), kept.names(model, tensors)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name, shape in shapes.items():
        source = sources[name]
        for theirs in source.names:
            if is_packed(tensors.get(theirs)):
                tensors[theirs] = tensors[theirs].as_wide_as(shape[-1])
        if not any(theirs in tensors for theirs in source.names) and re.fullmatch(family.optional, name):
            left_out.append(name)
        else:
            problems += misfits(model, source, tensors, shape)
    unknown = [name for name in tensors if name not in needed and not family.ignores(name, family.ignored)]
    unused = [name for name in unknown if family.ignores(name, family.unused)]
    problems += [f"{name} is not expected" for name in unknown if name not in unused]
    if problems:
        remedy = "Use weights and settings of the same model"
        raise UserError(f"the weights in {where} do not fit its settings: {listed(problems, '; ')}. {remedy}")
    if unused:
        layers = listed([*dict.fromkeys(name.rpartition(".")[0] for name in unused)], ", ")
        read_as = type(model).__name__
        logging.getLogger("tinyformer").warning("%s has layers that a %s does not use: %s", where, read_as, layers)
    state = {name: host.zeros(shapes[name], default_dtype) for name in left_out}
    state |= {name: put_together(sources[name], tensors) for name in shapes if name not in (*left_out, *rounded)}
    model.load_state_dict(state, strict=False, assign=True)
    for name in [name for name in rounded if name not in left_out]:
        files = [tensors[theirs] for theirs in sources[name].names]
        if all(map(kept.takes, files)):
            put_weight(model, name, _block_weight(files, shapes[name][1]))
            continue
        model.load_state_dict({name: put_together(sources[name], tensors)}, strict=False, assign=True)
        if dtype := kept.dtype or ("int8" if scaled.intersection(sources[name].names) else None):
            with plain_errors_of_quantizing(where):
                quantize_weight(model, name, dtype, give_back)
    return left_out


def _block_weight(files: Sequence[PackedArray], inputs: int) -> BlockWeight:
    """Return a block weight, as a view of the file if a single tensor holds it in the same order."""
    if len(files) == 1 and not files[0].heads:
        values = files[0].stored.reshape(-1)
    else:
        values, start = host.empty(sum(file.stored.size for file in files), host.uint8), 0
        for file in files:
            values[start : start + file.stored.size] = file.rows().reshape(-1)
            give_back(file.stored)
            start += file.stored.size
    parts = list[tuple[str, int]]()
    for file in files:
        same = parts.pop()[1] if parts and parts[-1][0] == file.block_type else 0
        parts.append((file.block_type, same + file.shape[0]))
    return BlockWeight(wrap(xp.asarray(values)), tuple(parts), inputs)


def _renamed(tensors: Weights, prefix: str, known: Set[str]) -> Weights:
    """Rename tensors that have older names or lack the prefix."""
    new = {re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name): array for name, array in tensors.items()}
    new = {re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name): array for name, array in new.items()}
    changed = {}
    for name in new:
        # The second spelling is used in a Llama for question answering.
        spellings = [prefix + name, re.sub(r"^transformer\.", prefix, name)]
        changed[name] = next((one for one in spellings if name not in known and one in known and one not in new), name)
    return {changed[name]: array for name, array in new.items()}


def _drop_copies(tensors: Weights, copies: Mapping[str, str], needed: Set[str]) -> list[str]:
    """Keep one of each duplicated tensor. Return the problems: copies that differ. A bias counts in the layer that the model
    has."""
    problems = []
    for copy, original in copies.items():
        if copy in tensors:
            array = tensors.pop(copy)
            if original not in tensors or weight_beside(copy) in needed:
                tensors[original] = array
            elif not host.array_equal(numbers_of(array), numbers_of(tensors[original])):
                problems.append(f"{copy} and {original} differ, but config.json ties them (tie_word_embeddings)")
    return problems


def weight_beside(bias: str) -> str:
    """Return the name of the weight in the same layer as a bias, or "" for other names."""
    return f"{bias.removesuffix('.bias')}.weight" if bias.endswith(".bias") else ""


def misfits(model: Module, source: Source, tensors: Mapping[str, Array | PackedArray], shape: tuple[int, ...]) -> list[str]:
    """Return the problems with the file tensors for one of our tensors of this shape."""
    problems = []
    for name, length in zip(source.names, source.lengths(model, shape[0])):
        part = host.broadcast_to(host.float32(0), (length, *shape[1:]))  # takes no memory; only its shape matters
        array = tensors.get(name)
        if array is None:
            problems.append(f"{name} is missing")
            continue
        expected = part.shape if isinstance(array, PackedArray) else source.as_theirs(part).shape
        if array.shape != expected:
            problems.append(f"{name} must have shape {expected}, got {array.shape}")
        elif (scale := tensors.get(name + SCALE)) is not None:
            if array.dtype != host.int8 or scale.shape != (length,) or scale.dtype.kind != "f":
                problems.append(f"{name} and {name + SCALE} must be int8 values and a scale for each row")
        elif array.dtype.kind != "f" and array.dtype != HALVES:
            problems.append(f"{name} must be floating-point, got {array.dtype}")
    return problems


def listed(items: Sequence[str], between: str) -> str:
    """Return the first items, and the number of remaining items."""
    more = f" (and {len(items) - _MOST_NAMED} more)" if len(items) > _MOST_NAMED else ""
    return between.join(items[:_MOST_NAMED]) + more


def put_together(source: Source, tensors: Mapping[str, Array | PackedArray]) -> Array:
    """Assemble one of our tensors from file tensors, in the parameter dtype. Returns a view of the file if possible. Otherwise
    returns a copy and releases the file's pages."""
    files = [tensors[name] for name in source.names]
    parts = [numbers_of(file) if isinstance(file, PackedArray) else source.as_ours(numbers_of(file)) for file in files]
    for i, name in enumerate(source.names):
        if (scale := tensors.get(name + SCALE)) is not None:
            parts[i] = parts[i] * numbers_of(scale)[:, None]
    combined = parts[0] if len(parts) == 1 else host.concatenate(parts)
    if combined.dtype != default_dtype or not (combined.flags.c_contiguous and combined.flags.aligned):
        combined = _copied(combined)
    stored = [array.stored if isinstance(array, PackedArray) else array for array in files]
    if not any(host.may_share_memory(combined, array) for array in stored):
        for array in stored:
            give_back(array)
    return combined


def numbers_of(array: Array | PackedArray) -> Array:
    """Return the values of a tensor from ``read_weights``."""
    return array.numbers() if isinstance(array, PackedArray) else as_numbers(array)


def _copied(array: Array) -> Array:
    """Copy an array in the parameter dtype, with contiguous rows."""
    if array.flags.c_contiguous:
        return array.astype(default_dtype)
    copy = host.empty(array.shape, default_dtype)
    for start in range(0, array.shape[-1], 16):  # copying a transposed array in strips is three times faster
        copy[..., start : start + 16] = array[..., start : start + 16]
    return copy
