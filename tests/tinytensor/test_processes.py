"""Ranks as processes of one machine: how they are started, how they fail and end together, and what memory they take."""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import rank_failures
from living import check_that_they_end, children
from rank_failures import (
    Plain,
    be_killed,
    end_at_once,
    end_quietly,
    fails,
    fails_at_the_end,
    leave,
    nested,
    raise_odd,
    raise_plain,
    sums,
)

import tinytensor as tt
from tinytensor import distributed, nn
from tinytensor.distributed import Communicator, RankError, default_method
from tinytensor.distributed.processes import processes
from tinytensor.optim import AdamW

pytestmark = [
    pytest.mark.needs("numpy"),
    pytest.mark.skipif(default_method() != "fork", reason="the functions of these tests are only known to forks"),
]


@functools.cache
def run_once() -> None:
    distributed.run(sums, workers=2)


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Check that there are no more processes, open files and threads than before."""

    def now() -> tuple[set[int], int, int]:
        gc.collect()
        return set(children()), len(os.listdir("/proc/self/fd")), threading.active_count()

    if not Path("/proc/self/fd").exists():
        yield
        return
    run_once()  # what stays after the first time, such as the modules that it needs
    before = now()
    yield
    assert now() == before


# ----------------------------------------------------------------------------------------------- a rank that fails


@pytest.mark.parametrize("function, where", [(fails, 0), (fails, 2), (fails_at_the_end, 0), (fails_at_the_end, 1)])
def test_an_error_comes_through(function: Callable[..., None], where: int) -> None:
    with nothing_left_behind():
        with pytest.raises(Plain, match=r"^a reason$") as caught:
            distributed.run(function, where, raise_plain, workers=3)
        if where:
            assert "in raise_plain" in str(caught.value.__cause__)  # where it was raised
        del caught


@pytest.mark.parametrize("function", [fails, fails_at_the_end])
def test_an_error_that_cannot_be_sent(function: Callable[..., None]) -> None:
    with pytest.raises(RuntimeError, match=r"^Odd: this because of that$") as caught:
        distributed.run(function, 1, raise_odd, workers=2)
    assert "in raise_odd" in str(caught.value.__cause__)


def test_a_rank_that_leaves_does_not_end_rank_0_as_if_all_were_well() -> None:
    with pytest.raises(RuntimeError, match=r"^SystemExit: 0$"):
        distributed.run(fails, 1, leave, workers=2)


ENDINGS = [
    (end_at_once, r"^rank {} \(process \d+\) ended with status 3$"),
    (end_quietly, "^rank {} has ended$"),
    (be_killed, r"^rank {} \(process \d+\) was killed by SIGKILL, as the system does when memory runs out$"),
]


@pytest.mark.parametrize("function, where", [(fails, 1), (fails_at_the_end, 2)])
@pytest.mark.parametrize("how, message", ENDINGS)
def test_a_rank_that_ends(how: Callable[[], None], message: str, where: int, function: Callable[..., None]) -> None:
    with nothing_left_behind(), pytest.raises(RankError, match=message.format(where)):
        distributed.run(function, where, how, workers=3)


@pytest.mark.parametrize("how, message", [(raise_plain, "a reason"), (be_killed, "killed by SIGKILL")])
def test_a_spawned_rank_that_fails(how: Callable[[], None], message: str) -> None:
    with pytest.raises((Plain, RankError), match=message), processes(2, fails, [1, how], "spawn") as ranks:
        fails(ranks, 1, how)


def test_ranks_at_different_calls() -> None:
    def differ(ranks: Communicator, first: bool) -> None:
        if (ranks.rank == 0) == first:
            ranks.barrier()
        else:
            ranks.gather(1)

    for first in (False, True):
        with pytest.raises(RankError, match=r"every rank must call the same methods in the same order$"):
            distributed.run(differ, first, workers=2)


def test_ctrl_c_is_for_rank_0() -> None:
    def interrupt(ranks: Communicator, pids: list[int]) -> None:
        pids += ranks.gather(os.getpid()) or []
        for pid in pids[1:]:
            os.kill(pid, signal.SIGINT)
            os.kill(pid, signal.SIGTERM)
        sums(ranks)
        if ranks.rank == 0:
            raise KeyboardInterrupt
        sums(ranks, 0)

    pids: list[int] = []
    with nothing_left_behind(), pytest.raises(KeyboardInterrupt):
        distributed.run(interrupt, pids, workers=3)
    check_that_they_end(pids[1:], 0.1)


@pytest.mark.parametrize("stopped", [1, 2])
def test_a_rank_that_is_stopped_and_continued(stopped: int) -> None:
    def stop(ranks: Communicator) -> list[float]:
        pids = ranks.gather(os.getpid())
        if pids is not None:
            os.kill(pids[stopped], signal.SIGSTOP)
            threading.Timer(0.2, os.kill, [pids[stopped], signal.SIGCONT]).start()
        return sums(ranks, 20)

    assert distributed.run(stop, workers=3) == [1, 1, 1]


# ----------------------------------------------------------------------------------------- rank 0 that is killed


@pytest.mark.parametrize(
    "method, busy, how",
    [
        ("fork", "busy", signal.SIGKILL),
        ("fork", "waiting", signal.SIGKILL),
        ("spawn", "busy", signal.SIGKILL),
        ("fork", "waiting", signal.SIGTERM),  # which nobody catches
    ],
)
def test_the_others_end_with_rank_0(method: str, busy: str, how: signal.Signals, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(rank_failures.__file__).parents[1]), *sys.path])
    command = [sys.executable, str(rank_failures.__file__), method, busy]
    variables = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 3
        process.send_signal(how)
        assert process.wait() == -how
        check_that_they_end(pids)
        _, errors = process.communicate()  # nobody else holds its streams: they are at their end
    assert errors == ""
    assert os.listdir(tmp_path) == []
    if os.path.isdir("/dev/shm"):
        assert not [name for name in os.listdir("/dev/shm") if f"-{pids[0]}-" in name]


# ------------------------------------------------------------------------------------------------ surroundings


def test_again_and_beside_threads() -> None:
    """The process has threads that may hold locks, and starts ranks more than once."""
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            np.ones((50, 50)) @ np.ones((50, 50))

    threads = [threading.Thread(target=busy) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with nothing_left_behind():
            for _ in range(2):
                assert distributed.run(sums, workers=3) == [1, 1, 1]
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_from_another_thread() -> None:
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(distributed.run(sums, workers=2)))
    thread.start()
    thread.join()
    assert found == [[1, 1, 1]]


def test_a_rank_cannot_start_ranks() -> None:
    with pytest.raises(
        RuntimeError, match="a rank, or another daemon process of multiprocessing, cannot start ranks"
    ) as caught:
        distributed.run(nested, workers=2)
    assert "\n" not in str(caught.value)


def test_only_rank_0_prints(capfd: pytest.CaptureFixture[str]) -> None:
    def say(ranks: Communicator) -> None:
        print(f"rank {ranks.rank}")
        print(f"rank {ranks.rank}", file=sys.stderr)
        sums(ranks)

    distributed.run(say, workers=3)
    assert capfd.readouterr() == ("rank 0\n", "rank 0\n")


def test_buffered_output_is_printed_once() -> None:
    run = "distributed.run(lambda ranks: ranks.barrier(), workers=3)"
    code = f"import sys; from tinytensor import distributed; sys.stdout.write('once'); {run}"
    path = os.pathsep.join([str(Path(rank_failures.__file__).parents[1]), *sys.path])
    result = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "once", "")


def test_what_cannot_be_sent_to_a_spawned_rank() -> None:
    with pytest.raises(TypeError, match="cannot send the arguments"), processes(2, sums, [lambda: None], "spawn"):
        pass


def test_other_ranks_do_not_hold_a_second_copy() -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("needs Linux, which tells how much memory is a process's own")

    def private() -> int:
        """The bytes that are this process's alone."""
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_Dirty"))

    def steps(ranks: Communicator, model: nn.Linear, optimizer: AdamW) -> list[int] | None:
        model.weight.grad = model.weight.detach()  # which needs no memory
        before = private()
        for _ in range(2):
            optimizer.step(ranks=ranks)
        return ranks.gather(private() - before)

    model = nn.Linear(2000, 2000)
    optimizer = AdamW(model.parameters())
    grown = distributed.run(steps, model, optimizer, workers=3)
    assert max(grown[1:]) < model.weight.data.nbytes / 2  # parameter and moments are three times as large as the first


