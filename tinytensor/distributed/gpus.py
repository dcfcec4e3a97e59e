"""The GPU of each rank on one machine: rank 0 keeps its GPU, and every other process sees a single GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tinytensor.common.wording import counted
from tinytensor.device.backend import VISIBLE_GPUS, BackendError, xp


def num_gpus() -> int:
    """Return the number of GPUs that this process sees."""
    count: int = xp.cuda.runtime.getDeviceCount()
    return count


def gpus_of_ranks(ranks: int) -> list[str]:
    """Return the GPU of each rank, named as in CUDA_VISIBLE_DEVICES. The first is the current GPU of this process.

    Raises BackendError if there are fewer GPUs than ranks.
    """
    visible = os.environ.get(VISIBLE_GPUS)
    names = visible.split(",")[: num_gpus()] if visible is not None else [str(number) for number in range(num_gpus())]
    if len(names) < ranks:
        shown = f" visible in {VISIBLE_GPUS}" if visible is not None else ""
        raise BackendError(
            f"each of {counted(ranks, 'process')} needs a GPU, and this machine has {counted(len(names), 'GPU')}{shown}: "
            f"start at most {len(names)}"
        )
    current = xp.cuda.runtime.getDevice()
    return [names[current], *names[:current], *names[current + 1 :]][:ranks]


@contextmanager
def showing(gpu: str) -> Iterator[None]:
    """Return a context in which newly started processes see only this GPU. This process has already read the variable."""
    before = os.environ.get(VISIBLE_GPUS)
    os.environ[VISIBLE_GPUS] = gpu
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE_GPUS]
        else:
            os.environ[VISIBLE_GPUS] = before
