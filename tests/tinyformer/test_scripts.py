"""A user's script: new runs, resumed runs, and errors."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tinytensor as tt
from tinyformer import (
    GPT,
    CharTokenizer,
    Commands,
    GPTConfig,
    RunFolder,
    RunSetup,
    TextBatches,
    Trainer,
    TrainingConfig,
    UserError,
    add_run_settings,
    add_text_flag,
    draw_losses,
    train_to_end,
)

DEFAULTS = {"steps": 4, "eval_every": 2, "batch_size": 2, "num_layers": 1, "num_heads": 2, "d_model": 8, "block_size": 4}
KINDS = {"model": GPTConfig, "training": TrainingConfig}


def train(arguments: Namespace) -> Trainer:
    """The whole script."""
    with RunFolder(arguments.out).held() as folder:
        setup = RunSetup(folder, arguments, KINDS)
        config = setup.settings(TrainingConfig, DEFAULTS)
        text, source = setup.text(arguments.data)
        assert source.name.endswith(".txt")
        setup.check_data("the words", text.split())
        tokenizer = setup.tokenizer(lambda: CharTokenizer.train(text))
        model_config = setup.settings(GPTConfig, DEFAULTS, vocab_size=tokenizer.vocab_size)
        tt.seed(config.seed)
        batches = TextBatches(tokenizer.encode(text), model_config.block_size, config.batch_size, config.seed)
        trainer = Trainer(GPT(model_config), batches, config, folder)
        setup.begin(trainer, tokenizer)
        train_to_end(trainer, "python my_script.py")
        draw_losses(trainer, "Mine", model_config.dropout)
        return trainer


def parse(*words: str) -> Namespace:
    commands = Commands("my_script.py", "Train.", "runs/my_script")
    training = commands.add(train, help="train", description="Train.")
    add_text_flag(training)
    add_run_settings(training, "runs/my_script", model=GPTConfig, training=TrainingConfig)
    return commands.parse(words)


@pytest.fixture(autouse=True)
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text in the folder that the script runs in."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over a lazy dog\n" * 20, encoding="utf-8")
    return path


NEW = ["--data", "text.txt", "--out", "run"]


def settings_of(run: str) -> dict[str, Any]:
    return json.loads((Path(run) / "config.json").read_text(encoding="utf-8"))


def test_a_new_run_has_the_scripts_defaults_and_the_flags_over_them(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = train(parse(*NEW, "--d-model", "12", "--learning-rate", "0.01"))
    settings = settings_of("run")
    assert list(settings) == ["model", "training", "data", "started_in", "sha256"]
    assert (settings["model"]["d_model"], settings["model"]["block_size"], settings["model"]["vocab_size"]) == (12, 4, 28)
    assert (settings["training"]["learning_rate"], settings["training"]["steps"]) == (0.01, 4)
    assert settings["training"]["beta1"] == TrainingConfig().beta1
    assert trainer.step == 4
    assert Path("run/tokenizer.json").exists()
    assert capsys.readouterr().out.endswith(f"Drew {Path('run/loss.png')}\n")
    assert Path("run/loss.png").exists()


def test_a_resumed_run_has_its_own_settings_text_and_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    whole = train(parse(*NEW, "--d-model", "12", "--steps", "6"))
    train(parse("--data", "text.txt", "--out", "parts", "--d-model", "12"))
    parts = train(parse("--out", "parts", "--resume-changed", "--steps", "6"))
    assert settings_of("parts")["model"] == settings_of("run")["model"]
    assert parts.step == whole.step == 6
    assert parts.model.config.d_model == 12
    capsys.readouterr()
    again = train(parse("--out", "run", "--resume"))
    assert "validation loss" not in capsys.readouterr().out  # it is at its end already
    assert [row["validation_loss"] for row in again.rows] == [row["validation_loss"] for row in whole.rows]
    for name, tensor in whole.model.state_dict().items():
        assert (tensor == again.model.state_dict()[name]).all()


def test_a_resumed_run_refuses_other_settings_and_data(text: Path) -> None:
    train(parse(*NEW))
    with pytest.raises(UserError, match=r"leave out --d-model, or start a new run$"):
        train(parse("--out", "run", "--resume", "--d-model", "12"))
    text.rename("moved.txt")
    train(parse("--out", "run", "--resume", "--data", "moved.txt"))
    Path("moved.txt").write_text("another text\n" * 20, encoding="utf-8")
    with pytest.raises(UserError, match="the text is not the one that run was trained on"):
        train(parse("--out", "run", "--resume", "--data", "moved.txt"))


def test_data_of_another_kind_are_compared_too() -> None:
    train(parse(*NEW))
    setup = RunSetup(RunFolder("run"), parse("--out", "run", "--resume"), KINDS)
    setup.check_data("the words", Path("text.txt").read_text(encoding="utf-8").split())
    with pytest.raises(UserError, match="the words are not the ones run was trained on: start a new run"):
        setup.check_data("the words", ["others"])


def test_a_tokenizer_that_does_not_fit_the_model() -> None:
    train(parse(*NEW))
    CharTokenizer("abc").save("run/tokenizer.json")
    setup = RunSetup(RunFolder("run"), parse("--out", "run", "--resume"), KINDS)
    tokenizer = setup.tokenizer(lambda: pytest.fail("a resumed run trains no tokenizer"))
    with pytest.raises(UserError, match=r"tokenizer\.json has 3 tokens, but the model has 28$"):
        setup.settings(GPTConfig, vocab_size=tokenizer.vocab_size)


def test_an_existing_run_is_neither_resumed_nor_replaced_by_default() -> None:
    train(parse(*NEW))
    with pytest.raises(UserError, match="run holds a run already"):
        train(parse(*NEW))
    assert train(parse(*NEW, "--overwrite", "--steps", "2")).step == 2


@dataclass(frozen=True)
class Paths:
    data: str | None = None
    more: str | None = None


def test_the_paths_of_a_run() -> None:
    folder = RunFolder("run")
    setup = RunSetup(folder, parse("--data", "text.txt", "--out", "run"), {})
    assert setup.files(Paths) == Paths("text.txt")
    folder.create({"files": Paths("text.txt")})
    folder.move_into_place()
    for words, paths in (([], Paths("text.txt")), (["--data", "moved.txt"], Paths("moved.txt"))):
        assert RunSetup(RunFolder("run"), parse(*words, "--out", "run", "--resume"), {}).files(Paths) == paths


@pytest.mark.parametrize(("by", "status"), [("Ctrl-C", 130), ("SIGTERM", 143), ("SIGHUP", 129), ("the end of its output", 1)])
def test_a_stopped_run_says_how_to_resume(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, by: str, status: int
) -> None:
    take_step = Trainer.train_step

    def stop_after_a_step(trainer: Trainer) -> Any:
        trainer._stop(by)
        return take_step(trainer)

    monkeypatch.setattr(Trainer, "train_step", stop_after_a_step)
    with pytest.raises(SystemExit) as ended:
        train(parse(*NEW))
    assert ended.value.code == status
    said = capsys.readouterr().out
    assert said.endswith(f"Stopped by {by} after step 1 and saved. Resume with: python my_script.py --resume\n")
    assert not Path("run/loss.png").exists()
