"""A lock on a folder, so that no two processes write one run."""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from tinyformer.errors import UserError

# What file systems say that have no locks, as some that are shared over a network: there, runs must do without.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file ``path``, whose folder is there. Raises UserError that names the process that holds it.

    The system lets go of a lock when its process ends, however it ends; so a lock file that is found lying about is free.
    """
    file = _take(path)
    try:
        with contextlib.suppress(OSError):  # the disk is full: a lock without a name is one, too
            os.ftruncate(file, 0)
            os.write(file, _this_process().encode("utf-8", "replace"))
        yield
    finally:
        with contextlib.suppress(OSError):  # removed while it is held: nobody else's can be meant
            path.unlink()
        os.close(file)


def _take(path: Path) -> int:
    """The open lock file, held."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(file)
            if _is_at(file, path):
                return file
        except BlockingIOError:
            holder = os.read(file, 1000).decode("utf-8", "replace").strip() or "another process"
            os.close(file)
            raise UserError(
                f"{path.parent} is being written by {holder}: wait until it ends, or choose another --out"
            ) from None
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # its holder removed it after we opened it: there may be another by now


def _lock(file: int) -> None:
    """Raises BlockingIOError where another process holds it."""
    if sys.platform == "win32":
        import msvcrt

        os.lseek(file, 1 << 30, os.SEEK_SET)  # a byte behind all that is written, as a locked one cannot be read
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


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _this_process() -> str:
    """How the holder is named to others."""
    words = " ".join(shlex.join(["python", *sys.argv]).split())
    return f"process {os.getpid()} on {socket.gethostname()} ({words if len(words) <= 80 else words[:77] + '...'})"
