"""examples/algorithms.py as its users run it, with tiny settings; and its tasks."""

from __future__ import annotations

import csv
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "algorithms.py"
TINY = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--batch-size", "8", "--warmup", "2"]
SHORT = ["--steps", "6", "--eval-every", "3", "--log-every", "3"]
FILES = ["best.safetensors", "config.json", "latest.safetensors", "log.csv", "loss.png"]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *paths]), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)


def good(folder: Path, *words: str) -> str:
    result = run(folder, *words)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


def bad(folder: Path, *words: str) -> str:
    """What it says where the user made a mistake: a line or two, and never a traceback."""
    result = run(folder, *words)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.rstrip("\n").count("\n") <= 1, result.stderr
    return result.stderr


def losses(run: Path) -> list[dict[str, str]]:
    with open(run / "log.csv", newline="", encoding="utf-8") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


@pytest.mark.parametrize("model", ["gpt", "encoder-decoder"])
def test_every_task_with_either_model(tmp_path: Path, model: str) -> None:
    printed = good(tmp_path, "--model", model, "--out", "runs", *TINY, *SHORT)
    for task, sentence in {
        "sort": "of 5,000 draws from 182 held-out problems right",
        "copy": "of 5,000 held-out problems right",
        "add": "of 1,000 held-out problems right",
    }.items():
        assert sentence in printed
        assert f"{task}: " in printed
        assert sorted(p.name for p in (tmp_path / "runs" / f"{task}-{model}").iterdir()) == FILES
    assert printed.count("training problems right") == 3
    assert printed.count("  ->  ") == 15


def test_the_same_seed_finds_the_same_and_resuming_a_finished_run_repeats_its_end(tmp_path: Path) -> None:
    words = ["add", *TINY, *SHORT]
    first = good(tmp_path, *words, "--out", "one")
    good(tmp_path, *words, "--out", "two")
    good(tmp_path, *words, "--out", "three", "--seed", "5")
    one, two, three = (losses(tmp_path / name / "add-gpt") for name in ("one", "two", "three"))
    assert one == two != three
    again = good(tmp_path, "add", "--out", "one", "--resume")
    shown = [[line for line in text.splitlines() if line.startswith(("add:", "    "))] for text in (first, again)]
    assert [line for line in shown[0] if "of 200" not in line] == shown[1]
    good(tmp_path, *words, "--out", "one", "--overwrite")


def test_sorting_is_learned(tmp_path: Path) -> None:
    words = ["sort", "--num-layers", "2", "--d-model", "36", "--steps", "250", "--eval-every", "250", "--warmup", "20"]
    good(tmp_path, *words, "--out", "runs")
    rows = losses(tmp_path / "runs" / "sort-gpt")
    assert float(rows[-1]["validation_loss"]) < 0.5 < 2.0 < float(rows[0]["validation_loss"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["multiply"], "there is no task 'multiply': choose among sort, copy, add"),
        (["sort", "--model", "rnn"], "invalid choice: 'rnn'"),
        (["sort", "--num-heads", "5"], "num_heads=5 does not divide d_model=48"),
        (["sort", "--steps", "0"], "steps must be at least 1, not 0"),
        (["sort", "--steps", "many"], "invalid int value: 'many'"),
        (["sort", "--resume", "--overwrite"], "not allowed with"),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], message: str) -> None:
    assert message in bad(tmp_path, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_there_already(tmp_path: Path) -> None:
    words = ["add", "--out", "runs", *TINY, *SHORT]
    good(tmp_path, *words)
    assert "holds a run already" in bad(tmp_path, *words)
    assert "leave out --steps" in bad(tmp_path, "add", "--out", "runs", "--resume", "--steps", "7")
    (tmp_path / "runs/add-gpt/config.json").write_text("{}", encoding="utf-8")
    assert "config.json is damaged" in bad(tmp_path, "add", "--out", "runs", "--resume")


def test_problems() -> None:
    script = runpy.run_path(str(SCRIPT))
    problems = {name: task.problems(np.random.default_rng(0)) for name, task in script["TASKS"].items()}
    assert len(problems["sort"]) == 3**6
    assert ([2, 0, 1, 1, 0, 2], [0, 0, 1, 1, 2, 2]) in problems["sort"]
    assert all(answer == question and len(answer) == 10 for question, answer in problems["copy"])
    assert len(problems["add"]) == 10_000
    assert ([8, 5, 5, 0], [5, 3, 1]) in problems["add"]
    assert script["two_numbers"]([8, 5, 5, 0]) == "85 + 50"
    assert [script["reversed_number"](digits) for digits in ([5, 3, 1], [6, 7, 0], [0, 0, 0])] == ["135", "76", "0"]
    for task in problems.values():  # no question comes twice, so none that is held out is trained on
        assert len({tuple(question) for question, _ in task}) == len(task)
        assert len({(len(question), len(answer)) for question, answer in task}) == 1
