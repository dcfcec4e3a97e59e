"""Forked children: no lock stays held, nothing waits for missing threads, and random numbers continue the parent's."""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import living
import numpy as np
import pytest
from forking import in_a_fork, needs_fork

import tinytensor as tt
from tinytensor import distributed, nn, parallel
from tinytensor.autograd import engine
from tinytensor.device import forks
from tinytensor.nn import hooks

FORKS = 20
ROOT = Path(__file__).parents[2]


@contextmanager
def beside(work: Callable[[], Any]) -> Iterator[None]:
    """A context in which another thread works again and again."""
    ended = threading.Event()

    def again() -> None:
        while not ended.is_set():
            work()

    thread = threading.Thread(target=again)
    thread.start()
    try:
        time.sleep(0.02)
        yield
    finally:
        ended.set()
        thread.join()


def in_thread(function: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


# -------------------------------------------------------------------------------------------------------- random numbers


def draw_much() -> None:
    tt.random.normal((100_000,))


def children_draw_as_the_state_says() -> bool:
    """Whether each of many children draws what the thread that forks would draw next, and does not wait for a thread that is
    not there."""
    results = []
    for _ in range(FORKS):
        state = tt.random.get_state()
        expected = tt.random.normal((3,)).tolist()
        tt.random.set_state(state)
        results.append(in_a_fork(lambda expected=expected: tt.random.normal((3,)).tolist() == expected, seconds=5))
        time.sleep(0.002)
    return all(results)


@needs_fork
def test_forks_while_another_thread_draws() -> None:
    with beside(draw_much):
        assert children_draw_as_the_state_says()


@needs_fork
def test_forks_of_another_thread_while_the_main_one_draws() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(children_draw_as_the_state_says()))
    thread.start()
    while thread.is_alive():
        draw_much()
    assert found == [True]


@needs_fork
def test_forks_of_a_thread_that_has_not_drawn_yet() -> None:
    tt.seed(3)
    expected = in_thread(lambda: tt.random.normal((3,)).tolist())
    tt.seed(3)
    assert in_thread(lambda: in_a_fork(lambda: tt.random.normal((3,)).tolist() == expected))
    assert in_thread(lambda: tt.random.normal((3,)).tolist()) == expected  # the fork has used up nothing


@needs_fork
def test_forks_while_another_thread_draws_from_the_same_generator() -> None:
    shared = np.random.default_rng(0)

    def work() -> None:
        with tt.random.using(shared):
            draw_much()

    with beside(work), tt.random.using(shared):
        for _ in range(FORKS):
            assert in_a_fork(lambda: tt.random.normal((3,)).shape == (3,), seconds=5)


# ---------------------------------------------------------------------------------------------------- threads that compute


@needs_fork
def test_forks_while_another_thread_runs_shards() -> None:
    weight = nn.Parameter(np.ones((8, 8)))
    loss = lambda x: (tt.tanh(x @ weight) + tt.dropout(x, 0.5)).sum()  # noqa: E731
    shards = [tt.ones((4, 8)), tt.ones((4, 8))]

    def step() -> tuple[float, Any]:
        weight.grad = None
        value = parallel.backward(loss, shards).item()
        assert weight.grad is not None
        return value, weight.grad.tolist()

    def others() -> None:
        parallel.backward(lambda x: (x * 2).sum(), [tt.ones(1000, requires_grad=True)] * 2)

    with beside(others):
        for seed in range(FORKS):
            tt.seed(seed)
            expected = step()

            def child(seed: int = seed, expected: Any = expected) -> bool:
                tt.seed(seed)
                return step() == expected

            assert in_a_fork(child, seconds=10)


@needs_fork
def test_a_child_that_leaves_a_shard_does_not_wait_for_the_others() -> None:
    def child() -> bool:
        with pytest.raises(RuntimeError, match="forked inside of a shard"):
            parallel.run(fork, [0, 1])
        return True

    def fork(shard: int) -> int:
        if shard == 1:
            time.sleep(0.3)  # so the parent's thread is at work when it forks
            return 1
        return os.fork()

    def in_this_process() -> bool:
        try:
            first, second = parallel.run(fork, [0, 1])
        except RuntimeError as error:
            os._exit(3 if "forked inside of a shard" in str(error) else 4)
        return second == 1 and os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 3

    assert in_a_fork(in_this_process, seconds=10)


@needs_fork
@pytest.mark.needs("numba")
def test_the_helper_of_a_child_is_its_own() -> None:
    from tinytensor.kernels.numba.processor import helper

    def helps() -> bool:
        done = threading.Event()
        helper().call(done.set)
        return done.wait(5)

    assert helps()
    assert in_a_fork(helps)
    assert in_thread(lambda: in_a_fork(helps))


@needs_fork
@pytest.mark.needs("numba")
def test_forks_while_another_thread_compiles() -> None:
    """The fork waits, so that the child has nothing that is half compiled."""
    from tinytensor.kernels.numba.compiling import load_numba

    numba = load_numba()
    texts = iter(range(10**6))

    def compile_one() -> None:
        number = next(texts)
        numba.njit(lambda x: x + number)(1.0)

    def child() -> bool:
        return numba.njit(lambda x: x * 2 + 1)(2.0) == 5.0

    with beside(compile_one):
        assert all(in_a_fork(child, seconds=20) for _ in range(3))


