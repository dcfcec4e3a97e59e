"""benchmarks/speedrun.py: both sides train and evaluate alike, the clock and the turns of a race, and what the tables say."""

import dataclasses
import importlib
import math
import sys
import time

import measure
import numpy
import pytest
import speedrun
import torch
from speedrun import OURS, PYTORCH, Entrant, Point
from torch_models import GPT, copy_weights, nanogpt_weights

WORDS = "the cat sat on the mat, and the dog lay by the door. " * 12
TINY = {
    "modern": {
        "model": {
            "block_size": 12,
            "num_layers": 1,
            "num_heads": 2,
            "d_model": 8,
            "positions": "rotary",
            "activation": "swiglu",
        },
        "training": {"optimizer": "muon", "learning_rate": 0.01, "schedule": "linear", "min_learning_rate": 0.0, "warmup": 2},
        "text": {"test_fraction": 0.1},
    },
    "nanogpt": {
        "model": {"block_size": 10, "num_layers": 2, "num_heads": 2, "d_model": 8},
        "training": {"warmup": 2},
        "text": {},
    },
}


@pytest.fixture
def text(tmp_path):
    (tmp_path / "words.txt").write_text(WORDS, encoding="utf-8")
    return speedrun.read(str(tmp_path / "words.txt"), 0.1)


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(speedrun, "recipes", lambda: TINY)


# ------------------------------------------------------------------------------------------------------------ the sides


def both(text, steps=6):
    """tinyformer's side and PyTorch's with nanoGPT's recipe and the same weights."""
    found = []
    for kind in (speedrun.Tinyformer, speedrun.PyTorch):
        entrant = Entrant(kind, TINY["nanogpt"], steps)
        make, *arguments = entrant.side(text)
        side = make(*arguments)
        side.start(*entrant.start(seed=3))
        found.append(side)
    ours, theirs = found
    copy_weights(ours.trainer.model, theirs.model)
    return ours, theirs


def test_without_a_test_split_both_train_on_all_but_the_last_tenth(text):
    ours, theirs = both(dataclasses.replace(text, test_fraction=0.0), steps=1)
    for side in (ours, theirs):
        assert [side.advance(1).test for _ in range(2)] == [None, None]
    assert len(theirs.splits["training"]) == len(ours.trainer.batches.training) == 572


@pytest.mark.parametrize("split", ["validation", "test"])
def test_both_sides_evaluate_every_target_of_a_split(text, split):
    ours, theirs = both(text)
    assert len(theirs.splits[split]) > 11 and len(theirs.splits[split]) % 10 != 1  # the last window is shorter
    assert ours.loss(split) == pytest.approx(theirs.loss(split), rel=1e-5)
    assert ours.loss("validation") != pytest.approx(ours.loss("test"), rel=1e-5)
    assert theirs.model.training


def test_both_sides_train_on_the_same_part(text):
    ours, theirs = both(text)
    for name in ("training", "validation", "test"):
        assert theirs.splits[name].tolist() == getattr(ours.trainer.batches, name).tolist()
    assert [len(ids) for ids in theirs.splits.values()] == [509, 64, 63] and len(WORDS) == 636


def test_both_sides_take_the_same_steps(text):
    """Where there is only one window to draw."""
    ours, theirs = both(text)
    ours.trainer.batches.training = ours.trainer.batches.training[:11]
    theirs.splits["training"] = theirs.splits["training"][:11]
    points = [[side.advance(2) for _ in range(4)] for side in (ours, theirs)]
    assert [point.step for point in points[0]] == [point.step for point in points[1]] == [0, 2, 4, 6]
    for a, b in zip(*points):
        assert a.validation == pytest.approx(b.validation, rel=1e-4)
    assert points[0][-1].test == pytest.approx(points[1][-1].test, rel=1e-4)
    assert points[0][-1].validation < points[0][0].validation - 0.005


