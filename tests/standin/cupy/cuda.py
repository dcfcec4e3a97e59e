"""The imagined GPU, and what CuPy tells of it."""

import os
import time
from types import SimpleNamespace

HANDLE = 0xB1A5  # of cuBLAS


class CUDARuntimeError(RuntimeError):
    """CUDA's answer where something went wrong."""

    def __init__(self, status):
        super().__init__(f"CUDA status {status}")
        self.status = status


class _OutOfMemoryError(MemoryError):
    """What CuPy raises where the GPU has no room for an array."""

    def __init__(self, size, total, limit=0):
        rest = f", limit set to: {limit:,} bytes" if limit else ""
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes{rest}).")


memory = SimpleNamespace(OutOfMemoryError=_OutOfMemoryError)
limit = int(os.environ.get("CUPY_GPU_MEMORY_LIMIT", 0))  # the most bytes of an array here, of all arrays in CuPy; 0: no limit


def check_memory(size):
    if limit and size > limit:
        raise _OutOfMemoryError(size, 0, limit)


def get_cublas_handle():
    return HANDLE


def Device():
    return SimpleNamespace(compute_capability="90", synchronize=_wait)


def _wait():
    from ._array import synchronize  # which needs this file

    synchronize()


class Event:
    """A moment in the GPU's work, which here is done when it is asked for."""

    done = True

    def record(self):
        self.seconds = time.perf_counter()

    def synchronize(self):
        _wait()


def get_elapsed_time(start_event, end_event):
    """Milliseconds between two moments."""
    return 1000.0 * (end_event.seconds - start_event.seconds)


runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    getDevice=lambda: 0,
    getDeviceCount=lambda: 1,
    getDeviceProperties=lambda device: {"name": b"an imagined GPU", "major": 9, "minor": 0},
    memGetInfo=lambda: (3 << 29, 2 << 30),  # bytes free, and in all
    runtimeGetVersion=lambda: 13000,
)

nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
