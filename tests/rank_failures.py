"""Functions for ranks that fail, in a module that spawned processes can import."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import numpy as np

from tinytensor import distributed
from tinytensor.distributed import Communicator
from tinytensor.distributed.processes import processes


class Plain(ValueError):
    """An error that can be sent to rank 0."""


class Odd(Exception):
    """An error that cannot be sent: it is made from two values, and keeps one."""

    def __init__(self, what: str, why: str):
        super().__init__(f"{what} because of {why}")


def raise_plain() -> None:
    raise Plain("a reason")


def raise_odd() -> None:
    raise Odd("this", "that")


def leave() -> None:
    sys.exit(0)


def end_at_once() -> None:
    os._exit(3)


def end_quietly() -> None:
    os._exit(0)


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sums(ranks: Communicator, count: int = 3) -> list[float]:
    """Sum some arrays; for a count of 0 without end."""
    array = np.ones(3, np.float32)
    done = 0
    while not count or done < count:
        ranks.all_reduce([array])
        array /= ranks.size
        done += 1
    return array.tolist()


def fails(ranks: Communicator, where: int, how: Callable[[], None]) -> None:
    """A rank fails in the midst of sums."""
    sums(ranks)
    if ranks.rank == where:
        how()
    sums(ranks)


def fails_at_the_end(ranks: Communicator, where: int, how: Callable[[], None]) -> None:
    """A rank fails after the others have finished."""
    sums(ranks)
    if ranks.rank == where:
        time.sleep(0.05)
        how()


def sums_without_end(ranks: Communicator, busy: bool) -> None:
    """Rank 0 prints the ids of all processes. Then the ranks sum without end, or those after rank 0 work alone."""
    pids = ranks.gather(os.getpid())
    if pids is not None:
        print(*pids, flush=True)
    if busy and ranks.rank:
        while True:
            np.ones((100, 100)) @ np.ones((100, 100))
    sums(ranks, 0)


def nested(ranks: Communicator) -> object:
    sums(ranks)
    return distributed.run(sums, workers=2)


if __name__ == "__main__":  # with a method of multiprocessing, and whether the other ranks are busy
    given = [sys.argv[2] == "busy"]
    with processes(3, sums_without_end, given, sys.argv[1]) as all_ranks:
        sums_without_end(all_ranks, *given)
