"""Which files of a folder are texts. What runs write, and files that are no texts, are left out, and a line says so."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tinyformer.common.files import open_file
from tinytensor.common.wording import counted
from tinytensor.device.disk import write_text

# What a run writes into its folder. A folder that was named itself may be that of a run as well: then these files of it are not
# texts to learn from, and the others are.
OF_A_RUN = (
    "config.json", "tokenizer.json", "log.csv", "sample.txt", "loss.png", "attention*.png", "*.safetensors", "tensorboard",
)  # fmt: skip
# Files by which a folder is known to be that of a run or of a model, or of other results of a program of ours.
CHECKPOINTS = ("*.safetensors", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.onnx", "pytorch_model*.bin")
MARK = ".tinyformer"
MARKS = (f"{MARK}*", ".lock")
SNIFFED = 1 << 16  # bytes at the beginning of a file that show whether it is text


def mark_results(folder: Path) -> None:
    """Mark a folder as one of results: whoever trains on the texts of a folder around it does not train on them."""
    write_text(folder / MARK, "")


def texts_in(folder: Path) -> tuple[list[Path], str]:
    """The files of UTF-8 text in a folder and its subfolders, in the order of their names; and in words, what was left out.

    Hidden files and folders are left out, also of the words, and so is anything but regular files, such as pipes. Left out are
    also folders of runs and models, whatever their names, links to nothing, and files that are not UTF-8 text. Links to files
    are followed, links to folders are not. Raises OSError for a folder or file that may not be read: otherwise its text would
    be missing without notice.
    """
    found: list[Path] = []
    others: list[Path] = []
    runs: list[Path] = []
    for place, folders, names in os.walk(folder, onerror=_refuse):
        own = Path(place)
        if _is_of_a_run([*folders, *names]):
            if own != folder:
                runs.append(own)
                folders.clear()
                continue
            names = [name for name in names if not _is_any(name, OF_A_RUN)]
            folders[:] = [name for name in folders if not _is_any(name, OF_A_RUN)]
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if not name.startswith("."):
                path = own / name
                kind = _kind(path)
                if kind is not None and stat.S_ISREG(kind):
                    (found if _is_text(path) else others).append(path)
                elif kind is None:
                    others.append(path)
    return sorted(found), _in_words(folder, sorted(others), sorted(runs))


def _in_words(folder: Path, others: Sequence[Path], runs: Sequence[Path]) -> str:
    parts = []
    if others:
        which = f": {others[0]}" if len(others) == 1 else f", such as {others[0]}"
        parts.append(f"{counted(len(others), 'file')} that {'is' if len(others) == 1 else 'are'} not UTF-8 text{which}")
    if runs:
        which = f": {runs[0]}" if len(runs) == 1 else f", such as {runs[0]}"
        parts.append(f"{counted(len(runs), 'folder')} of runs or models{which}")
    return f"{folder}: left out {'; '.join(parts)}" if parts else ""


def _is_of_a_run(names: Sequence[str]) -> bool:
    return any(_is_any(name, (*CHECKPOINTS, *MARKS)) for name in names)


def _is_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _kind(path: Path) -> int | None:
    """The kind of a file, whose links are followed. None for a link that leads nowhere, or around."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise


def _is_text(path: Path) -> bool:
    """Whether the whole of a file is UTF-8 text. A file that is another kind shows it soon, and is not read to its end."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    with open_file(path) as file:
        while piece := file.read(SNIFFED):
            try:
                if b"\0" in piece:
                    return False
                decoder.decode(piece)
            except UnicodeDecodeError:
                return False
    try:
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _refuse(error: OSError) -> None:
    raise error
