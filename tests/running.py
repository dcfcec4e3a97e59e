"""Running a command of tinyformer as its users do, and reading the files of a run."""

from __future__ import annotations

import atexit
import csv
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from forked import Forks

from tinyformer.commands.main import ALL
from tinyformer.common.makers import Maker, maker_of
from tinyformer.data.files import MARK
from tinyformer.training.checkpoints import load_checkpoint

ROOT = Path(__file__).resolve().parents[1]


_forks: dict[frozenset[tuple[str, str]], Forks] = {}  # by the environment


def forks_in(environment: dict[str, str]) -> Forks:
    """The process whose forks run scripts in this environment."""
    key = frozenset(environment.items())
    if key not in _forks:
        _forks[key] = Forks(environment)
        atexit.register(_forks[key].close)
    return _forks[key]


class Program:
    """The command ``tinyformer`` of this checkout, run in a new folder. Relative paths start there.

    Its words come after those of ``command``, such as "train gpt", unless they begin with another command.

    Most runs are forks (see forked.py), whose pictures are drawn only if ``draws`` is set. Runs that have their own variables
    are new processes, and draw.
    """

    script = ROOT / "tests" / "programs" / "command.py"

    def __init__(self, command: str, folder: Path, environment: dict[str, str], draws: bool = False):
        self.command = command.split()
        self.folder = folder
        self.draws = draws
        # Paths are made absolute, as a run is in another folder than the tests.
        paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        own = {"PYTHONPATH": os.pathsep.join([str(ROOT), *paths]), "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
        self.environment = {**environment, **own}

    def words(self, *words: str) -> list[str]:
        """All words of a command line."""
        return list(words) if words and (words[0] in ALL or " ".join(words[:2]) in ALL) else [*self.command, *words]

    def __call__(self, *words: str, typed: str | bytes = "", **variables: str) -> subprocess.CompletedProcess[str]:
        given = typed.encode() if isinstance(typed, str) else typed
        command = [sys.executable, str(self.script), *self.words(*words)]
        if variables or not hasattr(os, "fork"):
            environment = {**self.environment, **variables}
            result = subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, input=given, check=False)
            status, out, errors = result.returncode, result.stdout, result.stderr
        else:
            status, out, errors = self.forked(words, given)
        return subprocess.CompletedProcess(command, status, out.decode(), errors.decode())

    def forked(self, words: Sequence[str], given: bytes = b"", **how: Any) -> tuple[int, bytes, bytes]:
        """Run it as a fork, as ``Forks.run`` says. Returns the exit status, the output and the errors."""
        return forks_in(self.environment).run(self.script, self.words(*words), self.folder, given, draws=self.draws, **how)

    def good(self, *words: str, typed: str | bytes = "", **variables: str) -> str:
        """Run it, check that all goes well, and return what it prints."""
        result = self(*words, typed=typed, **variables)
        assert result.returncode == 0, result.stderr
        assert "Traceback" not in result.stderr
        assert "\r" not in result.stderr  # no terminal, no bar
        return result.stdout

    def bad(self, *words: str, typed: str | bytes = "", **variables: str) -> str:
        """Run it, check that it refuses a user's mistake, and return the message.

        The message is a line or two after the lines of progress, and there is no traceback.
        """
        result = self(*words, typed=typed, **variables)
        assert result.returncode == 2, result.stderr
        assert "Traceback" not in result.stderr
        assert "\r" not in result.stderr  # no terminal, no bar
        before, start, message = result.stderr.rpartition("error: ")
        others = [line for line in before.splitlines() if not re.match("(learning merges|training): ", line)]
        assert not others, result.stderr
        assert start
        assert message.rstrip("\n").count("\n") <= 1, result.stderr
        return message

    def begin(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start it as a new process. Its output and its errors go into pipes, unless ``options`` say otherwise."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        command = [sys.executable, str(self.script), *self.words(*words)]
        return subprocess.Popen(command, cwd=self.folder, env=self.environment, **pipes)

    def interrupted(self, line: str, *words: str, by: signal.Signals = signal.SIGINT) -> str:
        """Run it, interrupt it when it prints a line that starts with ``line``, and return what it prints after that. Its
        status is the one that shells give a program that the signal has killed."""
        status, out, errors = self.forked(words, signal_at=(line, by))
        assert status == 128 + by, errors.decode()
        assert b"Traceback" not in errors
        _, start, rest = f"\n{out.decode()}".partition(f"\n{line}")
        assert start
        return rest.partition("\n")[2]

    def without(self, *packages: str) -> dict[str, str]:
        """The variables of a run that cannot import these packages."""
        absent = self.folder / "absent"
        absent.mkdir()
        for name in packages:  # a module that fails comes before the real package on the path
            (absent / f"{name}.py").write_text(f"raise ModuleNotFoundError('none', name={name!r})\n")
        return {"PYTHONPATH": os.pathsep.join([str(absent), self.environment["PYTHONPATH"]])}


def in_a_closed_terminal(start: Callable[..., Any], before: Callable[[Any], object] = lambda process: None) -> bytes:
    """Start a run of 1000000 steps in a terminal, close it after a few steps, wait for the end, and return the output.

    ``before`` gets the process before the terminal is closed.
    """
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))

    def take_the_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
    process = start(**streams, start_new_session=True, preexec_fn=take_the_terminal)
    os.close(theirs)
    shown = b""
    while not re.search(rb" [1-9]\d*/1000000 ", shown):  # the bar, after a few steps
        shown += os.read(ours, 1000)
    before(process)
    os.close(ours)  # which sends SIGHUP, too
    assert process.wait(timeout=30) in (1, 129)  # whichever is noticed first: the end of the output, or SIGHUP
    return shown


def write_text(folder: Path) -> None:
    """Write text.txt: lines of eight of a few words."""
    words = "the quick brown fox jumps over a lazy dog and then it sleeps".split()
    rng = random.Random(0)
    (folder / "text.txt").write_text("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(60)), encoding="utf-8")


def entries(folder: Path) -> list[str]:
    """The names in a folder, without the mark of results."""
    return sorted(p.name for p in folder.iterdir() if p.name != MARK)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def check_record(run: Path) -> None:
    """Check what a run says of itself. Runs of before say nothing, and from its settings the same must be known of it."""
    settings = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert Maker(**settings.pop("made_by")) == maker_of(settings)


def log_of(run: Path) -> list[dict[str, str]]:
    """The rows of a run's log, without the seconds."""
    with open(run / "log.csv", newline="", encoding="utf-8") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def validation_losses(run: Path) -> list[float]:
    return [float(row["validation_loss"]) for row in log_of(run) if row["validation_loss"]]


def result_of(run: Path) -> dict[str, object]:
    """The result of a run: weights, optimizer, random states, log and sample, without the seconds."""
    latest, state = load_checkpoint(run / "latest.safetensors", "latest")
    best, best_state = load_checkpoint(run / "best.safetensors", "best")
    tensors = {
        f"{file}/{group}/{name}": tensor.numpy().tobytes()
        for file, groups in (("latest", latest), ("best", best))
        for group, members in groups.items()
        for name, tensor in members.items()
    }
    progress = {key: state[key] for key in ("step", "best_loss", "best_step", "random", "batches")}
    sample = {name: content for name, content in contents(run).items() if name == "sample.txt"}
    return {"tensors": tensors, "best": best_state, "progress": progress, "log": log_of(run), "sample": sample}
