"""The weights in a folder: one safetensors file, or several with an index, mapped into memory."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from tinyformer.common.errors import UserError
from tinyformer.common.files import damaged, open_file, read_json
from tinyformer.common.schema import read_value
from tinyformer.models.quantizing import plain_errors_of_quantizing
from tinyformer.pretrained.families import Family, Source
from tinyformer.pretrained.folders import gguf_at
from tinyformer.pretrained.gguf_models import gguf_weights
from tinyformer.pretrained.kept import AS_FLOAT32, SCALE, Kept, PackedArray, is_packed, packed
from tinytensor.autograd.tensor import wrap
from tinytensor.device.backend import Array, default_dtype, host, xp
from tinytensor.device.disk import FileError
from tinytensor.io import HALVES, as_numbers, give_back, load_mapped
from tinytensor.nn import Module
from tinytensor.nn.quantization import put_weight, quantize_weight
from tinytensor.nn.weights import BlockWeight

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
Weights = dict[str, Array | PackedArray]
_MOST_NAMED = 8  # so many tensors or files are named in a message


def read_weights(folder: Path) -> Weights:
    """All tensors of the weights in a folder, or in a GGUF file, by name. They are read from the files when they are used.

    An index decides which file each tensor comes from; what else its files hold is not used. Raises UserError if there are no
    weights, or only such as a program could hide in (pytorch_model.bin), if a file is missing or damaged, and if a file lacks a
    tensor that the index says it has.
    """
    if (file := gguf_at(folder)) is not None:
        return {**gguf_weights(file)}
    if (folder / WHOLE).exists():
        return packed(read_tensors(folder / WHOLE), folder)
    if not (folder / INDEX).exists():
        raise _no_weights(folder)
    index = read_json(folder / INDEX)
    with damaged(folder / INDEX):
        file_of = read_value(dict[str, str], index.get("weight_map"), "weight_map")
    if any(Path(name).name != name or not name.endswith(".safetensors") for name in file_of.values()):
        raise UserError(f"{folder / INDEX} is damaged: it names files that are not safetensors files in its folder")
    names = sorted(set(file_of.values()))
    if missing := [name for name in names if not (folder / name).exists()]:
        raise UserError(f"{folder} lacks {listed(missing, ', ')}: download all files that {INDEX} names")
    shards = {name: read_tensors(folder / name) for name in names}
    if absent := [f"{file} has no {tensor}" for tensor, file in file_of.items() if tensor not in shards[file]]:
        raise UserError(f"{folder / INDEX} does not fit its files: {listed(absent, '; ')}. Download all of them again")
    return packed({tensor: shards[file][tensor] for tensor, file in file_of.items()}, folder)


def weight_files(folder: Path) -> list[Path]:
    """The files of weights in a folder, whole or in parts, or the GGUF file."""
    if (file := gguf_at(folder)) is not None:
        return [file]
    return [file for file in sorted(folder.glob("*.safetensors")) if file.is_file()]


def read_tensors(path: Path) -> dict[str, Array]:
    """The tensors of a safetensors file, mapped, by name. Raises UserError for a file that is none."""
    try:
        return load_mapped(path)
    except FileError as error:
        raise _pointer(path) or UserError(str(error)) from None


def _pointer(path: Path) -> UserError | None:
    """The error for a file that only says where Git has the weights, as a clone without Git LFS leaves them."""
    beginning = b"version https://git-lfs"
    if not path.is_file():
        return None
    with open_file(path) as file:
        if file.read(len(beginning)) != beginning:
            return None
    return UserError(f"{path} is only a pointer of Git LFS: get the weights with `git lfs pull`")


def _no_weights(folder: Path) -> UserError:
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if not pickled:
        return UserError(f"{folder} has no {WHOLE}, and no {INDEX}: download the weights in this format")
    named = read_json(folder / "config.json").get("architectures")
    kind = str(named[0]) if isinstance(named, list) and named else ""
    kind = kind if kind.isidentifier() and len(kind) <= 80 else "AutoModel"
    convert = f"import sys; from transformers import {kind} as A; A.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])"
    return UserError(
        f"{folder} has its weights in {pickled[0]} only, a format in which a program may hide, so it is not opened. Where you "
        "trust it, convert it with PyTorch and transformers:",
        shlex.join(["python", "-c", convert, str(folder)]),
    )


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
