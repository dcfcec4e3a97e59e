"""Files on the disk: whether they can be read, the text in them, and which files of a folder are text."""

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

READING = 3  # bytes of memory for each byte of a file, at least: the bytes, the text, and what is made of the text


def status(path: str | Path, wanted: str) -> os.stat_result:
    """The status of the file or folder at a path. Links are followed. Raises UserError if there is none; ``wanted`` is the end
    of the message and says what to do."""
    if not os.fspath(path):
        raise UserError(f"an empty name is not a path: {wanted}")
    try:
        return os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist: {wanted}") from None
        raise UserError(f"{path} does not exist: {wanted}") from None
    except ValueError:
        raise UserError(f"{os.fspath(path)!r} cannot be a path: {wanted}") from None


def check_file(path: str | Path, wanted: str, *like: str) -> int:
    """The size of a regular file. Raises UserError for anything else: reading from a pipe or a device may never end. Of a
    folder, the message names a file in it whose name is ``like`` those that are wanted, as in "*.wav", if there is one."""
    found = status(path, wanted)
    if not stat.S_ISREG(found.st_mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
        inside = _file_in(path, like) if stat.S_ISDIR(found.st_mode) else None
        hint = f", such as {inside}" if inside else ""
        raise UserError(f"{path} is not a regular file but {kinds.get(stat.S_IFMT(found.st_mode), 'a device')}: {wanted}{hint}")
    return found.st_size


def _file_in(folder: str | Path, patterns: Sequence[str]) -> Path | None:
    """A file in a folder with a name like the first of these patterns for which there is one. Hidden files do not count."""
    with suppress(OSError):
        for pattern in patterns:
            if found := sorted(path for path in Path(folder).glob(pattern) if path.is_file() and path.name[0] != "."):
                return found[0]
    return None


def decoded(path: str | Path, content: bytes | bytearray) -> str:
    """The text in the content of a UTF-8 file, without a byte order mark, and with ``\\n`` at the end of each line.

    Raises UserError if it is not UTF-8. The message names the file and the byte, and tells how to convert this very file.
    """
    try:
        text = content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): {how_to_read(path, content)}") from None
    if 5 * content.count(0) > len(content):  # what UTF-16 without its mark has for ASCII
        raise UserError(f"{path} is not UTF-8 text (byte {content.index(0)}): {how_to_read(path, content)}")
    return with_newlines(text)


def with_newlines(text: str) -> str:
    r"""The text with ``\n`` at the end of each line, where Windows has ``\r\n``, and a Mac once had ``\r``.

    A lone ``\r`` ends a line only where nothing else does: in other files it is a part of the line.
    """
    text = text.replace("\r\n", "\n")
    return text if "\n" in text.rstrip("\r\n") else text.replace("\r", "\n")


# ------------------------------------------------------------------------------------------------------------- folders


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
