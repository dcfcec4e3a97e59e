"""Kills runs at random moments, as the end of memory does, and goes on: each must end as one that nobody stopped.

PYTHONPATH=. python tests/kill_runs.py --tries 100 --seed 0

A try begins a run of char_gpt.py, or one that replaces another (``--overwrite``), and kills it up to four times, at any moment
from its import to its end. Good is a run whose weights, optimizer, random states, log and sample are to the bit those of a
run that was not stopped, in a folder with no other files. Bad is any other end, and a traceback.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from attempts import parse, repeat
from running import Program, contents, entries, result_of, write_text

MODEL = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--block-size", "8", "--batch-size", "4"]
STEPS = ["--steps", "60", "--eval-every", "6", "--log-every", "3", "--average", "2", "--dropout", "0.1"]
RUN = ["--data", "text.txt", "--out", "run"]
OLD, NEW = ["--seed", "7", "--steps", "4"], ["--seed", "8"]
MOST_KILLS = 4
IMPORTS = 1.0  # about so many seconds


class Kills:
    """Runs in the folder of a program, which are killed. ``whole`` is what they must be in the end, and ``length`` is about
    how many seconds a run takes as a fork."""

    def __init__(self, program: Program):
        self.program, self.run = program, program.folder / "run"
        begun = time.monotonic()
        self.whole = self._finished("whole", *STEPS)
        self.length = time.monotonic() - begun
        self.files = entries(program.folder / "whole")

    def _finished(self, name: str, *words: str) -> dict[str, object]:
        self.program.good("--data", "text.txt", "--out", name, *MODEL, *words)
        return result_of(self.program.folder / name)

    def _moment(self, rng: random.Random, starts: bool, share: float) -> float:
        """How many seconds to wait: up to this share of a run, and for the imports where the process ``starts``."""
        return rng.uniform(0.0, IMPORTS * starts + share * self.length)

    def kill(self, how: signal.Signals, moment: float, *words: str, starts: bool = False) -> tuple[int, str]:
        """Begin a run and send it a signal so many seconds after its first line of output, or if ``starts`` after its
        process began. Returns the exit status and the output."""
        process = self.program.begin(*RUN, *words, stderr=subprocess.STDOUT)
        assert process.stdout is not None
        first = "" if starts else process.stdout.readline()
        time.sleep(moment)
        process.send_signal(how)
        rest, _ = process.communicate()
        printed = first + rest
        assert "Traceback" not in printed, printed
        assert "error: " not in printed, printed
        return process.returncode, printed

    def clear(self) -> None:
        """Leave nothing of the run."""
        shutil.rmtree(self.run, ignore_errors=True)

    @cached_property
    def replacing(self) -> dict[str, object]:
        """What the run must be that replaces another."""
        return self._finished("apart", *STEPS, *NEW)

    def go_on(self, *words: str) -> list[str]:
        """The words that go on with a run, or begin it where it has no checkpoint yet."""
        return ["--resume"] if (self.run / "latest.safetensors").exists() else [*MODEL, *STEPS, *words]

    def trained(self, signals: Sequence[signal.Signals], rng: random.Random, starts: bool = False) -> list[int]:
        """Train a run that gets these signals. It ends as ``whole``. Returns the exit statuses."""
        statuses = []
        for how in signals:
            status, printed = self.kill(how, self._moment(rng, starts, 0.25), *self.go_on(), starts=starts)
            if "Stopped by" in printed:
                assert (how, status) == (signal.SIGTERM, 128 + signal.SIGTERM)
                assert "Stopped by SIGTERM after step " in printed
                assert printed.endswith("--out run --resume\n")
            statuses.append(status)
        self.program.good(*RUN, *self.go_on())
        self._check(self.whole)
        return statuses

    def _check(self, expected: dict[str, object]) -> None:
        assert entries(self.run) == self.files  # no temporary file, no lock
        assert result_of(self.run) == expected

    def replaced(self, rng: random.Random, starts: bool = False) -> bool:
        """Kill a run that replaces another. The folder holds either the old run or the new one, and is never empty or mixed.
        Returns whether it was the new one, which then ends as one that was not stopped."""
        self.clear()
        self.program.good(*RUN, *MODEL, *OLD)
        old = contents(self.run)
        self.kill(signal.SIGKILL, self._moment(rng, starts, 1.0), *MODEL, *STEPS, *NEW, "--overwrite", starts=starts)
        self.program.bad(*RUN, "--resume", "--seed", "9")  # a start that changes nothing, but tidies up
        assert not [name for name in entries(self.run) if name.startswith(".")]
        if contents(self.run) == old:
            return False
        self.program.good(*RUN, *self.go_on(*NEW))
        self._check(self.replacing)
        return True


def attempt(kills: Kills, number: int) -> tuple[str, str]:
    """Make one attempt, and return its outcome and a report."""
    rng = random.Random(number)
    kills.clear()
    starts = rng.random() < 0.5
    try:
        if rng.random() < 0.3:
            return "the new run" if kills.replaced(rng, starts) else "the old run", ""
        signals = [rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]) for _ in range(rng.randint(1, MOST_KILLS))]
        kills.trained(signals, rng, starts)
    except AssertionError as error:
        return "not the same", f"number {number}: {error}"
    return f"the same after {len(signals)}", ""


def main() -> int:
    arguments = parse(__doc__, 100)
    good = {"the new run", "the old run", *(f"the same after {count}" for count in range(1, MOST_KILLS + 1))}
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder))
        kills = Kills(Program("train gpt", Path(folder), dict(os.environ)))
        return repeat(arguments, lambda number: attempt(kills, number), good)


if __name__ == "__main__":
    sys.exit(main())
