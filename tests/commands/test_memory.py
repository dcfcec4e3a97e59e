"""`tinyformer train memory` as its users run it, with tiny settings, and its models."""

from __future__ import annotations

import csv
import importlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Program, check_record, entries, log_of

import tinytensor as tt
from tinyformer.runs.commands import command
from tinyformer.tasks.recall import RecallTask

COMMAND = "train memory"
TINY = ["--distance", "6", "--d-model", "8", "--batch-size", "8", "--warmup", "2"]
SHORT = ["--steps", "6", "--eval-every", "3", "--log-every", "3"]
FILES = ["best.safetensors", "config.json", "latest.safetensors", "log.csv", "loss.png"]
FIGURES = ["accuracy.csv", "accuracy.png", "gradients.csv", "gradients.png"]
KINDS = ["rnn", "gru", "lstm", "attention"]


def write_data(folder: Path) -> None:
    """Nothing: the script makes its rows itself."""


def table(path: Path) -> list[dict[str, float]]:
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def test_all_models_are_trained_and_compared(program: Program) -> None:
    program.draws = True
    printed = program.good("--out", "runs", *TINY, *SHORT)
    for name in ("accuracy.png", "gradients.png"):
        assert (program.folder / "runs" / name).read_bytes().startswith(b"\x89PNG")
    runs = program.folder / "runs"
    assert entries(runs) == sorted([*FIGURES, *KINDS])
    for kind in KINDS:
        assert entries(runs / kind) == FILES
        check_record(runs / kind)
    found = table(runs / "accuracy.csv")
    assert list(found[0]) == ["distance", *KINDS]
    assert [row["distance"] for row in found] == [1, 2, 3, 5, 6]
    assert all(0 <= row[kind] <= 1 for row in found for kind in KINDS)
    shown = {line.split()[0].lower(): line.split()[3:] for line in printed.splitlines()[-6:-1]}
    assert shown["model"] == ["1", "2", "5", "6"]
    for kind in KINDS:
        assert [float(cell) for cell in shown[kind]] == pytest.approx(
            [100 * row[kind] for row in found if row["distance"] != 3]
        )
    norms = table(runs / "gradients.csv")
    assert list(norms[0]) == ["distance", *(f"{kind}_{when}" for kind in KINDS for when in ("before", "after"))]
    assert [row["distance"] for row in norms] == list(range(7))
    assert all(value > 0 for row in norms for name, value in row.items() if name != "distance")
    assert all(row[f"{kind}_before"] != row[f"{kind}_after"] for row in norms for kind in KINDS)


def test_the_same_seed_finds_the_same_and_resuming_a_finished_run_repeats_its_end(program: Program) -> None:
    words = ["lstm", "attention", *TINY, *SHORT]
    program.good(*words, "--out", "one")
    program.good(*words, "--out", "two")
    program.good(*words, "--out", "three", "--seed", "5")
    one, two, three = (program.folder / name for name in ("one", "two", "three"))
    assert log_of(one / "lstm") == log_of(two / "lstm") != log_of(three / "lstm")
    for name in ("accuracy.csv", "gradients.csv"):
        assert (one / name).read_text() == (two / name).read_text() != (three / name).read_text()
        (one / name).unlink()
    printed = program.good("lstm", "attention", "--out", "one", "--resume")
    assert "Trained in" in printed
    for name in ("accuracy.csv", "gradients.csv"):
        assert (one / name).read_text() == (two / name).read_text()


