"""Prepares a run's folder as an enemy would, and uses it: nothing outside the folder may change, and nothing may block.

PYTHONPATH=. python tests/plant_links.py --tries 500 --seed 0

A try plants a link, a pipe, a device, a socket, a second name of a file outside, or a folder under the name of something that a
run writes, and calls a command of char_gpt.py. Good are an error of a line or two with status 2, and a command that goes on.
Bad are a change outside of the folder, a wait, and any other end.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import random
import shutil
import signal
import stat
import sys
import tempfile
import traceback
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from attempts import parse, repeat
from forked import leave_pictures_empty

from tinyformer.common.errors import plain_errors
from tinyformer.training.safety import FILES, FOLDERS

SIZES = ["--num-heads", "2", "--d-model", "8", "--batch-size", "4", "--num-layers", "1", "--block-size", "8"]
SHOWN = ["--tensorboard"] if find_spec("tensorboardX") and find_spec("PIL") else []
FIRST = ["--steps", "4", "--eval-every", "2", "--log-every", "1", "--average", "2", *SHOWN, *SIZES]
COMMANDS = {"train": FIRST, "resume": ["--resume-changed", "--steps", "6", *SHOWN], "overwrite": ["--overwrite", *FIRST]}
READING = {"sample": ["sample", "--length", "9"]}
LONGEST = 60  # seconds of a command, which takes less than one


def to_a_file(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "notes.txt")


def to_a_folder(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "documents")


def to_nothing(path: Path, outside: Path) -> None:
    path.symlink_to(outside / "nowhere")


def pipe(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def second_name(path: Path, outside: Path) -> None:
    path.hardlink_to(outside / "notes.txt")


def folder(path: Path, outside: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("mine")


def to_a_device(path: Path, outside: Path) -> None:
    path.symlink_to("/dev/zero")


def device(path: Path, outside: Path) -> None:
    """What /dev/zero is; a link to it for those who may not make one."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except OSError:
        to_a_device(path, outside)


def a_socket(path: Path, outside: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o666)


KINDS = [to_a_file, to_a_folder, to_nothing, pipe, second_name, folder]
EVERY_KIND = [*KINDS, to_a_device, device, a_socket]


def contents(folder: Path) -> dict[str, Any]:
    """All that is in a folder, at any depth, with the times when it was changed."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = content, about.st_mode, about.st_nlink, about.st_mtime_ns
    return found


def too_long(number: int, frame: FrameType | None) -> None:
    raise AssertionError("it waits")


class Attack:
    """A finished run of char_gpt.py, copies of which are prepared and used. ``outside`` is what a link in them leads to."""

    def __init__(self, folder: Path):
        self.module = vars(importlib.import_module("tinyformer.commands.gpt"))
        self.whole, self.run, self.outside = folder / "whole", folder / "run", folder / "outside"
        self.text = folder / "text.txt"
        words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]
        self.text.write_text(" ".join(random.Random(0).choices(words, k=300)))
        found = self.call(self.whole, COMMANDS["train"])
        assert found[0] == 0, found

    def call(self, out: Path, words: list[str]) -> tuple[int, str]:
        """The exit status of a command, and what it says on standard error."""
        words = [*words, "--out", str(out)]
        words += [] if "sample" in words else ["--data", str(self.text)]
        errors, status = io.StringIO(), 0
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(LONGEST)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors), plain_errors():
                arguments = self.module["parse"](words)
                arguments.run(arguments)
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            signal.alarm(0)
        return status, errors.getvalue()

    def prepare(self, is_new: bool) -> None:
        for path in (self.run, self.outside):
            shutil.rmtree(path, ignore_errors=True)
        self.run.mkdir() if is_new else shutil.copytree(self.whole, self.run)
        documents = self.outside / "documents"
        documents.mkdir(parents=True)
        (self.outside / "notes.txt").write_text("precious")
        for name in ("config.json", "letter.txt", f".letter.{'0' * 16}.tmp", "events.out.tfevents.1.here"):
            (documents / name).write_text("precious")

    def __call__(self, name: str, plant: Callable[[Path, Path], None], command: str) -> tuple[int, str]:
        """Plant something under a name of the run's folder, and call a command. Nothing outside may change."""
        self.prepare(is_new=command == "train")
        place = self.run / name
        if place.is_dir():
            shutil.rmtree(place)
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
        plant(place, self.outside)
        before = contents(self.outside)
        found = self.call(self.run, {**COMMANDS, **READING}[command])
        if plant is second_name:  # the name in the run may now be of another file
            self.run.joinpath(name).unlink(missing_ok=True)
            assert (self.outside / "notes.txt").read_text() == "precious"
        else:
            assert contents(self.outside) == before
        return found


NAMES = [
    *(name.replace("*", "00000002") for name in FILES if "attention" not in name),
    *FOLDERS,
    "tensorboard",
    ".lock",
    "tensorboard/events.out.tfevents.0000000001.here",
    ".tinyformer.complete/log.csv",
    ".tinyformer.moving/log.csv",
    ".tinyformer.new/log.csv",
]


def attempt(attack: Attack, number: int) -> tuple[str, str]:
    """Make one attempt, and return the outcome (rejected, continued or a fault), what was planted and the message."""
    rng = random.Random(number)
    name, plant, command = rng.choice(NAMES), rng.choice(EVERY_KIND), rng.choice([*COMMANDS, *READING])
    what = f"{plant.__name__} at {name}, {command}, number {number}"
    try:
        status, said = attack(name, plant, command)
    except AssertionError as error:
        return "harm", f"{what}: {error}"
    except Exception:
        return "a traceback", f"{what}: {traceback.format_exc(limit=-4)}"
    is_told = status == 2 and said.startswith("error: ") and said.count("\n") <= 2
    return "refused" if is_told else "a strange end" if status else "went on", f"{what}: {status}, {said}"


def main() -> int:
    arguments = parse(__doc__, 500)
    leave_pictures_empty()
    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(Path(folder))
        return repeat(arguments, lambda number: attempt(attack, number), {"refused", "went on"})


if __name__ == "__main__":
    sys.exit(main())
