"""kill -9 and SIGTERM at random moments. The run ends in the same way as an undisturbed one, and leaves no other files."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time

import pytest
from running import Program, entries, result_of

EXAMPLE = "char_gpt.py"
MODEL = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--block-size", "8", "--batch-size", "4"]
RUN = ["--data", "text.txt", "--out", "run"]
STEPS = ["--steps", "60", "--eval-every", "6", "--log-every", "3", "--average", "2", "--dropout", "0.1"]
SEED = 20
# Each is a new process, of which importing NumPy takes the longest. The first one always comes in time.
KILLS = [signal.SIGKILL, signal.SIGTERM, signal.SIGKILL] if os.name == "posix" else []

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a signal that cannot be caught")


def kill(process: subprocess.Popen[str], how: signal.Signals, after: float) -> tuple[int, str]:
    """Send a signal some time after the first line of output. Returns the exit status and the output."""
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(after)
    process.send_signal(how)
    rest, _ = process.communicate()
    return process.returncode, first + rest


def test_kills_at_random_moments(program: Program) -> None:
    since = time.monotonic()
    program.good("--data", "text.txt", "--out", "whole", *MODEL, *STEPS)
    length = time.monotonic() - since
    run = program.folder / "run"
    rng = random.Random(SEED)
    statuses = []
    for how in KILLS:
        begun = (run / "latest.safetensors").exists()
        words = ["--resume"] if begun else [*MODEL, *STEPS]
        process = program.begin(*RUN, *words, stderr=subprocess.STDOUT)
        status, printed = kill(process, how, rng.uniform(0.0, 0.25) * length)
        assert "Traceback" not in printed, printed
        assert "error: " not in printed, printed
        if "Stopped by" in printed:
            assert (how, status) == (signal.SIGTERM, 128 + signal.SIGTERM)
            assert "Stopped by SIGTERM after step " in printed
            assert printed.endswith("--out run --resume\n")
        statuses.append(status)
    assert statuses[0] == -signal.SIGKILL
    begun = (run / "latest.safetensors").exists()
    program.good(*RUN, "--resume") if begun else program.good(*RUN, *MODEL, *STEPS)
    assert entries(run) == entries(program.folder / "whole")  # no temporary file, no lock
    assert result_of(run) == result_of(program.folder / "whole")


def test_a_kill_while_another_run_is_replaced(program: Program) -> None:
    """The folder holds either the old run or the new one, and is never empty or mixed."""
    program.good(*RUN, *MODEL, "--steps", "4")
    old = result_of(program.folder / "run")
    rng = random.Random(SEED)
    for _ in range(2):
        process = program.begin(*RUN, *MODEL, *STEPS, "--seed", "7", "--overwrite", stderr=subprocess.STDOUT)
        status, printed = kill(process, signal.SIGKILL, rng.random() / 20)
        assert status in (0, -signal.SIGKILL), printed
        program.bad(*RUN, "--resume", "--seed", "9")  # a start that changes nothing, but tidies up
        files = entries(program.folder / "run")
        assert not [name for name in files if name.startswith(".")]
        if result_of(program.folder / "run") != old:
            program.good(*RUN, "--resume")
            program.good("--data", "text.txt", "--out", "apart", *MODEL, *STEPS, "--seed", "7")
            assert result_of(program.folder / "run") == result_of(program.folder / "apart")
            break
