"""Where compiled code is kept between runs: in a folder of files that Numba writes and reads."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@functools.cache
def folder() -> Path:
    """The folder of these sources' compiled code: in their __pycache__, or where that cannot be written, in the user's cache.

    Numba looks for changes in the file of a loop, but not in the files of what the loop uses. So a folder belongs to all the
    kernels' sources together; those of earlier sources are removed. Where nothing can be kept, a folder is made for this run.
    """
    kernels = Path(__file__).parents[1]
    sources = sorted(kernels.rglob("*.py"))
    digest = hashlib.sha256(b"".join([path.read_bytes() for path in sources])).hexdigest()[:16]
    for parent in (Path(__file__).parent / "__pycache__", _users_cache()):
        found = parent / f"compiled-{digest}"
        with suppress(OSError):
            found.mkdir(parents=True, exist_ok=True)
            if os.access(found, os.W_OK):
                _remove_others(found)
                return found
    return _of_this_run()


def _users_cache() -> Path:
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path(os.path.expanduser("~")) / ".cache") / "tinytensor"


def _remove_others(own: Path) -> None:
    for other in own.parent.glob("compiled-*"):
        if other != own:
            shutil.rmtree(other, ignore_errors=True)


@functools.cache
def _of_this_run() -> Path:
    made = Path(tempfile.mkdtemp(prefix="tinytensor-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


@contextmanager
def in_folder() -> Iterator[None]:
    """A context in which functions are declared whose compiled code Numba is to keep in ``folder``. For all others, such as
    functions that the user's program compiles, nothing changes."""
    from numba import config

    before, config.CACHE_DIR = config.CACHE_DIR, str(folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before
