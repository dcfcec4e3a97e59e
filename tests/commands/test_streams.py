"""Programs in all surroundings: closed or full streams, a closed terminal, a reader who leaves, a second process."""

from __future__ import annotations

import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import Program, contents, entries, in_a_closed_terminal, result_of

from tinyformer.commands.main import ALL
from tinyformer.training.checkpoints import load_checkpoint

COMMAND = "train gpt"
WORDS = "the quick brown fox jumps over a lazy dog and then it sleeps".split()
SMALL = ["--num-heads", "2", "--d-model", "8", "--batch-size", "4", "--steps", "4", "--eval-every", "2"]
GPT = ["--data", "text.txt", "--num-layers", "1", "--block-size", "8", *SMALL]
LAYERS = ["--encoder-layers", "1", "--decoder-layers", "1", "--d-ff", "8"]
COMMANDS = {
    "train gpt": (GPT, ["sample", "--length", "5"]),
    "train translator": (
        ["--data", "pairs.tsv", *LAYERS, "--vocab-size", "270", "--validation", "6", "--test", "6", *SMALL],
        ["translate"],  # what is typed: nothing
    ),
    "train bert": (
        ["--data", "text.txt", "--num-layers", "1", "--wordpieces", "60", "--window", "8", "--classify-steps", "0", *SMALL],
        ["fill", "the [MASK] fox"],
    ),
}
FOLDERS = {"train gpt": "runs/char_gpt", "train translator": "runs/translate", "train bert": "runs/fill_mask"}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a shell that closes streams")


