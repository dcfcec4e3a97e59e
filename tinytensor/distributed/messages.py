"""Messages between rank 0 and the other ranks of one machine. Sockets report immediately when the other end has died."""

from __future__ import annotations

import multiprocessing.connection
import pickle
import socket
import struct
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tinytensor.distributed.communicator import RankError

_HEADER = struct.Struct("<?Q")  # whether the message is a failure, and its length in bytes
_EMPTY = _HEADER.pack(False, 0)
_ALIKE = "every rank must call the same methods in the same order"
# A waiting rank polls for a while before it sleeps, because waking up takes far longer than a response.
_SECONDS_AWAKE = 0.002
_SECONDS_ASLEEP = 0.5  # until rank 0 checks that all ranks are still running
_DONT_WAIT: int = getattr(socket, "MSG_DONTWAIT", 0)  # Windows has no such flag, so ranks sleep immediately


class Lost(RankError):
    """Another rank has ended and is unreachable."""


class RemoteTraceback(Exception):
    """The traceback of another rank, set as the cause of its error."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class Star:
    """Sockets between rank 0 and each other rank.

    If ``stays_awake`` is set, a waiting rank polls briefly before it sleeps.

    ``barrier``, ``scatter`` and ``gather`` raise Lost if the other end has ended, and RankError if the other rank called a
    different method. Rank 0 raises the errors that other ranks report.
    """

    def __init__(self, rank: int, size: int, sockets: Mapping[int, socket.socket], stays_awake: bool):
        self.rank, self.size = rank, size
        self._sockets = sockets
        self._seconds_awake = _SECONDS_AWAKE if stays_awake and _DONT_WAIT else 0.0
        self.check_others: Callable[[], None] = lambda: None  # on rank 0: raises the error of a rank that has ended

    def barrier(self) -> None:
        """Wait until every rank has called this method."""
        if self.rank:
            self._send(0, _EMPTY)
            self._receive_empty(0)
            return
        for other in self._sockets:
            self._receive_empty(other)
        for other in self._sockets:
            self._send(other, _EMPTY)

    def scatter(self, values: Sequence[Any] | None) -> Any:
        """Scatter ``values`` from rank 0 and return this rank's value."""
        if self.rank:
            return self._receive_value(0)
        assert values is not None
        for other in self._sockets:
            self._send(other, _packed(False, values[other]))
        return values[0]

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all ranks on rank 0."""
        if self.rank:
            self._send(0, _packed(False, value))
            return None
        return [value, *(self._receive_value(other) for other in self._sockets)]

    def report(self, error: BaseException) -> None:
        """Report a failure to rank 0. Rank 0 raises the error when it waits for this rank."""
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            if not isinstance(error, Exception):  # SystemExit must not silently end rank 0
                raise TypeError
            message = _packed(True, (error, text))
            pickle.loads(message[_HEADER.size :])
        except Exception:  # the error cannot be sent
            message = _packed(True, (RuntimeError(f"{type(error).__name__}: {error}"), text))
        self._send(0, message)

    def hear_out(self, other: int) -> NoReturn:
        """On rank 0: raise the failure that a rank reported before it ended, or Lost."""
        while True:
            self._receive(other)

    def close(self) -> None:
        """Close the sockets. Ranks that are waiting for this rank then end."""
        for connection in self._sockets.values():
            connection.close()

    def _send(self, other: int, message: bytes) -> None:
        try:
            self._sockets[other].sendall(message)
        except OSError:
            self._receive(other)  # the rank may have reported why
            raise Lost(f"rank {other} cannot be reached") from None

    def _receive_empty(self, other: int) -> None:
        if self._receive(other):
            raise RankError(f"rank {other} is not at a barrier, as rank {self.rank} is: {_ALIKE}")

    def _receive_value(self, other: int) -> Any:
        message = self._receive(other)
        if not message:
            raise RankError(f"rank {other} is at a barrier, or sums arrays, and rank {self.rank} does not: {_ALIKE}")
        return pickle.loads(message)

    def _receive(self, other: int) -> bytes:
        failed, count = _HEADER.unpack(self._read(other, _HEADER.size))
        message = bytes(self._read(other, count))
        if failed:
            error, text = pickle.loads(message)
            raise error from RemoteTraceback(text)
        return message

    def _read(self, other: int, count: int) -> bytearray:
        read = bytearray(count)
        view = memoryview(read)
        until = time.perf_counter() + self._seconds_awake
        while view:
            try:
                flags = _DONT_WAIT if self._seconds_awake and time.perf_counter() < until else 0
                if not flags:
                    self._sleep(other)
                received = self._sockets[other].recv_into(view, flags=flags)
            except BlockingIOError:
                continue
            except OSError:
                received = 0
            if not received:
                raise Lost(f"rank {other} has ended")
            view = view[received:]
        return read

    def _sleep(self, other: int) -> None:
        """On rank 0: sleep until ``other`` has sent a message or any rank has ended (``other`` may be waiting for it)."""
        while self.rank == 0 and not multiprocessing.connection.wait([self._sockets[other]], _SECONDS_ASLEEP):
            self.check_others()


def _packed(failed: bool, value: Any) -> bytes:
    message = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(failed, len(message)) + message
