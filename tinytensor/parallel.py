"""A batch cut into shards, one thread each: how training uses several cores.

Splitting the batch hands work over twice a step. Splitting each product, as BLAS does by itself, hands it over hundreds of
times, and leaves all that is not a product to one core. So here BLAS is held to one thread in each shard.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import threadpoolctl

from tinytensor import backend, engine, modes, random
from tinytensor.backend import host
from tinytensor.tensor import Tensor, accumulate, leaf_gradients

Shard = TypeVar("Shard")
Result = TypeVar("Result")


_MOST_SHARDS = 4  # by default: the shards of a small model spend a tenth of their time in Python, which runs one at a time


def default_shards() -> int:
    """As many shards as BLAS would use threads, one a core or what OPENBLAS_NUM_THREADS or its like says, but at most 4, as
    more pay for large models only; on a GPU, and inside a shard, 1."""
    if backend.name != "numpy" or _here.is_a_shard:
        return 1
    return min(_blas.threads(), _MOST_SHARDS)


class _Here(threading.local):
    """What belongs to one thread."""

    def __init__(self) -> None:
        self.is_a_shard = False
        self.blas_limits = 0  # how often it is inside ``one_blas_thread``
        self.pools: dict[int, ThreadPoolExecutor] = {}  # by the number of threads


_here = _Here()


def run(function: Callable[[Shard], Result], shards: Sequence[Shard]) -> list[Result]:
    """``function`` of every shard, each in a thread of its own, which inherits ``no_grad`` and its like.

    With several shards each draws random numbers from a generator of its own, seeded by this thread's: the same seed and
    number of shards give the same numbers. The first error of a shard is raised here, after all have ended. Inside a shard,
    where all cores have work already, shards run one after the other, and in a function that is traced, too.
    """
    if len(shards) < 2 or modes.modes.tracer is not None:
        with modes.without_warnings():
            return [function(shard) for shard in shards]
    seeds = random.generator().integers(0, 2**63, len(shards))
    work = _as_shard(function)
    return call_together([functools.partial(work, shard, seed) for shard, seed in zip(shards, seeds)])


def call_together(functions: Sequence[Callable[[], Result]]) -> list[Result]:
    """What the functions return, each called in a thread of its own, the first in this one; inside a shard, one by one."""
    if _here.is_a_shard or len(functions) < 2:
        return [function() for function in functions]
    with one_blas_thread():
        others = [_threads(len(functions) - 1).submit(function) for function in functions[1:]]
        try:
            first = functions[0]()
        finally:
            wait(others)  # also after an error: nothing may go on behind the caller's back
        return [first, *(other.result() for other in others)]


def backward(loss: Callable[[Shard], Tensor], shards: Sequence[Shard]) -> Tensor:
    """The sum of ``loss(shard)`` over the shards, without a history; its gradients are added to the ``.grad`` of every leaf,
    as ``(loss(shard_1) + loss(shard_2) + ...).backward()`` would, with each shard's work in a thread of its own. Raises
    ValueError where there are no shards."""
    if len(shards) == 0:
        raise ValueError("backward over shards needs at least one of them: of none there is no loss")

    def value_and_gradients(shard: Shard) -> tuple[Tensor, dict[engine.Node, Any]]:
        value = loss(shard)
        return value.detach(), leaf_gradients(value)

    (total, gradients), *others = run(value_and_gradients, shards)
    for value, found in others:
        total = total + value
        for leaf, gradient in found.items():
            if leaf in gradients:
                gradients[leaf] += gradient
            else:
                gradients[leaf] = gradient
    accumulate(gradients)
    return total


def _as_shard(function: Callable[[Shard], Result]) -> Callable[[Shard, int], Result]:
    """The function as a thread is to call it: with the modes of the thread that is here now, and random numbers of its own."""
    capture_modes = modes.capture_modes()

    def call(shard: Shard, seed: int) -> Result:
        before, _here.is_a_shard = _here.is_a_shard, True
        try:
            with capture_modes(), modes.without_warnings(), random.using(host.random.default_rng(seed)):
                return function(shard)
        finally:
            _here.is_a_shard = before

    return call


@functools.cache
def _controller() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()  # it looks through all loaded libraries: once is enough


class _Blas:
    """How many threads BLAS may use, which holds for the whole process: while anyone is inside ``one_blas_thread`` it is one,
    and whoever leaves last gives it back what it had."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._threads = 1
        self._limit: Any = None

    def threads(self) -> int:
        """As many as BLAS uses when nobody limits it here."""
        with self._lock:
            return self._threads if self._inside else _blas_threads()

    def enter(self) -> None:
        """Limit BLAS to one thread."""
        with self._lock:
            if not self._inside:
                self._threads = _blas_threads()
                _let_this_thread_decide()
                self._limit = _controller().limit(limits=1, user_api="blas")
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
        """Go on in a forked child, where the thread that forked is the only one."""
        self._lock = threading.Lock()  # the old one may be held by a thread that is no more
        before, self._inside = self._inside, _here.blas_limits
        if before and not self._inside:
            self._lift()

    def _lift(self) -> None:
        _let_this_thread_decide()
        self._limit.restore_original_limits()
        _let_this_thread_decide()


def _blas_threads() -> int:
    return max((library.num_threads for library in _controller().lib_controllers if library.user_api == "blas"), default=1)


def _let_this_thread_decide() -> None:
    """Newer versions of threadpoolctl ignore all threads but the one that first set a limit. Here, it need not be the last."""
    if hasattr(threadpoolctl.OpenBLASController, "clear_controlling_thread"):
        threadpoolctl.OpenBLASController.clear_controlling_thread(force=True)


_blas = _Blas()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which a product of matrices uses the thread that asks for it, and no other."""
    _blas.enter()
    try:
        yield
    finally:
        _blas.leave()


def _threads(count: int) -> ThreadPoolExecutor:
    """Threads that wait for this thread's work; they are kept, as starting one takes as long as a small product."""
    if count not in _here.pools:
        _here.pools[count] = ThreadPoolExecutor(count, thread_name_prefix="shard")
    return _here.pools[count]


def _after_fork() -> None:
    """A forked child has none of its parent's threads, but what they held, and the pools that they served in."""
    _here.pools = {}
    _blas.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