def test_every_window_of_the_training_split_can_be_drawn(text):
    _, theirs = both(text)
    theirs.splits["training"] = theirs.splits["training"][:12]  # two windows
    seen = set()
    theirs.model.loss = lambda inputs, targets: (
        seen.update(map(tuple, inputs.tolist())),
        GPT.loss(theirs.model, inputs, targets),
    )[1]
    theirs.step()
    assert seen == {tuple(theirs.splits["training"][i : i + 10].tolist()) for i in (0, 1)}


def test_a_seed_decides_the_run(text):
    def losses(kind, seed):
        entrant = Entrant(kind, TINY["nanogpt"], 3)
        make, *arguments = entrant.side(text)
        side = make(*arguments)
        found = []
        for _ in range(2):  # the second run must not go on from the first
            side.start(*entrant.start(seed))
            found.append([(point.step, point.validation) for point in (side.advance(3), side.advance(3))])
        assert found[0] == found[1]
        return found[0]

    for kind in (speedrun.Tinyformer, speedrun.PyTorch):
        assert losses(kind, 1) != losses(kind, 2)


def test_nanogpts_first_weights():
    torch.manual_seed(0)
    model = GPT(65, 64, num_layers=4, num_heads=4, d_model=128)
    nanogpt_weights(model)
    for name, p in model.named_parameters():
        added = name.endswith(("output.weight", "down.weight"))
        expected = 0.02 / math.sqrt(8) if added else 0.02
        assert p.std().item() == pytest.approx(expected, rel=0.05) if p.ndim == 2 else (p == 1).all(), name
    assert sum(name.endswith(("output.weight", "down.weight")) for name, _ in model.named_parameters()) == 8


def test_pytorch_has_the_recipe_that_nanogpt_gives_for_a_cpu(text):
    entrant = Entrant(speedrun.PyTorch, speedrun.recipes()["nanogpt"], 2000)
    kind, _, model = entrant.side(dataclasses.replace(text, ids=numpy.zeros(10_000, dtype=int)))
    training, rates = entrant.start(seed=1337)
    sizes = {name: model[name] for name in ("block_size", "num_layers", "num_heads", "d_model", "dropout", "bias")}
    assert sizes == {"block_size": 64, "num_layers": 4, "num_heads": 4, "d_model": 128, "dropout": 0.0, "bias": False}
    names = ("batch_size", "beta1", "beta2", "weight_decay", "clip")
    assert [training[name] for name in names] == [12, 0.9, 0.99, 0.1, 1.0]

    def nanogpts(step):  # get_lr of its train.py
        if step < 100:
            return 1e-3 * (step + 1) / 101
        return 1e-4 + 0.5 * (1 + math.cos(math.pi * (step - 100) / 1900)) * 9e-4

    assert rates == pytest.approx([nanogpts(step) for step in range(2000)])
    assert kind is speedrun.PyTorch


# ------------------------------------------------------------------------------------------------------------- the race


class Sleeping(speedrun.Runner):
    """A side whose evaluations take long."""

    def start(self, training, rates):
        super().start(training, rates)
        self.taken = 0
        self.splits = {"test": None}

    def step(self):
        self.taken += 1

    def loss(self, split):
        time.sleep(0.1)
        return 4.0 - 0.5 * self.taken


class Here:
    """A worker in this process, which notes its calls."""

    def __init__(self, name, side, calls):
        self.name, self.side, self.calls = name, side, calls

    def call(self, method, *arguments):
        self.calls.append(f"{self.name} {method}")
        return getattr(self.side, method)(*arguments)


def test_the_clock_stands_during_evaluations_and_the_run_ends_with_its_last_step():
    side = Sleeping()
    side.start({"steps": 5}, [])
    points = [side.advance(2) for _ in range(4)]
    assert [(point.step, point.validation, point.test) for point in points] == [
        (0, 4.0, None),
        (2, 3.0, None),
        (4, 2.0, None),
        (5, 1.5, 1.5),
    ]
    assert 0 == points[0].seconds < points[1].seconds < points[-1].seconds < 0.1


