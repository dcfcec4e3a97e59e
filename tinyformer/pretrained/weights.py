"""The weights of a pretrained model, in its files and in the model: float32, bfloat16, or blocks of 8 or 4 bits.

A folder with low-precision weights has their blocks as bytes (rows, bytes of a row), by their usual names with the type of the
blocks behind them, such as "lm_head.weight.Q8_0". config.json says so in ``quantization_config``, so that no other reader takes
them for weights. Folders of older versions have int8 values by the usual names, and a scale for each row.
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
from tinytensor.kernels.numpy.blocks import BLOCK_TYPES, unpack_rows
from tinytensor.nn import Module
from tinytensor.nn.quantization import put_weight, quantize_weight
from tinytensor.nn.weights import BlockWeight

SCALE = "_scale"  # behind the name of a weight of an older version's integers: that of its scales
_METHOD = "tinyformer"
_MOST_NAMED = 8  # so many tensors or files are named in a message


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


Weights = dict[str, Array | PackedArray]


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


# -------------------------------------------------------------------------------------------------------------- into the model


def load_into(model: Module, family: Family, found: Weights, where: object, kept: Kept = AS_FLOAT32) -> list[str]:
    """Give a model of this family the tensors of a file, without copying those that fit as they are. ``kept`` says which
    dtype the weights get. They are rounded one after the other, so that they are never all there in float32.

    Returns the names, here, of tensors that the file may lack and does. A warning of the logger "tinyformer" names layers of
    the file that are not used, such as another head. Raises UserError with all that are missing, not
    expected, or of other shapes, and for weights that cannot be rounded; ``where`` names the file.
    """
    sources = {name: family.source(name) for name in model.state_dict()}
    needed = {theirs for source in sources.values() for theirs in source.names}
    scaled = {theirs for theirs in needed if theirs + SCALE in found}  # that the file has as integers, with scales
    needed |= {theirs + SCALE for theirs in scaled}
    copies = {copy: original for copy, original in family.copies.items() if copy not in needed}
    found = _renamed(found, family.prefix, needed | set(copies))
    problems = _drop_copies(found, copies, needed)
    left_out, rounded = list[str](), kept.names(model, found)
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name, shape in shapes.items():
        source = sources[name]
        for theirs in source.names:
            if is_packed(found.get(theirs)):
                found[theirs] = found[theirs].as_wide_as(shape[-1])
        if not any(theirs in found for theirs in source.names) and re.fullmatch(family.optional, name):
            left_out.append(name)
        else:
            problems += misfits(model, source, found, shape)
    unknown = [name for name in found if name not in needed and not family.ignores(name, family.ignored)]
    unused = [name for name in unknown if family.ignores(name, family.unused)]
    problems += [f"{name} is not known" for name in unknown if name not in unused]
    if problems:
        raise UserError(f"the weights in {where} are not those of its settings: {listed(problems, '; ')}")
    if unused:
        layers = listed([*dict.fromkeys(name.rpartition(".")[0] for name in unused)], ", ")
        read_as = type(model).__name__
        logging.getLogger("tinyformer").warning("%s has layers that a %s does not use: %s", where, read_as, layers)
    state = {name: host.zeros(shapes[name], default_dtype) for name in left_out}
    state |= {name: put_together(sources[name], found) for name in shapes if name not in (*left_out, *rounded)}
    model.load_state_dict(state, strict=False, assign=True)
    for name in [name for name in rounded if name not in left_out]:
        files = [found[theirs] for theirs in sources[name].names]
        if all(map(kept.takes, files)):
            put_weight(model, name, _block_weight(files, shapes[name][1]))
            continue
        model.load_state_dict({name: put_together(sources[name], found)}, strict=False, assign=True)
        if dtype := kept.dtype or ("int8" if scaled.intersection(sources[name].names) else None):
            with plain_errors_of_quantizing(where):
                quantize_weight(model, name, dtype, give_back)
    return left_out


def _block_weight(files: Sequence[PackedArray], inputs: int) -> BlockWeight:
    """The weight that a file has in blocks. It is a view of the file where one tensor has all of it, in the same order."""
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


def _renamed(found: Weights, prefix: str, known: Set[str]) -> Weights:
    """The tensors of a file by the names that are known, where it has older names or leaves out the prefix."""
    new = {re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name): array for name, array in found.items()}
    new = {re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name): array for name, array in new.items()}
    changed = {}
    for name in new:
        # The second is that of a Llama that answers questions.
        found_as = [prefix + name, re.sub(r"^transformer\.", prefix, name)]
        changed[name] = next((one for one in found_as if name not in known and one in known and one not in new), name)
    return {changed[name]: array for name, array in new.items()}


def _drop_copies(found: Weights, copies: Mapping[str, str], needed: Set[str]) -> list[str]:
    """Leave one of each tensor that a file has twice. Returns what is wrong: copies that differ. The bias of a layer that the
    model has is the one that counts."""
    problems = []
    for copy, original in copies.items():
        if copy in found:
            array = found.pop(copy)
            if original not in found or weight_beside(copy) in needed:
                found[original] = array
            elif not host.array_equal(numbers_of(array), numbers_of(found[original])):
                problems.append(f"{copy} and {original} differ, but config.json has one for both (tie_word_embeddings)")
    return problems


def weight_beside(bias: str) -> str:
    """The name of the weight of the layer with this bias; "" for what is no bias."""
    return f"{bias.removesuffix('.bias')}.weight" if bias.endswith(".bias") else ""


def misfits(model: Module, source: Source, found: Mapping[str, Array | PackedArray], shape: tuple[int, ...]) -> list[str]:
    """What is wrong with the tensors of a file that are to become one tensor here, of this shape."""
    problems = []
    for name, length in zip(source.names, source.lengths(model, shape[0])):
        part = host.broadcast_to(host.float32(0), (length, *shape[1:]))  # it takes no memory: only its shape counts
        array = found.get(name)
        if array is None:
            problems.append(f"{name} is missing")
            continue
        expected = part.shape if isinstance(array, PackedArray) else source.as_theirs(part).shape
        if array.shape != expected:
            problems.append(f"{name} has shape {array.shape} instead of {expected}")
        elif (scale := found.get(name + SCALE)) is not None:
            if array.dtype != host.int8 or scale.shape != (length,) or scale.dtype.kind != "f":
                problems.append(f"{name} and {name + SCALE} are not int8 values and a scale for each row")
        elif array.dtype.kind != "f" and array.dtype != HALVES:
            problems.append(f"{name} is of {array.dtype} instead of floating-point values")
    return problems


def listed(items: Sequence[str], between: str) -> str:
    """The first items, and how many more there are."""
    more = f" (and {len(items) - _MOST_NAMED} more)" if len(items) > _MOST_NAMED else ""
    return between.join(items[:_MOST_NAMED]) + more


def put_together(source: Source, found: Mapping[str, Array | PackedArray]) -> Array:
    """The tensor here that a file's tensors make, in the dtype of parameters. It is a view of the file where it can be one;
    otherwise the file's values leave the memory again."""
    files = [found[name] for name in source.names]
    parts = [numbers_of(file) if isinstance(file, PackedArray) else source.as_ours(numbers_of(file)) for file in files]
    for i, name in enumerate(source.names):
        if (scale := found.get(name + SCALE)) is not None:
            parts[i] = parts[i] * numbers_of(scale)[:, None]
    whole = parts[0] if len(parts) == 1 else host.concatenate(parts)
    if whole.dtype != default_dtype or not (whole.flags.c_contiguous and whole.flags.aligned):
        whole = _copied(whole)
    stored = [array.stored if isinstance(array, PackedArray) else array for array in files]
    if not any(host.may_share_memory(whole, array) for array in stored):
        for array in stored:
            give_back(array)
    return whole


def numbers_of(array: Array | PackedArray) -> Array:
    """A tensor of ``read_weights`` as numbers."""
    return array.numbers() if isinstance(array, PackedArray) else as_numbers(array)


def _copied(array: Array) -> Array:
    """A copy in the dtype of parameters, with rows in one piece."""
    if array.flags.c_contiguous:
        return array.astype(default_dtype)
    copy = host.empty(array.shape, default_dtype)
    for start in range(0, array.shape[-1], 16):  # a transposed array in strips: three times as fast as at once
        copy[..., start : start + 16] = array[..., start : start + 16]
    return copy
