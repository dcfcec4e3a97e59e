"""Training on several cores: split the batch into shards and run each shard in its own thread.

Threads then synchronize only twice per step. BLAS threads would instead split every matrix product, synchronize hundreds of
times, and leave all other work to one core. In a shard, BLAS therefore uses one thread.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import threadpoolctl

from tinytensor import random
from tinytensor.autograd import engine
from tinytensor.autograd.modes import Switched, modes, restored
from tinytensor.autograd.replaying import current_step, is_traced
from tinytensor.autograd.tensor import Tensor, accumulate as accumulate_gradients, add_gradients
from tinytensor.common.arguments import checked, shown
from tinytensor.common.missing import names_of as _names_of
from tinytensor.device import backend, cores
from tinytensor.device.backend import host
from tinytensor.device.forks import held_by_forks

__all__ = ["backward", "blas_threads", "call_together", "default_shards", "new_seeds", "one_blas_thread", "run"]

Shard = TypeVar("Shard")
Result = TypeVar("Result")


_MOST_SHARDS = 4  # the default's limit: shards of a small model spend a tenth of their time in Python, one at a time


def default_shards() -> int:
    """Return the default number of shards: the number of BLAS threads, but at most 4. On a GPU or inside a shard, return 1.

    Only large models benefit from more than 4 shards.
    """
    if backend.name != "numpy" or _here.is_a_shard:
        return 1
    return min(blas_threads(), _MOST_SHARDS)


def blas_threads() -> int:
    """Return the number of BLAS threads outside ``one_blas_thread``: one per core, unless set by variables such as
    OPENBLAS_NUM_THREADS."""
    return _blas.threads()


class _Here(threading.local):
    """The state of one thread."""

    def __init__(self) -> None:
        self.is_a_shard = False
        self.blas_limits = 0  # how many ``one_blas_thread`` contexts the thread has entered
        self.pools: dict[int, ThreadPoolExecutor] = {}  # keys: number of threads
        self.gradients: dict[engine.Node, Any] = {}  # of the shard, by leaf


_here = _Here()


def run(function: Callable[[Shard], Result], shards: Sequence[Shard], seeds: Sequence[int] | None = None) -> list[Result]:
    """Return ``function(shard)`` for every shard. Each shard runs in its own thread, in this thread's modes such as
    ``no_grad``.

    If there are several shards, each has its own random generator. Seeds default to ``new_seeds``. The first error in a shard
    is raised after all shards have ended. Inside a shard, where all cores are busy, and in a traced function, shards run
    sequentially.

    >>> tt.parallel.run(lambda shard: shard.sum().item(), tt.split(tt.arange(6), 2))
    [3, 12]
    """
    if is_traced() or (len(shards) < 2 and not seeds):
        return [function(shard) for shard in shards]
    current_step().refuse("the random numbers of its shards, which have a seed each", "leave its batch whole")
    work = _as_shard(function)
    return call_together([functools.partial(work, shard, seed) for shard, seed in zip(shards, seeds or new_seeds(len(shards)))])


def new_seeds(shards: int) -> list[int]:
    """Draw one seed for each shard. A single shard needs no seed: it uses this thread's generator."""
    seeds: list[int] = random.generator().integers(0, 2**63, shards).tolist() if shards > 1 else []
    return seeds


def call_together(functions: Sequence[Callable[[], Result]]) -> list[Result]:
    """Call each function in its own thread (the first in this thread) and return the results.

    Inside a shard and in a captured step, the functions run sequentially. Raises RuntimeError after the first function in a
    child process that it forked.
    """
    if _here.is_a_shard or len(functions) < 2 or current_step().is_captured:
        return [function() for function in functions]
    pools = _here.pools
    with one_blas_thread():
        futures = [_threads(len(functions) - 1).submit(function) for function in functions[1:]]
        try:
            first = functions[0]()
        finally:
            if _here.pools is pools:
                wait(futures)  # even after an error, no thread may outlive this call
        if _here.pools is not pools:
            raise RuntimeError("a child was forked inside of a shard, and the threads of the other shards are its parent's")
        return [first, *(future.result() for future in futures)]


def accumulate(function: Callable[[Shard], Tensor], shards: Sequence[Shard], seeds: Sequence[int] | None = None) -> Tensor:
    """Return the sum of ``function(shard)``: forward, and backward in ``shard_gradients``, in threads as ``run`` does.

    When all shards have ended, their gradients are added to ``.grad`` in the order of the shards, so timing never affects the
    sums.

    >>> x = tt.tensor(2.0, requires_grad=True)
    >>> def forward_and_backward(factor):
    ...     loss = x * factor
    ...     with tt.parallel.threads.shard_gradients():
    ...         loss.backward()
    ...     return loss.detach()
    >>> tt.parallel.threads.accumulate(forward_and_backward, [3.0, 4.0]), x.grad
    (tensor(14.), tensor(7.))
    """

    def collect(shard: Shard) -> tuple[Tensor, dict[engine.Node, Any]]:
        before, _here.gradients = _here.gradients, {}
        try:
            return function(shard), _here.gradients
        finally:
            _here.gradients = before

    (total, gradients), *results = run(collect, shards, seeds)
    for value, more in results:
        total = total + value
        add_gradients(gradients, more)
    accumulate_gradients(gradients)
    return total


