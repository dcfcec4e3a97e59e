"""Ranks that have a GPU each, and sum gradients from GPU to GPU by NVIDIA's library NCCL.

So far this has run on the tests' stand-in for CuPy alone. ``tests/gpu/test_several_gpus.py`` is for real GPUs, one or more.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tinytensor.device.backend import DType, load_nccl, wide, xp
from tinytensor.distributed.communicator import Arrays, Communicator, RankError, by_dtype, spread

_SECONDS_AWAKE = 0.002  # a rank that waits asks again and again for a while, and then from time to time
_PAUSE = 0.00005


class Nccl(Communicator):
    """One of several processes, each with a GPU of its own. Everything that is not an array goes through ``on_host``, the same
    ranks as their CPUs reach each other.

    A GPU that waits in NCCL for a rank that has died would wait for ever. So this process waits after each operation until its
    GPU is done, and meanwhile calls ``check_others``, which raises RankError if it knows of such a rank. Then the operation is
    given up, and this communicator cannot be used any more. Under mpiexec there is nothing to check: where a process dies, the
    launcher ends all others.

    Raises BackendError where CuPy has no NCCL, and RankError where two ranks have the same GPU.
    """

    def __init__(self, on_host: Communicator, check_others: Callable[[], None] = lambda: None):
        nccl = load_nccl()
        self.rank, self.size = on_host.rank, on_host.size
        self._on_host, self._check_others = on_host, check_others
        _check_gpus(on_host)
        name = on_host.tell(nccl.get_unique_id() if self.rank == 0 else None)
        on_host.barrier()  # from here on all are known to come
        self._ranks = self._in_a_thread(lambda: nccl.NcclCommunicator(self.size, name, self.rank))

    def broadcast(self, arrays: Arrays) -> None:
        """Give every rank's arrays the values that they have on rank 0, in place. They are contiguous."""
        nccl = load_nccl()
        for array in [flat for alike in by_dtype(arrays) for flat in alike]:
            place = array.data.ptr
            self._ranks.broadcast(place, place, array.nbytes, nccl.NCCL_UINT8, 0, _stream())
        self._wait_for_gpu()

    def all_reduce(self, arrays: Arrays) -> None:
        """Replace every array by its sum over all ranks, in place. Every rank gets the same bits.

        NCCL gets all arrays of a dtype as one. It chooses the order of the terms, so that with more than two ranks the last
        bits need not be those of shards in one process. Half precision is summed in float32. Raises TypeError for a dtype that
        NCCL does not know, such as bool.
        """
        nccl = load_nccl()
        for alike in by_dtype(arrays):
            dtype = alike[0].dtype
            together = xp.concatenate([array.astype(wide(dtype) or dtype, copy=False) for array in alike])
            place = together.data.ptr
            self._ranks.allReduce(place, place, together.size, _type(together.dtype), nccl.NCCL_SUM, _stream())
            self._wait_for_gpu()
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

    def close(self) -> None:
        """Give back what NCCL holds on the GPU, and give up what it still does there.

        (NCCL's ``destroy`` would wait for the other ranks, which may have ended.)
        """
        self._ranks.abort()

    # ------------------------------------------------------------------------------------------------- waiting

    def _wait_for_gpu(self) -> None:
        """Wait until the GPU has done everything that it was given."""
        now = xp.cuda.Event(disable_timing=True)
        now.record()

        def is_done() -> bool:
            self._ranks.check_async_error()  # the network's, between machines
            return now.done

        try:
            self._wait(is_done)
        except BaseException as error:
            self.close()
            if isinstance(error, load_nccl().NcclError):
                raise RankError(f"NCCL cannot reach another rank ({error}): look at the network between machines") from None
            raise

    def _wait(self, is_done: Callable[[], bool]) -> None:
        until = time.perf_counter() + _SECONDS_AWAKE
        while not is_done():
            if time.perf_counter() > until:
                self._check_others()
                time.sleep(_PAUSE)

    def _in_a_thread(self, call: Callable[[], Any]) -> Any:
        """The result of a call that waits for the other ranks and cannot be given up. So if one dies, its thread is left."""
        results, errors = [], []
        gpu = xp.cuda.runtime.getDevice()

        def work() -> None:
            try:
                xp.cuda.runtime.setDevice(gpu)  # the current GPU is one of each thread
                results.append(call())
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._wait(lambda: not thread.is_alive())
        if errors:
            raise errors[0]
        return results[0]


def _stream() -> int:
    """The order of work on the GPU in which this thread's arrays are computed, as an address."""
    address: int = xp.cuda.get_current_stream().ptr
    return address


def _type(dtype: DType) -> int:
    """NCCL's number of a dtype."""
    nccl = load_nccl()
    types: dict[str, int] = {
        "float32": nccl.NCCL_FLOAT32,
        "float64": nccl.NCCL_FLOAT64,
        "int8": nccl.NCCL_INT8,
        "uint8": nccl.NCCL_UINT8,
        "int32": nccl.NCCL_INT32,
        "uint32": nccl.NCCL_UINT32,
        "int64": nccl.NCCL_INT64,
        "uint64": nccl.NCCL_UINT64,
    }
    if dtype.name not in types:
        raise TypeError(f"NCCL cannot sum arrays of dtype {dtype}: convert them to one of {', '.join(types)}")
    return types[dtype.name]


def _check_gpus(on_host: Communicator) -> None:
    """Raise RankError on every rank unless each has a GPU of its own."""
    runtime = xp.cuda.runtime
    own = socket.gethostname(), runtime.deviceGetPCIBusId(runtime.getDevice())
    found = on_host.gather(own)
    if message := on_host.tell(_shared_gpu(found) if found else None):
        raise RankError(message)


def _shared_gpu(gpus: Sequence[tuple[str, str]]) -> str | None:
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) < rank:
            machine, number = gpu
            return (
                f"ranks {first} and {rank} have the same GPU, {number} of {machine}: start no more ranks on a machine than it "
                "has GPUs, and let CUDA_VISIBLE_DEVICES show all of them, or each rank another one"
            )
    return None
