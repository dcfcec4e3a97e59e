"""Memory that is freed is kept for the next array, instead of going back to the system.

A training step asks for the same large arrays again and again. By default glibc returns each to the system when it is freed
and fetches it anew, zeroed page by page, the next time: a third of a small model's step. Kept memory is taken over as it is.
A process then holds on to its peak; TINYTENSOR_KEEP_MEMORY=0 leaves the system's allocator as it was.
"""

from __future__ import annotations

import ctypes
import os
import sys

# glibc's names for mallopt(3); the values are C ints.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_GIBIBYTE = 1 << 30


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep what is freed; False where there is no glibc, or TINYTENSOR_KEEP_MEMORY=0."""
    if os.environ.get("TINYTENSOR_KEEP_MEMORY", "1") == "0" or sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library, such as musl
        return False
    settings = [
        (_MMAP_MAX, 0),  # no array has a mapping of its own, which would be given back with it
        (_TRIM_THRESHOLD, _GIBIBYTE),  # and the end of the heap is not given back either
        (_ARENA_MAX, 1),  # one heap for all threads: what one has freed another can use
    ]
    done = [mallopt(name, value) for name, value in settings]
    return all(done)