def test_the_turns_of_a_short_run_are_spread_over_the_race(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    calls, told = [], []
    workers = {name: Here(name, Sleeping(), calls) for name in ("short", "long")}
    starts = {"short": ({"steps": 3}, []), "long": ({"steps": 10}, [])}
    points = speedrun.race(workers, starts, 2, told.append)
    assert [point.step for point in points["short"]] == [0, 2, 3]
    assert [point.step for point in points["long"]] == [0, 2, 4, 6, 8, 10]
    turns = [call.split()[0] for call in calls if call.endswith("advance")]
    assert turns == ["short", "long", "long", "short", "long", "long", "short", "long", "long"]
    assert len(told) == 9 and told[0] == "short 4.000 (0)" and told[-1] == "short 2.500 (3), long -1.000 (10)"


def falling(*losses, seconds=1.0):
    """A run that evaluates every step."""
    points = [Point(step, step * seconds, loss) for step, loss in enumerate(losses)]
    return [*points[:-1], dataclasses.replace(points[-1], test=losses[-1] + 0.1)]


def test_a_mark_is_reached_at_the_first_evaluation_at_or_below_it():
    points = falling(4.0, 1.9, 1.886, 1.95, 1.8)
    assert speedrun.reached(points, 1.886).step == 2
    assert speedrun.reached(points, 1.7) is None
    assert (speedrun.clock_at(points, 1.886), speedrun.clock_at(points, 1.7)) == ("2.0", "not reached, best 1.800")


def test_each_race_runs_with_each_seed_and_reports_after_each(monkeypatch, text, tiny):
    monkeypatch.setattr(speedrun, "STEPS", {1.886: (2, 3), 1.7: (2, 3)})
    calls = []

    def ready(stack, entrants, text):
        return {name: Here(name, Sleeping(), calls) for name in entrants}, ["a line"]

    monkeypatch.setattr(speedrun, "ready", ready)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    races = {f"{mark:g}": speedrun.for_mark(mark) for mark in speedrun.STEPS}
    known = []
    for runs, lines in speedrun.hold(races, [1, 2], text, 1):
        assert lines == ["a line"]
        known.append([len(found) for found in runs.values()])
    assert known == [[1, 1, 0, 0], [1, 1, 1, 1], [2, 2, 1, 1], [2, 2, 2, 2]]
    assert list(runs) == [(race, side) for race in races for side in (OURS, PYTORCH)]
    assert {len(points) for points in runs["1.7", PYTORCH]} == {4}
    assert calls.count(f"{OURS} start") == calls.count(f"{PYTORCH} start") == 4


# ----------------------------------------------------------------------------------------------------------- the tables


def rows_of(report):
    """The cells of each line of a table, by the first of them."""
    lines = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in report.splitlines() if line.startswith("| ")]
    return {line[0]: line[1:] for line in lines}


SIDES = {side: Entrant(speedrun.Runner, {}, steps) for side, steps in ((OURS, 2), (PYTORCH, 3))}
RACES = {"1.886": SIDES, "1.7": SIDES}


def test_the_table_of_marks():
    speeds = (1.0, 1.5)  # of our side, with each seed
    runs = {
        ("1.886", OURS): [falling(4.0, 1.88, 1.8, seconds=speed) for speed in speeds],
        ("1.886", PYTORCH): [falling(4.0, 2.0, 1.886, 1.85, seconds=2.0) for _ in speeds],
        ("1.7", OURS): [falling(4.0, 1.8, 1.6, seconds=speed) for speed in speeds],
        ("1.7", PYTORCH): [falling(4.0, 2.0, 1.9, 1.75, seconds=2.0) for _ in speeds],
    }
    times, losses = speedrun.report(RACES, [1, 2], runs).split("Losses after")
    rows = rows_of(times)
    assert rows[f"1.886, {OURS}"] == ["2", "1250.0", "1.0", "1.5", "1.2", "0.31 (0.25 to 0.38)"]
    assert rows[f"1.886, {PYTORCH}"] == ["3", "2000.0", "4.0", "4.0", "4.0", "1"]
    assert rows[f"1.7, {OURS}"] == ["2", "1250.0", "2.0", "3.0", "2.5", ""]
    assert rows[f"1.7, {PYTORCH}"] == ["3", "2000.0", *2 * ["not reached, best 1.750"], "", "1"]
    rows = rows_of(losses)
    assert rows[f"1.886, {OURS}"] == ["2", "1.800 (1.800 to 1.800)", "1.900 (1.900 to 1.900)"]


