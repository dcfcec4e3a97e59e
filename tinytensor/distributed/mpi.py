"""Ranks of MPI: the processes that mpiexec, or a cluster's launcher, has started. They may be on many machines."""

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

# Where launchers write how many processes they have started: MPICH's and Intel's, and Open MPI's.
_SIZES = ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE"]
_SIZE_IN_SLURM = "SLURM_STEP_NUM_TASKS"  # set for every program, so it counts only beside PMIX_RANK, as in srun --mpi=pmix


def is_running() -> bool:
    """Whether a launcher of MPI started this process as one of several."""
    names = [*_SIZES, _SIZE_IN_SLURM] if "PMIX_RANK" in os.environ else _SIZES
    return any(os.environ.get(name, "1") not in ("", "1") for name in names)


@functools.cache
def world() -> Mpi | None:
    """All ranks that mpiexec started; None without mpiexec, or where it started only one.

    Raises ImportError without mpi4py, and RankError where mpi4py belongs to another MPI than mpiexec does.
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
    ranks.barrier()  # now all have opened the memory that those of one machine share
    _let_memory_of_mpich_end_with_its_users()
    return ranks


def _let_memory_of_mpich_end_with_its_users() -> None:
    """Remove the names of the memory that ranks of MPICH on one machine share.

    Ranks that are killed or aborted would leave it behind. Memory without a name is gone with its last user.
    """
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for name in {line.split()[-1] for line in maps if "/dev/shm/mpich_shm_" in line}:
            with contextlib.suppress(OSError):  # another rank was faster
                os.unlink(name)


class Mpi(Communicator):
    """One of the processes that mpiexec started."""

    def __init__(self, mpi: Any):
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self.rank, self.size = self._world.rank, self._world.size

    def broadcast(self, arrays: Arrays) -> None:
        """Give every rank's arrays the values that they have on rank 0, in place."""
        for alike in by_dtype(arrays):
            for flat in alike:
                self._world.Bcast(flat.view(host.uint8), root=0)

    def all_reduce(self, arrays: Arrays) -> None:
        """Replace every array by its sum over all ranks, in place. MPI gets all arrays of a dtype as one.

        Half precision, which MPI does not know, is summed in float32.
        """
        for alike in by_dtype(arrays):
            together = host.concatenate(alike, dtype=wide(alike[0].dtype))
            self._world.Allreduce(self._mpi.IN_PLACE, together)
            spread(together, alike)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self._world.Barrier()

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        """Each rank's own of the values that rank 0 gives."""
        return self._world.scatter(values, root=0)

    def gather(self, value: Any) -> list[Any] | None:
        """On rank 0 the values of all ranks."""
        found: list[Any] | None = self._world.gather(value, root=0)
        return found

    def abandon(self, error: BaseException) -> None:
        """Print the error, and end all ranks."""
        if isinstance(error, RankError):  # all ranks have found the same, such as that they do not agree
            if self.rank:
                time.sleep(5.0)  # meanwhile rank 0 prints it, and ends all
            text = f"error: {error}"
        elif getattr(error, "needs_no_traceback", False):
            text = f"error: rank {self.rank} on {socket.gethostname()}: {error}"
        else:
            lines = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            text = f"rank {self.rank} on {socket.gethostname()} failed: {lines.strip()}"
        print(text, file=sys.stderr, flush=True)
        time.sleep(0.2)  # mpiexec forgets what it has not passed on when it ends all
        self._world.Abort(1)
        os._exit(1)  # MPICH comes back from that, and a second message would follow

    @contextmanager
    def ending_all(self) -> Iterator[None]:
        """A context that ends all ranks if it fails on this one."""
        try:
            yield
        except BaseException as error:
            self.abandon(error)
            raise
