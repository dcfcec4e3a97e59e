"""Where compiled code is kept between runs, and a line for the user while it is made for the first time."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@functools.cache
def folder() -> Path:
    """The folder of the compiled code of these sources: beside them, or where that cannot be written, in the user's cache.

    Numba looks for changes in the file of a loop, but not in the files of the loops that it calls. So a folder belongs to all
    the sources together; those of earlier sources are removed.
    """
    sources = sorted(Path(__file__).parent.glob("*.py"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    chosen = os.environ.get("XDG_CACHE_HOME")
    users = Path(chosen) if chosen else Path.home() / ".cache"
    for parent in (Path(__file__).parent / "__pycache__", users / "tinytensor", Path(tempfile.gettempdir()) / "tinytensor"):
        found = parent / f"compiled-{digest}"
        with suppress(OSError):
            _announce(found)
            found.mkdir(parents=True, exist_ok=True)
            if os.access(found, os.W_OK):
                _remove_others(found)
                return found
    raise OSError("tinytensor finds no folder for its compiled kernels: set XDG_CACHE_HOME, or TINYTENSOR_KERNELS=numpy")


def _announce(found: Path) -> None:
    if not found.exists() and sys.stderr is not None:
        with suppress(OSError):
            print("tinytensor compiles its kernels for this processor; this happens once", file=sys.stderr, flush=True)


def _remove_others(own: Path) -> None:
    for other in own.parent.glob("compiled-*"):
        if other != own:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def in_folder() -> Iterator[None]:
    """A context in which Numba keeps what is declared in ``folder``. A program's own functions are kept where they were."""
    from numba import config

    before, config.CACHE_DIR = config.CACHE_DIR, str(folder())
    try:
        yield
    finally:
        config.CACHE_DIR = before