def write_data(folder: Path) -> None:
    lines = (" ".join(WORDS[(i * j) % len(WORDS)] for j in range(8)) for i in range(60))
    (folder / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    pairs = (f"{WORDS[i % 13]} {WORDS[i // 13]}\t{WORDS[i // 13]} {WORDS[i % 13]}" for i in range(60))
    (folder / "pairs.tsv").write_text("\n".join(pairs), encoding="utf-8")


FIRST_RUN = [*GPT, "--out", "run"]


def in_a_shell(program: Program, words: list[str], redirections: str) -> subprocess.CompletedProcess[str]:
    command = f"{shlex.join([sys.executable, str(program.script), *program.words(*words)])} {redirections}"
    return subprocess.run(
        ["sh", "-c", command], cwd=program.folder, env=program.environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_the_folder_is_named_after_the_data(name: str) -> None:
    program = importlib.import_module(f"tinyformer.commands.{ALL[name][2]}")
    default = program.DEFAULT_OUT
    assert default == FOLDERS[name]
    assert program.parse([]).out == default
    assert program.parse(["--resume"]).out == default
    assert program.parse(["--out", "here"]).out == "here"
    if name == "train translator":
        assert program.parse(["--source", "a/train.de", "--target", "train.en"]).out == f"{default}-train.de"
    assert program.parse(["--data", "texts/my.txt"]).out == f"{default}-my"
    assert program.parse(["--data", "texts/my.txt", "--resume"]).out == f"{default}-my"
    assert program.parse(["--data", "texts/my.txt", "--out", "here"]).out == "here"


@pytest.mark.parametrize("name", COMMANDS)
def test_closed_streams(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    write_data(tmp_path)
    program = Program(name, tmp_path, environment)
    train, use = COMMANDS[name]
    assert program.forked([*train, "--out", "run"], closed=[0, 1, 2]) == (0, b"", b"")
    folder = program.folder / "run"
    assert load_checkpoint(folder / "latest.safetensors", "latest")[1]["step"] == 4
    assert {"best.safetensors", "loss.png"} <= set(entries(folder))
    assert program.forked([*use, "--out", "run"], closed=[0, 1]) == (0, b"", b"")


def test_a_process_that_begins_with_closed_streams(program: Program) -> None:
    result = in_a_shell(program, FIRST_RUN, "<&- >&- 2>&-")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert (program.folder / "run/loss.png").read_bytes().startswith(b"\x89PNG")


def test_a_mistake_with_closed_streams(finished: Program) -> None:
    result = in_a_shell(finished, FIRST_RUN, "<&- >&-")
    assert (result.returncode, result.stdout) == (2, "")
    assert re.fullmatch("error: run holds a run already: .*\n", result.stderr)
    assert in_a_shell(finished, ["--steps", "many"], "<&- >&- 2>&-").returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_standard_output_is_full(finished: Program) -> None:
    before = contents(finished.folder / "run")
    result = in_a_shell(finished, ["sample", "--out", "run", "--length", "5"], "> /dev/full")
    assert result.stderr == "error: standard output: No space left on device\n"
    assert result.returncode == 1
    assert contents(finished.folder / "run") == before


def check_saved(program: Program) -> None:
    """Check that the run was saved where it stopped, and resumes from there."""
    latest = program.folder / "run" / "latest.safetensors"
    step = load_checkpoint(latest, "latest")[1]["step"]
    assert step > 0
    assert not [name for name in entries(program.folder / "run") if name.startswith(".")]
    program.good("--out", "run", "--resume-changed", "--steps", str(step + 3))
    assert load_checkpoint(latest, "latest")[1]["step"] == step + 3


LONG = [*GPT, "--out", "run", "--steps", "1000000", "--eval-every", "1000000"]  # longer than any machine could make unseen


def test_a_reader_who_leaves_ends_in_a_saved_run(program: Program) -> None:
    process = program.begin(*LONG, stderr=subprocess.STDOUT)  # ... 2>&1 | head -n 5
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(5)]
    assert "step     0: " in "".join(lines)
    process.stdout.close()
    assert process.wait() == 1
    check_saved(program)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_nothing_continues_after_a_full_disk_under_the_output(program: Program) -> None:
    result = in_a_shell(program, LONG, "> /dev/full && echo evaluated >&2")
    assert (result.returncode, result.stderr) == (1, "error: standard output: No space left on device\n")


def test_a_terminal_that_is_closed_ends_in_a_saved_run(program: Program) -> None:
    shown = in_a_closed_terminal(lambda **streams: program.begin(*LONG, **streams))
    assert b"Traceback" not in shown
    check_saved(program)


@pytest.mark.parametrize("flag", ["--overwrite", "--resume"])
def test_two_processes_in_one_folder(copied: Program, flag: str) -> None:
    # The first is one that overwrites, or goes on; the second is told of it, whatever it would do.
    more = ["--steps", "1000000", "--eval-every", "1000000", "--snapshots", "0"]  # writes nothing while the others are told
    first = [*GPT, *more, "--overwrite"] if flag == "--overwrite" else ["--resume-changed", *more]
    process = copied.begin(*first, "--out", "run")
    assert process.stderr is not None
    assert "training: step " in process.stderr.readline()
    before = {name: content for name, content in contents(copied.folder / "run").items() if name != ".lock"}
    for words in ([*GPT, "--overwrite"], ["--resume"], GPT):
        message = copied.bad(*words, "--out", "run")
        assert message.startswith(f"run is being written by process {process.pid} on ")
        assert message.endswith(": wait until it ends, or choose another folder\n")
    after = {name: content for name, content in contents(copied.folder / "run").items() if name != ".lock"}
    assert after == before
    process.send_signal(signal.SIGTERM)
    printed, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, errors
    step = load_checkpoint(copied.folder / "run" / "latest.safetensors", "latest")[1]["step"]
    assert f"Stopped by SIGTERM after step {step} and saved. Resume with: " in printed
    assert ".lock" not in entries(copied.folder / "run")
    shutil.copytree(copied.folder / "run", copied.folder / "again")
    for name in ("run", "again"):
        copied.good("--out", name, "--resume-changed", "--steps", str(step + 3))
    assert result_of(copied.folder / "run") == result_of(copied.folder / "again")
