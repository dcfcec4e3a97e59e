"""Runs saved at the end by a script with its own loop."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytensor as tt
from tinyformer import GPT, CharTokenizer, GPTConfig, RunFolder, Snapshots, UserError, save_run
from tinyformer.commands.command_line import run_code
from tinyformer.common.makers import contents_of
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.opening import open_run
from tinyformer.training.run_folder import load_weights

ROWS = [{"step": 10, "train_loss": 2.5, "validation_loss": None}, {"step": 20, "train_loss": 2.0, "validation_loss": 2.25}]


@pytest.fixture
def parts() -> tuple[Any, ...]:
    tt.seed(0)
    tokenizer = CharTokenizer.train("abc\n")
    return GPT(GPTConfig(vocab_size=4, block_size=8, num_layers=1, num_heads=2, d_model=8)), tokenizer, ROWS


def test_a_finished_run_opens_as_those_of_trainers_do(parts, tmp_path: Path) -> None:
    model, tokenizer, _ = parts
    path = tmp_path / "runs" / "mine"
    save_run(path, "language model", *parts, model=model.config)
    opened = open_run(RunFolder(path))
    assert opened.tokenizer.decode(tokenizer.encode("cab")) == "cab"
    for name, tensor in model.state_dict().items():
        assert opened.model.state_dict()[name].tolist() == tensor.tolist()
    _, state = load_checkpoint(path / "best.safetensors", "best")
    assert (state["step"], state["validation_loss"]) == (20, 2.25)
    assert (path / "log.csv").read_text(encoding="utf-8") == "step,train_loss,validation_loss\n10,2.5,\n20,2.0,2.25\n"
    found = contents_of(path)
    assert found is not None and found.what == "a run of a language model"


class Halved(GPT):
    """A model that tinyformer does not have."""

    def logits_of(self, x: tt.Tensor) -> tt.Tensor:
        return super().logits_of(x) * 0.5


def test_a_run_of_a_model_of_ones_own_is_opened_as_that(parts, tmp_path: Path) -> None:
    plain, *others = parts
    model = Halved(plain.config)
    snapshots = Snapshots(model, steps=1, count=2)
    snapshots.keep(0)
    save_run(tmp_path / "mine", "language model", model, *others, snapshots, model=model.config)
    folder = RunFolder(tmp_path / "mine")
    for file in (folder.best, *folder.snapshots().values()):
        assert type(open_run(folder, file).model) is Halved
    with pytest.raises(UserError, match=r"best.safetensors holds the weights of a Halved, not of a GPT"):
        load_weights(plain, folder.best)
    load_weights(model, folder.best)


def test_a_run_of_a_model_of_a_file_that_is_not_there(parts, tmp_path: Path) -> None:
    plain, *others = parts
    model = type("Absent", (GPT,), {})(plain.config)
    save_run(tmp_path / "mine", "language model", model, *others, model=model.config)
    del model
    gc.collect()
    with pytest.raises(UserError, match=r"mine holds an Absent, not a model of tinyformer: name its file with --code FILE.py"):
        open_run(RunFolder(tmp_path / "mine"))


def test_code_that_defines_models(tmp_path: Path) -> None:
    path = tmp_path / "json.py"  # the name of another module
    path.write_text("from tinyformer import GPT\nclass Named(GPT): pass\n")
    run_code(str(path))
    assert "Named" in [each.__name__ for each in GPT.__subclasses__()] and json.loads("1") == 1
    (tmp_path / "bad.py").write_text("1 / 0")
    for name, message in (("bad.py", "bad.py: ZeroDivisionError: division by zero"), ("none.py", "none.py: FileNotFoundError")):
        with pytest.raises(UserError, match=message):
            run_code(str(tmp_path / name))


def test_snapshots_are_saved_with_a_run(parts, tmp_path: Path) -> None:
    model = parts[0]
    snapshots = Snapshots(model, steps=3, count=3)
    before: dict[int, Any] = {}
    for step in range(4):
        snapshots.keep(step)
        before[step] = model.norm.weight.numpy().copy()
        model.norm.weight.assign(model.norm.weight + 0.5)
    save_run(tmp_path / "mine", "language model", *parts, snapshots, model=model.config)
    paths = RunFolder(tmp_path / "mine").snapshots()
    assert list(paths) == snapshots.steps == [0, 1, 3]
    opened = open_run(RunFolder(tmp_path / "mine")).model
    for step, path in paths.items():
        assert load_weights(opened, path)["step"] == step
        assert opened.norm.weight.tolist() == before[step].tolist()
    assert load_checkpoint(paths[3], "snapshot")[0]["model"]["norm.weight"].dtype == "float16"


def test_losses_may_be_any_numbers(parts, tmp_path: Path) -> None:
    model, tokenizer, _ = parts
    rows = [
        {"step": np.int64(1), "train_loss": np.float32(2.5), "validation_loss": None},
        {"step": 2, "train_loss": float("nan"), "validation_loss": 2.25, "rate": "fast"},
    ]
    save_run(tmp_path / "mine", "language model", model, tokenizer, rows, model=model.config)
    _, state = load_checkpoint(tmp_path / "mine" / "best.safetensors", "best")
    assert state["rows"] == [
        {"step": 1, "train_loss": 2.5, "validation_loss": None},
        {"step": 2, "train_loss": None, "validation_loss": 2.25},
    ]
    open_run(RunFolder(tmp_path / "mine"))


def test_a_run_that_is_there_stays(parts, tmp_path: Path) -> None:
    save_run(tmp_path / "mine", "language model", *parts, model=parts[0].config)
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    with pytest.raises(UserError, match="holds a run already"):
        save_run(tmp_path / "mine", "language model", *parts, model=parts[0].config)
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before


def test_a_kind_that_is_not_known_is_refused(parts, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no kind of runs 'poet': choose among language model, masked language model,"):
        save_run(tmp_path / "mine", "poet", *parts)
    assert not (tmp_path / "mine").exists()


def test_weights_that_diverged_are_not_saved(parts, tmp_path: Path) -> None:
    model = parts[0]
    model.norm.weight.assign(model.norm.weight * float("nan"))
    with pytest.raises(UserError, match="became NaN or infinite"):
        save_run(tmp_path / "mine", "language model", *parts, model=model.config)
    assert not (tmp_path / "mine" / "config.json").exists()
