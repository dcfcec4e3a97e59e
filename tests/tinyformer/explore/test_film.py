"""Snapshots in the explorer: each is a model of its run, and all share the axes of the map of embeddings."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import film_run, gpt_run

import tinytensor as tt
from tinyformer import GPT, CharTokenizer, GPTConfig, Snapshots, UserError, save_run
from tinyformer.explore.views import checkpoints as film_module, subjects as subjects_module
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.run_folder import RunFolder
from tinyformer.word_vectors.components import principal_components

STEPS = [0, 3, 12]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return film_run(tmp_path / "film", STEPS)


def film(*runs: Path, model: str = "best") -> dict[str, Any]:
    answer = ask(Subjects(runs), "film", {"model": model})
    assert isinstance(answer, dict)
    return answer


def test_the_film_has_the_steps_and_the_losses(run: Path) -> None:
    found = film(run)
    assert [(one["step"], one["name"]) for one in found["snapshots"]] == [(0, "step 0"), (3, "step 3"), (12, "step 12")]
    assert len({one["stamp"] for one in found["snapshots"]}) == 3
    assert found["losses"] == [[0, None, 4.0, None], [10, 3.0, None, 1], [12, 2.5, 2.75, 11]] and found["training"] is False
    (run / ".lock").write_text("process 1")
    assert film(run)["training"] is True


def test_a_run_that_a_script_saved_has_its_losses(tmp_path: Path) -> None:
    tt.seed(0)
    tokenizer = CharTokenizer.train("abc\n")
    model = GPT(GPTConfig(vocab_size=4, block_size=8, num_layers=1, num_heads=2, d_model=8))
    snapshots = Snapshots(model, steps=2)
    for step in range(3):
        snapshots.keep(step)
    rows = [{"step": 1, "train_loss": 2.5, "validation_loss": None}, {"step": 4, "train_loss": 2.0, "validation_loss": 2.25}]
    save_run(tmp_path / "mine", "language model", model, tokenizer, rows, snapshots, model=model.config)
    found = film(tmp_path / "mine")
    assert [one["step"] for one in found["snapshots"]] == [0, 1, 2]
    assert found["losses"] == [[1, 2.5, None, 1], [4, 2.0, 2.25, 4]]  # a script's losses are of single steps


def test_runs_without_snapshots_have_no_film(tmp_path: Path) -> None:
    assert film(gpt_run(tmp_path / "gpt")) == {"snapshots": [], "losses": [], "training": False}


def test_of_several_runs_each_has_its_own(run: Path, tmp_path: Path) -> None:
    other = gpt_run(tmp_path / "other")
    assert [one["name"] for one in film(run, other, model=f"{run}: best")["snapshots"]] == [f"{run}: step {at}" for at in STEPS]
    assert film(run, other, model=f"{other}: best")["snapshots"] == []
    with pytest.raises(UserError, match="there is no model 'step 3'"):
        Subjects([run, other]).get("step 3")


@pytest.mark.parametrize("step", STEPS)
def test_a_snapshot_is_asked_like_any_model(run: Path, step: int) -> None:
    subjects = Subjects([run])
    subject = subjects.get(f"step {step}")
    written = load_checkpoint(RunFolder(run).snapshot(step), "snapshot")[0]["model"]
    for name, tensor in subject.model.state_dict().items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor.numpy(), written[name].numpy().astype(np.float32))
    ids = subject.encode("the fox")
    found: Any = ask(subjects, "next_token", {"passage": {"model": f"step {step}", "ids": ids}})
    with tt.no_grad():
        logits = subject.model(tt.tensor([ids])).numpy()[0, -1].astype(float)
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    assert [one["probability"] for one in found["best"]] == pytest.approx(
        np.sort(expected)[::-1][: len(found["best"])], rel=1e-4
    )
    assert found["best"][0]["id"] == int(expected.argmax())


@pytest.mark.parametrize(
    "name", ["step", "step -1", "step 03", "step 5", "step 3 ", "Step 3", "step ٣", "xstep 3", "step 9" * 9]
)
def test_other_names_are_no_snapshots(run: Path, name: str) -> None:
    with pytest.raises(UserError):
        Subjects([run]).get(name)


def test_damaged_and_missing_snapshots_print_one_line(run: Path) -> None:
    folder = RunFolder(run)
    folder.snapshot(3).write_bytes(folder.snapshot(3).read_bytes()[:100])
    folder.snapshot(12).unlink()
    subjects = Subjects([run])
    found = ask(subjects, "film", {"model": "best"})["snapshots"]  # type: ignore[index]
    assert [one["step"] for one in found] == [0, 3] and "error" not in found[0]
    assert str(folder.snapshot(3)) in found[1]["error"] and "\n" not in found[1]["error"]
    for step in (3, 12):
        with pytest.raises(UserError, match=f"snapshot-{step:08d}"):
            subjects.get(f"step {step}")


def test_a_snapshot_that_is_written_again_is_read_again(run: Path) -> None:
    subjects = Subjects([run])
    before = subjects.get("step 3")
    assert subjects.get("step 3") is before
    RunFolder(run).snapshot(3).write_bytes(RunFolder(run).snapshot(12).read_bytes())
    assert subjects.get("step 3") is not before


def test_opened_snapshots_keep_to_their_bytes(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = Subjects([run])
    size = 4 * sum(tensor.size for tensor in subjects.get("best").model.state_dict().values())
    monkeypatch.setattr(subjects_module, "MOST_OPENED", 2 * size)
    opened = [subjects.get(f"step {step}") for step in STEPS]
    assert subjects.get("step 12") is opened[2] and subjects.get("step 3") is opened[1]
    assert subjects.get("step 0") is not opened[0]  # the oldest had to go
    assert subjects.get("step 12") is not opened[2]  # and then the one that was asked for before the others
    monkeypatch.setattr(subjects_module, "MOST_OPENED", 1)
    assert subjects.get("step 0") is subjects.get("step 0")


def test_the_axes_of_the_map_are_those_of_the_last_snapshot(run: Path) -> None:
    subjects = Subjects([run])
    last = subjects.get("step 12").model.token_embedding.weight.numpy()
    for name in ("step 0", "step 3", "step 12", "best"):
        rows = subjects.get(name).model.token_embedding.weight.numpy().astype(float)
        found = ask(subjects, "embeddings", {"model": name})
        assert isinstance(found, dict)
        points = np.frombuffer(base64.b64decode(found["coordinates"]), "<f4").reshape(-1, 2)
        centred = last.astype(float) - last.astype(float).mean(axis=0)
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2].T
        axes *= np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
        np.testing.assert_allclose(points, (rows - last.mean(axis=0)) @ axes, atol=1e-4)
        shares = ((rows - rows.mean(axis=0)) @ axes).var(axis=0) / (rows - rows.mean(axis=0)).var(axis=0).sum()
        assert found["explained"] == pytest.approx(shares.tolist(), rel=1e-3) and found["step"] == 12
        ends = principal_components(last, 2)[0]
        left, right, bottom, top = found["extent"]
        assert [left, bottom, right, top] == pytest.approx([*ends.min(axis=0), *ends.max(axis=0)], abs=1e-4)


def test_a_damaged_last_snapshot_gives_no_axes(run: Path) -> None:
    RunFolder(run).snapshot(12).write_bytes(b"x")
    found = ask(Subjects([run]), "embeddings", {"model": "best"})
    assert isinstance(found, dict) and found["step"] == 3


def test_long_logs_are_sent_in_parts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = film(run)["losses"]
    monkeypatch.setattr(film_module, "MOST_ROWS", 1)
    assert film(run)["losses"] == [row for row in whole if row[2] is not None]  # what was validated, and the last one, stays
