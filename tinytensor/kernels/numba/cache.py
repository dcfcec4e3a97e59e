"""Where compiled code is kept between runs: in a folder of files that Numba writes and reads."""

from __future__ import annotations

import functools
import hashlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinytensor.device.caches import make_private, of_this_run, user_cache


@functools.cache
def folder() -> Path:
    """The folder of these sources' compiled code: in their __pycache__, or where that cannot be written, in the user's cache.

    Numba looks for changes in the file of a loop, but not in the files of what the loop uses. So a folder belongs to all the
    kernels' sources together; those of earlier sources are removed. Compiled code is run as it is found, so only a folder of
    the user's own is taken, which nobody else may enter. Where nothing can be kept, one is made for this run, and a line says
    so.
    """
    kernels = Path(__file__).parents[1]
    sources = sorted(kernels.rglob("*.py"))
    digest = hashlib.sha256(b"".join([path.read_bytes() for path in sources])).hexdigest()[:16]
    for parent in (Path(__file__).parent / "__pycache__", user_cache("tinytensor")):
        found = parent / f"compiled-{digest}" if parent is not None else None
        if found is not None and make_private(found):
            _remove_others(found)
            return found
    print(
        "No folder can keep the compiled kernels, so each run compiles them again. XDG_CACHE_HOME may name one that can.",
        file=sys.stderr,
    )
    return of_this_run()


def _remove_others(own: Path) -> None:
    for other in own.parent.glob("compiled-*"):
        if other != own:
            shutil.rmtree(other, ignore_errors=True)


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
