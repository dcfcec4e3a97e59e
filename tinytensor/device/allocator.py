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

# glibc's names for mallopt(3). The values must be C ints.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_GIBIBYTE = 1 << 30


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
