"""The imagined GPUs and their properties."""

import os
import threading
import time
from types import SimpleNamespace

from .._graphs import (
    Graph,
    MemoryPool,
    Stream,
    alloc_pinned_memory,
    check_copies,
    current_stream as get_current_stream,
    using_allocator,
)

__all__ = [
    "CUDARuntimeError", "Device", "Event", "Graph", "MemoryPool", "Stream", "alloc_pinned_memory", "get_cublas_handle",
    "get_current_stream", "get_elapsed_time", "memory", "nvrtc", "runtime", "stream", "using_allocator",
]  # fmt: skip

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
    from .._array import synchronize  # which needs this file

    synchronize()


class _Stream:
    """The order in which the GPU works, which here is that of the program. It stops where NCCL waits for a rank that has died:
    then what comes after it never happens."""

    def __init__(self):
        self._goes_on = threading.Event()
        self._goes_on.set()

    def stop(self):
        self._goes_on.clear()

    def go_on(self):
        self._goes_on.set()

    def has_come_here(self):
        return self._goes_on.is_set()

    def wait(self):
        self._goes_on.wait()


stream = _Stream()


class Event:
    """A moment in the GPU's work."""

    def __init__(self, block=False, disable_timing=False, interprocess=False):
        self.disable_timing = disable_timing

    @property
    def done(self):
        check_copies(are_done=stream.has_come_here())
        return stream.has_come_here()

    def record(self):
        self.seconds = time.perf_counter()

    def synchronize(self):
        _wait()


def get_elapsed_time(start_event, end_event):
    """Milliseconds between two moments."""
    return 1000.0 * (end_event.seconds - start_event.seconds)


COUNT = int(os.environ.get("CUPY_STANDIN_GPUS", 4))  # the GPUs of this machine


def _visible():
    """The numbers of the GPUs that CUDA_VISIBLE_DEVICES leaves to this process, up to the first that does not exist."""
    names, found = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(COUNT)))).split(","), []
    for name in names:
        if not (name.strip().isdigit() and int(name) < COUNT):
            break
        found.append(int(name))
    return found


def _count():
    if not _gpus:
        raise CUDARuntimeError(100)
    return len(_gpus)


def _set_device(device):
    if device not in range(len(_gpus)):
        raise CUDARuntimeError(101)
    if device:
        raise NotImplementedError("the fake CuPy works on the first GPU that it sees")


_gpus = _visible()  # as CUDA does, once

runtime = SimpleNamespace(
    CUDARuntimeError=CUDARuntimeError,
    deviceGetPCIBusId=lambda device: f"0000:{_gpus[device]:02X}:00.0",
    setDevice=_set_device,
    getDevice=lambda: 0,
    getDeviceCount=_count,
    getDeviceProperties=lambda device: {"name": b"an imagined GPU", "major": 9, "minor": 0},
    memGetInfo=lambda: (3 << 29, 2 << 30),  # bytes free, and in all
    runtimeGetVersion=lambda: 13000,
)

nvrtc = SimpleNamespace(getVersion=lambda: (13, 0))
