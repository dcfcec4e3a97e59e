"""The weights in a folder: one safetensors file, or several with an index, mapped into memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tinyformer.errors import UserError
from tinyformer.files import damaged, read_json
from tinyformer.pretrained.families import Family, Source
from tinyformer.schema import read_value
from tinytensor.backend import Array, default_dtype, host
from tinytensor.io import FileError, give_back, load_mapped
from tinytensor.nn import Module

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_MOST_NAMED = 8  # of the tensors that do not fit, so many are named in a message


def read_weights(folder: Path) -> dict[str, Array]:
    """All tensors of the weights in a folder, by name. They are read from the files when they are used.

    Raises UserError if there are none, or only such as a program could hide in (pytorch_model.bin), or if a file is missing or
    damaged.
    """
    if (folder / WHOLE).exists():
        paths = [folder / WHOLE]
    elif (folder / INDEX).exists():
        index = read_json(folder / INDEX)
        with damaged(folder / INDEX):
            names = read_value(dict[str, str], index.get("weight_map"), "weight_map").values()
        if any(Path(name).name != name for name in names):
            raise UserError(f"{folder / INDEX} is damaged: it names files outside of its folder")
        paths = [folder / name for name in sorted(set(names))]
        if missing := [path.name for path in paths if not path.exists()]:
            raise UserError(f"{folder} lacks {', '.join(missing)}: download all files that {INDEX} names")
    else:
        raise _no_weights(folder)
    found: dict[str, Array] = {}
    for path in paths:
        try:
            found |= load_mapped(path)
        except FileError as error:
            raise UserError(str(error)) from None
    return found


def _no_weights(folder: Path) -> UserError:
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if not pickled:
        return UserError(f"{folder} has no {WHOLE}")
    return UserError(
        f"{folder} has its weights in {pickled[0]} only, a format in which a program may hide, so it is not opened. Where you "
        f'trust it, convert it with PyTorch and transformers: python -c "from transformers import AutoModel as A; '
        f"A.from_pretrained('{folder}').save_pretrained('{folder}')\", with the class of the model in place of AutoModel"
    )


def load_into(model: Module, family: Family, found: dict[str, Array], where: object) -> list[str]:
    """Give a model of this family the tensors of a file, without copying those that fit as they are.

    Returns the names, here, of tensors that the file may lack and does. Raises UserError with all that are missing, not
    expected, or of other shapes; ``where`` names the file.
    """
    found = {_new_name(name): array for name, array in found.items()}
    state, used = {}, set[str]()
    left_out, problems = list[str](), list[str]()
    for name, tensor in model.state_dict().items():
        source = _source(family, name, found)
        if source is not None:
            used.update(source.names)
            array = _put_together(source, found)
            if array.size == tensor.size and array.shape[:1] in ((1,), tensor.shape[:1]):
                array = array.reshape(tensor.shape)  # Marian's (1, vocab_size)
            if array.shape == tensor.shape:
                state[name] = array
            else:
                problems.append(f"{' + '.join(source.names)} has shape {array.shape} instead of {tensor.shape}")
        elif re.fullmatch(family.optional, name):
            left_out.append(name)
            state[name] = host.zeros(tensor.shape, default_dtype)
        else:
            problems.append(f"{' + '.join(family.source(name).names)} is missing")
    kept = re.compile(family.ignored)
    bare = re.compile(f"(?:{re.escape(family.prefix)})?(?:{family.ignored})")
    unknown = [name for name in found if name not in used and not kept.fullmatch(name) and not bare.fullmatch(name)]
    problems += [f"{name} is not known" for name in unknown]
    if problems:
        more = f" (and {len(problems) - _MOST_NAMED} more)" if len(problems) > _MOST_NAMED else ""
        raise UserError(f"the weights in {where} are not those of its config.json: {'; '.join(problems[:_MOST_NAMED])}{more}")
    model.load_state_dict(state, strict=False, assign=True)
    return left_out


def _new_name(name: str) -> str:
    """The name of a tensor, with the new names of a layer norm's weight and bias."""
    return re.sub(r"LayerNorm\.(gamma|beta)$", lambda m: f"LayerNorm.{'weight' if m[1] == 'gamma' else 'bias'}", name)


def _source(family: Family, name: str, found: dict[str, Array]) -> Source | None:
    """Where the file has the tensor ``name``; None if it has it nowhere."""
    whole = family.source(name)
    bare = Source(tuple(one.removeprefix(family.prefix) for one in whole.names), whole.is_transposed)
    for source in (whole, bare):
        if all(one in found for one in source.names):
            return source
    return None


def _put_together(source: Source, found: dict[str, Array]) -> Any:
    """The tensor here that a file's tensors make, in the dtype of parameters. It is a view of the file where it can be one;
    otherwise the file's values leave the memory again."""
    parts = [found[name] for name in source.names]
    whole = parts[0] if len(parts) == 1 else host.concatenate(parts)
    whole = whole.T if source.is_transposed else whole
    if whole.dtype != default_dtype or not whole.flags.c_contiguous:
        whole = whole.astype(default_dtype, order="C")
    if whole.base is None:
        for part in parts:
            give_back(part)
    return whole
