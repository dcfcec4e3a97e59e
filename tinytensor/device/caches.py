"""Folders for cached files: in the user's cache or, if there is none, in a temporary folder for this run."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import platformdirs


def user_cache(name: str) -> Path | None:
    """Return the path of a folder in the user's cache, whether or not it exists. Return None if there is no home folder."""
    try:
        path = platformdirs.user_cache_path(name, appauthor=False)
    except (OSError, RuntimeError, KeyError):
        return None
    return path if path.is_absolute() else None  # if there is no home folder, it begins with "~"


def has_home() -> bool:
    """Return True if this user has a home folder. If not, ~/.cache would end up in the current folder."""
    return os.path.isabs(os.path.expanduser("~"))


def make_private(folder: Path) -> bool:
    """Create a folder that only this user may enter, unless it exists. Return True if it is private and writable.

    The content of the folder is trusted. Return False for links, folders of other users, folders that others may write to, and
    folders whose parent lets all users rename anything.
    """
    try:
        _make(folder, 0o700)
        status = os.lstat(folder)
        parent = folder.parent.resolve()
        above = [path.stat() for path in (parent, *parent.parents)]
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or not os.access(folder, os.W_OK | os.X_OK):
        return False
    if sys.platform == "win32":  # each user's folders are private
        return True
    is_open = any(each.st_mode & stat.S_IWOTH and not each.st_mode & stat.S_ISVTX for each in above)
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077 and not is_open


def _make(folder: Path, mode: int) -> None:
    """Create a folder and its parents so that only the user may write to them, whatever the umask."""
    try:
        folder.mkdir(mode)
    except FileNotFoundError:
        _make(folder.parent, 0o755)
        folder.mkdir(mode, exist_ok=True)
    except FileExistsError:
        pass


@functools.cache
def of_this_run() -> Path:
    """Return a private folder that is removed when the program ends."""
    made, owner = Path(tempfile.mkdtemp(prefix="tinytensor-")), os.getpid()  # with mode 700

    def remove() -> None:
        if os.getpid() == owner:  # do not remove it when a forked child ends
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made
