"""Which weights the models have, as the head of the page says it; and which of them are the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from explored import gpt_run

from tinyformer import GPT, CharTokenizer, GPTConfig, RunFolder, TextBatches, Trainer, TrainingConfig
from tinyformer.common.makers import Maker
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.training.checkpoints import load_checkpoint, save_checkpoint

TEXT = "The quick brown fox jumps over the lazy dog.\n" * 20


def checkpoints(*runs: Path) -> dict[str, Any]:
    answer = ask(Subjects(runs), "checkpoints", {})
    assert isinstance(answer, dict)
    return {one.pop("name"): one for one in answer["models"]}


def put(run: Path, name: str, **state: Any) -> None:
    """Rewrite a checkpoint of a run with this state."""
    path = run / f"{name}.safetensors"
    save_checkpoint(path, load_checkpoint(path, name)[0], {"kind": name, **state})


def test_the_step_and_the_loss_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    run = gpt_run(tmp_path / "gpt")
    put(run, "best", step=20, validation_loss=1.5)
    rows = [{"step": 20, "validation_loss": 1.5}, {"step": 30, "validation_loss": 1.75}, {"step": 37, "validation_loss": None}]
    put(run, "latest", step=37, rows=rows)
    os.utime(run / "best.safetensors", (1000, 1234.5))
    found = checkpoints(run)
    told = {name: (one["step"], one["validation_loss"], one["measured"], one["same"]) for name, one in found.items()}
    assert told == {"best": (20, 1.5, 20, []), "latest": (37, 1.75, 30, [])}
    assert found["best"]["written"] == 1234.5


def test_what_is_not_known_or_no_number_is_null(tmp_path: Path) -> None:
    run = gpt_run(tmp_path / "gpt")
    for state in ({"step": "x", "validation_loss": "y"}, {"step": -1, "validation_loss": True}, {"rows": 3, "step": 10**30}):
        put(run, "best", **state)
        found = checkpoints(run)["best"]
        assert (found["step"], found["validation_loss"], found["measured"]) == (None, None, None)


def test_a_stamp_changes_with_the_files_of_its_model_alone(tmp_path: Path) -> None:
    run = gpt_run(tmp_path / "gpt")
    before = checkpoints(run)
    put(run, "latest", step=1)
    after = checkpoints(run)
    assert [before[name]["stamp"] == after[name]["stamp"] for name in ("best", "latest")] == [True, False]


def test_a_file_that_is_gone_is_reported_of_its_model_alone(tmp_path: Path) -> None:
    run = gpt_run(tmp_path / "gpt")
    subjects = Subjects([run])
    (run / "latest.safetensors").unlink()
    best, latest = ask(subjects, "checkpoints", {})["models"]  # type: ignore[index]
    assert "error" not in best and "latest.safetensors cannot be read" in latest["error"]


@pytest.mark.parametrize("average", [1, 3])
def test_weights_are_the_same_where_their_numbers_are(tmp_path: Path, average: int) -> None:
    """In a real run, also one whose best weights may be a mean."""
    folder = RunFolder(tmp_path / "run")
    tokenizer = CharTokenizer.train(TEXT)
    config = GPTConfig(tokenizer.vocab_size, block_size=16, num_layers=1, num_heads=1, d_model=16)
    training = TrainingConfig(steps=12, eval_every=4, batch_size=4, learning_rate=0.01, average=average)
    with folder.held():
        folder.create({"made_by": Maker.of_kind("language model"), "model": config, "text": {"architecture": "gpt"}})
        tokenizer.save(folder.tokenizer)
        model, batches = GPT(config), TextBatches(tokenizer.encode(TEXT), 16, 4)
        Trainer(model, batches, training, folder).train()
    best, latest = (load_checkpoint(path, path.stem)[0]["model"] for path in (folder.best, folder.latest))
    are_same = all((best[name].numpy() == latest[name].numpy()).all() for name in best)
    found = checkpoints(folder.path)
    assert found["best"]["same"] == (["latest"] if are_same else []) and (found["latest"]["same"] == ["best"]) == are_same
    if are_same:  # as in any run whose last evaluation was the best one
        other = tmp_path / "copy"
        other.mkdir()
        for file in folder.path.glob("*.*"):
            (other / file.name).write_bytes(file.read_bytes())
        assert len(checkpoints(folder.path, other)[f"{other}: best"]["same"]) == 3


def test_other_runs_beside_these_are_named_the_newest_first(tmp_path: Path) -> None:
    runs = [gpt_run(tmp_path / name, latest=False) for name in ("one", "two", "three")]
    for run, written in zip(runs, (100, 300, 200)):
        os.utime(run / "best.safetensors", (written, written))
    (tmp_path / "none").mkdir()
    answer = ask(Subjects([runs[0]]), "about", {})
    assert answer["beside"] == [str(runs[1]), str(runs[2])]  # type: ignore[index]
