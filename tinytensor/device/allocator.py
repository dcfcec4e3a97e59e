"""Freed memory is kept for the next array, instead of being returned to the system.

A training step allocates the same large arrays again and again. By default glibc returns each of them to the system when it is
freed. The next time it gets new memory, which the system fills with zeros page by page: that took a third of a small model's
step. Memory that is kept can be used as it is. The process then keeps its peak memory; TINYTENSOR_KEEP_MEMORY=0 leaves the
system's allocator as it is.
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
_HUGE_PAGE, _COLLAPSE = 14, 25  # Linux's names for madvise(2): have large pages from now on; have them at once
_LARGE = 1 << 21  # bytes of a large page
_LEAST = 1 << 16  # bytes of an array


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep freed memory. False if there is no glibc, or if TINYTENSOR_KEEP_MEMORY=0."""
    if os.environ.get("TINYTENSOR_KEEP_MEMORY", "1") == "0" or sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library, such as musl
        return False
    settings = [
        (_MMAP_MAX, 0),  # no array gets a memory mapping of its own, which would be returned when the array is freed
        (_TRIM_THRESHOLD, _GIBIBYTE),  # the end of the heap is not returned either
        (_ARENA_MAX, 1),  # all threads share one heap, so each can use what another has freed
    ]
    done = [mallopt(name, value) for name, value in settings]
    return all(done)


def use_large_pages(arrays: Iterable[Any]) -> int:
    """Ask Linux to move NumPy's arrays to pages of 2 MiB, of which the processor finds more without a search than of those of 4
    KiB: where each token reads all weights, they come up to a third faster. Returns for how many bytes Linux did so now or
    before: 0 on other systems, where Linux is older than 6.1, or where its settings forbid it.

    What lies beside an array in its first and its last page moves with it.
    """
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    pages = {page for array in arrays if array.nbytes >= _LEAST for page in _pages(array)}
    moved = 0
    for page in sorted(pages):
        if madvise(page, _LARGE, _HUGE_PAGE) == 0 and madvise(page, _LARGE, _COLLAPSE) == 0:
            moved += _LARGE
    return moved


def _pages(array: Any) -> range:
    """The addresses of the large pages that hold an array."""
    first = array.ctypes.data
    return range(first // _LARGE * _LARGE, first + array.nbytes, _LARGE)
