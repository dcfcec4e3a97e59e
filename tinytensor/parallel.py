"""A batch cut into shards, one thread each: how training uses several cores.

Splitting the batch hands work over twice a step. Splitting each product, as BLAS does by itself, hands it over hundreds of
times, and leaves all that is not a product to one core. So here BLAS is held to one thread in each shard.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

from tinytensor import backend, engine, random
from tinytensor.backend import host
from tinytensor.tensor import Tensor, accumulate, leaf_gradients

Shard = TypeVar("Shard")
Result = TypeVar("Result")


_MOST_SHARDS = 4  # by default: the shards of a small model spend a tenth of their time in Python, which runs one at a time


def default_shards() -> int:
    """As many shards as BLAS would use threads, one a core or what OPENBLAS_NUM_THREADS or its like says, but at most 4, as
    more pay for large models only; on a GPU 1."""
    if backend.name != "numpy":
        return 1
    threads = max((pool["num_threads"] for pool in _controller().info() if pool["user_api"] == "blas"), default=1)
    return min(threads, _MOST_SHARDS)


class _Here(threading.local):
    is_a_shard = False


_here = _Here()


def run(function: Callable[[Shard], Result], shards: Sequence[Shard]) -> list[Result]:
    """``function`` of every shard, each in a thread of its own, which inherits ``no_grad`` and its like.

    With several shards each draws random numbers from a generator of its own, seeded by this thread's: the same seed and
    number of shards give the same numbers. The first error of a shard is raised here, after all have ended. Inside a shard,
    where all cores have work already, shards run one after the other.
    """
    if len(shards) == 1:
        with engine.quietly():
            return [function(shards[0])]
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
    as ``(loss(shard_1) + loss(shard_2) + ...).backward()`` would, with each shard's work in a thread of its own."""

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
    same_modes = engine.same_modes()

    def call(shard: Shard, seed: int) -> Result:
        before, _here.is_a_shard = _here.is_a_shard, True
        try:
            with same_modes(), engine.quietly(), random.using(host.random.default_rng(seed)):
                return function(shard)
        finally:
            _here.is_a_shard = before

    return call


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # it looks through all loaded libraries: once is enough


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """A context in which a product of matrices uses the thread that asks for it, and no other."""
    with _controller().limit(limits=1, user_api="blas"):
        yield


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    """Threads that wait for work; they are kept, as starting one takes as long as a small product."""
    return ThreadPoolExecutor(count, thread_name_prefix="shard")
