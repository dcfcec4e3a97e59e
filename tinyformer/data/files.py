"""Check files, read text from them, and find the text files in a folder."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from tinyformer.common.encodings import how_to_read
from tinyformer.common.errors import UserError
from tinyformer.common.files import open_file
from tinytensor.common.wording import counted
from tinytensor.device.disk import write_text

READING = 3  # minimum bytes of memory per byte of a file: bytes, text and a result of the text


def status(path: str | Path, wanted: str) -> os.stat_result:
    """Return the status of the file or folder at a path, following links. Raises UserError if it does not exist. ``wanted``
    ends the message with the fix."""
    if not os.fspath(path):
        raise UserError(f"the path is empty: {wanted}")
    try:
        return os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist: {wanted}") from None
        raise UserError(f"{path} does not exist: {wanted}") from None
    except ValueError:
        raise UserError(f"{os.fspath(path)!r} is not a valid path: {wanted}") from None


def check_file(path: str | Path, wanted: str, *like: str) -> int:
    """Return the size of a regular file. Raises UserError for anything else, since reading a pipe or device may never end. For
    a folder, the message suggests a file that matches a pattern in ``like``, such as "*.wav"."""
    entry = status(path, wanted)
    if not stat.S_ISREG(entry.st_mode):
        names = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        inside = _file_in(path, like) if stat.S_ISDIR(entry.st_mode) else None
        hint = f", such as {inside}" if inside else ""
        raise UserError(f"{path} is {names.get(stat.S_IFMT(entry.st_mode), 'a device')}, not a regular file: {wanted}{hint}")
    return entry.st_size


def _file_in(folder: str | Path, patterns: Sequence[str]) -> Path | None:
    """Return the first visible file in a folder that matches a pattern, trying the patterns in order."""
    with suppress(OSError):
        for pattern in patterns:
            if matches := sorted(path for path in Path(folder).glob(pattern) if path.is_file() and path.name[0] != "."):
                return matches[0]
    return None


def decoded(path: str | Path, content: bytes | bytearray) -> str:
    """Decode a UTF-8 file's ``content``. Drops a byte order mark and converts line ends to ``\\n``.

    Raises UserError if it is not UTF-8. The message shows the file, the byte, and how to convert the file.
    """
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): {how_to_read(path, content)}") from None
    if 5 * content.count(0) > len(content):  # as in UTF-16 ASCII text without a byte order mark
        raise UserError(f"{path} is not UTF-8 text (byte {content.index(0)}): {how_to_read(path, content)}")
    return with_newlines(text)


def with_newlines(text: str) -> str:
    r"""Replace Windows ``\r\n`` and old Mac ``\r`` with ``\n``. A lone ``\r`` stays if the text has other line ends."""
    text = text.replace("\r\n", "\n")
    return text if "\n" in text.rstrip("\r\n") else text.replace("\r", "\n")


# ------------------------------------------------------------------------------------------------------------- folders


# Files that a run writes to its folder. When reading a run's own folder, skip them and read the other text files.
OF_A_RUN = (
    "config.json", "tokenizer.json", "log.csv", "sample.txt", "loss.png", "attention*.png", "*.safetensors", "tensorboard",
)  # fmt: skip
# Files that mark a folder as a run, a model or other results of our programs.
CHECKPOINTS = ("*.safetensors", "*.pt", "*.pth", "*.ckpt", "*.gguf", "*.onnx", "pytorch_model*.bin")
MARK = ".tinyformer"
MARKS = (f"{MARK}*", ".lock")
SNIFFED = 1 << 16  # bytes per read when checking whether a file is text


def mark_results(folder: Path) -> None:
    """Mark a folder as results, so that training on text files of a parent folder skips it."""
    write_text(folder / MARK, "")


def texts_in(folder: Path) -> tuple[list[Path], str]:
    """Return the UTF-8 text files in a folder and its subfolders, sorted by path, and a line that lists what was skipped.

    Skipped are broken links, files that are not UTF-8, and folders of runs and models, whatever their names. Hidden files and
    folders, and anything but regular files (pipes, for example), are skipped silently. Links to files are followed, links to
    folders are not. Raises OSError for an unreadable folder or file, so that no text is missed unnoticed.
    """
    texts: list[Path] = []
    skipped: list[Path] = []
    runs: list[Path] = []
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        if any(_matches(name, (*CHECKPOINTS, *MARKS)) for name in [*folders, *names]):
            if Path(parent) != folder:
                runs.append(Path(parent))
                folders.clear()
                continue
            names = [name for name in names if not _matches(name, OF_A_RUN)]
            folders[:] = [name for name in folders if not _matches(name, OF_A_RUN)]
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in [Path(parent) / name for name in names if not name.startswith(".")]:
            mode = _mode(path)
            if mode is None:
                skipped.append(path)
            elif stat.S_ISREG(mode):
                (texts if _is_text(path) else skipped).append(path)
    labels = {"other than UTF-8 text": ("file", skipped), "of runs or models": ("folder", runs)}
    parts = [
        f"{counted(len(paths), noun)} {label}{', such as' if paths[1:] else ':'} {min(paths)}"
        for label, (noun, paths) in labels.items()
        if paths
    ]
    return sorted(texts), f"{folder}: left out {'; '.join(parts)}" if parts else ""


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _mode(path: Path) -> int | None:
    """Return the mode of a file, following links. None for a broken or circular link."""
    try:
        return os.stat(path).st_mode
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return None
        raise


def _is_text(path: Path) -> bool:
    """Return True if a file is UTF-8 text. Stop reading at the first invalid byte."""
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
