"""Freed memory is reused for the next array instead of being returned to the system.

A training step allocates the same large arrays again and again. By default glibc returns each freed array to the system, which
then fills new memory with zeros page by page: a third of a small model's step. With memory reuse the process holds its peak
memory. TINYTENSOR_KEEP_MEMORY=0 leaves the system's allocator unchanged.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from typing import Any

# glibc's names for mallopt(3). The values must be C ints.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_GIBIBYTE = 1 << 30
_HUGE_PAGE, _COLLAPSE = 14, 25  # Linux's names for madvise(2): use large pages from now on; move to them immediately
_LARGE = 1 << 21  # bytes of a large page
_SMALLEST = 1 << 16  # bytes of an array


def keep_freed_memory() -> bool:
    """Make glibc's malloc reuse freed memory. Return False without glibc, or if TINYTENSOR_KEEP_MEMORY=0."""
    if os.environ.get("TINYTENSOR_KEEP_MEMORY", "1") == "0" or sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library, such as musl
        return False
    settings = [
        (_MMAP_MAX, 0),  # no array gets its own memory mapping, which would be returned to the system
        (_TRIM_THRESHOLD, _GIBIBYTE),  # the end of the heap is not returned either
        (_ARENA_MAX, 1),  # all threads share one heap, so each can use what another has freed
    ]
    done = [mallopt(name, value) for name, value in settings]
    return all(done)


def use_large_pages(arrays: Iterable[Any]) -> int:
    """Ask Linux to move NumPy's arrays to pages of 2 MiB. Return the number of bytes that are in such pages.

    The processor looks up fewer large pages than pages of 4 KiB: where each token reads all weights, this is up to a third
    faster. The result is 0 on other systems, before Linux 6.1, or where its settings forbid it. Neighbors in an array's first
    and last page move with it.
    """
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pages = {page for array in arrays if array.nbytes >= _SMALLEST for page in _pages(array)}
    moved = 0
    for page in sorted(pages):
        if madvise(page, _LARGE, _HUGE_PAGE) == 0 and madvise(page, _LARGE, _COLLAPSE) == 0:
            moved += _LARGE
    return moved


def _pages(array: Any) -> range:
    """Return the addresses of the large pages that hold an array."""
    first = array.ctypes.data
    return range(first // _LARGE * _LARGE, first + array.nbytes, _LARGE)
