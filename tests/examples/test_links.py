"""A run in a folder that somebody else has prepared: nothing outside it changes, and nobody waits for a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import random
import runpy
import shutil
import signal
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from forked import leave_pictures_empty
from running import ROOT

from tinyformer.common.errors import plain_errors
from tinyformer.data.folders import OF_A_RUN
from tinyformer.runs.run_folder import FILES, FOLDERS

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs links and pipes")

SIZES = ["--num-heads", "2", "--d-model", "8", "--batch-size", "4", "--num-layers", "1", "--block-size", "8"]
SHOWN = ["--tensorboard"] if find_spec("tensorboardX") and find_spec("PIL") else []
FIRST = ["--steps", "4", "--eval-every", "2", "--log-every", "1", "--average", "2", *SHOWN, *SIZES]
COMMANDS = {
    "train": FIRST,
    "resume": ["--resume-changed", "--steps", "6", *SHOWN],
    "overwrite": ["--overwrite", *FIRST],
}
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


KINDS = [to_a_file, to_a_folder, to_nothing, pipe, second_name, folder]


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
        self.module = runpy.run_path(str(ROOT / "examples" / "char_gpt.py"))
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


@pytest.fixture(scope="module")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    with pytest.MonkeyPatch.context() as patch:
        leave_pictures_empty(patch.setattr)
        yield Attack(tmp_path_factory.mktemp("links"))


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


def test_these_are_the_names_of_all_that_a_run_writes(attack: Attack) -> None:
    written = {path.name for path in attack.whole.iterdir()}
    assert {"config.json", "latest.safetensors", "sample.txt"} <= written
    assert [name for name in written if not any(fnmatch(name, pattern) for pattern in (*FILES, "tensorboard"))] == []
    assert [name for name in NAMES if name in FILES and not any(fnmatch(name, pattern) for pattern in OF_A_RUN)] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_file_of_the_run_is_refused_by_name(attack: Attack, command: str) -> None:
    for name in NAMES:
        for plant in KINDS if command == "resume" else KINDS[:2]:
            if (plant is second_name and name not in (".lock", *FOLDERS)) or (
                plant is folder and name in (*FOLDERS, "tensorboard")
            ):
                continue
            status, said = attack(name, plant, command)
            assert status == 2, (name, plant, said)
            assert said.startswith(f"error: {attack.run / name} is a "), (name, plant, said)
            assert said.count("\n") == 1
            assert not (attack.run / ".lock").exists() or name == ".lock"


@pytest.mark.parametrize("name", ["best.safetensors", ".tinyformer.moving/log.csv"])
def test_a_file_with_a_second_name_elsewhere_is_replaced_and_not_written_to(attack: Attack, name: str) -> None:
    attack(name, second_name, "overwrite")  # as in a backup of hard links


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "best.safetensors", "log.csv", ".lock", *FOLDERS])
def test_nobody_who_reads_a_run_waits_for_a_pipe(attack: Attack, name: str) -> None:
    status, said = attack(name, pipe, "sample")
    is_read = name in ("config.json", "tokenizer.json", "best.safetensors")
    assert status == (2 if is_read else 0)
    assert said.startswith(f"error: {attack.run / name} is " if is_read else "")
    assert said.count("\n") <= 1


def test_a_link_to_the_runs_folder_and_links_to_what_is_read_are_the_users_own(attack: Attack, tmp_path: Path) -> None:
    attack.prepare(is_new=False)
    (tmp_path / "link").symlink_to(attack.run)
    assert attack.call(tmp_path / "link", COMMANDS["resume"])[0] == 0
    elsewhere = attack.run.rename(tmp_path / "elsewhere")
    attack.run.mkdir()
    for name in ("config.json", "tokenizer.json", "best.safetensors"):
        (attack.run / name).symlink_to(elsewhere / name)
    assert attack.call(attack.run, READING["sample"])[0] == 0