def test_a_table_after_the_first_race_has_what_is_known():
    runs = {("1.886", OURS): [falling(4.0, 1.9, 1.89)], ("1.886", PYTORCH): [falling(4.0, 2.0, 1.9, 1.8)]}
    runs |= {("1.7", side): [] for side in SIDES}
    rows = rows_of(speedrun.report(RACES, [1, 2], runs).split("Losses after")[0])
    assert rows[f"1.886, {OURS}"] == ["2", "1000.0", "not reached, best 1.890", "", "", ""]
    assert rows[f"1.886, {PYTORCH}"] == ["3", "1000.0", "3.0", "", "3.0", "1"]
    assert not any(name.startswith("1.7") for name in rows)


# ---------------------------------------------------------------------------------------------------------- the recipes


def test_the_recipes_are_those_of_the_example():
    script = vars(importlib.import_module("tinyformer.commands.gpt"))
    assert speedrun.recipes() == script["RECIPES"]


# ------------------------------------------------------------------------------------------------------ the command line


def words(monkeypatch, *given):
    monkeypatch.setattr(sys, "argv", ["benchmarks/speedrun.py", *map(str, given)])
    monkeypatch.setattr(measure, "_processor", lambda: "arm")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--marks 1.5", "argument --marks: invalid choice: 1.5 (choose from 1.886, 1.7, 1.6)"),
        ("--seeds 0", "argument --seeds: must be a positive integer, got '0'"),
        ("--evaluate-every x", "argument --evaluate-every: must be a positive integer, got 'x'"),
        ("--data none.txt", "none.txt does not exist: pass --data a text file or a folder of them"),
        ("--data short.txt", "the text has only 7 tokens for windows of 128"),
    ],
)
def test_what_cannot_be_is_a_line(given, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("to be o", encoding="utf-8")
    words(monkeypatch, *given.split())
    with pytest.raises(SystemExit) as ended:
        speedrun.main()
    output = capsys.readouterr()
    assert (ended.value.code, output.out, output.err.count("\n")) == (2, "", 1)
    assert output.err.startswith(f"error: {said}")


def test_a_text_that_cannot_be_downloaded_is_asked_for(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("TINYFORMER_CACHE", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: (_ for _ in ()).throw(OSError("no network")))
    words(monkeypatch)
    with pytest.raises(SystemExit) as ended:
        speedrun.main()
    said = "error: Tiny Shakespeare could not be downloaded (no network): pass it with --data\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, said)


def test_races_of_processes_are_written(capsys, monkeypatch, tmp_path, text, tiny):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setattr(speedrun, "STEPS", {1.886: (4, 6), 2.8: (16, 6)})
    given = ["--data", tmp_path / "words.txt", "--evaluate-every", 2, "--seeds", 1, 1, "--output", tmp_path]
    words(monkeypatch, *given)
    speedrun.main()
    capsys.readouterr()
    report = (tmp_path / "arm" / "speedrun.md").read_text(encoding="utf-8")
    rows = rows_of(report.split("Losses after")[0])
    assert list(rows)[2:] == [f"{mark}, {side}" for mark in ("1.886", "2.8") for side in (OURS, PYTORCH)]
    assert rows[f"1.886, {OURS}"][2].startswith("not reached, best ") and float(rows[f"2.8, {OURS}"][2]) >= 0
    assert "words.txt, 636 characters." in report and "every 2 steps" in report and "the first 10% of the text" in report
    assert report.count("which are not counted") == 2 and ", torch " in report.splitlines()[-1]
    assert (tmp_path / "arm" / "speedrun.png").exists()
