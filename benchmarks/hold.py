"""A GPU kernel that only waits, so that work can be queued behind it. It needs nothing but CuPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# `globaltimer` counts the GPU's nanoseconds. Compiled for a CPU, which queues nothing, the kernel does nothing.
SOURCE = r"""
extern "C" __global__ void __launch_bounds__(1) hold(long long nanoseconds) {
#ifdef __CUDA_ARCH__
    long long start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - start < nanoseconds);
#endif
}
"""
OPTIONS = ("--std=c++17",)


def holder(cupy: Any) -> Callable[[float], None]:
    """Return a function that keeps the GPU busy for some milliseconds and returns immediately. ``cupy`` is the module."""
    kernel = cupy.RawModule(code=SOURCE, options=OPTIONS).get_function("hold")

    def hold(milliseconds: float) -> None:
        kernel((1,), (1,), (int(1e6 * milliseconds),))

    return hold
