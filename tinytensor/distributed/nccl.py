"""Ranks that have a GPU each, and sum gradients from GPU to GPU by NVIDIA's library NCCL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tinytensor.backend import BackendError, wide, xp
from tinytensor.distributed.communicator import Arrays, Communicator, by_dtype, spread


class Nccl(Communicator):
    """One of several processes, each with a GPU of its own. Everything that is not an array goes through ``on_host``, the same
    ranks as their CPUs reach each other.

    Raises BackendError where CuPy has no NCCL.
    """

    def __init__(self, on_host: Communicator):
        try:
            from cupy.cuda import nccl
        except ImportError:
            raise BackendError("several GPUs need NCCL, and CuPy does not find it: pip install nvidia-nccl-cu13") from None
        self.rank, self.size = on_host.rank, on_host.size
        self._on_host, self._nccl = on_host, nccl
        name = on_host.tell(nccl.get_unique_id() if on_host.rank == 0 else None)
        self._ranks = nccl.NcclCommunicator(self.size, name, self.rank)

    def broadcast(self, arrays: Arrays) -> None:
        """Give every rank's arrays the values that they have on rank 0, in place."""
        for array in arrays:
            given = array.data.ptr, array.data.ptr, array.nbytes
            self._ranks.broadcast(*given, self._nccl.NCCL_UINT8, 0, xp.cuda.get_current_stream().ptr)

    def all_reduce(self, arrays: Arrays) -> None:
        """Replace every array by its sum over all ranks, in place. NCCL gets all arrays of a dtype as one.

        Half precision is summed in float32.
        """
        types = {"f4": self._nccl.NCCL_FLOAT32, "f8": self._nccl.NCCL_FLOAT64, "i8": self._nccl.NCCL_INT64}
        for alike in by_dtype(arrays):
            dtype = alike[0].dtype
            together = xp.concatenate([array.astype(wide(dtype) or dtype, copy=False) for array in alike])
            kind = types[f"{together.dtype.kind}{together.dtype.itemsize}"]
            given = together.data.ptr, together.data.ptr, together.size, kind, self._nccl.NCCL_SUM
            self._ranks.allReduce(*given, xp.cuda.get_current_stream().ptr)
            spread(together.astype(dtype, copy=False), alike)

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self._on_host.barrier()

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        """Each rank's own of the values that rank 0 gives."""
        return self._on_host.scatter(values)

    def gather(self, value: Any) -> list[Any] | None:
        """On rank 0 the values of all ranks."""
        return self._on_host.gather(value)

    def abandon(self, error: BaseException) -> None:
        """Let the other ranks end."""
        self._on_host.abandon(error)
