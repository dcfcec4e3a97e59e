"""Reuse freed memory for the next array instead of returning it to the system.

A training step allocates the same large arrays repeatedly. By default glibc returns each freed array to the system, which then
zeroes new memory page by page. This takes a third of a small model's step. With memory reuse, the process holds on to its peak
memory. Set TINYTENSOR_KEEP_MEMORY=0 to leave the system allocator unchanged.
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
    """Make glibc's malloc reuse freed memory. Return False if there is no glibc or TINYTENSOR_KEEP_MEMORY=0."""
    if os.environ.get("TINYTENSOR_KEEP_MEMORY", "1") == "0" or sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library, such as musl
        return False
    settings = [
        (_MMAP_MAX, 0),  # no array gets its own memory mapping: it would be returned to the system
        (_TRIM_THRESHOLD, _GIBIBYTE),  # the end of the heap is not returned either
        (_ARENA_MAX, 1),  # all threads share one heap, so each can reuse memory freed by another
    ]
    done = [mallopt(name, value) for name, value in settings]
    return all(done)


def use_large_pages(arrays: Iterable[Any]) -> int:
    """Ask Linux to move NumPy arrays to 2 MiB pages. Return the number of bytes in such pages.

    Large pages cause fewer TLB misses than 4 KiB pages. Decoding, which reads every weight for each token, runs up to a third
    faster. The result is 0 on other systems, before Linux 6.1, or if the system settings forbid it. Neighbors that share an
    array's first or last page move with it.
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
    """Return the addresses of the large pages that contain an array."""
    first = array.ctypes.data
    return range(first // _LARGE * _LARGE, first + array.nbytes, _LARGE)
