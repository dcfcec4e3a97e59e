"""What scaling.py measures, on ranks that live for one measurement: processes of one machine, or those of ``mpiexec``.

``measured`` starts this file in a new process, or under mpiexec in several, and gets the seconds back. Ranks are not kept
between measurements, as the sides of other benchmarks are: a rank of MPI that waits keeps its core busy.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
from configurations import Configuration
from measure import SideError
from train_step import Tinyformer

from tinytensor import distributed
from tinytensor.backend import host
from tinytensor.distributed import Communicator

Seconds = dict[str, list[float]]  # of each call, by what was called
SHARED_MEMORY, MPI = "shared memory", "MPI"


def transports() -> dict[str, str | None]:
    """How ranks reach each other, and for MPI the path of mpiexec, if it and mpi4py are installed."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    mpiexec = shutil.which("mpiexec", path=folders)
    found = importlib.util.find_spec("mpi4py") is not None and mpiexec is not None
    return {SHARED_MEMORY: None, **({MPI: mpiexec} if found else {})}


def measured(by: str, ranks: int, function: Callable[..., Seconds], *arguments: Any) -> Seconds:
    """What a function of this file returns in a process that leads so many ranks, each with one BLAS thread.

    Raises SideError with what it printed, if it fails.
    """
    launcher = [transports()[MPI] or "", "-n", str(ranks)] if by == MPI else []
    path = os.pathsep.join([str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, **measure.thread_variables(1), "PYTHONPATH": path}
    given = pickle.dumps((function.__name__, arguments))
    done = subprocess.run([*launcher, sys.executable, __file__], input=given, env=variables, capture_output=True)
    if done.returncode:
        raise SideError(f"{function.__name__} on {measure.counted(ranks, 'rank')} by {by} failed:\n{done.stderr.decode()}")
    found: Seconds = json.loads(done.stdout.splitlines()[-1])
    return found


def answer() -> None:
    """Do what standard input says, and print the seconds."""
    name, arguments = pickle.load(sys.stdin.buffer)
    print(json.dumps(globals()[name](*arguments)))


def alone(configuration: Configuration, warm_up: int, steps: int) -> Seconds:
    """Training steps of one rank, and as many of its optimizer's alone."""
    side = Tinyformer(configuration, shards=1)
    seconds = side.turn(warm_up, steps)
    return {"step": seconds, "update": _timed(side.trainer.optimizer.step, steps)}


def together(configuration: Configuration, ranks: int, warm_up: int, steps: int) -> Seconds:
    """Training steps on several ranks, with a shard for each."""
    side = Tinyformer(configuration, shards=ranks, workers=ranks)
    try:
        return {"step": side.turn(warm_up, steps)}
    finally:
        side.end()


def exchange(ranks: int, configurations: dict[str, Configuration], times: int) -> Seconds:
    """Sums of the gradients of these models over the ranks, by the models' names; barriers, and messages."""
    shapes = {name: [p.shape for p in c.tinyformer()[0].parameters()] for name, c in configurations.items()}
    with distributed.team(Exchange, workers=ranks) as team:
        sums = {name: team.call_alike("all_reduce", arrays, times) for name, arrays in shapes.items()}
        return {**sums, "barrier": team.call_alike("barrier", times), "message": team.call_alike("message", times)}


class Exchange:
    """What one rank does to measure how it reaches the others."""

    def __init__(self, ranks: Communicator):
        self.ranks = ranks

    def all_reduce(self, shapes: list[tuple[int, ...]], times: int) -> list[float]:
        """The seconds of sums of arrays of these shapes, in float32. All ranks start each at once."""
        arrays = [host.zeros(shape, host.float32) for shape in shapes]
        return _timed(lambda: self.ranks.all_reduce(arrays), times, before=self.ranks.barrier)

    def barrier(self, times: int) -> list[float]:
        """The seconds of barriers."""
        return _timed(self.ranks.barrier, times)

    def message(self, times: int) -> list[float]:
        """The seconds of a small message: half of those there and back."""

        def there_and_back() -> None:
            self.ranks.tell(0)
            self.ranks.gather(0)

        return [seconds / 2 for seconds in _timed(there_and_back, times)]


def _timed(call: Callable[[], Any], times: int, before: Callable[[], Any] = lambda: None) -> list[float]:
    """The seconds of so many calls, after one that is not timed."""
    seconds = []
    for _ in range(times + 1):
        before()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds[1:]


if __name__ == "__main__":
    distributed.lead(answer)
