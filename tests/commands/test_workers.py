"""Examples on several ranks: nothing changes but the time, and whatever ends one rank ends all, with the run intact."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import mpi
import pytest
from living import check_that_they_end, children, descendants, wait_until
from running import Program, entries, in_a_closed_terminal, result_of

from tinyformer.training.checkpoints import load_checkpoint

COMMAND = "train gpt"
MODEL = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--block-size", "8", "--batch-size", "6"]
STEPS = ["--steps", "60", "--eval-every", "6", "--log-every", "3", "--average", "2", "--dropout", "0.1"]
WHOLE = ["--data", "text.txt", *MODEL, *STEPS]
SHORT = ["--data", "text.txt", *MODEL, "--steps", "8", "--eval-every", "4", "--log-every", "2", "--dropout", "0.1"]
LONG = ["--data", "text.txt", *MODEL, "--steps", "1000000", "--eval-every", "1000000"]  # longer than any machine makes unseen

pytestmark = [
    pytest.mark.needs("numpy"),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux, which tells the children of a process"),
]


FIRST_RUN = [*SHORT, "--out", "run", "--shards", "2"]


# ----------------------------------------------------------------------------------------------------- processes


def check_nothing_is_left(pids: list[int], temporary: Path) -> None:
    """All processes end within seconds, and leave no file outside of the run's folder."""
    check_that_they_end(pids)
    assert entries(temporary) == []
    if os.path.isdir("/dev/shm"):
        assert not [name for name in os.listdir("/dev/shm") if any(f"-{pid}-" in name for pid in pids)]