def test_views_from_before_get_the_new_values_at_the_end() -> None:
    def halve(ranks: Communicator, model: nn.Linear) -> None:
        if ranks.rank == 0:
            model.weight.data[...] /= 2
        ranks.barrier()

    model = nn.Linear(3, 2, bias=False)
    x = tt.ones((1, 3))
    traced, state = tt.trace(model), model.state_dict()
    traced(x)
    distributed.run(halve, model, workers=2)
    assert (state["weight"].numpy() == model.weight.numpy()).all()
    assert (traced(x).numpy() == model(x).numpy()).all()
    transposed = model.weight.T  # which now lies in shared memory
    distributed.run(halve, model, workers=2)
    assert (transposed.numpy() == model.weight.numpy().T).all()


def test_ranks_that_have_ended_keep_no_files_open() -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs Linux, which tells what files a process has open")

    def files() -> int:
        return len(os.listdir("/proc/self/fd"))

    distributed.run(sums, workers=3)
    gc.collect()
    before = files()
    gc.disable()
    try:
        for _ in range(3):
            distributed.run(sums, workers=3)
        assert files() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("workers", [0, -1])
def test_fewer_workers_than_one(workers: int) -> None:
    with pytest.raises(ValueError, match=f"^workers must be at least 1, got {workers}$"):
        distributed.run(sums, workers=workers)
