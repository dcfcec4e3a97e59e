"""Runs that are stopped, replaced, or resumed with other settings: nothing is lost, and nothing changes unasked."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import contents, entries, result_of

import tinytensor as tt
from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.settings import settings_from
from tinyformer.data.text import TextBatches
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.losses import next_token_loss
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.trainer import Trainer
from tinytensor import Tensor
from tinytensor.io import load_with_metadata

MODEL = {"vocab_size": 11, "block_size": 8, "num_layers": 1, "num_heads": 2, "d_model": 8, "dropout": 0.1}
TRAINING = {"steps": 12, "batch_size": 4, "eval_every": 4, "log_every": 3, "warmup": 2, "learning_rate": 1e-2, "shards": 1}
FILES = ["best.safetensors", "config.json", "latest.safetensors", "log.csv", "tokenizer.json"]


def prepare(folder: RunFolder, overwrite: bool, given: dict[str, Any]) -> Trainer:
    """As an example begins or resumes a run."""
    resume = given.get("resume")
    if resume:
        model, training = folder.resumed("model", GPTConfig, given), folder.resumed("training", TrainingConfig, given)
    else:
        model, training = settings_from(GPTConfig, {**MODEL, **given}), settings_from(TrainingConfig, {**TRAINING, **given})
    tt.seed(training.seed)
    batches = TextBatches(np.arange(300) % 11, 8, training.batch_size, training.seed)
    trainer = Trainer(GPT(model), batches, training, folder)
    if resume:
        trainer.resume()
    else:
        folder.create({"model": model, "training": training}, overwrite)
        folder.tokenizer.write_text("a tokenizer")
    return trainer


def run(
    path: Path,
    at: int = 0,
    happens: Callable[[Trainer], None] = lambda trainer: signal.raise_signal(signal.SIGINT),
    overwrite: bool = False,
    **given: Any,
) -> Trainer:
    """Train; something ``happens`` as the batch of step ``at`` of this process is drawn."""
    with RunFolder(path).held() as folder:
        trainer = prepare(folder, overwrite, given)
        sample = trainer.batches.sample
        drawn = iter(range(1, 1000))

        def sampling() -> Any:
            if next(drawn) == at:
                happens(trainer)
            return sample()

        trainer.batches.sample = sampling  # type: ignore[method-assign]
        trainer.finished = trainer.train()  # type: ignore[attr-defined]
        return trainer


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its fifth step."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    run(path, 5)
    return path


@pytest.fixture(scope="module")
def finished(stopped: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run at its end."""
    path = tmp_path_factory.mktemp("finished") / "run"
    shutil.copytree(stopped, path)
    run(path, resume=True)
    return path


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of another seed, at its end."""
    path = tmp_path_factory.mktemp("another") / "run"
    run(path, seed=7)
    return path


@pytest.fixture
def copied(stopped: Path, tmp_path: Path) -> Path:
    """Return a copy of the run to change."""
    shutil.copytree(stopped, tmp_path / "copied")
    return tmp_path / "copied"


def config_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "config.json").read_text(encoding="utf-8"))["training"]


# ------------------------------------------------------------------------------------------- one run in another's place


def out_of_memory(trainer: Trainer) -> None:
    raise MemoryError


def no_number(trainer: Trainer) -> None:
    trainer._team.member.loss_function = lambda model, batch: next_token_loss(model, batch) * math.nan


def no_gradient(trainer: Trainer) -> None:
    def loss(model: Any, batch: Any) -> Tensor:
        return next_token_loss(model, batch) + tt.sqrt((model.norm.weight * 0.0).sum())

    trainer._team.member.loss_function = loss


def interrupted_twice(trainer: Trainer) -> None:
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))
    for _ in range(2):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("happens", "error"),
    [(out_of_memory, MemoryError), (no_number, UserError), (no_gradient, UserError), (interrupted_twice, KeyboardInterrupt)],
)
def test_a_run_that_fails_in_its_first_step_does_not_replace_another(
    copied: Path, happens: Callable[[Trainer], None], error: type[BaseException]
) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background ignores Ctrl-C
    (copied / "notes.txt").write_text("mine")
    before = contents(copied)
    with pytest.raises(error):
        run(copied, 1, happens, overwrite=True, seed=7)
    assert contents(copied) == before
    assert entries(copied) == sorted(before)
    run(copied, resume=True)  # and goes on


def test_a_run_that_fails_in_its_first_evaluation_does_not_either(copied: Path, tmp_path: Path) -> None:
    before = contents(copied)
    for path in (copied, tmp_path / "new"):
        with RunFolder(path).held() as folder:
            trainer = prepare(folder, True, {"seed": 7})
            trainer.loss_function = lambda model, batch: next_token_loss(model, batch) * math.nan
            with pytest.raises(UserError, match="the validation loss is nan with the weights that training began with"):
                trainer.train()
    assert contents(copied) == before
    assert entries(copied) == sorted(before)
    assert not (tmp_path / "new").exists()


def test_settings_that_are_removed_while_a_run_trains_are_written_again(tmp_path: Path, capsys) -> None:
    with RunFolder(tmp_path / "whole").held() as folder:
        prepare(folder, False, {"seed": 7}).train()
    expected = {name: (tmp_path / "whole" / name).read_bytes() for name in ("config.json", "tokenizer.json")}

    def remove() -> str:
        for name in expected:
            (tmp_path / "run" / name).unlink(missing_ok=True)
        return ""

    with RunFolder(tmp_path / "run").held() as folder:
        trainer = prepare(folder, False, {"seed": 7})
        trainer.on_evaluation = remove
        trainer.train()
    assert {name: (tmp_path / "run" / name).read_bytes() for name in expected} == expected
    printed = capsys.readouterr().out
    for name in expected:
        assert f"{tmp_path / 'run' / name} was missing: it is written again" in printed


def test_a_run_that_fails_before_it_replaces_another_promises_no_checkpoints(copied: Path) -> None:
    with RunFolder(copied).held() as folder:
        trainer = prepare(folder, True, {"seed": 7, "log_every": 1})
        trainer.step = 1  # so that weights were updated, but nothing has taken the place of the other run
        trainer._save_best(1.0)
        folder.latest.write_bytes(folder.best.read_bytes())
        with pytest.raises(UserError, match="the loss became nan at step 2") as caught:
            trainer._check_finite("loss", math.nan, 2, 1)
        assert "The checkpoints" not in str(caught.value)
        folder.move_into_place()
        with pytest.raises(UserError, match="are from before that"):
            trainer._check_finite("loss", math.nan, 2, 1)


def test_a_run_that_is_stopped_before_its_first_step_does_not_either(copied: Path) -> None:
    before = contents(copied)
    with RunFolder(copied).held() as folder:
        trainer = prepare(folder, True, {"seed": 7})
        validation = trainer.batches.validation_batches

        def validation_batches() -> Any:
            signal.raise_signal(signal.SIGTERM)
            return validation()

        trainer.batches.validation_batches = validation_batches
        assert trainer.train() is False
        assert trainer.stop_message("python it.py") == f"Stopped by SIGTERM before its first step: {copied} stays as it was."
    assert contents(copied) == before
    assert entries(copied) == sorted(before)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_run_that_took_a_step_takes_the_others_place(copied: Path, another: Path, steps: int) -> None:
    (copied / "weights-00000004.safetensors").write_text("of the other")
    trainer = run(copied, steps, overwrite=True, seed=7)
    assert entries(copied) == FILES
    assert trainer.stop_message("python it.py") == (
        f"Stopped by Ctrl-C after step {steps} and saved. Resume with: python it.py --resume"
    )
    assert config_of(copied)["seed"] == 7
    run(copied, resume=True)
    assert result_of(copied) == result_of(another)


def test_a_run_that_crashes_after_its_first_step_can_be_resumed(copied: Path, another: Path) -> None:
    with pytest.raises(MemoryError):
        run(copied, 3, out_of_memory, overwrite=True, seed=7)
    assert load_checkpoint(copied / "latest.safetensors", "latest")[1]["step"] == 1
    run(copied, resume=True)
    assert result_of(copied) == result_of(another)


def test_a_run_killed_between_its_last_checkpoint_and_its_log(tmp_path: Path) -> None:
    """Nothing is left to train, but the log is still that of the checkpoint before."""
    run(tmp_path)
    log = (tmp_path / "log.csv").read_text()
    (tmp_path / "log.csv").write_text("".join(log.splitlines(keepends=True)[:-2]))
    run(tmp_path, resume=True)
    assert (tmp_path / "log.csv").read_text() == log


def test_a_run_that_replaces_none_is_saved_before_its_first_step(tmp_path: Path) -> None:
    with pytest.raises(MemoryError):
        run(tmp_path / "run", 1, out_of_memory)
    assert entries(tmp_path / "run") == FILES
    assert run(tmp_path / "run", resume=True).step == 12


# ------------------------------------------------------------------------------------------------- settings that change


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 3e-2},
        {"learning_rate": 0.0},
        {"min_learning_rate": 5e-3},
        {"schedule": "constant"},
        {"warmup": 9},
        {"steps": 15},
        {"steps": 10},
        {"batch_size": 3},
        {"gradient_accumulation_steps": 2},
        {"weight_decay": 0.5},
        {"beta1": 0.5, "beta2": 0.9},
        {"clip": 0.01},
        {"shards": 3},
        {"eval_every": 5, "log_every": 2},
        {"average": 2},
        {"dropout": 0.4},
    ],
    ids=str,
)
def test_a_changed_run_is_resumed_bit_for_bit(stopped: Path, finished: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    for name in ("whole", "parts"):
        shutil.copytree(stopped, tmp_path / name)
    whole = run(tmp_path / "whole", resume="changed", **change)
    assert whole.step == change.get("steps", 12)
    trained = {name: value for name, value in change.items() if name != "dropout"}  # which is the model's
    assert config_of(tmp_path / "whole") == {**TRAINING, **config_of(stopped), **trained}
    # It stops at once, and after a step; each time it goes on by what is saved.
    for at in (None, 1, 0):
        if at is None:
            with RunFolder(tmp_path / "parts").held() as folder:
                trainer = prepare(folder, False, {"resume": "changed", **change})
                assert trainer.step == 5
        else:
            trainer = run(tmp_path / "parts", at, resume=True)
        group = trainer.optimizer.param_groups[0]
        assert group["lr"] == change.get("learning_rate", 1e-2)
        assert group["weight_decay"] == change.get("weight_decay", 0.1)
        assert tuple(group["betas"]) == (change.get("beta1", 0.9), change.get("beta2", 0.99))
        assert trainer.shards == change.get("shards", 1)
    assert result_of(tmp_path / "parts") == result_of(tmp_path / "whole")
    assert entries(tmp_path / "parts") == entries(tmp_path / "whole")
    load_weights(trainer.model, tmp_path / "parts" / "best.safetensors")
    both = finished, tmp_path / "whole"
    assert result_of(both[0]) != result_of(both[1]) or entries(both[0]) != entries(both[1])  # the change was not for nothing


def test_changing_nothing_changes_nothing(finished: Path, copied: Path) -> None:
    run(copied, resume="changed")
    assert result_of(copied) == result_of(finished)
    assert config_of(copied) == config_of(finished)


def test_a_finished_run_takes_more_steps(copied: Path) -> None:
    run(copied, resume=True)
    trainer = run(copied, resume="changed", steps=14)
    assert trainer.finished
    assert [row["step"] for row in trainer.rows if row["step"] >= 12] == [12, 14]


@pytest.mark.parametrize("resume", [True, "changed"])
@pytest.mark.parametrize(
    "change",
    [{"seed": 2}, {"dtype": "bfloat16"}, {"d_model": 16}, {"num_heads": 4}, {"seed": 2, "learning_rate": 0.1}],
    ids=str,
)
def test_what_a_run_cannot_change(copied: Path, change: dict[str, Any], resume: Any) -> None:
    before = contents(copied)
    (name,) = [f"--{name}".replace("_", "-") for name in change if name != "learning_rate"]
    refused = f"--resume keeps the settings of {copied}: leave out"
    start = "a resumed run cannot change" if resume == "changed" else refused
    with pytest.raises(UserError, match=f"^{start} {name}[ ,:]"):
        run(copied, resume=resume, **change)
    assert contents(copied) == before


@pytest.mark.parametrize("steps", [4, 1])
def test_fewer_steps_than_were_taken(copied: Path, steps: int) -> None:
    before = contents(copied)
    with pytest.raises(SettingError) as caught:
        run(copied, resume="changed", steps=steps)
    assert str(caught.value) == f"steps must be at least 5, the number taken already, got {steps}"
    assert contents(copied) == before
    assert run(copied, resume="changed", steps=5).finished


def edit(path: Path, part: str, **changes: Any) -> None:
    settings = json.loads((path / "config.json").read_text(encoding="utf-8"))
    settings[part] = {**settings[part], **changes}
    (path / "config.json").write_text(json.dumps(settings), encoding="utf-8")


def test_manually_edited_settings_are_taken_over_with_resume_changed(stopped: Path, copied: Path, tmp_path: Path) -> None:
    edit(copied, "training", learning_rate=0.03)
    before = contents(copied)
    with pytest.raises(UserError) as caught:
        run(copied, resume=True)
    assert str(caught.value) == (
        f"{copied / 'config.json'} says 0.03 for training.learning_rate, but latest.safetensors was trained with 0.01: "
        "put that back, or keep the change with --resume-changed"
    )
    assert contents(copied) == before
    run(copied, 2, resume="changed")
    run(copied, resume=True)
    shutil.copytree(stopped, tmp_path / "by flag")
    run(tmp_path / "by flag", resume="changed", learning_rate=0.03)
    assert result_of(copied) == result_of(tmp_path / "by flag")


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("training", {"seed": 2}, "says 2 for training.seed, but latest.safetensors was trained with 1337: put that back"),
        ("model", {"num_heads": 4}, "says 4 for model.num_heads, but latest.safetensors was trained with 2: put that back"),
        ("model", {"d_model": 16}, "says 16 for model.d_model, but latest.safetensors was trained with 8: put that back"),
    ],
)
def test_manually_edited_settings_that_no_run_can_change(copied: Path, part: str, change: dict[str, Any], said: str) -> None:
    edit(copied, part, **change)
    before = contents(copied)
    for resume in (True, "changed"):
        with pytest.raises(UserError) as caught:
            run(copied, resume=resume)
        assert str(caught.value) == f"{copied / 'config.json'} {said}"
    assert contents(copied) == before


def test_a_tokenizer_exchanged(copied: Path) -> None:
    (copied / "tokenizer.json").write_text("another tokenizer")
    for resume in (True, "changed"):
        with pytest.raises(UserError, match=r"tokenizer\.json is not the tokenizer that latest\.safetensors was trained with"):
            run(copied, resume=resume)


# --------------------------------------------------------------------------------------------- what stops a run, and how


@pytest.mark.skipif(os.name != "posix", reason="Windows has other signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_in_a_saved_run(tmp_path: Path, stopped: Path, name: str) -> None:
    number = getattr(signal, name)
    before = {one: signal.getsignal(getattr(signal, one)) for one in ("SIGINT", "SIGTERM", "SIGHUP")}
    trainer = run(tmp_path / "run", 5, lambda trainer: signal.raise_signal(number))
    assert not trainer.finished
    said = {"SIGINT": "Ctrl-C"}.get(name, name)
    assert trainer.stop_message("python it.py").startswith(f"Stopped by {said} after step 5 and saved. ")
    assert result_of(tmp_path / "run") == result_of(stopped)
    assert {one: signal.getsignal(getattr(signal, one)) for one in before} == before


@pytest.mark.skipif(os.name != "posix", reason="Windows has other signals")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_that_is_ignored_stays_so(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    before = signal.signal(number, signal.SIG_IGN)  # as nohup does it
    try:
        trainer = run(tmp_path / "run", 5, lambda trainer: signal.raise_signal(number))
        assert trainer.finished
        assert trainer.stopped_by is None
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


class Closed:
    """A stream whose reader leaves after some writes."""

    def __init__(self, stream: Any, writes: int, error: int):
        self.stream = stream
        self.left = writes
        self.error = error

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.error, os.strerror(self.error))
        return int(self.stream.write(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@pytest.mark.parametrize(
    ("stream", "writes", "error"),
    [("stderr", 0, errno.EPIPE), ("stderr", 2, errno.EIO), ("stdout", 0, errno.ENOSPC), ("stdout", 2, errno.EPIPE)],
)
def test_a_run_whose_output_ends_is_saved(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, stream: str, writes: int, error: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, stream, Closed(getattr(sys, stream), writes, error))
        trainer = run(tmp_path / "run")
    assert trainer.stopped_by == f"the end of its output ({os.strerror(error)})"
    assert not trainer.finished
    assert trainer.step < 12
    assert load_checkpoint(tmp_path / "run" / "latest.safetensors", "latest")[1]["step"] == trainer.step
    run(tmp_path / "run", resume=True)
    assert result_of(tmp_path / "run") == result_of(finished)


# --------------------------------------------------------------------------------------------------- checkpoints that lie


def rewrite(path: Path, tensors: dict[str, Any] | None = None, **state: Any) -> None:
    """Write a checkpoint again, with other tensors or another state, and the checksum that belongs to it."""
    found, metadata = load_with_metadata(path)
    state = {**json.loads(metadata["state"]), **state}
    tt.save({**found, **(tensors or {})}, path, {"state": json.dumps(state)})


WEIGHT = "model/blocks.0.attention.output.weight"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.full((8, 8), np.nan, np.float32), f"is damaged: {WEIGHT} has values that are NaN or infinite"),
        (np.full((8, 8), -np.inf, np.float32), f"is damaged: {WEIGHT} has values that are NaN or infinite"),
        (np.ones((8, 8), np.int32), f"is damaged: {WEIGHT[6:]} is of int32, but the model's is of float32"),
        (np.ones((8, 8), bool), f"is damaged: {WEIGHT[6:]} is of bool, but the model's is of float32"),
        (np.ones((8, 8), np.float64), f"is damaged: {WEIGHT[6:]} is of float64, but the model's is of float32"),
    ],
    ids=["nan", "inf", "int32", "bool", "float64"],
)
def test_weights_that_are_none(copied: Path, values: np.ndarray, said: str) -> None:
    for name in ("latest", "best"):
        rewrite(copied / f"{name}.safetensors", {WEIGHT: tt.tensor(values, dtype=values.dtype)})
    before = contents(copied)
    with pytest.raises(UserError) as caught:
        run(copied, resume=True)
    assert str(caught.value) == f"{copied / 'latest.safetensors'} {said}"
    with pytest.raises(UserError) as caught:
        load_weights(GPT(GPTConfig(**MODEL)), copied / "best.safetensors")
    assert str(caught.value) == f"{copied / 'best.safetensors'} {said}"
    assert contents(copied) == before


ROW = {"step": 3, "learning_rate": 0.1, "train_loss": 1.0, "validation_loss": None, "gradient_norm": 1, "seconds": 1.0}


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"step": True}, "step must be an integer, got True"),
        ({"step": 5.0}, "step must be an integer, got 5.0"),
        ({"step": -1}, "best_step is 4, and step -1"),
        ({"step": 10**30, "rows": []}, "steps must be at least 1000000000000000000000000000000, the number taken already"),
        ({"best_loss": "low"}, "best_loss must be a finite number or null, got 'low'"),
        ({"best_step": 6}, "best_step is 6, and step 5"),
        ({"seconds": None}, "seconds must be a finite number, got None"),
        ({"seconds": -1.0}, "its seconds are negative"),
        ({"total_seconds": [1]}, "total_seconds must be a finite number, got [1]"),
        ({"shards": 10_000_000}, "shards is 10000000"),
        ({"shards": 0}, "shards is 0"),
        ({"shards": "2"}, "shards must be an integer, got '2'"),
        ({"rows": {}}, "rows must be a list, got {}"),
        ({"rows": [{**ROW, "step": "3"}]}, "rows[0].step must be an integer, got '3'"),
        ({"rows": [{**ROW, "train_loss": "x"}]}, "rows[0].train_loss must be a finite number or null, got 'x'"),
        ({"rows": [{"step": 3}]}, "rows[0].learning_rate is missing"),
        ({"rows": [{**ROW, "colour": 3}]}, "rows[0].colour is 3, a field that this version does not know"),
        ({"rows": [ROW, ROW]}, "the steps of its rows do not rise from 0 to its own step"),
        ({"rows": [{**ROW, "step": 6}]}, "the steps of its rows do not rise from 0 to its own step"),
        ({"unread": [[5, 1.0]]}, "unread[0] must be a list of 3, got [5, 1.0]"),
        ({"unread": [[6, 1.0, 1.0]]}, "unread has steps that were not taken yet"),
        ({"random": None}, "random must be an object, got None"),
        ({"random": {"bit_generator": "MT19937"}}, "does not fit this run: "),
        ({"batches": {}}, "does not fit this run: "),
        ({"batches": []}, "batches must be an object, got []"),
        ({"settings": []}, "settings must be an object or null, got []"),
        ({"tokenizer": 3}, "tokenizer must be text or null, got 3"),
        ({"more": 3}, "more is 3, a field that this version does not know"),
    ],
    ids=str,
)
def test_states_that_cannot_be(copied: Path, state: dict[str, Any], said: str) -> None:
    rewrite(copied / "latest.safetensors", **state)
    before = contents(copied)
    for resume in (True, "changed"):
        with pytest.raises(UserError) as caught:
            run(copied, resume=resume)
        assert said in str(caught.value)
        assert "latest.safetensors" in str(caught.value) or "steps must be" in str(caught.value)
    assert contents(copied) == before  # a bad row is not saved again


def test_the_file_that_these_tests_change_is_good(copied: Path) -> None:
    rewrite(copied / "latest.safetensors", rows=[ROW], seconds=2)
    trainer = run(copied, resume=True)
    assert trainer.finished
    assert trainer.rows[0] == ROW
