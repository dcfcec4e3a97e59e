"""`tinyformer train algorithms` as its users run it, with tiny settings, and the problems of its tasks."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest
from running import Program, check_record, entries, log_of, validation_losses

from tinyformer.runs.run_folder import RunFolder

COMMAND = "train algorithms"
TINY = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--batch-size", "100", "--warmup", "2"]
SHORT = ["--steps", "6", "--eval-every", "3", "--log-every", "3"]
FILES = ["best.safetensors", "config.json", "latest.safetensors", "log.csv", "loss.png"]


def write_data(folder: Path) -> None:
    """Nothing: the script makes its problems itself."""


# Most of the time goes into the many held-out problems that are solved at the end, so not every pair is tried.
@pytest.mark.parametrize(("model", "tasks"), [("gpt", ["sort", "copy", "add"]), ("encoder-decoder", ["add"])])
def test_every_task_and_either_model(program: Program, model: str, tasks: list[str]) -> None:
    words = tasks if model != "gpt" else []  # all of them, without being named
    printed = program.good(*words, "--model", model, "--out", "runs", *TINY, *SHORT)
    sentences = {
        "sort": "of 5,000 draws from 182 held-out problems right",
        "copy": "of 5,000 held-out problems right",
        "add": "of 1,000 held-out problems right",
    }
    for task in tasks:
        assert sentences[task] in printed
        assert f"{task}: " in printed
        assert entries(program.folder / "runs" / f"{task}-{model}") == FILES
        check_record(program.folder / "runs" / f"{task}-{model}")
    assert printed.count("training problems right") == len(tasks)
    assert printed.count("  ->  ") == 5 * len(tasks)


def test_the_same_seed_finds_the_same_and_resuming_a_finished_run_repeats_its_end(program: Program) -> None:
    words = ["add", *TINY, *SHORT]
    first = program.good(*words, "--out", "one")
    program.good(*words, "--out", "two")
    program.good(*words, "--out", "three", "--seed", "5")
    one, two, three = (log_of(program.folder / name / "add-gpt") for name in ("one", "two", "three"))
    assert one == two != three
    again = program.good("add", "--out", "one", "--resume")
    shown = [[line for line in text.splitlines() if line.startswith(("add:", "    "))] for text in (first, again)]
    assert [line for line in shown[0] if "of 200" not in line] == shown[1]
    program.good(*words, "--out", "one", "--overwrite")


def test_a_run_in_shards_ends_the_same_where_there_is_one_core(program: Program) -> None:
    first = program.good("add", "--out", "runs", *TINY, *SHORT, OPENBLAS_NUM_THREADS="2")
    log = log_of(program.folder / "runs" / "add-gpt")
    again = program.good("add", "--out", "runs", "--resume", OPENBLAS_NUM_THREADS="1")
    answers = [[line for line in text.splitlines() if "  ->  " in line] for text in (first, again)]
    assert answers[0] == answers[1] and len(answers[0]) == 5
    assert log_of(program.folder / "runs" / "add-gpt") == log


def test_sorting_is_learned(program: Program) -> None:
    words = ["sort", "--num-layers", "2", "--d-model", "36", "--steps", "150", "--eval-every", "150", "--warmup", "10"]
    program.good(*words, "--out", "runs")
    first, *_, last = validation_losses(program.folder / "runs" / "sort-gpt")
    assert last < 0.5 < 2.0 < first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["multiply"], "there is no task 'multiply': choose among sort, copy, add"),
        (["sort", "--model", "rnn"], "invalid choice: 'rnn'"),
        (["sort", "--num-heads", "5"], "--num-heads=5 does not divide --d-model=48"),
        (["sort", "--steps", "0"], "--steps must be at least 1, not 0"),
        (["sort", "--steps", "many"], "invalid int value: 'many'"),
        (["sort", "--resume", "--overwrite"], "not allowed with"),
    ],
)
def test_mistakes(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad(*words)
    assert list(program.folder.iterdir()) == []


def test_a_run_that_is_there_already(program: Program) -> None:
    words = ["add", "--out", "runs", *TINY, *SHORT]
    program.good(*words)
    assert "holds a run already" in program.bad(*words)
    message = program.bad("add", "--out", "runs", "--resume", "--steps", "7")
    assert message.endswith("add-gpt: leave out --steps, or start a new run, or pass --resume-changed\n")
    assert "runs2 holds no run of add, sort to resume: check --out" in program.bad("add", "sort", "--out", "runs2", "--resume")
    half = RunFolder(program.folder / "runs/add-gpt")._moving
    half.mkdir()
    for name in ("config.json", "latest.safetensors"):  # killed while it put its files in their places
        (program.folder / "runs/add-gpt" / name).rename(half / name)
    assert "held-out problems right" in program.good("add", "--out", "runs", "--resume")
    assert not half.exists()
    (program.folder / "runs/add-gpt/config.json").write_text("{}", encoding="utf-8")
    assert "config.json is damaged" in program.bad("add", "--out", "runs", "--resume")


def test_problems() -> None:
    script = vars(importlib.import_module("tinyformer.programs.algorithms"))
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