def test_an_interrupted_run_goes_on(program: Program) -> None:
    words = ["rnn", "gru", *TINY, "--out", "runs", "--eval-every", "5"]
    rest = program.interrupted("step     5: ", *words, "--steps", "100")
    assert f"Go on with: {command('train', 'memory')} " in rest
    assert "GRU" not in rest
    assert entries(program.folder / "runs") == ["rnn"]
    step = int(rest.split("after step ")[1].split()[0])
    message = program.bad(*words, "--steps", str(step + 5), "--resume")
    assert message.endswith("or pass --resume-changed\n")
    printed = program.good(*words, "--steps", str(step + 5), "--resume-changed")
    assert printed.count("Trained in") == 2  # the second model had not begun
    assert entries(program.folder / "runs") == sorted([*FIGURES, "rnn", "gru"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["transformer"], "there is no model 'transformer': choose among rnn, gru, lstm, attention"),
        (["--distance", "0"], "--distance must be at least 1, not 0"),
        (["--symbols", "1"], "--symbols must be at least 2, not 1"),
        (["--noise", "-1"], "--noise must be at least 0, not -1"),
        (["--d-model", "0"], "--d-model must be at least 1, not 0"),
        (["--num-heads", "5"], "--num-heads=5 does not divide --d-model=32"),
        (["--steps", "many"], "invalid int value: 'many'"),
        (["--keep-bias", "nan"], "--keep-bias must be"),
        (["--d-model", "4000000"], "--d-model, --symbols or --noise"),
        (["--distance", "1000000000000"], "needs at least"),
        (["--resume", "--out", "runs"], "runs holds no run of rnn, gru, lstm, attention to resume: check --out"),
        (["--resume", "--overwrite"], "not allowed with"),
    ],
)
def test_mistakes(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad(*words)
    assert list(program.folder.iterdir()) == []


def test_runs_that_are_there_already(program: Program) -> None:
    words = ["rnn", "--out", "runs", *TINY, *SHORT]
    program.good(*words)
    assert "holds a run already" in program.bad(*words)
    program.good(*words, "--overwrite")
    message = program.bad("rnn", "gru", "--out", "runs", "--resume", *SHORT)
    assert "gru is of another task than rnn" in message
    assert "gru" not in entries(program.folder / "runs")


def test_help(program: Program) -> None:
    printed = program.good("--help")
    for word in ("MODEL", "--distance", "--symbols", "--noise", "--d-model", "--keep-bias", "--steps", "--resume", "--seed"):
        assert word in printed


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return vars(importlib.import_module("tinyformer.programs.memory"))


def test_the_models_are_of_about_equal_size(script: dict[str, Any]) -> None:
    for width in (16, 32, 64):
        sizes = [script["Recaller"](kind, RecallTask(), script["ModelConfig"](width)).num_parameters() for kind in KINDS]
        assert max(sizes) < 1.1 * min(sizes)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_gated_networks_begin_with_keeping(script: dict[str, Any], kind: str) -> None:
    config = script["ModelConfig"](8, 2, keep_bias=3.0)
    network = script["Recaller"](kind, RecallTask(), config).body.network
    both = (network.bias_ih_l0 + network.bias_hh_l0).numpy().reshape(network.gates, -1)
    assert both[1].tolist() == [3.0] * network.hidden_size
    assert 0 < np.abs(np.delete(both, 1, axis=0)).max() < 2 / math.sqrt(network.hidden_size)


@pytest.mark.parametrize("kind", KINDS)
def test_measuring_changes_nothing_and_gives_the_norms_by_distance(script: dict[str, Any], kind: str) -> None:
    task = RecallTask(distance=5)
    model = script["Recaller"](kind, task, script["ModelConfig"](8, 2))
    before, state = {name: value.numpy().copy() for name, value in model.state_dict().items()}, tt.random.get_state()
    norms = script["gradients"](model, task, 0)
    assert len(norms) == 6
    assert tt.random.get_state() == state
    for name, value in model.state_dict().items():
        assert value.dtype == "float32"
        np.testing.assert_array_equal(value.numpy(), before[name])
    if kind == "rnn":  # with a recurrent matrix near 0 only the last input counts
        model.body.network.weight_hh_l0.assign(np.full(model.body.network.weight_hh_l0.shape, 1e-9, np.float32))
        last, *earlier = script["gradients"](model, task, 0)
        assert last > 1e5 * max(earlier)
