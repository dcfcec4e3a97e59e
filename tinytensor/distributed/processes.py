"""Ranks as processes of one machine, which share the memory of parameters and of the optimizer's state.

Each rank computes its own gradients. They are summed through windows, which are shared memory as well: every rank copies a
piece of its gradients to its window, adds up its own part of that piece over all windows, and copies the whole sum back.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

from tinytensor import kernels, parallel
from tinytensor.device import backend
from tinytensor.device.backend import host, no_warnings
from tinytensor.device.cores import cores
from tinytensor.distributed.communicator import Arrays, Communicator, RankError, by_dtype, spread
from tinytensor.distributed.gpus import gpus_of_ranks, showing
from tinytensor.distributed.memory import Shared, anonymous, inheritable, padded, view
from tinytensor.distributed.messages import Lost, Star
from tinytensor.distributed.nccl import Nccl
from tinytensor.parallel.shared import working

WINDOW = 1 << 22  # bytes: smaller ones need more barriers, at each of which a rank may wait until it gets a core

_SECONDS_BETWEEN_LOOKS = 1.0

Follow = Callable[..., Any]


class Processes(Communicator):
    """One of several processes with shared memory: ``star`` for messages, and a window of each rank for arrays."""

    shares_memory = True

    def __init__(self, rank: int, star: Star, windows: Sequence[Any]):
        self.rank, self.size = rank, star.size
        self._star = star
        # Two halves, which take turns: who writes to one knows that nobody reads it any more, as all have come to the other.
        self._windows = [view(window, (2, WINDOW), host.dtype(host.uint8)) for window in windows]
        self._half = 0

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self._star.barrier()

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        """Each rank's own of the values that rank 0 gives."""
        return self._star.scatter(values)

    def gather(self, value: Any) -> list[Any] | None:
        """On rank 0 the values of all ranks."""
        return self._star.gather(value)

    def broadcast(self, arrays: Arrays) -> None:
        """Give every rank's arrays the values that they have on rank 0, in place."""
        for pieces in _pieces(arrays):
            window = self._next_windows(pieces)[0]
            if self.rank == 0:
                host.concatenate(pieces, out=window)
            self.barrier()
            if self.rank != 0:
                spread(window, pieces)

    def all_reduce(self, arrays: Arrays) -> None:
        """Replace every array by its sum over all ranks, in place. The terms are added in the order of the ranks."""
        for pieces in _pieces(arrays):
            windows = self._next_windows(pieces)
            host.concatenate(pieces, out=windows[self.rank])
            self.barrier()
            mine = self.own(len(windows[0]))
            with no_warnings():
                for term in windows[1:]:
                    windows[0][mine] += term[mine]
            self.barrier()
            spread(windows[0], pieces)

    def _next_windows(self, pieces: Arrays) -> list[Any]:
        """For each rank an array of the pieces' dtype and length together, in the half of its window whose turn it is."""
        self._half = 1 - self._half
        size = sum(piece.nbytes for piece in pieces)
        return [window[self._half, :size].view(pieces[0].dtype) for window in self._windows]


def _pieces(arrays: Arrays) -> Iterator[list[Any]]:
    """The arrays as flat pieces, in lists of pieces that have one dtype and fit into a window together."""
    for alike in by_dtype(arrays):
        most = WINDOW // alike[0].itemsize
        pieces, count = [], 0
        for array in alike:
            while count + len(array) > most:
                pieces.append(array[: most - count])
                array = array[most - count :]
                yield pieces
                pieces, count = [], 0
            pieces.append(array)
            count += len(array)
        if count:
            yield pieces


# ------------------------------------------------------------------------------------------------- starting and ending


