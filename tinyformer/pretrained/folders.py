"""Locate a pretrained model and read its settings and tensors.

A model is a folder in Hugging Face format, a GGUF file, or a name on the Hugging Face hub, downloaded once. In each case,
settings are returned as in config.json and tensors by Hugging Face names. This module does not depend on an architecture.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinyformer.common.files import damaged, open_file, read_json
from tinyformer.common.makers import PRETRAINED, contents_of
from tinyformer.common.settings import read_value
from tinyformer.pretrained.families import PretrainedSettings
from tinyformer.pretrained.gguf import gguf_settings, gguf_weights
from tinyformer.pretrained.weights import Weights, listed, packed
from tinytensor.device.backend import Array
from tinytensor.device.caches import has_home, of_this_run
from tinytensor.device.disk import FileError
from tinytensor.io import load_mapped

GGUF = ".gguf"
ADAPTER = "adapter_config.json"
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Settings, weights and tokenizers. A repository may also contain weights in other formats.
FILES = ["*.json", "*.safetensors", "*.txt", "*.spm", "*.model", "*.jinja"]


def find_folder(path_or_name: str | Path, revision: str | None = None) -> Path:
    """Return the folder or GGUF file itself, or the local copy of a repository on the Hugging Face hub.

    Downloads need the huggingface_hub package. ``revision`` is a branch, tag or commit. Set HF_HUB_OFFLINE=1 to prevent
    downloads. Raises UserError if there is no such folder, file or repository.
    """
    folder = Path(path_or_name)
    if os.path.isdir(folder):  # folder.is_dir() would raise for an overlong name
        if revision is not None:
            raise UserError(f"{folder} is a folder and has no revision {revision!r}: leave it out")
        return folder
    if os.path.exists(folder) or folder.suffix.lower() == GGUF:
        if gguf_at(folder) is None:
            is_there = "is a file" if os.path.exists(folder) else "does not exist"
            raise UserError(f"{folder} {is_there}: pass the folder that holds config.json and the weights, or a GGUF file")
        return folder
    if len(str(path_or_name)) > 96 or not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", str(path_or_name), re.ASCII):
        shown = shortened(str(path_or_name), 100)
        raise UserError(f"folder not found: {shown!r}. Pass a folder, a GGUF file, or a model's name on the Hugging Face hub")
    return _download(str(path_or_name), revision)


def gguf_at(path: Path) -> Path | None:
    """Return the path if it is a GGUF file, a folder's only GGUF file if there is no config.json, or None."""
    if os.path.isfile(path):
        return path if path.suffix.lower() == GGUF else None
    if not os.path.isdir(path) or (path / "config.json").exists():
        return None
    files = ggufs_in(path)
    return files[0] if len(files) == 1 else None


def ggufs_in(folder: Path) -> list[Path]:
    """Return the GGUF files in a folder."""
    return sorted(file for file in folder.iterdir() if file.suffix.lower() == GGUF and file.is_file())


def model_folder(folder: Path) -> Path:
    """Return the folder itself. If it holds only an adapter, return the folder of its base model. Raises UserError if the
    adapter names no base or another adapter, and as ``find_folder`` does."""
    if not _is_adapter(folder):
        return folder
    settings = PretrainedSettings(folder / ADAPTER)
    base, revision = settings.read(str, "base_model_name_or_path", ""), settings.read(str, "revision", "")
    if not base:
        raise settings.error("base_model_name_or_path is empty: load the base model, then call load_adapter(model, FOLDER)")
    try:
        target = find_folder(base, None if os.path.isdir(base) else revision or None)  # as in PEFT, a folder has no revision
    except UserError as error:
        raise settings.error(f"base_model_name_or_path: {error}") from None
    if _is_adapter(target):
        raise settings.error(f"base_model_name_or_path: {target} holds an adapter, too: name its base model instead")
    return target


def _is_adapter(folder: Path) -> bool:
    """Return True if a folder holds an adapter and no model. It may still contain the model's config.json."""
    weights = ("model*.safetensors", "pytorch_model*.bin") if (folder / "config.json").exists() else ()
    return (folder / ADAPTER).exists() and not any(any(folder.glob(pattern)) for pattern in weights)


