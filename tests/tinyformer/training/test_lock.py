"""The lock on a run's folder: one process at a time, whichever way that process ends."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tinyformer.common.errors import UserError
from tinyformer.training import safety
from tinyformer.training.safety import locked

HOLDER = """
import sys
from pathlib import Path
from tinyformer.training.safety import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    """One that holds the lock, until it is killed or its standard input ends."""
    command = [sys.executable, "-c", HOLDER, str(path), "a flag"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_lock_file_is_there_while_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path):
        assert path.read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")
    assert not path.exists()
    with pytest.raises(ZeroDivisionError), locked(path):
        raise ZeroDivisionError
    assert not path.exists()
    with locked(path):
        pass


def test_another_process_is_named(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with another_process(path) as process:
        with pytest.raises(UserError) as caught, locked(path):
            pass
        message = str(caught.value)
        assert message.startswith(f"{tmp_path} is being written by process {process.pid} on ")
        assert " (python -c " in message
        assert message.endswith(": wait until it ends, or choose another folder")
        assert process.poll() is None
        process.communicate("")
        with locked(path):
            pass


def test_a_second_hold_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with locked(path):
        with pytest.raises(UserError, match=f"is being written by process {os.getpid()} on "), locked(path):
            pass
        assert path.exists()  # it is the first one's


@pytest.mark.skipif(os.name != "posix", reason="needs a signal that cannot be caught")
def test_a_holder_that_is_killed_lets_go(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with another_process(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert path.exists()  # nobody could remove it
        with locked(path):
            assert path.read_text(encoding="utf-8").startswith(f"process {os.getpid()} on ")
    assert not path.exists()


def test_a_lock_file_that_lies_about_is_free(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text(f"process {os.getppid()} on a machine (python a long command that is longer than what is written now)" * 9)
    with locked(path):
        assert path.read_text(encoding="utf-8").count("process") == 1
    assert not path.exists()


def test_a_lock_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its holder has taken it, but has not yet written who it is.
    path = tmp_path / ".lock"
    monkeypatch.setattr(safety, "_this_process", lambda: "")
    with locked(path), pytest.raises(UserError, match="is being written by another process: wait"), locked(path):
        pass


def test_a_full_disk_locks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / ".lock"

    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with locked(path), pytest.raises(UserError, match="is being written by another process: wait"), locked(path):
        pass


def test_a_lock_file_that_was_removed_after_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Between our opening it and our taking it, its holder ended and removed it, and a third has made another.
    path = tmp_path / ".lock"
    path.write_text("")
    take = safety._lock
    taken = []

    def slow(file: int) -> None:
        if not taken:
            path.unlink()
            path.write_text("the third's")
        taken.append(file)
        take(file)

    monkeypatch.setattr(safety, "_lock", slow)
    with locked(path):
        assert len(taken) == 2  # the first was of no use: nobody else would look at it
        assert path.read_text(encoding="utf-8").startswith("process ")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    fcntl = pytest.importorskip("fcntl")

    def refuse(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / ".lock"):
        assert (tmp_path / ".lock").exists()
    monkeypatch.setattr(fcntl, "flock", lambda file, how: os.close(-1))  # any other fault is one
    with pytest.raises(OSError, match="Bad file"), locked(tmp_path / ".lock"):
        pass


@pytest.mark.parametrize("rounds", [20])
def test_many_waiting_and_never_two_running(tmp_path: Path, rounds: int) -> None:
    path = tmp_path / ".lock"
    inside, together, refused, wrong = [], [], [], []

    def work() -> None:
        for _ in range(rounds):
            try:
                with locked(path):
                    inside.append(1)
                    together.append(len(inside))
                    inside.pop()
            except UserError:
                refused.append(1)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert set(together) == {1}
    assert len(together) + len(refused) == 4 * rounds
    assert not path.exists()


def test_a_long_command_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["a script.py", "x" * 200])
    assert "(python 'a script.py' xxx" in safety._this_process()
    assert safety._this_process().endswith("xxx...)")
    assert len(safety._this_process()) < 200


FORKING_HOLDER = """
import os, sys, time
from pathlib import Path
from tinyformer.training.safety import locked
with locked(Path(sys.argv[1])):
    if os.fork():
        time.sleep(100)
    print(os.getpid(), flush=True)
    time.sleep(0.1)  # the fork leaves the context, and lives on
    assert Path(sys.argv[1]).exists() or sys.argv[2] == "killed"
time.sleep(100)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("how", ["killed", "alive"])
def test_a_fork_does_not_hold_the_lock(tmp_path: Path, how: str) -> None:
    path = tmp_path / ".lock"
    command = [sys.executable, "-c", FORKING_HOLDER, str(path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            if how == "killed":
                process.kill()
                process.wait()
                os.kill(child, 0)  # it lives
                with locked(path):
                    pass
            else:
                time.sleep(0.3)
                os.kill(child, 0)
                with pytest.raises(UserError, match=f"is being written by process {process.pid} on "), locked(path):
                    pass
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()
