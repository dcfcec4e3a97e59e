"""MPI ranks: the processes of mpiexec or a cluster launcher, possibly on many machines."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tinytensor.device.backend import host, wide
from tinytensor.distributed.communicator import Arrays, Communicator, RankError, by_dtype, spread

# The number of processes, as set by the launchers of MPICH and Intel, and of Open MPI.
_SIZES = ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"]
_SIZE_IN_SLURM = "SLURM_STEP_NUM_TASKS"  # always set, so it counts only together with PMIX_RANK, as in srun --mpi=pmix


def is_running() -> bool:
    """Return True if an MPI launcher started this process as one of several."""
    names = [*_SIZES, _SIZE_IN_SLURM] if "PMIX_RANK" in os.environ else _SIZES
    return any(os.environ.get(name, "1") not in ("", "1") for name in names)


@functools.cache
def world() -> Mpi | None:
    """Return the communicator of all ranks that mpiexec started, or None if there are not several.

    Raises ImportError if mpi4py is missing, and RankError if mpi4py and mpiexec belong to different MPI versions.
    """
    if not is_running():
        return None
    try:
        from mpi4py import MPI
    except ImportError as error:
        reason = "mpi4py is not installed" if isinstance(error, ModuleNotFoundError) else f"mpi4py does not load ({error})"
        raise ImportError(f"mpiexec started this, but {reason}: pip install 'tinyformer[mpi]'") from None
    if MPI.COMM_WORLD.size == 1:
        raise RankError(
            "mpiexec started several processes, but each is alone: mpi4py and mpiexec belong to different versions of MPI. "
            "pip install 'tinyformer[mpi]' brings a pair that fits"
        )
    ranks = Mpi(MPI)
    ranks.barrier()  # by now all ranks have opened the shared memory of their machine
    _unlink_memory_of_mpich()
    return ranks


def _unlink_memory_of_mpich() -> None:
    """Unlink MPICH's shared memory, so that it is freed with its last user.

    Killed or aborted ranks would otherwise leave it behind.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for name in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with contextlib.suppress(OSError):  # another rank was faster
                os.unlink(name)


class Mpi(Communicator):
    """One of the processes started by mpiexec."""

    def __init__(self, mpi: Any):
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size

    def broadcast(self, arrays: Arrays) -> None:
        for alike in by_dtype(arrays):
            for flat in alike:
                self._world.Bcast(flat.view(host.uint8), root=0)

    def all_reduce(self, arrays: Arrays) -> None:
        """Sum every array over all ranks, in place. MPI receives all arrays of a dtype as one array.

        Half precision, which MPI does not support, is summed in float32.
        """
        for alike in by_dtype(arrays):
            together = host.concatenate(alike, dtype=wide(alike[0].dtype))
            self._world.Allreduce(self._mpi.IN_PLACE, together)
            spread(together, alike)

    def barrier(self) -> None:
        self._world.Barrier()

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        return self._world.scatter(values, root=0)

    def gather(self, value: Any) -> list[Any] | None:
        values: list[Any] | None = self._world.gather(value, root=0)
        return values

    def abandon(self, error: BaseException) -> None:
        """Print the error and end all ranks."""
        if isinstance(error, RankError):  # all ranks raise this error
            if self.rank:
                time.sleep(5.0)  # rank 0 prints it and ends all ranks
            text = f"error: {error}"
        elif getattr(error, "needs_no_traceback", False):
            text = f"error: rank {self.rank} on {socket.gethostname()}: {error}"
        else:
            lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            text = f"rank {self.rank} on {socket.gethostname()} failed: {lines.strip()}"
        print(text, file=sys.stderr, flush=True)
        time.sleep(0.2)  # mpiexec loses output that it has not forwarded yet
        self._world.Abort(1)
        os._exit(1)  # MPICH returns from Abort, so a second message would follow

    @contextmanager
    def ending_all(self) -> Iterator[None]:
        """Return a context that ends all ranks if its body fails on this rank."""
        try:
            yield
        except BaseException as error:
            self.abandon(error)
            raise
