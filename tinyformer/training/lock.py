"""A lock on a folder, so that two processes never write the same run."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from tinyformer.common.errors import UserError
from tinyformer.training.safety import open_in_place
from tinytensor.device.disk import remove

# The errors of file systems without locks, as some network file systems are. Runs there are not locked.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """A context that holds the lock file ``path``. Its folder must exist. Raises UserError if another process holds the lock,
    and names that process.

    The system releases a lock when its process ends, however it ends. So a lock file that was left behind is not locked.
    Processes that are forked meanwhile do not hold it.
    """
    file = _take(path)
    _held.add(file)
    try:
        with contextlib.suppress(OSError):  # where the disk is full, the lock holds even without its owner's name
            os.ftruncate(file, 0)
            os.write(file, _this_process().encode("utf-8", "replace"))
        yield
    finally:
        if file in _held:  # a fork that comes here leaves the lock to its parent
            with contextlib.suppress(OSError):  # it is removed while it is still held, so it cannot be another process's
                remove(path)
            _held.remove(file)
            os.close(file)


def is_taken(path: Path) -> bool:
    """Whether a process seems to hold the lock file ``path``. It may seem so after a process that was killed, too: to try the
    lock would keep others from it for that moment."""
    return path.is_file()


_held: set[int] = set()  # the open lock files of this process


def _let_go() -> None:
    """Close a fork's copies of the lock files. With them it would hold the locks for longer than its parent lives."""
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
    """This process's name in the messages of others."""
    words = " ".join(shlex.join(["python", *sys.argv]).split())
    return f"process {os.getpid()} on {socket.gethostname()} ({words if len(words) <= 80 else words[:77] + '...'})"
