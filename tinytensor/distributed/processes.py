"""Ranks as processes on one machine that share the memory of parameters and optimizer states.

Gradients are summed through windows in shared memory. Each rank copies a piece of its gradients to its window, sums its part of
the piece over all windows, and copies the complete sum back.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

from tinytensor import kernels, parallel
from tinytensor.autograd.tensor import Tensor
from tinytensor.device import backend
from tinytensor.device.backend import DType, host, no_warnings
from tinytensor.device.cores import cores
from tinytensor.distributed.communicator import Arrays, Communicator, RankError, by_dtype, spread
from tinytensor.distributed.gpus import gpus_of_ranks, showing
from tinytensor.distributed.messages import Lost, Star
from tinytensor.distributed.nccl import Nccl
from tinytensor.nn import Module
from tinytensor.optim import Optimizer
from tinytensor.optim.state import state_dtype
from tinytensor.parallel.shared import note_shared, working

WINDOW = 1 << 22  # bytes: smaller windows need more barriers, at which a rank may wait for a core

_SECONDS_BETWEEN_CHECKS = 1.0

Follow = Callable[..., Any]


class Processes(Communicator):
    """One of several processes with shared memory: ``star`` for messages, and one window per rank for arrays."""

    shares_memory = True

    def __init__(self, rank: int, star: Star, windows: Sequence[Any]):
        self.rank, self.size = rank, star.size
        self._star = star
        # Two halves alternate. When a rank writes to one half, no rank still reads it: all ranks have moved on to the other.
        self._windows = [view(window, (2, WINDOW), host.dtype(host.uint8)) for window in windows]
        self._half = 0

    def barrier(self) -> None:
        self._star.barrier()

    def scatter(self, values: Sequence[Any] | None = None) -> Any:
        return self._star.scatter(values)

    def gather(self, value: Any) -> list[Any] | None:
        return self._star.gather(value)

    def broadcast(self, arrays: Arrays) -> None:
        for pieces in _pieces(arrays):
            window = self._next_windows(pieces)[0]
            if self.rank == 0:
                host.concatenate(pieces, out=window)
            self.barrier()
            if self.rank != 0:
                spread(window, pieces)

    def all_reduce(self, arrays: Arrays) -> None:
        """Sum every array over all ranks, in place, in the order of the ranks."""
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
        """Return an array for each rank, with the dtype and total length of the pieces, in the current half of its window."""
        self._half = 1 - self._half
        size = sum(piece.nbytes for piece in pieces)
        return [window[self._half, :size].view(pieces[0].dtype) for window in self._windows]


def _pieces(arrays: Arrays) -> Iterator[list[Any]]:
    """Split the arrays into flat pieces, and group pieces of one dtype that fit into a window together."""
    for alike in by_dtype(arrays):
        capacity = WINDOW // alike[0].itemsize
        pieces, count = [], 0
        for array in alike:
            while count + len(array) > capacity:
                pieces.append(array[: capacity - count])
                array = array[capacity - count :]
                yield pieces
                pieces, count = [], 0
            pieces.append(array)
            count += len(array)
        if count:
            yield pieces


# ------------------------------------------------------------------------------------------------- starting and ending


@contextmanager
def processes(size: int, follow: Follow, arguments: Sequence[Any], method: str | None = None) -> Iterator[Communicator]:
    """Return a context for rank 0 that runs ``follow(communicator, *arguments)`` in ``size - 1`` other processes.

    ``method`` is the start method of multiprocessing; the default is "fork" where the system supports it, else "spawn". A fork
    already has the arguments; spawned processes receive copies. In both cases, models and optimizers among the arguments move
    to shared memory. On GPUs, each process has its own copies on its own GPU, and this process keeps its GPU.

    On exit the context waits for the other ranks. If the body or another rank fails, it ends all other ranks immediately.

    Raises RuntimeError in a process that is itself a rank, BackendError if there are fewer GPUs than ranks, and TypeError if
    the function or an argument cannot be sent to a spawned process. Errors of other ranks are reraised here. A killed rank
    raises RankError.
    """
    if multiprocessing.current_process().daemon:
        raise RuntimeError("a rank, or another daemon process of multiprocessing, cannot start ranks")
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
            args = (rank, size, theirs, unneeded, stays_awake, windows, shared, follow, arguments)
            process = context.Process(target=_follow, args=args, daemon=True, name=f"rank {rank}")
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
                star.barrier()  # all ranks have finished
        except Lost as error:
            raise RankError(_who_ended(started) or str(error)) from None
    finally:
        for process in started:
            if process.pid is not None:
                process.kill()
                process.join()
                process.close()  # closes its pipes before the garbage collector does
        star.close()
        for _, theirs in pairs.values():
            theirs.close()
        shared.update_views()


def default_method() -> str:
    """Return the default start method: "fork", unless it is unsafe, as on macOS (whose libraries start threads) or with a
    GPU."""
    return "fork" if hasattr(os, "fork") and sys.platform != "darwin" and backend.name == "numpy" else "spawn"


def _ranks(rank: int, star: Star, windows: Sequence[Any]) -> Processes | Nccl:
    """Return the communicator of one rank. Ranks on GPUs have no windows and sum with NCCL."""
    ranks = Processes(rank, star, windows)
    return ranks if windows else Nccl(ranks, star.check_others)


def _check_others(star: Star, started: Sequence[BaseProcess]) -> None:
    """On rank 0: raise the error of a rank that has ended."""
    for rank, process in enumerate(started, 1):
        if process.exitcode is not None:
            star.hear_out(rank)


def _start(process: BaseProcess) -> None:
    """Start a process with signals blocked until it ignores them."""
    blocked = _SIGNALS if hasattr(signal, "pthread_sigmask") else []
    with contextlib.ExitStack() as stack:
        if blocked:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a process with threads: the child does not use them
        try:
            process.start()
        except (AttributeError, TypeError, pickle.PicklingError) as error:
            raise TypeError(
                f"cannot send the arguments of a rank to a new process ({error}): define functions and classes in a module, "
                "not inside functions"
            ) from None


# Signals sent to all processes of a terminal. Rank 0 handles them and ends the other ranks.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def ignore_signals() -> None:
    """Leave Ctrl-C and similar signals to rank 0."""
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
    """Run the process of a rank other than 0."""
    ignore_signals()
    for other in unneeded:  # open copies would hide that their owner has ended
        other.close()
    sys.stdout = sys.stderr = io.StringIO()  # rank 0 prints
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    star = Star(rank, size, {0: connection}, stays_awake)
    status = 0
    try:
        if windows and not unneeded:  # spawned, on the CPU: a fork's tensors are already in the blocks
            shared.attach(arguments)
        with working(), parallel.one_blas_thread():
            follow(_ranks(rank, star, windows), *arguments)
        star.barrier()  # another rank's GPU may still read from this GPU
    except Lost:
        status = 1  # rank 0 has ended
    except BaseException as error:
        status = 1
        with contextlib.suppress(BaseException):
            star.report(error)
    os._exit(status)  # without rank 0's exit handlers


def _end_with_rank_0() -> None:
    parent: Any = multiprocessing.parent_process()
    # Another child of the parent may hold the other end of its sentinel and outlive it.
    while not multiprocessing.connection.wait([parent.sentinel], _SECONDS_BETWEEN_CHECKS) and os.getppid() == parent.pid:
        pass
    os._exit(1)


def _who_ended(started: Sequence[BaseProcess]) -> str | None:
    """Describe a rank that ended prematurely."""
    ended = multiprocessing.connection.wait([process.sentinel for process in started], timeout=1.0)
    for rank, process in enumerate(started, 1):
        if process.sentinel in ended:
            process.join(1.0)  # its status is known shortly after its files are closed
        if process.exitcode:
            return f"rank {rank} (process {process.pid}) {_ending(process.exitcode)}"
    return None


def _ending(status: int) -> str:
    if status > 0:
        return f"ended with status {status}"
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    return f"was killed by {name}" + (", as the system does when memory runs out" if name == "SIGKILL" else "")


# -------------------------------------------------------------------------------------------------------- shared memory

_ALIGNMENT = 64  # bytes of a cache line

Block = Any  # an mmap, or memory of multiprocessing
Allocate = Callable[[int], Block]  # allocates a block of this many bytes


def anonymous(size: int) -> Block:
    """Return a block for processes that are forked later. It has no name, so it is freed when the last process ends."""
    return mmap.mmap(-1, size)


def inheritable(context: Any) -> Allocate:
    """Return an allocator of blocks that can be sent to new processes of a multiprocessing context."""
    return lambda size: context.RawArray(ctypes.c_byte, size)


def padded(size: int) -> int:
    """Return the size of a block for an array of ``size`` bytes."""
    return size + _ALIGNMENT


def view(block: Block, shape: tuple[int, ...], dtype: DType) -> Any:
    """Return a block as a NumPy array that starts at a cache line."""
    every_byte = host.frombuffer(block, host.uint8)
    start = -every_byte.ctypes.data % _ALIGNMENT
    return host.ndarray(shape, dtype, block, start)  # unlike a reshaped array, it owns all its views


class _Slot:
    """A holder of an array: a tensor's data, or a present or future entry of an optimizer's state."""

    def __init__(self, array: Any, put: Callable[[Any], None]):
        self.array = array
        self.put = put


def _slots(owners: Iterable[Any]) -> list[_Slot]:
    """Return the slots of all arrays in these models and optimizers, each once."""
    slots: dict[int, _Slot] = {}
    optimizers = []
    for owner in owners:
        if isinstance(owner, Module):
            tensors: Iterable[Tensor] = dict(owner._named_tensors()).values()
        elif isinstance(owner, Optimizer):
            tensors = owner.parameters()
            optimizers.append(owner)
        else:
            continue
        for tensor in tensors:
            slots.setdefault(id(tensor), _Slot(tensor.data, partial(setattr, tensor, "data")))
    return [*slots.values(), *(slot for optimizer in optimizers for slot in _state_slots(optimizer))]


def _state_slots(optimizer: Optimizer) -> Iterator[_Slot]:
    """Iterate over the slots of present and future arrays in an optimizer's states. Mark each shared state."""
    for parameter, state, names in zip(optimizer.parameters(), optimizer.state, optimizer.array_names()):
        state.is_shared = optimizer.advances_all
        if not state.is_shared:
            continue
        for name in names:
            if name in state:
                yield _Slot(state[name], partial(state.__setitem__, name))
            else:
                zeros = host.zeros(parameter.shape, state_dtype(parameter))
                yield _Slot(zeros, partial(state.memory.__setitem__, name))