@contextmanager
def processes(size: int, follow: Follow, arguments: Sequence[Any], method: str | None = None) -> Iterator[Communicator]:
    """A context for rank 0. Meanwhile ``follow(communicator, *arguments)`` runs in ``size - 1`` other processes.

    ``method`` is that of multiprocessing: by default "fork" where the system has it, else "spawn". A fork has the arguments
    already; spawned processes are sent copies. With both, models and optimizers among the arguments move to shared memory. On
    GPUs each process has its own copies on its own GPU, which it is given when it starts; this process keeps the one it has.

    At the end it waits for the others. If the body or another rank fails, it ends all others at once.

    Raises RuntimeError in a process that is itself a rank, BackendError where there are fewer GPUs than ranks, and TypeError if
    the function or an argument cannot be sent to a spawned process. An error of another rank is raised here, and RankError if
    one was killed.
    """
    if multiprocessing.current_process().daemon:
        raise RuntimeError("a rank cannot start ranks of its own, nor can another daemon process of multiprocessing")
    context: Any = multiprocessing.get_context(method or default_method())
    forks = context.get_start_method() == "fork"
    kernels.load()
    allocate = anonymous if forks else inheritable(context)
    gpus = gpus_of_ranks(size) if backend.name == "cupy" else []
    shared = Shared([] if gpus else arguments, allocate)
    windows = [] if gpus else [allocate(padded(2 * WINDOW)) for _ in range(size)]
    pairs = {rank: socket.socketpair() for rank in range(1, size)}
    stays_awake = size <= cores()
    star = Star(0, size, {rank: ours for rank, (ours, _) in pairs.items()}, stays_awake)
    started: list[BaseProcess] = []
    try:
        for rank, (_, theirs) in pairs.items():
            unneeded = [s for pair in pairs.values() for s in pair if s is not theirs] if forks else []
            given = (rank, size, theirs, unneeded, stays_awake, windows, shared, follow, arguments)
            process = context.Process(target=_follow, args=given, daemon=True, name=f"rank {rank}")
            started.append(process)
            with showing(gpus[rank]) if gpus else nullcontext():
                _start(process)
        for _, theirs in pairs.values():
            theirs.close()
        try:
            star.check_others = partial(_check_others, star, started)
            ranks = _ranks(0, star, windows)
            with working(), closing(ranks) if isinstance(ranks, Nccl) else nullcontext():
                yield ranks
                star.barrier()  # each other rank has come to its end
        except Lost as error:
            raise RankError(_who_ended(started) or str(error)) from None
    finally:
        for process in started:
            if process.pid is not None:
                process.kill()
                process.join()
                process.close()  # its pipes, for which the garbage collector would have to come
        star.close()
        for _, theirs in pairs.values():
            theirs.close()
        shared.update_views()


def default_method() -> str:
    """How processes are started: by a fork, where that is safe. It is not on macOS, whose libraries start threads, nor with a
    GPU."""
    return "fork" if hasattr(os, "fork") and sys.platform != "darwin" and backend.name == "numpy" else "spawn"


def _ranks(rank: int, star: Star, windows: Sequence[Any]) -> Processes | Nccl:
    """The connection of one rank. Ranks on GPUs have no windows, and sum by NCCL."""
    ranks = Processes(rank, star, windows)
    return ranks if windows else Nccl(ranks, star.check_others)


def _check_others(star: Star, started: Sequence[BaseProcess]) -> None:
    """On rank 0: raise what is known of a rank that has ended."""
    for rank, process in enumerate(started, 1):
        if process.exitcode is not None:
            star.hear_out(rank)


def _start(process: BaseProcess) -> None:
    """Start a process that gets no signals before it ignores them."""
    blocked = _SIGNALS if hasattr(signal, "pthread_sigmask") else []
    with contextlib.ExitStack() as stack:
        if blocked:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the new process uses none of theirs
        try:
            process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise TypeError(
                f"what each rank needs cannot be sent to a new process ({error}): use functions and classes that a module "
                "defines, rather than those made inside of functions"
            ) from None


# Signals that reach all processes of a terminal: rank 0 decides what they mean, and ends the others.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def ignore_signals() -> None:
    """Leave Ctrl-C and the like to rank 0."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _follow(
    rank: int,
    size: int,
    connection: socket.socket,
    unneeded: Sequence[socket.socket],
    stays_awake: bool,
    windows: Sequence[Any],
    shared: Shared,
    follow: Follow,
    arguments: Sequence[Any],
) -> None:
    """What a process of another rank than 0 does, from its start to its end."""
    ignore_signals()
    for other in unneeded:  # while they are open here, nobody would notice the end of their owner
        other.close()
    sys.stdout = sys.stderr = io.StringIO()  # rank 0 prints
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    star = Star(rank, size, {0: connection}, stays_awake)
    status = 0
    try:
        if windows and not unneeded:  # spawned, and on the CPU: a fork has its tensors in the blocks already
            shared.attach(arguments)
        with working(), parallel.one_blas_thread():
            follow(_ranks(rank, star, windows), *arguments)
        star.barrier()  # nobody ends while another rank's GPU may still read from this one's
    except Lost:
        status = 1  # rank 0 has ended
    except BaseException as error:
        status = 1
        with contextlib.suppress(BaseException):
            star.report(error)
    os._exit(status)  # and not through what rank 0 would do at its exit


def _end_with_rank_0() -> None:
    parent: Any = multiprocessing.parent_process()
    # Another child of the parent may hold the other end of its sentinel, and live longer.
    while not multiprocessing.connection.wait([parent.sentinel], _SECONDS_BETWEEN_LOOKS) and os.getppid() == parent.pid:
        pass
    os._exit(1)


def _who_ended(started: Sequence[BaseProcess]) -> str | None:
    """What is known of a rank that ended before its time."""
    ended = multiprocessing.connection.wait([process.sentinel for process in started], timeout=1.0)
    for rank, process in enumerate(started, 1):
        if process.sentinel in ended:
            process.join(1.0)  # its files are closed a moment before its status is known
        if process.exitcode:
            return f"rank {rank} (process {process.pid}) {_ending(process.exitcode)}"
    return None


def _ending(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")