# ------------------------------------------------------------------------------------------------------------------ locks


@needs_fork
def test_no_lock_is_held_in_a_child() -> None:
    """Another thread holds each lock when the process forks. Locks that a fork waits for are released."""

    def is_free(lock: Any) -> bool:
        holds, goes_on = threading.Event(), threading.Event()
        wait = 0.03 if any(lock is each for each in forks._held) else 60.0

        def hold() -> None:
            lock.acquire()
            holds.set()
            goes_on.wait(wait)
            lock.release()

        def child() -> bool:
            lock.acquire()
            lock.release()
            return True

        thread = threading.Thread(target=hold)
        thread.start()
        holds.wait()
        try:
            return in_a_fork(child, seconds=3)
        finally:
            goes_on.set()
            thread.join()

    parallel.run(lambda shard: shard, [0, 1])  # so that there are some more
    own = tt.random.generator().bit_generator.lock
    assert {id(engine._changing), id(hooks._lock), id(parallel.threads._blas._lock)} <= {id(lock) for lock in forks._held}
    assert own in forks._free and len(forks._free) > 1
    assert all(map(is_free, [*forks._held, own, *list(forks._free)[:3]]))


@needs_fork
def test_a_thread_that_holds_a_lock_may_fork() -> None:
    lock = forks.free_in_forks(threading.RLock())

    def child() -> bool:
        lock.release()
        return lock.acquire(blocking=False)

    with lock:
        assert in_a_fork(child)


@needs_fork
def test_a_handler_of_signals_forks_wherever_the_program_is() -> None:
    """Also where this thread holds a lock that a fork takes."""
    parallel.run(lambda shard: shard, [0, 1])
    found = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: found.append(in_a_fork(lambda: True)))
    try:
        for lock in forks._held:
            lock.acquire()
            signal.raise_signal(signal.SIGTERM)
            lock.release()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert found == [True] * len(forks._held)


def test_every_lock_of_the_packages_is_known_to_forks() -> None:
    """Save those that are in use only while a function runs that never forks, that of the explorer's connections, which end
    with its process, and those that its lock of turns is made of: it is known to forks as a whole."""
    made = re.compile(r"threading\.(R?Lock|Condition|Semaphore|BoundedSemaphore|Barrier)\(")
    unknown = [
        (path.name, line.strip())
        for package in ("tinytensor", "tinyformer")
        for path in sorted((ROOT / package).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if path.name != "turns.py" and made.search(line) and "free_in_forks(" not in line and "held_by_forks(" not in line
    ]
    assert unknown == [
        ("recurrence.py", "pending, lock = [(middle, batch)], threading.Lock()"),
        ("connections.py", "self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)"),
    ]


@needs_fork
def test_a_cached_property_that_another_thread_computes() -> None:
    begun, ended = threading.Event(), threading.Event()

    class Slow:
        def __init__(self, waits: bool):
            self.waits = waits

        @forks.cached_property
        def value(self) -> int:
            if self.waits:
                begun.set()
                ended.wait(60)
            return 7

    assert isinstance(Slow.__dict__["value"], functools.cached_property)
    thread = threading.Thread(target=lambda: Slow(True).value)
    thread.start()
    begun.wait()
    try:
        assert in_a_fork(lambda: Slow(False).value == 7, seconds=5)
    finally:
        ended.set()
        thread.join()


# -------------------------------------------------------------------------------------------------------- pools of processes


def drawn(_: int) -> list[float]:
    parallel.run(lambda shard: shard, [0, 1])
    return tt.random.normal((2,)).tolist()


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks beside threads
@pytest.mark.parametrize("kind", ["multiprocessing", "concurrent.futures"])
def test_pools_of_forked_processes(kind: str) -> None:
    context = multiprocessing.get_context("fork")
    with beside(draw_much):
        tt.seed(1)
        expected = drawn(0)
        tt.seed(1)
        if kind == "multiprocessing":
            with context.Pool(1) as pool:
                found = pool.map_async(drawn, range(2)).get(20)
        else:
            with ProcessPoolExecutor(1, mp_context=context) as pool:
                found = list(pool.map(drawn, range(2), timeout=20))
    assert found[0] == expected != found[1]


@needs_fork
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which processes live")
def test_ranks_end_with_rank_0_whatever_else_it_has_forked(tmp_path: Path) -> None:
    """Another child of rank 0 has copies of all its pipes, and lives on."""

    def child() -> bool:
        with distributed.team(Rank, workers=2):
            if not os.fork():
                time.sleep(30)
                os._exit(0)
            (tmp_path / "ranks").write_text(" ".join(map(str, living.children())))
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    assert not in_a_fork(child)
    rank, other = map(int, (tmp_path / "ranks").read_text().split())
    try:
        until = time.monotonic() + 10
        while living.is_alive(rank) and time.monotonic() < until:
            time.sleep(0.05)
        assert not living.is_alive(rank)
        assert living.is_alive(other)
    finally:
        os.kill(other, signal.SIGKILL)


class Rank:
    def __init__(self, ranks: Any):
        self.ranks = ranks
