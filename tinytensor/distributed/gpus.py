"""Which GPUs the ranks of one machine take: rank 0 keeps its own, and each other process sees a single one of the rest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tinytensor.common.wording import counted
from tinytensor.device.backend import VISIBLE_GPUS, BackendError, xp


def num_gpus() -> int:
    """The number of GPUs that this process sees."""
    count: int = xp.cuda.runtime.getDeviceCount()
    return count


def gpus_of_ranks(ranks: int) -> list[str]:
    """For each rank its GPU, as CUDA_VISIBLE_DEVICES names it. The first is the current one of this process.

    Raises BackendError if there are fewer GPUs than ranks.
    """
    given = os.environ.get(VISIBLE_GPUS)
    names = given.split(",")[: num_gpus()] if given is not None else [str(number) for number in range(num_gpus())]
    if len(names) < ranks:
        hidden = f", of those that {VISIBLE_GPUS} does not hide" if given is not None else ""
        have = f"{counted(len(names), 'GPU')}{hidden}"
        raise BackendError(
            f"each of {counted(ranks, 'process')} needs a GPU, and this machine has {have}: start at most {len(names)}"
        )
    current = xp.cuda.runtime.getDevice()
    return [names[current], *names[:current], *names[current + 1 :]][:ranks]


@contextmanager
def showing(gpu: str) -> Iterator[None]:
    """A context in which a process that is started sees this GPU alone. CUDA reads the variable when it starts, and so in this
    process never again."""
    before = os.environ.get(VISIBLE_GPUS)
    os.environ[VISIBLE_GPUS] = gpu
    try:
        yield
    finally:
        if before is None:
            del os.environ[VISIBLE_GPUS]
        else:
            os.environ[VISIBLE_GPUS] = before