def shard_gradients() -> Switched:
    """Collect the gradients of ``backward`` for ``accumulate``, which adds them to ``.grad`` later. Once for each shard."""
    return Switched("gradients", _here.gradients)


@checked
def backward(loss: Callable[[Shard], Tensor], shards: Sequence[Shard], seeds: Sequence[int] | None = None) -> Tensor:
    """Return the sum of ``loss(shard)`` without a history, and add its gradients to the ``.grad`` of every leaf.

    Equivalent to ``(loss(shard_1) + loss(shard_2) + ...).backward()``, but each shard runs in its own thread, as in ``run``.
    Raises ValueError if there are no shards.

    >>> x = tt.tensor(2.0, requires_grad=True)
    >>> tt.parallel.backward(lambda factor: x * factor, [3.0, 4.0])
    tensor(14.)
    >>> x.grad
    tensor(7.)
    """
    if not hasattr(shards, "__len__"):
        raise TypeError(f"backward: shards must be a list of shards, got {shown(shards)}")
    if len(shards) == 0:
        raise ValueError("backward over shards needs at least one shard: without any there is no loss")

    def forward_and_backward(shard: Shard) -> Tensor:
        value = loss(shard)
        if not isinstance(value, Tensor):
            raise TypeError(f"backward: loss must return a tensor, got {shown(value)}")
        with shard_gradients():
            value.backward()
        return value.detach()

    return accumulate(forward_and_backward, shards, seeds)


def _as_shard(function: Callable[[Shard], Result]) -> Callable[[Shard, int], Result]:
    """Wrap the function to run in another thread with this thread's modes and a random seed."""
    now = modes()

    def call(shard: Shard, seed: int) -> Result:
        before, _here.is_a_shard = _here.is_a_shard, True
        try:
            with restored(now), random.using(host.random.default_rng(seed)):
                return function(shard)
        finally:
            _here.is_a_shard = before

    return call


@functools.cache
def _controller() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()  # cached, because the lookup searches all loaded libraries


class _Blas:
    """The number of threads that BLAS may use in this process.

    The number is 1 while any thread is inside ``one_blas_thread``. When the last thread leaves, the earlier number is restored.
    """

    def __init__(self) -> None:
        self._lock = held_by_forks(threading.RLock())
        self._inside = 0
        self._threads = 1
        self._limit: Any = None

    def threads(self) -> int:
        """Return the number of threads that BLAS uses outside ``one_blas_thread``."""
        with self._lock:
            return self._threads if self._inside else _blas_threads()

    def enter(self) -> None:
        """Limit BLAS to one thread."""
        with self._lock:
            if not self._inside:
                self._threads = _blas_threads()
                _let_this_thread_decide()
                self._limit = _controller().limit(limits=1, user_api="blas")
                cores.are_shared_out = True
            self._inside += 1
            _here.blas_limits += 1

    def leave(self) -> None:
        """Undo one ``enter``."""
        with self._lock:
            self._inside -= 1
            _here.blas_limits -= 1
            if not self._inside:
                self._lift()

    def after_fork(self) -> None:
        """Correct the state in a forked child process, where only the forking thread exists."""
        before, self._inside = self._inside, _here.blas_limits
        if before and not self._inside:
            self._lift()

    def _lift(self) -> None:
        cores.are_shared_out = False
        _let_this_thread_decide()
        self._limit.restore_original_limits()
        _let_this_thread_decide()


def _blas_threads() -> int:
    return max((library.num_threads for library in _controller().lib_controllers if library.user_api == "blas"), default=1)


def _let_this_thread_decide() -> None:
    """Let this thread change the limit. Newer versions of threadpoolctl obey only the thread that first set it."""
    if hasattr(threadpoolctl.OpenBLASController, "clear_controlling_thread"):
        threadpoolctl.OpenBLASController.clear_controlling_thread(force=True)


_blas = _Blas()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Return a context in which BLAS uses only its caller's thread."""
    _blas.enter()
    try:
        yield
    finally:
        _blas.leave()


def _threads(count: int) -> ThreadPoolExecutor:
    """Return a pool of threads for this thread. It is cached, because starting a thread takes as long as a small product."""
    if count not in _here.pools:
        _here.pools[count] = ThreadPoolExecutor(count, thread_name_prefix="shard")
    return _here.pools[count]


def _after_fork() -> None:
    """Drop the parent's thread pools in a forked child process, where their threads do not exist."""
    _here.pools = {}
    _blas.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)


if not TYPE_CHECKING:
    __getattr__, __dir__ = _names_of(__name__)
