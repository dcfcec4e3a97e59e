"""``tinyformer`` itself: its table of contents, its version, mistakes in the name of a command, and what a shell completes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, Program

import tinyformer
import tinytensor as tt
from tinyformer.commands.main import ALL

COMMAND = ""


def test_the_help_is_a_table_of_contents_of_one_screen(program: Program) -> None:
    shown = program.good()
    assert shown == program.good("--help") == program.good("-h") == program.good("train", "--help")
    assert len(shown.splitlines()) <= 24 and max(map(len, shown.splitlines())) <= 80
    assert all(f"  {name} " in shown for name in ALL)


def test_both_packages_have_the_same_version(program: Program) -> None:
    assert program.good("--version") == f"tinyformer {tinyformer.__version__}\n"
    assert tt.__version__ == tinyformer.__version__


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sampel"], "there is no command 'sampel': did you mean tinyformer sample? (see tinyformer --help)"),
        (["gpt"], "there is no command 'gpt': did you mean tinyformer train gpt? (see tinyformer --help)"),
        (
            ["train", "vector"],
            "there is no command 'train vector': did you mean tinyformer train vectors? (see tinyformer --help)",
        ),
        (["train", "bogus"], "tinyformer train needs to know what to train: gpt, translator, bert, vectors (see"),
        (["train"], "tinyformer train needs to know what to train: gpt, translator, bert, vectors (see"),
        (["train", "--steps", "3"], "tinyformer train needs to know what to train: gpt,"),
        (["--steps", "3"], "there is no command '--steps' (see tinyformer --help)"),
        (["train", "markov"], "there is no command 'train markov' any more: run python examples/markov.py, of the source code"),
        (["tones"], "there is no command 'tones' any more: run python examples/dial_tones.py, of the source code"),
        (["record", "555"], "there is no command 'record' any more: run python examples/dial_tones.py, of the source code"),
        ([""], "there is no command '' (see tinyformer --help)"),
        (["\x1b[2J"], r"there is no command '\x1b[2J' (see tinyformer --help)"),
    ],
)
def test_mistakes(program: Program, words: list[str], message: str) -> None:
    assert program.bad(*words).startswith(message)


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_help_and_reports_unknown_flags(program: Program, name: str) -> None:
    assert program.good(*name.split(), "--help").startswith(f"usage: tinyformer {name} ")
    assert f"(see tinyformer {name} " in program.bad(*name.split(), "--no-such-flag")


def completed(line: str, folder: Path) -> list[str]:
    """Return the shell completions of this line."""
    pytest.importorskip("argcomplete")
    answer = folder / "answer"
    variables = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run([sys.executable, "-m", "tinyformer"], env=environment, check=True, cwd=folder)
    return [word.strip() for word in answer.read_text().split("\n")]


def test_what_a_shell_completes(tmp_path: Path) -> None:
    assert completed("tinyformer tr", tmp_path) == ["train", "translate"]
    assert completed("tinyformer train t", tmp_path) == ["translator"]
    assert completed("tinyformer train gpt --bl", tmp_path) == ["--block-size"]
    assert completed("tinyformer sample --to", tmp_path) == ["--top-k", "--top-p"]
    assert completed("tinyformer chat --dtype fl", tmp_path) == ["float32"]
