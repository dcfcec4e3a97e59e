"""Snapshots: their steps and files, and that resuming changes neither."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from running import contents

import tinytensor as tt
from tinyformer.common.errors import SettingError
from tinyformer.training import snapshots as snapshots_module
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.snapshots import MOST, MOST_BYTES, automatic_count, snapshot_steps
from tinyformer.training.trainer import Trainer

Make = Callable[..., Trainer]


def kept(trainer: Trainer) -> dict[str, bytes]:
    return {name: content for name, content in contents(trainer.folder.path).items() if name.startswith("snapshot")}


@pytest.mark.parametrize("count", [2, 3, 7, 8, 40, 200])
@pytest.mark.parametrize("steps", [1, 2, 20, 1500, 10**6])
def test_steps_rise_from_the_first_to_the_last_without_repeats(steps: int, count: int) -> None:
    found = snapshot_steps(steps, count)
    assert len(found) == min(count, steps + 1)
    assert found[0] == 0 and found[-1] == steps
    assert all(a < b for a, b in zip(found, found[1:]))


def test_steps_are_even_in_the_logarithm() -> None:
    logs = [math.log(1 + step) for step in snapshot_steps(10**6, 9)]
    gaps = np.diff(logs)
    assert gaps == pytest.approx([gaps.mean()] * 8, rel=0.05)
    assert snapshot_steps(1500, 7) == [0, 2, 10, 38, 130, 443, 1500]  # of the default run


def test_few_snapshots_and_few_steps() -> None:
    assert (snapshot_steps(100, 0), snapshot_steps(100, 1), snapshot_steps(3, 50)) == ([], [100], [0, 1, 2, 3])


def test_the_automatic_number_keeps_to_its_bytes() -> None:
    for size in (1, 1000, 10**5, 683_616, 10**6, MOST_BYTES // 2):
        assert 2 <= automatic_count(size) <= MOST and automatic_count(size) * size <= MOST_BYTES
    assert (automatic_count(1000), automatic_count(683_616)) == (8, 7)
    assert automatic_count(MOST_BYTES // 2 + 1) == automatic_count(MOST_BYTES) == automatic_count(10**9) == 0


def test_a_run_keeps_its_weights_as_float16_and_says_so(make_trainer: Make, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer(snapshots=4)
    begins = {name: tensor.numpy().copy() for name, tensor in trainer.model.state_dict().items()}
    trainer.train()
    paths = trainer.folder.snapshots()
    assert list(paths) == snapshot_steps(20, 4) == [0, 2, 7, 20]
    size = 2 * sum(values.size for values in begins.values())
    assert f"Keeps 4 snapshots of the weights along the run, {4 * size / 1000:.0f} kB in all" in capsys.readouterr().out
    latest = {name: tensor.numpy() for name, tensor in load_checkpoint(trainer.folder.latest, "latest")[0]["model"].items()}
    for step, weights in ((0, begins), (20, latest)):
        groups, state = load_checkpoint(paths[step], "snapshot")
        assert state["step"] == step and groups.keys() == {"model"} and groups["model"].keys() == weights.keys()
        for name, tensor in groups["model"].items():
            assert tensor.dtype == np.float16
            np.testing.assert_array_equal(tensor.numpy(), weights[name].astype(np.float16))
        assert size < paths[step].stat().st_size < 1.5 * size + 8000  # the header is most of the rest


def test_none_are_kept_unless_asked_for(make_trainer: Make, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make_trainer()
    trainer.train()
    assert kept(trainer) == {} and "snapshot" not in capsys.readouterr().out


@pytest.mark.parametrize("at", [1, 2, 3, 8, 15])
def test_a_run_that_is_resumed_keeps_the_same(make_trainer: Make, at: int) -> None:
    whole = make_trainer("whole", snapshots=9)
    whole.train()
    assert len(kept(whole)) == 9
    stopped = make_trainer("parts", at, snapshots=9)
    assert not stopped.train()
    resumed = make_trainer("parts", snapshots=9)
    resumed.resume()
    resumed.train()
    assert kept(resumed) == kept(whole)


def test_a_run_that_was_killed_takes_no_snapshot_of_steps_that_it_takes_again(make_trainer: Make) -> None:
    whole = make_trainer("whole", snapshots=9)
    whole.train()
    dying = make_trainer("parts", snapshots=9)
    sample, left = dying.batches.sample, iter(range(8))
    dying.batches.sample = lambda: sample() if next(left, None) is not None else 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        dying.train()
    late = max(dying.folder.snapshots())
    assert late > 0
    resumed = make_trainer("parts", snapshots=9)
    resumed.resume()
    assert resumed.step == 0
    resumed.snapshots.forget_after(resumed.step)
    assert list(resumed.folder.snapshots()) == [0]
    resumed.train()
    assert kept(resumed) == kept(whole)


def test_snapshots_change_no_other_number(make_trainer: Make) -> None:
    runs = []
    for count in (0, 21):
        runs.append(make_trainer(str(count), snapshots=count))
        runs[-1].train()
    assert len(kept(runs[1])) == 21
    (a, _), (b, _) = (load_checkpoint(trainer.folder.latest, "latest") for trainer in runs)
    for name, tensor in a["model"].items():
        np.testing.assert_array_equal(tensor.numpy(), b["model"][name].numpy())


def test_numbers_that_float16_cannot_hold_stay_in_float32(make_trainer: Make) -> None:
    trainer = make_trainer(snapshots=2)
    name, weight = next(iter(trainer.model.named_parameters()))
    big = weight.numpy().copy()
    big[0, 0] = 70_000.0
    weight.assign(tt.tensor(big))
    assert list(trainer.snapshots.keep(0)) == []
    found = load_checkpoint(trainer.folder.snapshot(0), "snapshot")[0]["model"]
    assert found[name].dtype == np.float32
    np.testing.assert_array_equal(found[name].numpy(), big)
    assert {tensor.dtype for other, tensor in found.items() if other != name} == {np.dtype(np.float16)}


def test_nan_is_reported_and_not_written(make_trainer: Make) -> None:
    trainer = make_trainer(snapshots=2)
    name, weight = next(iter(trainer.model.named_parameters()))
    weight.assign(weight * math.nan)
    (line,) = trainer.snapshots.keep(0)
    assert name in line and "NaN" in line and "snapshot-00000000.safetensors" in line
    assert kept(trainer) == {}


def test_a_disk_that_is_full_ends_no_training(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*given: object) -> None:
        raise snapshots_module.UserError("the disk is full")

    monkeypatch.setattr(snapshots_module, "save_checkpoint", full)
    trainer = make_trainer(snapshots=3)
    assert trainer.train() and kept(trainer) == {}
    assert capsys.readouterr().out.count("the disk is full") == 3


def test_two_processes_keep_one_file_a_step(make_trainer: Make) -> None:
    alone = make_trainer("alone", snapshots=3, shards=2)
    alone.train()
    both = make_trainer("both", snapshots=3, workers=2, shards=2)
    both.train()
    assert kept(alone).keys() == kept(both).keys() and len(kept(both)) == 3
    for step, path in both.folder.snapshots().items():
        theirs = load_checkpoint(alone.folder.snapshot(step), "snapshot")[0]["model"]
        for name, tensor in load_checkpoint(path, "snapshot")[0]["model"].items():
            np.testing.assert_allclose(tensor.numpy(), theirs[name].numpy(), atol=2e-3)


def test_the_setting() -> None:
    assert TrainingConfig().snapshots == 0
    with pytest.raises(SettingError, match="snapshots must be at least -1"):
        TrainingConfig(snapshots=-2)


def test_a_new_run_replaces_the_snapshots_of_the_old_one(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for step, overwrite in ((5, False), (7, True)):
        folder.create({}, overwrite)
        folder.snapshot(step).write_text("weights")
        folder.move_into_place()
    (tmp_path / "run" / "snapshot-x.safetensors").write_text("not ours")
    assert list(folder.snapshots()) == [7]
