"""Safety checks for a run's folder: it contains only the run's own files, and only one process writes to it.

Someone else may have created the folder. A link in it could redirect writes, moves and removals to any file of this user.
Before writing a run, links, pipes, devices and hard links are therefore rejected by name. The path *to* the folder may contain
links, since the user chose it.
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

# What a run writes to its folder. Everything else in it belongs to the user.
FILES = (
    "config.json", "tokenizer.json", "best.safetensors", "latest.safetensors", "weights-*.safetensors",
    "snapshot-*.safetensors", "log.csv", "sample.txt", "loss.png", "attention.png", "attention_heads.png",
)  # fmt: skip
FOLDERS = (".tinyformer.new", ".tinyformer.complete", ".tinyformer.moving")
EVENTS = "events.out.tfevents.*"

_JUNCTION = 0xA0000003  # the tag of Windows's second type of folder link
_NOT_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_WHY = ": a run's folder may hold only files and folders of its own"


class UnsafeFileError(OSError):
    """A link, pipe, device or folder has the name of an expected file. The message includes the path and the fix."""


def check_is(expected: str, path: Path) -> None:
    """Raise UnsafeFileError if ``path`` exists but is not the ``expected`` type: "a file" or "a folder"."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        actual = "a link" if getattr(status, "st_reparse_tag", 0) == _JUNCTION else type_of(status)
        if actual != expected:
            raise _refusal(path, f"{actual}, not {expected}" if actual in ("a file", "a folder") else f"{actual}{_WHY}")


def _refusal(path: Path, problem: str) -> UnsafeFileError:
    return UnsafeFileError(f"{path} is {problem}. Remove it, or choose another folder")


def check_names(folder: Path, files: Sequence[str], folders: Sequence[str] = ()) -> None:
    """Raise UnsafeFileError if a folder entry matches one of these patterns but is not a file (or not a folder)."""
    with suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder)):
            for patterns, expected in ((files, "a file"), (folders, "a folder")):
                if any(fnmatchcase(name, pattern) for pattern in patterns):
                    check_is(expected, folder / name)


def check_folder(path: Path, within: Path) -> None:
    """Check a run's folder before writing to it. The path to ``within`` may contain links.

    Raises UserError for a path that cannot be a folder. Raises UnsafeFileError if a link, pipe or similar has the name of a
    file or folder of the run.
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
    if events.is_symlink() or not events.is_file():  # a file is a problem only when logging
        check_is("a folder", events)
        check_names(events, (EVENTS,))
    for name in FOLDERS:
        check_names(path / name, ("*",))


def new_file(path: Path) -> FileIO:
    """Open a new unbuffered file for writing. Raises FileExistsError if the name is taken."""
    return FileIO(path, "x")


def open_in_place(path: Path) -> int:
    """Open or create a file, such as a lock, to read and write in place. Return its descriptor.

    Raises UnsafeFileError for anything but a file, and for a hard link.
    """
    check_is("a file", path)
    with suppress(FileNotFoundError):
        if os.lstat(path).st_nlink > 1:
            raise _refusal(path, f"a file with several names (hard links){_WHY}")
    return os.open(path, os.O_RDWR | os.O_CREAT | _NOT_LINKS, 0o666)


def remove_stale(folder: Path) -> list[Path]:
    """Remove temporary files of killed processes from a folder. Return their paths.

    Call it only while no process writes to the folder: a file being written looks the same.
    """
    removed = []
    with suppress(OSError):  # the folder is missing or unreadable
        for path in sorted(folder.iterdir()):
            if TEMPORARY.fullmatch(path.name) and type_of(path.lstat()) == "a file":
                path.unlink()
                removed.append(path)
    return removed


# Errors of file systems without locks, such as some network file systems. Runs there are not locked.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Context manager that holds the lock file ``path``, whose folder must exist. Raises UserError, with the process, if
    another process holds the lock.

    The system releases a lock when its process ends, so leftover lock files are not locked. Forked processes do not hold it.
    """
    file = _take(path)
    _held.add(file)
    try:
        with contextlib.suppress(OSError):  # on a full disk, the lock works without the owner's name
            os.ftruncate(file, 0)
            os.write(file, _this_process().encode("utf-8", "replace"))
        yield
    finally:
        if file in _held:  # a forked process leaves the lock to its parent
            with contextlib.suppress(OSError):  # removed while locked, so it cannot belong to another process
                remove(path)
            _held.remove(file)
            os.close(file)


def is_taken(path: Path) -> bool:
    """Return True if a process seems to hold the lock file ``path``. Also True after a process was killed: testing the lock
    would briefly block other processes."""
    return path.is_file()


_held: set[int] = set()  # open lock files of this process


def _let_go() -> None:
    """Close a forked process's copies of lock files, which could hold locks longer than its parent lives."""
    while _held:
        os.close(_held.pop())


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_let_go)


def _take(path: Path) -> int:
    """Open and lock the lock file. Return its file descriptor."""
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
        os.close(file)  # the holder removed it after we opened it; there may be a new one


def _lock(file: int) -> None:
    """Lock an open file. Raises BlockingIOError if another process holds the lock."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(file, 1 << 30, os.SEEK_SET)  # a byte after the text: locked bytes cannot be read
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
    """Return this process's name for other processes' messages."""
    words = " ".join(shlex.join(["python", *sys.argv]).split())
    return f"process {os.getpid()} on {socket.gethostname()} ({words if len(words) <= 80 else words[:77] + '...'})"
