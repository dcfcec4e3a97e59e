"""The weights in a folder: one safetensors file, or several with an index, mapped into memory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from tinyformer.common.errors import UserError
from tinyformer.common.files import damaged, open_file, read_json
from tinyformer.common.schema import read_value
from tinyformer.pretrained.families import Family, Source
from tinytensor.device.backend import Array, default_dtype, host
from tinytensor.device.disk import FileError
from tinytensor.io import give_back, load_mapped
from tinytensor.nn import Module

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MOST_NAMED = 8  # so many tensors or files are named in a message


def read_weights(folder: Path) -> dict[str, Array]:
    """All tensors of the weights in a folder, by name. They are read from the files when they are used.

    An index decides which file each tensor comes from; what else its files hold is not used. Raises UserError if there are no
    weights, or only such as a program could hide in (pytorch_model.bin), if a file is missing or damaged, and if a file lacks a
    tensor that the index says it has.
    """
    if (folder / WHOLE).exists():
        return _read_file(folder / WHOLE)
    if not (folder / INDEX).exists():
        raise _no_weights(folder)
    index = read_json(folder / INDEX)
    with damaged(folder / INDEX):
        file_of = read_value(dict[str, str], index.get("weight_map"), "weight_map")
    if any(Path(name).name != name or not name.endswith(".safetensors") for name in file_of.values()):
        raise UserError(f"{folder / INDEX} is damaged: it names files that are not safetensors files in its folder")
    names = sorted(set(file_of.values()))
    if missing := [name for name in names if not (folder / name).exists()]:
        raise UserError(f"{folder} lacks {_listed(missing, ', ')}: download all files that {INDEX} names")
    shards = {name: _read_file(folder / name) for name in names}
    if absent := [f"{file} has no {tensor}" for tensor, file in file_of.items() if tensor not in shards[file]]:
        raise UserError(f"{folder / INDEX} does not fit its files: {_listed(absent, '; ')}. Download all of them again")
    return {tensor: shards[file][tensor] for tensor, file in file_of.items()}


def weight_files(folder: Path) -> list[Path]:
    """The files of weights in a folder, whole or in parts."""
    return [file for file in sorted(folder.glob("*.safetensors")) if file.is_file()]


def _read_file(path: Path) -> dict[str, Array]:
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


def load_into(model: Module, family: Family, found: dict[str, Array], where: object) -> list[str]:
    """Give a model of this family the tensors of a file, without copying those that fit as they are.

    Returns the names, here, of tensors that the file may lack and does. Raises UserError with all that are missing, not
    expected, or of other shapes; ``where`` names the file.
    """
    sources = {name: family.source(name) for name in model.state_dict()}
    needed = {theirs for source in sources.values() for theirs in source.names}
    copies = {copy: original for copy, original in family.copies.items() if copy not in needed}
    found = _renamed(found, family.prefix, needed | set(copies))
    problems = _drop_copies(found, copies)
    state, left_out = {}, list[str]()
    for name, tensor in model.state_dict().items():
        source = sources[name]
        if not any(theirs in found for theirs in source.names) and re.fullmatch(family.optional, name):
            left_out.append(name)
            state[name] = host.zeros(tensor.shape, default_dtype)
        elif misfits := _misfits(model, source, found, tensor.shape):
            problems += misfits
        else:
            state[name] = _put_together(source, found)
    unknown = [name for name in found if name not in needed and not _is_ignored(name, family)]
    problems += [f"{name} is not known" for name in unknown]
    if problems:
        raise UserError(f"the weights in {where} are not those of its config.json: {_listed(problems, '; ')}")
    model.load_state_dict(state, strict=False, assign=True)
    return left_out


def _renamed(found: dict[str, Array], prefix: str, known: Set[str]) -> dict[str, Array]:
    """The tensors of a file by the names that are known, where it has older names or leaves out the prefix."""
    new = {re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name): array for name, array in found.items()}
    new = {re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name): array for name, array in new.items()}
    bare = {name for name in new if name not in known and prefix + name in known and prefix + name not in new}
    return {prefix + name if name in bare else name: array for name, array in new.items()}


def _drop_copies(found: dict[str, Array], copies: Mapping[str, str]) -> list[str]:
    """Leave one of each tensor that a file has twice. Returns what is wrong: copies that differ."""
    problems = []
    for copy, original in copies.items():
        if copy in found:
            array = found.pop(copy)
            if original not in found:
                found[original] = array
            elif not host.array_equal(array, found[original]):
                problems.append(f"{copy} and {original} differ, but config.json has one for both (tie_word_embeddings)")
    return problems


def _misfits(model: Module, source: Source, found: dict[str, Array], shape: tuple[int, ...]) -> list[str]:
    """What is wrong with the tensors of a file that are to become one tensor here, of this shape."""
    problems = []
    for name, length in zip(source.names, source.lengths(model, shape[0])):
        part = host.broadcast_to(host.float32(0), (length, *shape[1:]))  # it takes no memory: only its shape counts
        expected = source.as_theirs(part).shape
        if name not in found:
            problems.append(f"{name} is missing")
        elif found[name].shape != expected:
            problems.append(f"{name} has shape {found[name].shape} instead of {expected}")
        elif found[name].dtype.kind != "f":
            problems.append(f"{name} has {found[name].dtype} values instead of floating-point ones")
    return problems


def _is_ignored(name: str, family: Family) -> bool:
    return any(re.fullmatch(family.ignored, whole) for whole in (name, family.prefix + name))


def _listed(items: Sequence[str], between: str) -> str:
    """The first items, and how many more there are."""
    more = f" (and {len(items) - _MOST_NAMED} more)" if len(items) > _MOST_NAMED else ""
    return between.join(items[:_MOST_NAMED]) + more


def _put_together(source: Source, found: dict[str, Array]) -> Array:
    """The tensor here that a file's tensors make, in the dtype of parameters. It is a view of the file where it can be one;
    otherwise the file's values leave the memory again."""
    parts = [found[name] for name in source.names]
    whole = source.as_ours(parts[0]) if len(parts) == 1 else host.concatenate([source.as_ours(part) for part in parts])
    if whole.dtype != default_dtype or not (whole.flags.c_contiguous and whole.flags.aligned):
        whole = _copied(whole)
    if whole.base is None:
        for part in parts:
            give_back(part)
    return whole


def _copied(array: Array) -> Array:
    """A copy in the dtype of parameters, with rows in one piece."""
    if array.flags.c_contiguous:
        return array.astype(default_dtype)
    copy = host.empty(array.shape, default_dtype)
    for start in range(0, array.shape[-1], 16):  # a transposed array in strips: three times as fast as at once
        copy[..., start : start + 16] = array[..., start : start + 16]
    return copy
