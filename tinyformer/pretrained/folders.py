"""Opening the folder of a pretrained model: where it is, its settings, and its tensors.

It is a folder in Hugging Face's layout, a GGUF file, or a name of the Hugging Face hub, from which it is downloaded once. The
settings are those of a config.json and the tensors have Hugging Face's names, whatever the file is. Nothing here knows a model.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import damaged, open_file, read_json
from tinyformer.common.schema import read_value
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.gguf import gguf_settings, gguf_weights
from tinyformer.pretrained.weights import Weights, listed, packed
from tinyformer.runs.makers import PRETRAINED, found_in
from tinytensor.device.backend import Array
from tinytensor.device.caches import has_home, of_this_run
from tinytensor.device.disk import FileError
from tinytensor.io import load_mapped

GGUF = ".gguf"
ADAPTER = "adapter_config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# The files that are needed: settings, weights, tokenizers. A repository may hold the same weights in other formats, too.
FILES = ["*.json", "*.safetensors", "*.txt", "*.spm", "*.model", "*.jinja"]


def find_folder(path_or_name: str | Path, revision: str | None = None) -> Path:
    """The folder itself or the GGUF file, if there is one, or else the local copy of this repository of the Hugging Face hub.

    The copy is downloaded if it is not there yet, which needs the package huggingface_hub. ``revision`` is a branch, a tag or a
    commit. With HF_HUB_OFFLINE=1 nothing is downloaded. Raises UserError if there is neither.
    """
    folder = Path(path_or_name)
    if os.path.isdir(folder):  # and not folder.is_dir(), which raises an error if the name is too long
        if revision is not None:
            raise UserError(f"{folder} is a folder, and has no revision {revision!r}: leave it out")
        return folder
    if os.path.exists(folder) or folder.suffix.lower() == GGUF:
        if gguf_at(folder) is None:
            is_there = "is a file" if os.path.exists(folder) else "does not exist"
            raise UserError(f"{folder} {is_there}: pass the folder that holds config.json and the weights, or a GGUF file")
        return folder
    if len(str(path_or_name)) > 96 or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", str(path_or_name), re.ASCII):
        shown = shortened(str(path_or_name), 100)
        raise UserError(f"{shown!r} does not exist, and is no name of a model on the Hugging Face hub, such as org/model")
    return _download(str(path_or_name), revision)


def gguf_at(path: Path) -> Path | None:
    """The GGUF file that a path is, or that lies in a folder as its only one and without config.json; otherwise None."""
    if os.path.isfile(path):
        return path if path.suffix.lower() == GGUF else None
    if not os.path.isdir(path) or (path / "config.json").exists():
        return None
    found = ggufs_in(path)
    return found[0] if len(found) == 1 else None


def ggufs_in(folder: Path) -> list[Path]:
    """The GGUF files in a folder."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() == GGUF and file.is_file())


def model_folder(folder: Path) -> Path:
    """The folder itself, or if it holds an adapter and no model, that of the model which the adapter belongs to. Raises
    UserError if it does not say which, or names another adapter, and as ``find_folder`` does."""
    if not _is_adapter(folder):
        return folder
    settings = PretrainedSettings(folder / ADAPTER)
    base, revision = settings.read(str, "base_model_name_or_path", ""), settings.read(str, "revision", "")
    if not base:
        raise settings.error("base_model_name_or_path is empty: load that model, and then load_adapter(model, FOLDER)")
    try:
        found = find_folder(base, None if os.path.isdir(base) else revision or None)  # a folder has no revision, as in PEFT
    except UserError as error:
        raise settings.error(f"base_model_name_or_path: {error}") from None
    if _is_adapter(found):
        raise settings.error(f"base_model_name_or_path: {found} holds an adapter, too: name the model that both belong to")
    return found


def _is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no model. The config.json of a model may lie beside an adapter."""
    weights = ("model*.safetensors", "pytorch_model*.bin") if (folder / "config.json").exists() else ()
    return (folder / ADAPTER).exists() and not any(any(folder.glob(pattern)) for pattern in weights)


def _download(name: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(
            f'the folder {name} does not exist. To download {name} from the Hugging Face hub: pip install "tinyformer[hub]"'
        ) from None
    is_said = any(os.environ.get(variable) for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"))
    where: dict[str, Any] = {} if is_said or has_home() else {"cache_dir": of_this_run()}
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES, **where))
    except Exception as error:  # many kinds, of several packages: no connection, no such model, no access, a download cut short
        reason = " ".join(str(error).split())
        raise UserError(
            f"the folder {name} does not exist, and it cannot be had from the Hugging Face hub: {shortened(reason, 300)}"
        ) from None


# ---------------------------------------------------------------------------------------------------------------- the settings


def read_settings(folder: Path) -> PretrainedSettings:
    """The config.json of a folder, or what a GGUF file says instead. Raises UserError if there is none, and if it is that of a
    run."""
    if (file := gguf_at(folder)) is not None:
        return gguf_settings(file)
    found = found_in(folder)
    if found is not None and found.kind != PRETRAINED:
        raise found.refusal(folder, f"a {PRETRAINED}")
    if not (folder / "config.json").exists():
        if folder.is_dir() and (files := ggufs_in(folder)):
            raise UserError(f"{folder} has no config.json, but {len(files)} GGUF files: pass one of them, such as {files[0]}")
        raise UserError(f"{folder} has no config.json: pass the folder of a pretrained model in Hugging Face's layout")
    return PretrainedSettings(folder / "config.json")


# ----------------------------------------------------------------------------------------------------------------- the tensors


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
