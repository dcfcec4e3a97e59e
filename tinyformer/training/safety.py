"""The safety of a run's folder: only its own files and folders are in it, and only one process writes to it.

Somebody else may have made the folder, and a link in it would lead what is written, moved or removed to any other file of this
user. So before a run is written, links, pipes, devices and second names of other files are refused by name. The path *to* the
folder may lead through links: that is the user's own choice.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from io import FileIO
from pathlib import Path

from tinyformer.common.errors import UserError
from tinytensor.device.disk import TEMPORARY, remove, type_of

# What a run writes into its folder. Everything else in it is the user's.
FILES = (
    "config.json", "tokenizer.json", "best.safetensors", "latest.safetensors", "weights-*.safetensors",
    "snapshot-*.safetensors", "log.csv", "sample.txt", "loss.png", "attention.png", "attention_heads.png",
)  # fmt: skip
FOLDERS = (".tinyformer.new", ".tinyformer.complete", ".tinyformer.moving")
EVENTS = "events.out.tfevents.*"

_JUNCTION = 0xA0000003  # the tag of Windows' second type of links to folders
_NOT_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WHY = ": a run's folder may hold only files and folders of its own"


class UnsafeFileError(OSError):
    """A link, a pipe, a device or a folder has the name of a file. The message names it and says what to do."""


def check_is(expected: str, path: Path) -> None:
    """Raise UnsafeFileError if ``path`` exists, but is not the ``expected``: "a file" or "a folder"."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        actual = "a link" if getattr(status, "st_reparse_tag", 0) == _JUNCTION else type_of(status)
        if actual != expected:
            raise _refusal(path, f"{actual}, not {expected}" if actual in ("a file", "a folder") else f"{actual}{_WHY}")


def _refusal(path: Path, problem: str) -> UnsafeFileError:
    return UnsafeFileError(f"{path} is {problem}. Remove it, or choose another folder")


def check_names(folder: Path, files: Sequence[str], folders: Sequence[str] = ()) -> None:
    """Raise UnsafeFileError if an entry of a folder matches these patterns, but is not a file, or not a folder."""
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            for patterns, expected in ((files, "a file"), (folders, "a folder")):
                if any(fnmatchcase(name, pattern) for pattern in patterns):
                    check_is(expected, folder / name)


def check_folder(path: Path, within: Path) -> None:
    """Check the folder of a run before the run is written. The path to ``within`` may lead through links.

    Raises UserError for a path that cannot be a folder, and UnsafeFileError if a link, a pipe or the like has the name of a
    run's file or folder.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a folder: choose another folder")
    if path.is_symlink() and not path.exists():
        raise UserError(f"{path} is a link to {os.readlink(path)}, which does not exist: make that folder first")
    for folder in (path, *path.parents):
        if within in folder.parents:
            check_is("a folder", folder)
    check_names(path, FILES, FOLDERS)
    events = path / "tensorboard"
    if events.is_symlink() or not events.is_file():  # a file is in the way only when logging
        check_is("a folder", events)
        check_names(events, (EVENTS,))
    for name in FOLDERS:
        check_names(path / name, ("*",))


def new_file(path: Path) -> FileIO:
    """Open a new file for writing without a buffer. Raises FileExistsError if its name is taken."""
    return FileIO(path, "x")


def open_in_place(path: Path) -> int:
    """Open a file to read and write in place, such as a lock, or make it. Returns its descriptor.

    Raises UnsafeFileError for anything but a file, and for a file with a second name (a hard link).
    """
    check_is("a file", path)
    with suppress(FileNotFoundError):
        if os.lstat(path).st_nlink > 1:
            raise _refusal(path, f"a file with several names (hard links){_WHY}")
    return os.open(path, os.O_RDWR | os.O_CREAT | _NOT_LINKS, 0o666)


def remove_stale(folder: Path) -> list[Path]:
    """Remove the temporary files that killed processes left in a folder, and return their paths.

    Use it only while nobody writes to the folder: a file that is being written looks the same.
    """
    removed = []
    with suppress(OSError):  # the folder is not there, or may not be read
        for path in sorted(folder.iterdir()):
            if TEMPORARY.fullmatch(path.name) and type_of(path.lstat()) == "a file":
                path.unlink()
                removed.append(path)
    return removed


# The errors of file systems without locks, such as some network file systems. Runs there are not locked.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """A context that holds the lock file ``path``, whose folder must exist. Raises UserError if another process, which it
    names, holds the lock.

    The system releases a lock when its process ends, so a lock file that was left behind is not locked. Forks do not hold it.
    """
    file = _take(path)
    _held.add(file)
    try:
        with contextlib.suppress(OSError):  # on a full disk, the lock holds without its owner's name
            os.ftruncate(file, 0)
            os.write(file, _this_process().encode("utf-8", "replace"))
        yield
    finally:
        if file in _held:  # a fork that comes here leaves the lock to its parent
            with contextlib.suppress(OSError):  # removed while it is held, so it cannot be another process's
                remove(path)
            _held.remove(file)
            os.close(file)


def is_taken(path: Path) -> bool:
    """Return whether a process seems to hold the lock file ``path``. After a process was killed, this is also True: trying the
    lock would keep others from it for a moment."""
    return path.is_file()


_held: set[int] = set()  # the open lock files of this process


def _let_go() -> None:
    """Close a fork's copies of the lock files, which could hold the locks for longer than its parent lives."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_let_go)


def _take(path: Path) -> int:
    """Open and lock the lock file. Returns its file descriptor."""
    while True:
        file = open_in_place(path)
        try:
            _lock(file)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), os.lstat(path)):
                    return file
        except BlockingIOError:
            holder = os.read(file, 1000).decode("utf-8", "replace").strip() or "another process"
            os.close(file)
            raise UserError(
                f"{path.parent} is being written by {holder}: wait until it ends, or choose another folder"
            ) from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # its holder removed it after we opened it: try again, there may be a new one


def _lock(file: int) -> None:
    """Lock an open file. Raises BlockingIOError if another process holds the lock."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(file, 1 << 30, os.SEEK_SET)  # a byte after the text, as locked bytes cannot be read
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except PermissionError:
            raise BlockingIOError from None
        finally:
            os.lseek(file, 0, os.SEEK_SET)
    else:
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise


def _this_process() -> str:
    """Return the name of this process for the messages of others."""
    words = " ".join(shlex.join(["python", *sys.argv]).split())
    return f"process {os.getpid()} on {socket.gethostname()} ({words if len(words) <= 80 else words[:77] + '...'})"
