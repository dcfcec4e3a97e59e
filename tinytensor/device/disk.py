"""Write files atomically, and open regular files to read them.

Files that users keep are written here, and moved or removed here and in ``tinyformer/training`` (``run_folder`` and ``safety``,
for the folder of a run). Caches and lists of processes write their own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PathLike = str | os.PathLike[str]
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)  # the names of files that are being written


class FileError(ValueError):
    """A file is missing, damaged or of the wrong type. The message names the file and suggests a fix."""


_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def type_of(status: os.stat_result) -> str:
    """Return the type of a file for messages: "a file", "a folder", "a link", "a pipe", "a socket" or "a device"."""
    return _KINDS.get(stat.S_IFMT(status.st_mode), "a device")


def check_path(path: PathLike) -> None:
    """Raise FileError if a file name is empty or cannot be encoded by the system."""
    try:
        usable = Path(path).name != "" and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise FileError(f"{os.fspath(path)!r} cannot be the name of a file")


def make_folder(path: PathLike) -> list[Path]:
    """Create a folder and its missing parents. Return the new folders, innermost first."""
    path = Path(path)
    made: list[Path] = []
    for folder in reversed([folder for folder in (path, *path.parents) if not folder.exists()]):
        check_path(folder)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            made.insert(0, folder)
    if not path.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    return made


@contextlib.contextmanager
def atomic_write(path: PathLike) -> Iterator[BinaryIO]:
    """Return a context that writes a temporary file and renames it to ``path`` at the end, or removes it after an error.

    ``path`` is therefore always complete: either the old file or the new one. A link is replaced, not followed. Concurrent
    writers have separate temporary files, and the last one to finish wins. An OSError without a file name, as when the disk is
    full, gets the name ``path``.
    """
    check_path(path)
    target = Path(path)
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(8)}.tmp")  # see ``TEMPORARY``; at most 255 bytes
    try:
        _check_replaceable(target)
        try:
            with open(temporary, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(temporary), str(target)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def _check_replaceable(path: PathLike) -> None:
    """Raise OSError for a pipe, device or socket, because a file must not replace it."""
    with contextlib.suppress(FileNotFoundError):
        if (actual := type_of(os.lstat(path))) not in ("a file", "a folder", "a link"):
            raise OSError(f"{path} is {actual}, not a file. Remove it, or choose another name")


def write_text(path: PathLike, text: str) -> None:
    """Write a UTF-8 file atomically. An existing file is unchanged until the new one is complete. An OSError names ``path``."""
    with atomic_write(path) as file:
        file.write(text.encode("utf-8"))


def remove(path: PathLike) -> None:
    """Remove a file. Raises OSError if it does not exist."""
    _check_replaceable(path)
    os.unlink(path)


def open_regular(path: PathLike, wanted: str) -> BinaryIO:
    """Open a file to read its bytes, following links. Raises FileError unless it is a regular file: opening a FIFO would wait
    for a writer, and a device may have no end. ``wanted`` describes the expected file. Other failures raise OSError."""
    check_path(path)
    _check_regular(path, os.stat(path), wanted)  # checked before opening, because opening can activate a device
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115
    try:
        _check_regular(path, os.fstat(file.fileno()), wanted)  # the file may have been replaced
    except FileError:
        file.close()
        raise
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a FIFO would wait for a writer


def _check_regular(path: PathLike, status: os.stat_result, wanted: str) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise FileError(f"{path} is {type_of(status)}, not {wanted}")
