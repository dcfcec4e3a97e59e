"""Where a pretrained model lies: a folder, a GGUF file, or a name of the Hugging Face hub, from which it is downloaded once."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tinyformer.common.errors import UserError, shortened
from tinytensor.device.caches import has_home, of_this_run

GGUF = ".gguf"
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