def begin(program: Program, command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a run with its own folder of temporary files."""
    temporary = program.folder / "temporary"
    temporary.mkdir(exist_ok=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    environment = {**mpi.environment(program.environment), "TMPDIR": str(temporary)}
    return subprocess.Popen(command, cwd=program.folder, env=environment, **pipes)


def with_workers(program: Program, workers: int, *words: str) -> list[str]:
    return [sys.executable, str(program.script), *program.words(*words), "--workers", str(workers)]


def without_times(printed: str) -> str:
    return re.sub(r"\d+(\.\d+)? (s|ms/step|of them)\b", "TIME", printed)


# ------------------------------------------------------------------------------------------------- as without ranks


@pytest.mark.parametrize("workers", [2, 3])
def test_ranks_equal_shards(program: Program, workers: int) -> None:
    alone = program.good(*SHORT, "--out", "alone", "--shards", str(workers))
    ranks = program.good(*SHORT, "--out", "ranks", "--workers", str(workers))
    assert without_times(ranks) == without_times(alone).replace("alone", "ranks")
    assert entries(program.folder / "ranks") == entries(program.folder / "alone")
    one, other = result_of(program.folder / "ranks"), result_of(program.folder / "alone")
    if workers == 2:
        assert one == other
    else:
        assert one["sample"].keys() == other["sample"].keys()  # type: ignore[attr-defined]


def test_ranks_equal_shards_of_an_lstm(program: Program) -> None:
    model = ["--architecture", "lstm", "--num-layers", "2", "--d-model", "16", "--block-size", "8", "--context", "3"]
    words = ["--data", "text.txt", *model, *STEPS, "--steps", "8", "--eval-every", "4", "--batch-size", "6"]
    check_ranks_equal_shards(program, *words)


@pytest.mark.parametrize("architecture", ["lstm", "attention"])
def test_ranks_equal_shards_of_recurrent_translators(program: Program, architecture: str) -> None:
    lines = [line.split()[:4] for line in (program.folder / "text.txt").read_text(encoding="utf-8").splitlines()]
    pairs = {" ".join(line): " ".join(reversed(line)) for line in lines}
    (program.folder / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in pairs.items()), encoding="utf-8")
    words = ["--data", "pairs.tsv", "--architecture", architecture, "--d-model", "12", "--d-embedding", "8", "--beam", "1"]
    words += ["--vocab-size", "270", "--max-tokens", "40", "--validation", "4", "--test", "4", "--teacher-forcing", "0.7"]
    words += ["--steps", "8", "--eval-every", "4", "--log-every", "2", "--batch-size", "6", "--dropout", "0.1"]
    check_ranks_equal_shards(Program("train translator", program.folder, program.environment), *words)


def check_ranks_equal_shards(program: Program, *words: str) -> None:
    """A run on two ranks is that with two shards, to the last bit."""
    alone = program.good(*words, "--out", "alone", "--shards", "2")
    ranks = program.good(*words, "--out", "ranks", "--workers", "2")
    assert without_times(ranks) == without_times(alone).replace("alone", "ranks")
    assert entries(program.folder / "ranks") == entries(program.folder / "alone")
    assert result_of(program.folder / "ranks") == result_of(program.folder / "alone")


def test_another_number_of_workers_resumes(copied: Program) -> None:
    for steps, workers in (("10", "2"), ("11", "1"), ("12", "2")):
        copied.good("--data", "text.txt", "--out", "run", "--resume-changed", "--workers", workers, "--steps", steps)
    assert load_checkpoint(copied.folder / "run" / "latest.safetensors", "latest")[1]["step"] == 12


# ------------------------------------------------------------------------------------------------------ kill -9


def test_kills_of_random_ranks(program: Program, pytestconfig: pytest.Config) -> None:
    """Each run ends immediately with a clear message, loses nothing, and resumes as if uninterrupted."""
    kills, seed = pytestconfig.getoption("kills"), pytestconfig.getoption("seed")
    program.good(*WHOLE, "--out", "whole", "--shards", "3", "--workers", "2")
    run, latest = program.folder / "run", program.folder / "run" / "latest.safetensors"
    rng = random.Random(seed)
    killed = {"rank 0": 0, "another": 0, "none": 0}
    for number in range(kills):
        if number % 6 == 0 and latest.exists():  # one run is over after some kills: another one begins
            program.good("--data", "text.txt", "--out", "run", "--resume")
            assert result_of(run) == result_of(program.folder / "whole")
            for file in run.iterdir():
                file.unlink()
        words = ["--data", "text.txt", "--resume"] if latest.exists() else [*WHOLE, "--shards", "3"]
        before = load_checkpoint(latest, "latest")[1]["step"] if latest.exists() else 0
        process = begin(program, with_workers(program, 3, *words, "--out", "run")[: -2 if latest.exists() else None])
        ranks = [process.pid]
        wait_until(lambda ranks=ranks, process=process: children(ranks[0]) or process.poll() is not None)
        time.sleep(rng.uniform(0.0, 0.25))
        ranks += children(process.pid)
        victim = rng.choice(ranks)
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            victim = 0
        _, errors = process.communicate(timeout=20)
        check_nothing_is_left(ranks, program.folder / "temporary")
        assert "Traceback" not in errors, errors
        if process.returncode == 0:  # it came too late
            killed["none"] += 1
        elif victim == process.pid:
            assert process.returncode == -signal.SIGKILL
            assert "error" not in errors, errors
            killed["rank 0"] += 1
        else:
            assert process.returncode == 2
            *_, last = errors.splitlines()
            assert re.match(rf"error: rank \d \(process {victim}\) was killed by SIGKILL", last), errors
            assert errors.count("error") == 1
            killed["another"] += 1
        if latest.exists():
            assert load_checkpoint(latest, "latest")[1]["step"] >= before
    print(killed)
    if latest.exists():
        program.good("--data", "text.txt", "--out", "run", "--resume")
    else:
        program.good(*WHOLE, "--shards", "3", "--out", "run")
    assert entries(run) == entries(program.folder / "whole")
    assert result_of(run) == result_of(program.folder / "whole")


# ------------------------------------------------------------------------------------------------------ signals


def running(program: Program, **options: Any) -> tuple[subprocess.Popen[str], list[int]]:
    """A run on three ranks that has taken some steps, and its processes."""
    process = begin(program, with_workers(program, 3, *LONG, "--log-every", "1", "--out", "run"), **options)
    stream = process.stderr
    assert stream is not None
    while not re.match(r"training: step [1-9]", stream.readline()):
        assert process.poll() is None
    return process, [process.pid, *children(process.pid)]


def check_saved(program: Program) -> None:
    """Check that the run was saved after some steps, and resumes from there."""
    latest = program.folder / "run" / "latest.safetensors"
    step = load_checkpoint(latest, "latest")[1]["step"]
    assert step > 0
    assert not [name for name in entries(program.folder / "run") if name.startswith(".")]
    program.good("--data", "text.txt", "--out", "run", "--resume-changed", "--steps", str(step + 3), "--workers", "2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_all_processes_of_a_terminal(program: Program, number: signal.Signals) -> None:
    process, pids = running(program, start_new_session=True)
    os.killpg(process.pid, number)
    printed, errors = process.communicate(timeout=20)
    assert process.returncode == 128 + number, errors
    assert printed.count("Stopped by") == 1
    assert "Traceback" not in errors
    check_nothing_is_left(pids, program.folder / "temporary")
    check_saved(program)


def test_a_second_ctrl_c(program: Program) -> None:
    process, pids = running(program, start_new_session=True)
    os.kill(pids[1], signal.SIGSTOP)  # so that the step does not end
    time.sleep(0.1)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.1)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.endswith("\ninterrupted\n")
    check_nothing_is_left(pids, program.folder / "temporary")


def test_sigterm_does_not_wait_for_a_worker_that_is_stopped(program: Program) -> None:
    process, pids = running(program)
    os.kill(pids[1], signal.SIGSTOP)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate(timeout=20)
    assert "Stopped by SIGTERM" in printed, errors
    check_nothing_is_left(pids, program.folder / "temporary")
    check_saved(program)


def test_a_terminal_that_is_closed(program: Program) -> None:
    pids: list[int] = []

    def start(**streams: Any) -> subprocess.Popen[str]:
        return begin(program, with_workers(program, 3, *LONG, "--out", "run"), **streams)

    in_a_closed_terminal(start, lambda process: pids.extend([process.pid, *children(process.pid)]))
    assert len(pids) == 3
    check_nothing_is_left(pids, program.folder / "temporary")
    check_saved(program)


def test_a_rank_that_is_stopped_for_a_while(program: Program) -> None:
    process, pids = running(program)
    os.kill(pids[2], signal.SIGSTOP)
    time.sleep(0.3)
    assert process.poll() is None
    os.kill(pids[2], signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=20)
    assert "Stopped by Ctrl-C" in printed
    check_nothing_is_left(pids, program.folder / "temporary")
    check_saved(program)


# ------------------------------------------------------------------------------------------------ under mpiexec


def under_mpiexec(program: Program, ranks: int, *words: str) -> subprocess.CompletedProcess[str]:
    command = mpi.command(ranks, [str(program.script), *program.words(*words)])
    environment = mpi.environment(program.environment)
    options = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    return subprocess.run(command, cwd=program.folder, env=environment, stdin=subprocess.DEVNULL, **options)


@pytest.mark.needs("mpi")
def test_mpi_equals_shards(program: Program) -> None:
    alone = program.good(*SHORT, "--out", "alone", "--shards", "2")
    result = under_mpiexec(program, 2, *SHORT, "--out", "run")
    assert result.returncode == 0, result.stderr
    assert without_times(result.stdout) == without_times(alone).replace("alone", "run")
    assert result.stderr.count("training: step 8 of 8") == 1
    assert result_of(program.folder / "run") == result_of(program.folder / "alone")
    assert entries(program.folder / "run") == entries(program.folder / "alone")


@pytest.mark.needs("mpi")
def test_mpi_resumes(program: Program) -> None:
    whole = [*SHORT, "--steps", "12"]
    program.good(*whole, "--out", "whole", "--shards", "2", "--dropout", "0.0", "--schedule", "constant")
    program.good(*SHORT, "--out", "run", "--shards", "2", "--dropout", "0.0", "--schedule", "constant")
    result = under_mpiexec(program, 2, "--data", "text.txt", "--out", "run", "--resume-changed", "--steps", "12")
    assert result.returncode == 0, result.stderr
    tensors = [result_of(program.folder / name)["tensors"] for name in ("whole", "run")]
    assert tensors[0] == tensors[1]


@pytest.mark.needs("mpi")
def test_mistakes_and_other_commands_under_mpiexec(finished: Program) -> None:
    result = under_mpiexec(finished, 2, "--steps", "many")
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.stderr
    result = under_mpiexec(finished, 2, *FIRST_RUN)
    assert result.returncode == 2
    assert re.fullmatch("error: run holds a run already: .*\n", result.stderr)
    result = under_mpiexec(finished, 2, "sample", "--out", "run", "--length", "20", "--seed", "3")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == finished.good("sample", "--out", "run", "--length", "20", "--seed", "3")
    help_text = under_mpiexec(finished, 2, "--help")
    assert help_text.returncode == 0
    assert help_text.stdout.count("usage: ") == 1


@pytest.mark.needs("mpi")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_all_of_mpi(program: Program, victim: int) -> None:
    command = mpi.command(
        2, [str(program.script), *program.words(*LONG), "--log-every", "1", "--eval-every", "5", "--out", "run"]
    )
    process = begin(program, command)
    assert process.stderr is not None
    while not re.match(r"training: step [6-9]", process.stderr.readline()):
        assert process.poll() is None
    ranks = [pid for pid in descendants(process.pid) if str(program.script) in Path(f"/proc/{pid}/cmdline").read_text()]
    pythons = [pid for pid in ranks if Path(f"/proc/{pid}/exe").resolve() == Path(sys.executable).resolve()]
    assert len(pythons) == 2
    maps = Path(f"/proc/{pythons[0]}/maps").read_text()
    memory = [line.split(None, 5)[-1] for line in maps.splitlines() if "/dev/shm/" in line]
    os.kill(pythons[victim], signal.SIGKILL)
    process.communicate(timeout=20)
    assert process.returncode != 0
    check_that_they_end(pythons)
    assert not [name for name in memory if Path(name).exists()]
    latest = program.folder / "run" / "latest.safetensors"
    step = load_checkpoint(latest, "latest")[1]["step"]
    assert step >= 5
    words = ["--data", "text.txt", "--out", "run", "--resume-changed", "--steps", str(step + 1)]
    assert program(*words).returncode == 0


@pytest.mark.needs("mpi")
def test_ctrl_c_under_mpiexec_saves_once(program: Program) -> None:
    command = mpi.command(2, [str(program.script), *program.words(*LONG), "--log-every", "1", "--out", "run"])
    process = begin(program, command, start_new_session=True)
    assert process.stderr is not None
    while not re.match(r"training: step [1-9]", process.stderr.readline()):
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    printed, errors = process.communicate(timeout=20)
    assert process.returncode not in (0, None), errors  # which one, the launcher decides
    assert printed.count("Stopped by Ctrl-C") == 1
    assert "Traceback" not in errors
    check_saved(program)


@pytest.mark.needs("mpi")
def test_an_error_in_training_under_mpiexec(program: Program) -> None:
    words = [*SHORT, "--out", "run", "--learning-rate", "1e30", "--clip", "0", "--warmup", "0"]
    result = under_mpiexec(program, 2, *words)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.count("error: ") == 1
    assert "training stops. The checkpoints in run are from before that" in result.stderr
