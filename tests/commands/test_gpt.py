"""`tinyformer train gpt` as its users run it from a command line, with and without mistakes."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from running import ROOT, Program, contents, entries, log_of, result_of, validation_losses

from tinyformer.commands import gpt
from tinyformer.common.makers import tinyformer_command
from tinyformer.data.text import TextBatches
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.models.blocks import NORMS
from tinyformer.models.gpt import GPT, GPTConfig
from tinyformer.models.recurrent import RecurrentConfig
from tinyformer.tokenizers import CharTokenizer
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.evaluation import evaluate
from tinyformer.training.run_folder import RunFolder, load_weights
from tinyformer.training.snapshots import snapshot_steps

COMMAND = "train gpt"
TINY = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--block-size", "8", "--batch-size", "4"]
SHORT = ["--steps", "20", "--eval-every", "10", "--log-every", "5"]
RECURRENT = ["--num-layers", "2", "--d-model", "16", "--block-size", "8", "--context", "5", "--batch-size", "4"]
FILES = ["best.safetensors", "config.json", "latest.safetensors", "log.csv", "loss.png", "sample.txt", "tokenizer.json"]
LEARNING = ["--learning-rate", "1e-2", "--warmup", "5"]
FIRST_RUN = ["--data", "text.txt", "--out", "run", *TINY, *SHORT]


def files(steps: int) -> list[str]:
    """Return the files of a run of this many steps: at most eight snapshots, one per step, and the usual files."""
    return sorted([*FILES, *(f"snapshot-{step:08d}.safetensors" for step in snapshot_steps(steps, 8))])


def some_text(lines: int = 60, seed: int = 0) -> str:
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "then", "it", "sleeps"]
    rng = random.Random(seed)
    return "\n".join(" ".join(rng.choice(words) for _ in range(8)) for _ in range(lines))


def write_data(folder: Path) -> None:
    (folder / "text.txt").write_text(some_text(), encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------- training


def test_a_run_ends_with_a_loss_a_perplexity_and_a_sample(first_run: tuple[Path, str]) -> None:
    folder, printed = first_run
    run = folder / "run"
    assert entries(folder) == ["run", "text.txt"]
    assert entries(run) == files(20)
    assert "text.txt: 2," in printed
    assert "Best validation loss" in printed
    assert ", perplexity " in printed
    assert "sample --out run" in printed
    sample = (run / "sample.txt").read_text(encoding="utf-8")
    assert len(sample) == 501
    assert set(sample) <= set(some_text())
    assert sample in printed
    assert [row["step"] for row in log_of(run)] == ["0", "5", "10", "15", "20"]
    settings = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert settings["training"]["steps"] == 20
    assert settings["model"]["d_model"] == 16
    assert settings["model"]["vocab_size"] == len(set(some_text()))


def test_the_same_command_finds_the_same(finished: Program, copied: Program) -> None:
    copied.good("--data", "text.txt", "--out", "again", *TINY, *SHORT)
    assert result_of(copied.folder / "again") == result_of(finished.folder / "run")


def test_a_folder_of_texts(program: Program) -> None:
    (program.folder / "texts").mkdir()
    texts = [some_text(40, seed=n) for n in range(2)]
    for n, text in enumerate(texts):
        (program.folder / "texts" / f"{n}.txt").write_text(text, encoding="utf-8")
    characters = len("\n".join(texts))
    assert f"texts: {characters:,} characters" in program.good("--data", "texts", "--out", "run", *TINY, *SHORT)


def test_byte_pairs_and_the_other_choices_of_a_model(program: Program) -> None:
    # What is chosen in training is what resuming and sampling go by.
    model = ["--positions", "rotary", "--norm", "rms", "--activation", "swiglu"]
    words = ["--data", "text.txt", "--out", "run", *TINY, *SHORT, *model, "--tokenizer", "bpe", "--bpe-tokens", "300"]
    printed = program.good(*words)
    assert "300 distinct tokens" in printed
    settings = json.loads((program.folder / "run/config.json").read_text(encoding="utf-8"))
    chosen = {
        "architecture": "gpt",
        "recipe": "",
        "tokenizer": "bpe",
        "bpe_tokens": 300,
        "init_from": "",
        "test_fraction": 0.05,
    }
    assert settings["text"] == chosen
    chosen = {name: settings["model"][name] for name in ("vocab_size", "positions", "norm", "activation")}
    assert chosen == {"vocab_size": 300, "positions": "rotary", "norm": "rms", "activation": "swiglu"}
    before = result_of(program.folder / "run")
    program.good("--out", "run", "--resume")
    assert result_of(program.folder / "run") == before
    # A prompt may have characters that the text has not: they are bytes, too.
    words = ["sample", "--out", "run", "--prompt", "the Dög", "--length", "30"]
    sample = program.good(*words)
    assert sample.startswith("the Dög")
    assert program.good(*words) == sample
    assert program.good(*words, "--top-p", "0.1") != sample


def test_recipes(program: Program) -> None:
    # The default is the modern one; flags come before either. What a run was trained with stands in its settings.
    for recipe in ("modern", "nanogpt"):
        program.good("--data", "text.txt", "--out", recipe, *TINY, *SHORT, "--recipe", recipe, "--warmup", "3")
    program.good("--data", "text.txt", "--out", "default", *TINY, *SHORT, "--warmup", "3")
    modern, nanogpt, default = (
        json.loads((program.folder / name / "config.json").read_text(encoding="utf-8"))
        for name in ("modern", "nanogpt", "default")
    )
    assert default == {**modern, "text": {**modern["text"], "recipe": ""}}
    assert result_of(program.folder / "default")["tensors"] == result_of(program.folder / "modern")["tensors"]
    chosen = [
        (run["training"]["optimizer"], run["training"]["warmup"], run["model"]["num_layers"]) for run in (modern, nanogpt)
    ]
    assert chosen == [("muon", 3, 1), ("adamw", 3, 1)]
    assert [(run["model"]["positions"], run["model"]["d_ff"]) for run in (modern, nanogpt)] == [("rotary", 48), ("learned", 64)]
    assert [run["text"]["test_fraction"] for run in (modern, nanogpt)] == [0.05, 0.0]
    # A resumed run has its settings, whatever the recipes are now; only another recipe is refused.
    program.good("--out", "nanogpt", "--resume")
    assert "leave out --recipe" in program.bad("--out", "nanogpt", "--resume", "--recipe", "modern")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--recipe", "nano"], "--recipe must be one of modern, nanogpt, got 'nano'"),
        (["--recipe", "modern", "--architecture", "gru"], "--recipe is for a GPT, not for the architecture gru: leave it out"),
        (
            ["--recipe", "nanogpt", "--init-from", "gpt2"],
            "--init-from decides what the model and its tokens are: leave out --recipe",
        ),
        (["--test-fraction", "0.9"], "--test-fraction must be at least 0 and below 0.9 (1 - validation_fraction), got 0.9"),
        (["--test-fraction", "-0.1"], "--test-fraction must be at least 0 and below 0.9 (1 - validation_fraction), got -0.1"),
        (["--test-fraction", "0.001"], "use at least 9,001, or a smaller --block-size or --test-fraction"),
    ],
)
def test_recipes_and_fractions_that_cannot_be(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad("--data", "text.txt", "--out", "run", *TINY, *SHORT, *words)


def test_the_test_split_is_scored_at_the_end(program: Program) -> None:
    words = ["--data", "text.txt", *TINY, *SHORT]
    printed = program.good(*words, "--out", "run", "--test-fraction", "0.2")
    (size,) = (int(number.replace(",", "")) for number in re.findall(r"the first ([\d,]+) test", printed))
    (loss,) = re.findall(r"Test split: loss ([\d.]+)", printed)
    text = (program.folder / "text.txt").read_text(encoding="utf-8")
    tokenizer = CharTokenizer.train(text)
    held_out = tokenizer.encode(text)[:size]
    assert size == int(0.2 * len(text))
    config = RunFolder(program.folder / "run").read_part("model", GPTConfig)
    model = GPT(config)
    load_weights(model, program.folder / "run" / "best.safetensors")
    # All of it validates here, in the same windows of the block size, whose first one begins with the split.
    own = TextBatches(np.concatenate([held_out, held_out]), config.block_size, 1, validation_fraction=0.5)
    assert evaluate(model, own) == pytest.approx(float(loss), abs=6e-5)
    assert "test split" not in program.good(*words, "--out", "without", "--test-fraction", "0")


def test_a_text_of_one_line_in_any_script(program: Program) -> None:
    # There is no new line to begin a sample with, and the console cannot show every character.
    (program.folder / "text.txt").write_text("ein schönes Märchen ☃😀 " * 100, encoding="utf-8")
    program.good("--data", "text.txt", "--out", "run", *TINY, "--steps", "2", "--eval-every", "1", PYTHONIOENCODING="ascii")
    assert set((program.folder / "run/sample.txt").read_text(encoding="utf-8").strip()) & set("ö☃😀")
    assert len(program.good("sample", "--out", "run", "--length", "20")) == 22


def test_without_network_it_trains_on_pythons_own_sources(program: Program) -> None:
    # The default folder, too; only the size of the model is not the default, to be quick.
    words = [*TINY, "--block-size", "64", "--steps", "2"]
    printed = program.good(*words)
    lines = [line for line in printed.splitlines() if line.startswith("Tiny Shakespeare could not be downloaded")]
    assert len(lines) == 1
    assert "Python's standard library: 1,100,000 characters" in printed
    assert "Best validation loss" in printed
    assert entries(program.folder / "runs" / "char_gpt") == files(2)
    assert "sample --out runs/char_gpt\n" in printed
    # A run on these sources is resumed on them, whether or not there is a network now.
    resumed = program.good("--resume")
    assert "could not be downloaded" not in resumed
    assert "Best validation loss" in resumed


# ------------------------------------------------------------------------------------------- folders that are in use


def test_a_run_is_replaced_only_with_overwrite(copied: Program) -> None:
    before = contents(copied.folder / "run")
    message = copied.bad("--data", "text.txt", "--out", "run", *TINY, *SHORT)
    assert "run holds a run already: --resume continues it, --overwrite replaces it" in message
    assert contents(copied.folder / "run") == before
    copied.good("--data", "text.txt", "--out", "run", *TINY, *SHORT, "--seed", "5", "--overwrite")
    assert entries(copied.folder / "run") == files(20)
    after = contents(copied.folder / "run")
    assert after["latest.safetensors"] != before["latest.safetensors"]
    assert json.loads(after["config.json"])["training"]["seed"] == 5


@pytest.mark.parametrize(
    "mistake", [["--num-heads", "5"], ["--data", "nothing.txt"], ["--block-size", "9999"], ["--clip", "-1"]]
)
def test_a_mistake_does_not_cost_the_old_run(copied: Program, mistake: list[str]) -> None:
    before = contents(copied.folder / "run")
    copied.bad("--data", "text.txt", "--out", "run", *TINY, *SHORT, "--overwrite", *mistake)
    assert contents(copied.folder / "run") == before


def test_a_file_in_the_folders_place(program: Program) -> None:
    assert "text.txt is a file" in program.bad("--data", "text.txt", "--out", "text.txt", *TINY, *SHORT)
    assert "Not a directory" in program.bad("--data", "text.txt", "--out", "text.txt/run", *TINY, *SHORT)
    assert (program.folder / "text.txt").read_text(encoding="utf-8") == some_text()


# ---------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to another process")
def test_interrupted_and_resumed_is_the_uninterrupted_run(program: Program) -> None:
    words = ["--data", "text.txt", *TINY, "--steps", "60", "--eval-every", "20", "--dropout", "0.1"]
    program.good(*words, "--out", "whole", *LEARNING)
    losses = validation_losses(program.folder / "whole")
    assert losses[-1] < losses[0] - 0.5
    printed = program.interrupted("step    20:", *words, "--out", "two parts", *LEARNING)
    parts = program.folder / "two parts"
    step = load_checkpoint(parts / "latest.safetensors", "latest")[1]["step"]
    assert 20 <= step <= 21
    # The command that it says is one that a shell takes as it stands.
    again = tinyformer_command("train", "gpt", "--out", "two parts", "--resume") + "\n"
    assert printed.endswith(f"Stopped by Ctrl-C after step {step} and saved. Resume with: {again}")
    assert "sample.txt" not in entries(parts)

    assert "Best validation loss" in program.good("--out", "two parts", "--resume")
    assert entries(parts) == files(60)
    assert result_of(parts) == result_of(program.folder / "whole")


def test_a_finished_run_resumed_ends_as_before(copied: Program) -> None:
    before = result_of(copied.folder / "run")
    assert "Best validation loss" in copied.good("--out", "run", "--resume")
    assert result_of(copied.folder / "run") == before


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--steps", "30"], "--steps, or start a new run, or pass --resume-changed"),
        (["--steps", "2000"], "--steps, or start a new run, or pass --resume-changed"),  # the default, but not this run's
        (["--d-model", "32", "--dropout", "0.5"], "--d-model, or start a new run"),
        (["--seed", "3", "--steps", "30"], "--seed, or start a new run"),
        (["--positions", "learned", "--norm", "layer"], "--positions, --norm, or start a new run"),
        (["--tokenizer", "bpe"], "--tokenizer, or start a new run"),
    ],
)
def test_resuming_with_other_settings(finished: Program, words: list[str], flags: str) -> None:
    before = contents(finished.folder / "run")
    message = finished.bad("--out", "run", "--resume", *words)
    assert message == f"--resume keeps the settings of run: leave out {flags}\n"
    assert contents(finished.folder / "run") == before


def test_resuming_with_changed_settings(copied: Program) -> None:
    resume = ["--out", "run", "--resume-changed"]
    for words, said in (
        (["--seed", "3", "--steps", "30"], "a resumed run cannot change --seed: leave that out, or start a new run"),
        (["--dtype", "bfloat16"], "a resumed run cannot change --dtype: leave that out, or start a new run"),
        (["--d-model", "32"], "a resumed run cannot change --d-model: leave that out, or start a new run"),
        (["--steps", "19"], "--steps must be at least 20, the number taken already, got 19"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
    ):
        before = contents(copied.folder / "run")
        assert copied.bad(*resume, *words) == f"{said}\n"
        assert contents(copied.folder / "run") == before
    changes = {"steps": 24, "batch_size": 3, "learning_rate": 0.05, "weight_decay": 0.2, "shards": 2}
    flags = [word for name, value in changes.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    assert "Best validation loss" in copied.good(*resume, *flags)
    settings = json.loads((copied.folder / "run/config.json").read_text(encoding="utf-8"))["training"]
    assert {name: settings[name] for name in changes} == changes
    assert [row["step"] for row in log_of(copied.folder / "run")] == ["0", "5", "10", "15", "20", "24"]
    after = result_of(copied.folder / "run")
    copied.good("--out", "run", "--resume")  # which has nothing left to do
    assert result_of(copied.folder / "run") == after
    assert copied.good("sample", "--out", "run", "--length", "5")


def test_manually_edited_settings(copied: Program) -> None:
    path = copied.folder / "run/config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["training"]["steps"] = 25
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert copied.bad("--out", "run", "--resume").replace("\\", "/") == (
        "run/config.json says 25 for training.steps, but latest.safetensors was trained with 20: put that back, or keep the "
        "change with --resume-changed\n"
    )
    copied.good("--out", "run", "--resume-changed")
    assert log_of(copied.folder / "run")[-1]["step"] == "25"
    copied.good("--out", "run", "--resume")


def test_resuming_with_the_same_settings_again(copied: Program) -> None:
    copied.good("--data", "text.txt", "--out", "run", *TINY, *SHORT, "--resume")


def test_resuming_with_another_text(copied: Program) -> None:
    text = copied.folder / "text.txt"
    text.rename(copied.folder / "moved.txt")
    assert "text.txt does not exist: pass --data" in copied.bad("--out", "run", "--resume")
    copied.good("--out", "run", "--resume", "--data", "moved.txt")  # the same text, wherever it is now
    text.write_text(some_text() + "!", encoding="utf-8")
    message = copied.bad("--out", "run", "--resume")
    assert "the text is not the one that run was trained on (text.txt)" in message


def test_resuming_no_run(program: Program) -> None:
    assert "nothing/config.json does not exist" in program.bad("--out", "nothing", "--resume")
    assert entries(program.folder) == ["text.txt"]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("latest.safetensors", b"", "latest.safetensors is not a whole safetensors file"),
        ("latest.safetensors", None, "latest.safetensors does not exist"),
        ("config.json", b"{", "config.json is damaged"),
        ("config.json", b"{}", "config.json is damaged"),
        ("config.json", b'{"model": [], "training": {}, "data": {}}', "config.json is damaged"),
        ("tokenizer.json", b"{}", "tokenizer.json has no tokenizer"),
        ("tokenizer.json", b'{"kind": "char"}', "tokenizer.json is damaged: characters must be a list, got None"),
    ],
)
def test_resuming_a_damaged_run(copied: Program, file: str, content: bytes | None, message: str) -> None:
    path = copied.folder / "run" / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert message in copied.bad("--out", "run", "--resume")


def test_resume_and_overwrite_exclude_each_other(program: Program) -> None:
    assert "not allowed with argument" in program.bad("--resume", "--overwrite")


# ------------------------------------------------------------------------------------------------------- architectures


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to another process")
@pytest.mark.parametrize("architecture", ["rnn", "gru", "lstm"])
def test_a_recurrent_network_resumed_is_the_uninterrupted_run(program: Program, architecture: str) -> None:
    words = ["--architecture", architecture, "--data", "text.txt", *RECURRENT, "--dropout", "0.1"]
    words += ["--steps", "60", "--eval-every", "20", "--warmup", "5", "--learning-rate", "3e-2"]
    printed = program.good(*words, "--out", "whole")
    assert f"\n{architecture.upper()} with " in printed
    losses = validation_losses(program.folder / "whole")
    assert min(losses) < losses[0] - 0.5
    program.interrupted("step    20:", *words, "--out", "parts")
    parts = program.folder / "parts"
    assert load_checkpoint(parts / "latest.safetensors", "latest")[1]["step"] <= 21
    program.good("--out", "parts", "--resume")  # its folder says which network it is
    assert entries(parts) == files(60)
    assert result_of(parts) == result_of(program.folder / "whole")
    # And so for a sample, which may be longer than what the network was trained on, and repeats.
    sample = program.good("sample", "--out", "parts", "--prompt", "the dog", "--length", "40", "--seed", "3")
    assert sample.startswith("the dog")
    assert len(sample) == len("the dog") + 40 + 1
    assert program.good("sample", "--out", "parts", "--prompt", "the dog", "--length", "40", "--seed", "3") == sample


@pytest.fixture(scope="module")
def recurrent_run(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Program:
    """A finished run of an LSTM in the folder lstm. Tests only read it."""
    folder = tmp_path_factory.mktemp("recurrent")
    write_data(folder)
    program = Program(COMMAND, folder, environment)
    program.good("--architecture", "lstm", "--data", "text.txt", *RECURRENT, *SHORT, "--out", "lstm")
    return program


def test_a_resumed_run_keeps_its_architecture(recurrent_run: Program, finished: Program) -> None:
    leave_out = "--resume keeps the settings of {}: leave out {}, or start a new run\n"
    for architecture in ("gru", "gpt"):
        message = recurrent_run.bad("--out", "lstm", "--resume", "--architecture", architecture)
        assert message.startswith("--resume keeps the settings of lstm: leave out --architecture")
    assert finished.bad("--out", "run", "--resume", "--architecture", "rnn") == leave_out.format("run", "--architecture")
    # Its folder decides which flags there are: none is ignored, and none needs --architecture.
    message = recurrent_run.bad("--out", "lstm", "--resume", "--num-heads", "2")
    assert message == "unrecognized arguments: --num-heads 2 (see tinyformer train gpt --architecture lstm --help)\n"
    for words in (["--context", "6"], ["--architecture", "lstm", "--context", "6"]):
        assert recurrent_run.bad("--out", "lstm", "--resume", *words) == leave_out.format("lstm", "--context")
    recurrent_run.good("--out", "lstm", "--resume", "--architecture", "lstm", "--context", "5")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["transformer"], "--architecture must be one of gpt, lstm, gru, rnn, got 'transformer'"),
        ([], "argument --architecture: expected one argument"),
        (
            ["lstm", "--num-heads", "2"],
            "unrecognized arguments: --num-heads 2 (see tinyformer train gpt --architecture lstm --help)",
        ),
        (["gpt"], "unrecognized arguments: --context 5 (see tinyformer train gpt --architecture gpt --help)"),
        (["gru", "--context", "-1"], "--context must be at least 0, got -1"),
        (["rnn", "--context", "9999"], "tokens for windows of 10007: use at least 100,081, or a smaller --context"),
        (["rnn", "--context", "1" + 30 * "0"], "for windows of 1000000000000000000000000000008: use at least"),
        (["lstm", "--d-model", str(10**15)], "a model of this size needs at least 10^31 bytes of memory, but there are "),
        (["lstm", "--dropout", "1"], "--dropout must be at least 0 and less than 1, got 1.0"),
    ],
)
def test_architectures_that_will_not_do(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad("--data", "text.txt", "--out", "run", *RECURRENT, *SHORT, "--architecture", *words)
    assert not (program.folder / "run").exists()


# ---------------------------------------------------------------------------------------------------------- sampling


def test_a_sample_continues_the_prompt_and_repeats(finished: Program) -> None:
    words = ["sample", "--out", "run", "--prompt", "the dog", "--length", "40"]
    sample = finished.good(*words)
    assert sample.startswith("the dog")
    assert len(sample) == len("the dog") + 40 + 1
    assert finished.good(*words) == sample
    assert finished.good(*words, "--seed", "1337") == sample
    assert finished.good(*words, "--seed", "8") != sample


def test_a_sample_starts_with_a_newline_by_default(finished: Program) -> None:
    assert finished.good("sample", "--out", "run", "--length", "0") == "\n\n"


def test_greedy_samples_need_no_seed(finished: Program) -> None:
    words = ["sample", "--out", "run", "--prompt", "dog", "--length", "30"]
    greedy = finished.good(*words, "--temperature", "0")
    for choice in (["--temperature", "0"], ["--top-k", "1"]):
        assert finished.good(*words, *choice) == greedy
        assert f"--seed has no effect with {choice[0]} " in finished.bad(*words, *choice, "--seed", "2")
    assert "--top-k has no effect with --temperature 0" in finished.bad(*words, "--temperature", "0", "--top-k", "5")
    assert finished.good(*words, "--top-p", "1e-6", "--seed", "4") == greedy


def test_the_latest_weights_on_request(copied: Program) -> None:
    words = ["sample", "--out", "run", "--prompt", "dog", "--length", "30"]
    (copied.folder / "run/best.safetensors").unlink()
    assert "best.safetensors does not exist" in copied.bad(*words)
    assert copied.good(*words, "--latest").startswith("dog")


def test_an_unknown_character_in_the_prompt(finished: Program) -> None:
    message = finished.bad("sample", "--out", "run", "--prompt", "the Dog")
    assert "unknown character 'D' (U+0044) at position 4" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--prompt", ""], "the prompt is empty"),
        (["--temperature", "-1"], "--temperature must be 0 (greedy) or more, got -1.0"),
        (["--temperature", "nan"], "--temperature must be a finite number, got nan"),
        (["--length", "-1"], "the length must be at least 0"),
        (["--top-k", "-1"], "--top-k must be at least 0, got -1"),
        (["--top-p", "0"], "--top-p must be above 0 and at most 1, got 0.0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--temperature", "hot"], "invalid float value: 'hot'"),
        (["--steps", "3"], "unrecognized arguments: --steps"),
    ],
)
def test_bad_settings_of_a_sample(finished: Program, words: list[str], message: str) -> None:
    assert message in finished.bad("sample", "--out", "run", *words)


def test_a_sample_of_no_run(program: Program) -> None:
    assert "runs/char_gpt does not exist: train first" in program.bad("sample").replace("\\", "/")


def test_a_sample_without_a_folder_is_of_the_newest_run(copied: Program) -> None:
    for name, written in (("old", 100), ("new", 300), ("middle", 200)):
        run = shutil.copytree(copied.folder / "run", copied.folder / "runs" / name)
        os.utime(run / "best.safetensors", (written, written))
        (run / "latest.safetensors").unlink()
    result = copied("sample", "--length", "9")
    assert result.stderr.replace("\\", "/") == ("runs/new is the newest of 3 runs in runs. Others: runs/middle, runs/old\n")
    assert result.stdout == copied("sample", "runs/old", "--length", "9").stdout
    assert "runs/fill_mask does not exist" in copied.bad("fill", "a [MASK]").replace("\\", "/")


def test_a_sample_of_a_truncated_checkpoint(copied: Program) -> None:
    path = copied.folder / "run/best.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "best.safetensors is not a whole safetensors file" in copied.bad("sample", "--out", "run")


def test_a_sample_of_a_checkpoint_that_does_not_fit(copied: Program) -> None:
    path = copied.folder / "run/config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["model"]["d_model"] = 32
    path.write_text(json.dumps(settings), encoding="utf-8")
    message = copied.bad("sample", "--out", "run").replace("\\", "/")
    assert message == "run/config.json says 32 for model.d_model, but best.safetensors was trained with 16: put that back\n"
    settings["model"]["vocab_size"] += 1
    path.write_text(json.dumps(settings), encoding="utf-8")
    assert "tokenizer.json has 28 tokens, but the model has 29" in copied.bad("sample", "--out", "run")


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "text.txt does not exist"),
        (b"", "text.txt has no text"),
        ("café".encode("latin-1") * 100, "text.txt is not UTF-8 text (byte 3)"),
        (b"a short text", "the text has only 12 tokens for windows of 8: use at least"),
    ],
)
def test_texts_that_will_not_do(program: Program, content: bytes | None, message: str) -> None:
    path = program.folder / "text.txt"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert message in program.bad("--data", "text.txt", "--out", "run", *TINY, *SHORT)
    assert not (program.folder / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-heads", "3"], "--num-heads=3 does not divide --d-model=16"),
        (["--steps", "0"], "--steps must be at least 1, got 0"),
        (["--batch-size", "0"], "--batch-size must be at least 1, got 0"),
        (["--dropout", "1"], "dropout must be at least 0 and less than 1"),
        (["--positions", "absolute"], "positions must be one of learned, sinusoidal, rotary, got 'absolute'"),
        (["--norm", "batch"], f"norm must be one of {', '.join(NORMS)}, got 'batch'"),
        (["--activation", "tanh"], f"activation must be one of {', '.join(ACTIVATIONS)}, got 'tanh'"),
        (["--tokenizer", "word"], "--tokenizer must be one of char, bpe, got 'word'"),
        (["--learning-rate", "nan"], "--learning-rate must be a finite number, got nan"),
        (["--dtype", "half"], "dtype must be one of float32, bfloat16, got 'half'"),
        (["--steps", "many"], "invalid int value: 'many'"),
        (["--color"], "unrecognized arguments: --color"),
        (["poetry"], "unrecognized arguments: poetry"),
        (["--d-model", str(10**15)], "a model of this size needs at least 10^31 bytes of memory, but there are "),
    ],
)
def test_settings_that_will_not_do(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad("--data", "text.txt", "--out", "run", *TINY, *SHORT, *words)
    assert not (program.folder / "run").exists()


def test_bfloat16_without_a_gpu(program: Program) -> None:
    words = ["--data", "text.txt", "--out", "run", *TINY, *SHORT, "--dtype", "bfloat16"]
    message = program.bad(*words, TINYTENSOR_BACKEND="numpy")
    assert "dtype bfloat16 needs a GPU, as NumPy has no fast bfloat16: set TINYTENSOR_BACKEND=cupy" in message
    assert message.count("\n") == 1
    assert not (program.folder / "run").exists()


def test_the_dtype_stays_when_resuming(copied: Program) -> None:
    assert "leave out --dtype" in copied.bad("--out", "run", "--resume", "--dtype", "bfloat16")


def test_an_unknown_backend(program: Program) -> None:
    message = program.bad("--help", TINYTENSOR_BACKEND="abacus")
    assert message == "TINYTENSOR_BACKEND='abacus' is not a backend: use 'numpy' or 'cupy'\n"


def test_cupy_without_cupy(program: Program) -> None:
    message = program.bad("--help", TINYTENSOR_BACKEND="cupy", **program.without("cupy"))
    assert "CuPy is not installed: pip install" in message
    assert "unset TINYTENSOR_BACKEND" in message


def gpu_with(limit: int) -> dict[str, str]:
    """The variables of a run on the fake CuPy. Its GPU has no room for an array of more bytes."""
    paths = os.pathsep.join([str(ROOT / "tests" / "standin"), str(ROOT)])
    return {"TINYTENSOR_BACKEND": "cupy", "PYTHONPATH": paths, "CUPY_GPU_MEMORY_LIMIT": str(limit)}


def test_a_gpu_too_small_to_train(program: Program) -> None:
    words = ["--data", "text.txt", "--out", "run", *TINY, *SHORT, "--batch-size", "2000"]
    result = program(*words, **gpu_with(500_000))
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    what, remedy = result.stderr.splitlines()[-2:]
    asked = r"[\d.]+ MiB of GPU memory were requested, and 1.50 GiB of 2.00 GiB are free"
    assert re.fullmatch(f"error: there is not enough memory for this: {asked}", what)
    assert "batch_size" in remedy and "gradient_accumulation_steps" in remedy and "block_size" in remedy
    assert load_checkpoint(program.folder / "run/latest.safetensors", "latest")[1]["step"] == 0


def test_a_gpu_too_small_to_write(finished: Program) -> None:
    before = contents(finished.folder / "run")
    message = finished.bad("sample", "--out", "run", **gpu_with(200))
    assert "of GPU memory were requested" in message
    assert contents(finished.folder / "run") == before


def test_a_loss_that_is_no_number(program: Program) -> None:
    words = ["--data", "text.txt", "--out", "run", *TINY, "--steps", "100", "--learning-rate", "1e30", "--clip", "0"]
    result = program(*words, "--warmup", "0")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "Warning" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: the ")
    assert " at step " in last
    assert "training stops" in last
    assert load_checkpoint(program.folder / "run/latest.safetensors", "latest")[1]["step"] == 0


# ---------------------------------------------------------------------------------------------------------- help


@pytest.mark.parametrize(
    ("chosen", "model", "recipe"),
    [
        ([], GPTConfig, "modern"),
        (["--recipe", "nanogpt"], GPTConfig, "nanogpt"),
        (["--init-from", "FOLDER"], GPTConfig, "nanogpt"),
        (["--architecture", "lstm"], RecurrentConfig, "nanogpt"),
        (["--architecture", "rnn"], RecurrentConfig, "nanogpt"),
    ],
)
def test_help_shows_every_setting_with_its_default(finished: Program, chosen: list[str], model: type, recipe: str) -> None:
    text = " ".join(finished.good(*chosen, "--help").split())
    shown = 0
    kinds = {"model": model, "text": gpt.TextConfig, "training": TrainingConfig}
    decided = {"vocab_size", "cell"}  # by the text, and by --architecture
    decided |= {"norm_eps", "tie_output", "num_key_value_heads", "d_head"}  # by --init-from
    decided |= {"query_key_value_bias", "rotary_base", "rotary_scaling", "sliding_window", "scale_embeddings"}
    for part, kind in kinds.items():
        for field in dataclasses.fields(kind):
            if field.name in decided:
                continue
            flag = "--" + field.name.replace("_", "-")
            value = gpt.RECIPES[recipe][part].get(field.name, field.default)
            default = f" (default: {value})" if value != "" else ""
            assert f"{field.metadata['help']}{default}" in text, flag
            assert f" {flag} " in text or f" {flag}, " in text
            shown += 1
    assert shown == sum(field.name not in decided for kind in kinds.values() for field in dataclasses.fields(kind))
    assert ("--num-heads INT" in text, "--context INT" in text) == ((True, False) if model is GPTConfig else (False, True))
    assert "--data" in text
    assert "(default: runs/char_gpt; with --data, runs/char_gpt-NAME, after the data)" in text
    assert "(default: )" not in text
    assert "sample --help" in text


def test_help_of_the_sample_command(finished: Program) -> None:
    text = " ".join(finished.good("sample", "--help").split())
    for flag in (
        "[RUN]",
        "--prompt",
        "--length",
        "--temperature",
        "--top-k",
        "--top-p",
        "--min-p",
        "--typical-p",
        "--seed",
        "--latest",
    ):
        assert flag in text
    assert text.count("(default: ") == 9


def test_tokens_of_byte_pairs_without_byte_pairs_are_refused(program: Program) -> None:
    message = "--bpe-tokens has no effect with --tokenizer char: leave it out, or choose another --tokenizer"
    assert message in program.bad("--data", "text.txt", "--bpe-tokens", "300")
