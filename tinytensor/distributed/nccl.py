"""Ranks with one GPU each. NCCL sums gradients directly between the GPUs.

So far this code has run only on the fake CuPy of the tests. ``tests/gpu/test_several_gpus.py`` tests one or more real GPUs.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tinytensor.device.backend import DType, load_nccl, wide, xp
from tinytensor.distributed.communicator import Arrays, Communicator, RankError, by_dtype, spread

_SECONDS_AWAKE = 0.002  # a waiting rank polls for a while, then pauses between polls
_PAUSE = 0.00005


class Nccl(Communicator):
    """One of several processes with one GPU each. All data except arrays goes through ``on_host``, the same ranks on the CPU.

    A GPU would wait forever in NCCL for a rank that has died. After each operation, this process therefore waits until its GPU
    has finished, calling ``check_others``, which raises RankError for a dead rank. In that case the operation is aborted, and
    this communicator cannot be used again. Under mpiexec nothing is checked: if a process dies, the launcher ends the others.

    Raises BackendError if CuPy has no NCCL, and RankError if two ranks have the same GPU.
    """

    def __init__(self, on_host: Communicator, check_others: Callable[[], None] = lambda: None):
        nccl = load_nccl()
        self.rank, self.size = on_host.rank, on_host.size
        self._on_host, self._check_others = on_host, check_others
        _check_gpus(on_host)
        name = on_host.tell(nccl.get_unique_id() if self.rank == 0 else None)
        on_host.barrier()  # all ranks have reached this point
        self._ranks = self._in_a_thread(lambda: nccl.NcclCommunicator(self.size, name, self.rank))

    def broadcast(self, arrays: Arrays) -> None:
        nccl = load_nccl()
        for array in [flat for alike in by_dtype(arrays) for flat in alike]:
            address = array.data.ptr
            self._ranks.broadcast(address, address, array.nbytes, nccl.NCCL_UINT8, 0, _stream())
        self._wait_for_gpu()

    def all_reduce(self, arrays: Arrays) -> None:
        """Sum every array over all ranks, in place. The results are bit-for-bit identical on all ranks.

        NCCL receives all arrays of a dtype as one array and chooses the order of the terms. With more than two ranks, the last
        bits may therefore differ from the sums of shards in one process. Half precision is summed in float32. Raises TypeError
        for a dtype that NCCL does not support, such as bool.
        """
        nccl = load_nccl()
        for alike in by_dtype(arrays):
            dtype = alike[0].dtype
            together = xp.concatenate([array.astype(wide(dtype) or dtype, copy=False) for array in alike])
            address = together.data.ptr
            self._ranks.allReduce(address, address, together.size, _type(together.dtype), nccl.NCCL_SUM, _stream())
            self._wait_for_gpu()
            spread(together.astype(dtype, copy=False), alike)

    def barrier(self) -> None:
        self._on_host.barrier()

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        return self._on_host.scatter(values)

    def gather(self, value: Any) -> list[Any] | None:
        return self._on_host.gather(value)

    def abandon(self, error: BaseException) -> None:
        self._on_host.abandon(error)

    def close(self) -> None:
        """Free NCCL's resources on the GPU and abort its pending work.

        (NCCL's ``destroy`` would wait for the other ranks, which may have ended.)
        """
        self._ranks.abort()

    # ------------------------------------------------------------------------------------------------- waiting

    def _wait_for_gpu(self) -> None:
        """Wait until the GPU has finished all its work."""
        now = xp.cuda.Event(disable_timing=True)
        now.record()

        def is_done() -> bool:
            self._ranks.check_async_error()  # network errors between machines
            return now.done

        try:
            self._wait(is_done)
        except BaseException as error:
            self.close()
            if isinstance(error, load_nccl().NcclError):
                raise RankError(f"NCCL cannot reach another rank ({error}): check the network between machines") from None
            raise

    def _wait(self, is_done: Callable[[], bool]) -> None:
        until = time.perf_counter() + _SECONDS_AWAKE
        while not is_done():
            if time.perf_counter() > until:
                self._check_others()
                time.sleep(_PAUSE)

    def _in_a_thread(self, call: Callable[[], Any]) -> Any:
        """Return the result of a call that waits for other ranks and cannot be aborted. If a rank dies, abandon the thread."""
        results, errors = [], []
        gpu = xp.cuda.runtime.getDevice()

        def work() -> None:
            try:
                xp.cuda.runtime.setDevice(gpu)  # each thread has its own current GPU
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
    """Return the address of the current stream of this thread."""
    address: int = xp.cuda.get_current_stream().ptr
    return address


def _type(dtype: DType) -> int:
    """Return the NCCL constant for a dtype."""
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
    """Raise RankError on every rank unless each has its own GPU."""
    runtime = xp.cuda.runtime
    gpus = on_host.gather((socket.gethostname(), runtime.deviceGetPCIBusId(runtime.getDevice())))
    if message := on_host.tell(_shared_gpu(gpus) if gpus else None):
        raise RankError(message)


def _shared_gpu(gpus: Sequence[tuple[str, str]]) -> str | None:
    for rank, gpu in enumerate(gpus):
        if (first := gpus.index(gpu)) < rank:
            machine, number = gpu
            return (
                f"ranks {first} and {rank} have the same GPU, {number} of {machine}: start at most one rank per GPU, and let "
                "CUDA_VISIBLE_DEVICES show all GPUs to every rank, or a different one to each"
            )
    return None