def _download(name: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(
            f'folder not found: {name}. To download {name} from the Hugging Face hub: pip install "tinyformer[hub]"'
        ) from None
    has_cache = any(os.environ.get(variable) for variable in ("HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"))
    where: dict[str, Any] = {} if has_cache or has_home() else {"cache_dir": of_this_run()}
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES, **where))
    except Exception as error:  # errors from several packages: no connection, no such model, no access, partial download
        reason = " ".join(str(error).split())
        raise UserError(
            f"folder not found: {name}, and the Hugging Face hub cannot provide it: {shortened(reason, 300)}"
        ) from None


# ---------------------------------------------------------------------------------------------------------------- the settings


def read_settings(folder: Path) -> PretrainedSettings:
    """Return a folder's config.json, or the equivalent of a GGUF file. Raises UserError if there is none or it belongs to a
    run."""
    if (file := gguf_at(folder)) is not None:
        return gguf_settings(file)
    run = contents_of(folder)
    if run is not None and run.kind != PRETRAINED:
        raise run.refusal(folder, f"a {PRETRAINED}")
    if not (folder / "config.json").exists():
        if folder.is_dir() and (files := ggufs_in(folder)):
            raise UserError(f"{folder} has no config.json but {len(files)} GGUF files: pass one of them, such as {files[0]}")
        raise UserError(f"{folder} has no config.json: pass the folder of a pretrained model in Hugging Face's layout")
    return PretrainedSettings(folder / "config.json")


# ----------------------------------------------------------------------------------------------------------------- the tensors


def read_weights(folder: Path) -> Weights:
    """Return all tensors of a folder or GGUF file by name. They are read from the files on use.

    If there is an index, only the tensors listed in it are used. Raises UserError if there are no weights or only pickled ones
    (pytorch_model.bin), which can run code. Also raises it if a file or a listed tensor is missing or damaged.
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
        raise UserError(f"{folder / INDEX} is damaged: all files in weight_map must be safetensors files in its folder")
    names = sorted(set(file_of.values()))
    if missing := [name for name in names if not (folder / name).exists()]:
        raise UserError(f"{folder} has no {listed(missing, ', ')}: download all files that {INDEX} names")
    shards = {name: read_tensors(folder / name) for name in names}
    if absent := [f"{file} has no {tensor}" for tensor, file in file_of.items() if tensor not in shards[file]]:
        raise UserError(f"{folder / INDEX} does not fit its files: {listed(absent, '; ')}. Download all of them again")
    return packed({tensor: shards[file][tensor] for tensor, file in file_of.items()}, folder)


def weight_files(folder: Path) -> list[Path]:
    """Return a folder's weight files, or the GGUF file."""
    if (file := gguf_at(folder)) is not None:
        return [file]
    return [file for file in sorted(folder.glob("*.safetensors")) if file.is_file()]


def read_tensors(path: Path) -> dict[str, Array]:
    """Return the memory-mapped tensors of a safetensors file by name. Raises UserError for any other file."""
    try:
        return load_mapped(path)
    except FileError as error:
        raise _pointer(path) or UserError(str(error)) from None


def _pointer(path: Path) -> UserError | None:
    """Return the error for a Git LFS pointer, the placeholder left by a clone without Git LFS."""
    beginning = b"version https://git-lfs"
    if not path.is_file():
        return None
    with open_file(path) as file:
        if file.read(len(beginning)) != beginning:
            return None
    return UserError(f"{path} is a Git LFS pointer, not the weights: download them with `git lfs pull`")


def _no_weights(folder: Path) -> UserError:
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if not pickled:
        return UserError(f"{folder} has no {WHOLE} or {INDEX}: download the weights in this format")
    named = read_json(folder / "config.json").get("architectures")
    model = str(named[0]) if isinstance(named, list) and named else ""
    model = model if model.isidentifier() and len(model) <= 80 else "AutoModel"
    convert = f"import sys; from transformers import {model} as A; A.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[1])"
    return UserError(
        f"{folder} has its weights only in {pickled[0]}, which could run code when opened. If you trust it, convert it with "
        "PyTorch and transformers:",
        shlex.join(["python", "-c", convert, str(folder)]),
    )