class Shared:
    """The tensors of models and optimizers, moved to shared blocks.

    In a spawned process, ``attach`` moves the received tensors to the same blocks. Older views, such as from ``state_dict`` or
    ``trace``, still use the old memory. ``update_views`` copies the new values to it.
    """

    def __init__(self, owners: Iterable[Any], allocate: Allocate):
        self.blocks: list[Block] = []
        self._moved: list[tuple[weakref.ref[Any], Any]] = []  # the old array, which only views keep alive, and the new array
        for slot in _slots(owners):
            block = allocate(padded(slot.array.nbytes))
            array = view(block, slot.array.shape, slot.array.dtype)
            array[...] = slot.array
            note_shared(array)
            slot.put(array)
            self.blocks.append(block)
            self._moved.append((weakref.ref(slot.array), array))

    def __getstate__(self) -> dict[str, Any]:
        return {"blocks": self.blocks}

    def update_views(self) -> None:
        """Copy the values to the tensors' old memory if views of it still exist."""
        for moved_from, array in self._moved:
            before = moved_from()
            if before is not None and before.flags.writeable:
                before[...] = array

    def attach(self, owners: Iterable[Any]) -> None:
        """Move the tensors of the same models and optimizers in another process to the blocks."""
        for slot, block in zip(_slots(owners), self.blocks, strict=True):
            array = view(block, slot.array.shape, slot.array.dtype)
            note_shared(array)
            slot.put(array)
