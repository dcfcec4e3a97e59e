"""Folders for what is kept between runs: in the user's cache, or where that cannot be, in a folder for this run."""

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
    """The folder with this name in the user's cache, which need not exist. None where there is no home to have it in."""
    try:
        found = platformdirs.user_cache_path(name, appauthor=False)
    except (OSError, RuntimeError, KeyError):
        return None
    return found if found.is_absolute() else None  # without a home it begins with "~"


def has_home() -> bool:
    """Whether this user has a home folder. Without one, a path such as ~/.cache would be one in the current folder."""
    return os.path.isabs(os.path.expanduser("~"))


def make_private(folder: Path) -> bool:
    """Make a folder that only this user may enter, if it is not there. Returns whether it is such a folder, and can be written.

    What is read from it is trusted. So a link, a folder of another user and one that others may write are not taken, and none
    in a folder in which all users may rename what is not theirs.
    """
    try:
        _make(folder, 0o700)
        found = os.lstat(folder)
        parent = folder.parent.resolve()
        above = [path.stat() for path in (parent, *parent.parents)]
    except OSError:
        return False
    if not stat.S_ISDIR(found.st_mode) or not os.access(folder, os.W_OK | os.X_OK):
        return False
    if sys.platform == "win32":  # where each user's folders are closed to others
        return True
    is_open = any(each.st_mode & stat.S_IWOTH and not each.st_mode & stat.S_ISVTX for each in above)
    return found.st_uid == os.geteuid() and not found.st_mode & 0o077 and not is_open


def _make(folder: Path, mode: int) -> None:
    """Make a folder and those above it, which others than the user never may write, whatever the umask says."""
    try:
        folder.mkdir(mode)
    except FileNotFoundError:
        _make(folder.parent, 0o755)
        folder.mkdir(mode, exist_ok=True)
    except FileExistsError:
        pass


@functools.cache
def of_this_run() -> Path:
    """A private folder that is removed when the program ends."""
    made, owner = Path(tempfile.mkdtemp(prefix="tinytensor-")), os.getpid()  # with mode 700

    def remove() -> None:
        if os.getpid() == owner:  # not when a forked child ends
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made
