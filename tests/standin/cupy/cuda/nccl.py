"""NCCL between real processes of one machine, over TCP: rank 0 gets everything, and sends back what comes of it.

A rank that has died is waited for as on GPUs: the call returns, and then the stream never comes to its end, until ``abort``.
"""

from multiprocessing.connection import Client, Listener

import numpy

from .._array import Address
from . import stream as _stream

available = True

NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)
NCCL_SUM = 0

_DTYPES = "int8 uint8 int32 uint32 int64 uint64 float16 float32 float64".split()  # sums of bfloat16 have no use yet
_ID_BYTES = 128
_listeners = {}  # by their id, in the process that made it


class NcclError(RuntimeError):
    """NCCL's answer where something went wrong."""

    def __init__(self, status):
        super().__init__(f"NCCL status {status}")
        self.status = status


def get_unique_id():
    """The name of a group of ranks to be: where this process, which must be rank 0, listens."""
    listener = Listener(("127.0.0.1", 0), backlog=64)
    name = ":".join(map(str, listener.address)).encode().ljust(_ID_BYTES, b"\0")
    _listeners[name] = listener
    return name


class NcclCommunicator:
    """One rank. As in NCCL, its constructor waits until all ranks have come."""

    def __init__(self, ndev, commId, rank):
        if type(commId) is not bytes:
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(commId).__name__})")
        assert len(commId) == _ID_BYTES
        if not 0 <= rank < ndev:
            raise NcclError(4)
        self._rank, self._connections = rank, []
        if rank == 0:
            with _listeners.pop(commId) as listener:
                come = [listener.accept() for _ in range(ndev - 1)]
            self._connections = [c for _, c in sorted(((c.recv(), c) for c in come), key=lambda pair: pair[0])]
            for connection in self._connections:
                connection.send("all are here")
        else:
            host, _, port = commId.rstrip(b"\0").decode().partition(":")
            self._connections = [Client((host, int(port)))]
            self._connections[0].send(rank)
            self._connections[0].recv()

    def allReduce(self, sendbuf, recvbuf, count, datatype, op, stream):
        if op != NCCL_SUM:
            raise NcclError(4)
        given, result = _memory(sendbuf, count, datatype), _memory(recvbuf, count, datatype)

        def add(others):
            total = given.copy()
            for other in others:
                total += numpy.frombuffer(other, given.dtype)
            return total

        self._together(("allReduce", count, datatype), given, result, add, stream)

    def broadcast(self, sendbuff, recvbuff, count, datatype, root, stream):
        if root != 0:
            raise NotImplementedError("the fake CuPy broadcasts from rank 0 alone")
        given, result = _memory(sendbuff, count, datatype), _memory(recvbuff, count, datatype)
        self._together(("broadcast", count, datatype), given, result, lambda others: given.copy(), stream)

    def _together(self, what, given, result, combine, stream):
        """Write to ``result`` on every rank what rank 0 makes of all that was given."""
        if type(stream) is not int:
            raise TypeError(f"Argument 'stream' has incorrect type (expected int, got {type(stream).__name__})")
        if self._connections is None:  # after abort
            raise NcclError(4)
        try:
            if self._rank:
                self._connections[0].send((what, given.tobytes()))
                result[...] = numpy.frombuffer(self._connections[0].recv(), result.dtype)
                return
            asked = [connection.recv() for connection in self._connections]
            for rank, (other, _) in enumerate(asked, 1):
                if other != what:
                    raise AssertionError(f"rank 0 calls {what} and rank {rank} {other}: on GPUs that is undefined")
            result[...] = combine([data for _, data in asked])
            for connection in self._connections:
                connection.send(result.tobytes())
        except (EOFError, OSError):
            _stream.stop()

    def check_async_error(self):
        """Nothing: where memory is shared, NCCL does not notice that a rank has died."""

    def abort(self):
        for connection in self._connections or []:
            connection.close()
        self._connections = None
        _stream.go_on()


def _memory(address, count, datatype):
    """Return this many values at an address, which must belong to a contiguous array of at least that size."""
    if not isinstance(address, Address):
        raise TypeError(f"an integer is required for an address, as array.data.ptr is, not {type(address).__name__}")
    host, dtype = address.array._host, numpy.dtype(_DTYPES[datatype])
    if not host.flags.c_contiguous or host.nbytes < count * dtype.itemsize:
        raise ValueError(f"{count} numbers of {dtype} are beyond an array of shape {host.shape}, dtype {host.dtype}")
    return host.reshape(-1).view(numpy.uint8)[: count * dtype.itemsize].view(dtype)
