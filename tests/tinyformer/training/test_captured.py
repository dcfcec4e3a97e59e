"""Training by captured steps: the same run as without, and batches that cannot be captured in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer.data.batches import Batch
from tinyformer.data.text import TextBatches
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.config import TrainingConfig
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.trainer import Trainer
from tinytensor import kernels
from tinytensor.device.backend import xp
from tinytensor.replay import capture

pytestmark = pytest.mark.needs("standin")  # which counts launches
SETTINGS = {"batch_size": 4, "eval_every": 6, "log_every": 3, "warmup": 4, "learning_rate": 1e-2, "shards": 1}


@pytest.fixture(autouse=True)
def by_cublaslt(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that steps that are not captured round where captured ones do."""
    monkeypatch.setattr(kernels.cupy.cublaslt, "is_on_everywhere", True)


def run(folder: Path, batches: Any = None, steps: int = 12, resume: bool = False, **settings: Any) -> dict[str, Any]:
    """What a run of a tiny GPT with dropout leaves: its log, its weights, and the launches of each step."""
    config = TrainingConfig(steps=steps, **{**SETTINGS, **settings})
    tt.seed(config.seed)
    model = GPT(GPTConfig(11, 8, 2, 2, 16, dropout=0.2, bias=True))
    ids = np.random.default_rng(0).integers(0, 11, 600)
    trainer = Trainer(model, batches or TextBatches(ids, 8, config.batch_size, config.seed), config, RunFolder(folder))
    if resume:
        trainer.resume()
    launches, take = [], trainer.train_step

    def step() -> Any:
        first = len(xp.launches)
        results = take()
        launches.append(xp.launches[first:])
        return results

    trainer.train_step = step  # type: ignore[method-assign]
    assert trainer.train()
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in trainer.rows]
    state = {**model.state_dict(), **trainer.optimizer.state_dict()}
    return {"rows": rows, "state": {name: x.numpy().tobytes() for name, x in state.items()}, "launches": launches}


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found["rows"] == expected["rows"] and found["state"] == expected["state"]


KINDS: dict[str, dict[str, Any]] = {
    "AdamW": {},
    "bfloat16": {"dtype": "bfloat16"},
    "Muon": {"optimizer": "muon"},
    "Lion": {"optimizer": "lion", "dtype": "bfloat16"},
    "accumulated": {"gradient_accumulation_steps": 2},
    "not clipped": {"clip": 0.0},
    "averaged": {"average": 2, "eval_every": 3, "dtype": "bfloat16"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_run_is_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    expected = run(tmp_path / "plain", **KINDS[kind])
    monkeypatch.setattr(capture, "is_wanted", True)
    found = run(tmp_path / "captured", **KINDS[kind])
    assert same(found, expected)
    assert [launches.count("graph") for launches in found["launches"]] == [0] * 3 + [1] * 9
    assert not any("graph" in launches for launches in expected["launches"])
    drawing = KINDS[kind].get("gradient_accumulation_steps", 1) * 5  # an upload, two gathers, and two copies of their parts
    assert max(map(len, found["launches"][4:])) <= drawing + 4  # the numbers, the graph, and copies of loss and norm


def test_a_captured_run_can_be_stopped_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for is_wanted in (False, True):
        monkeypatch.setattr(capture, "is_wanted", is_wanted)
        folder = tmp_path / str(is_wanted)
        run(folder, steps=6, schedule="constant")
        found.append(run(folder, steps=12, resume=True, schedule="constant"))
    assert same(*found)
    assert ["graph" in launches for launches in found[1]["launches"]] == [False] * 3 + [True] * 3


class OfTwoShapes(TextBatches):
    """Every third batch is shorter, and every fourth has fewer targets, as where some are padding."""

    drawn = 0

    def sample(self) -> Batch:
        batch = super().sample()
        self.drawn += 1
        if self.drawn % 3 == 0:
            batch = Batch(batch.inputs[:, :5], batch.targets[:, :5], 20)
        if self.drawn % 4 == 0:
            batch = Batch(batch.inputs, batch.targets, batch.num_targets - 3)
        return batch


def test_other_batches_are_not_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(0).integers(0, 11, 600)
    expected = run(tmp_path / "plain", OfTwoShapes(ids, 8, 4, 0), steps=18)
    monkeypatch.setattr(capture, "is_wanted", True)
    found = run(tmp_path / "captured", OfTwoShapes(ids, 8, 4, 0), steps=18)
    assert same(found, expected)
    # Steps 3, 4, 6, 8, 9, 12, 15, 16 and 18 have other batches; of the rest the first three prepare.
    graphs = [number for number, launches in enumerate(found["launches"], 1) if "graph" in launches]
    assert graphs == [7, 10, 11, 13, 14, 17]


class FirstOfAnEpoch(TextBatches):
    """The first batch is the last of an epoch, as after resuming there, and has fewer rows."""

    drawn = 0

    def sample(self) -> Batch:
        batch = super().sample()
        self.drawn += 1
        return Batch(batch.inputs[:3], batch.targets[:3], 24) if self.drawn == 1 else batch


def test_a_first_batch_that_is_unlike_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(0).integers(0, 11, 600)
    expected = run(tmp_path / "plain", FirstOfAnEpoch(ids, 8, 4, 0))
    monkeypatch.setattr(capture, "is_wanted", True)
    found = run(tmp_path / "captured", FirstOfAnEpoch(ids, 8, 4, 0))
    assert same(found, expected)
    graphs = [number for number, launches in enumerate(found["launches"], 1) if "graph" in launches]
    assert graphs == [6, 7, 8, 9, 10, 11, 12]  # the second is the only one of its kind so far, and three more prepare


def test_several_shards_are_not_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "is_wanted", True)
    found = run(tmp_path / "shards", steps=6, shards=2)
    assert not any("graph" in launches for launches in found["launches"])
