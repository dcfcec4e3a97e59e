"""`tinyformer train gpt` with pretrained weights (--init-from), and its models in Hugging Face's layout (save)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from running import Program, contents, entries, result_of, validation_losses

import tinytensor as tt
from tinyformer import (
    GPT,
    BertConfig,
    BertForMaskedLM,
    BPETokenizer,
    GPTConfig,
    from_pretrained,
    load_weights,
    save_pretrained,
    save_pretrained_tokenizer,
)
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.positions import RotaryScaling

COMMAND = "train gpt"
TEXT = "the quick brown fox jumps over a lazy dog, and then it sleeps.\n" * 40
SIZES = {"block_size": 16, "num_layers": 2, "num_heads": 2, "d_model": 16}
LLAMA = {
    "positions": "rotary", "norm": "rms", "activation": "swiglu", "d_ff": 24, "num_key_value_heads": 1, "tie_output": False,
    "rotary_base": 5000.0, "rotary_scaling": RotaryScaling("linear", factor=2.0),
}  # fmt: skip
SHORT = ["--data", "text.txt", "--steps", "6", "--eval-every", "3", "--log-every", "3", "--batch-size", "2"]
FIRST_RUN = [*SHORT, "--init-from", "gpt2", "--out", "run"]


def write_model(folder: Path, **settings: Any) -> None:
    """A pretrained model. It has more outputs than its tokenizer has tokens, as some published ones have."""
    tokenizer = BPETokenizer.train(TEXT, 290, special=["<|endoftext|>"])
    tt.seed(0)
    save_pretrained(GPT(GPTConfig(**{"vocab_size": 400, **SIZES, **settings})), folder)
    save_pretrained_tokenizer(tokenizer, folder)


def write_data(folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT, encoding="utf-8")
    write_model(folder / "gpt2")
    write_model(folder / "llama", **LLAMA)


def settings_of(run: Path, part: str) -> Any:
    return json.loads((run / "config.json").read_text(encoding="utf-8"))[part]


def test_the_answers_of_conversations_are_learned(program: Program) -> None:
    turns = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    (program.folder / "gpt2" / "chat_template.jinja").write_text(turns)
    messages = [{"role": "user", "content": "fox"}, {"role": "assistant", "content": "dog"}]
    (program.folder / "chats.jsonl").write_text(f"{json.dumps({'messages': messages})}\n" * 20)
    data = ["--data", "chats.jsonl", "--field", "messages"]
    words = [*data, "--init-from", "gpt2", "--batch-size", "4", "--eval-every", "20"]
    printed = program.good(*words, "--steps", "40", "--learning-rate", "0.03", "--out", "run")
    assert "the last 2 conversations validate" in printed and "An answer to the last conversation:" in printed
    losses = validation_losses(program.folder / "run")
    assert losses[-1] < losses[0] / 2
    saved = program.folder / "saved"
    assert "tinyformer chat" in program.good("save", "saved", "--out", "run")
    assert (saved / "chat_template.jinja").read_text() == turns
    assert "holds conversations, not text" in program.bad(*data, "--out", "new")
    (program.folder / "gpt2" / "chat_template.jinja").unlink()
    assert "gpt2 has no chat template" in program.bad(*words, "--out", "new")


# ------------------------------------------------------------------------------------------------ from pretrained weights


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_run_begins_with_the_pretrained_model(program: Program, name: str) -> None:
    before = contents(program.folder / name)
    printed = program.good(*SHORT, "--init-from", name, "--out", "run", "--learning-rate", "0", "--schedule", "constant")
    model = from_pretrained(program.folder / name)
    assert isinstance(model, GPT)
    assert f"GPT with {model.num_parameters():,} parameters" in printed
    assert "290 distinct tokens" in printed
    chosen = settings_of(program.folder / "run", "model")
    expected = {"vocab_size": 400, **SIZES, **(LLAMA if name == "llama" else {"bias": True})}
    scaling = expected.pop("rotary_scaling", None)
    assert {key: chosen[key] for key in expected} == expected
    assert (chosen["rotary_scaling"] is None) == (scaling is None)
    assert settings_of(program.folder / "run", "text")["init_from"] == name
    explored = Subjects([program.folder / "run"]).get("best")
    assert list(explored.forbidden) == list(range(290, 400))  # the outputs that belong to no token
    trained = GPT(model.config)
    load_weights(trained, program.folder / "run" / "latest.safetensors")
    for key, tensor in model.state_dict().items():  # nothing was learned
        assert (trained.state_dict()[key].numpy() == tensor.numpy()).all(), key
    assert contents(program.folder / name) == before


def test_it_learns_and_leaves_the_pretrained_file_alone(program: Program) -> None:
    before = contents(program.folder / "llama")
    program.good(*SHORT, "--steps", "60", "--warmup", "5", "--learning-rate", "1e-2", "--init-from", "llama", "--out", "run")
    losses = validation_losses(program.folder / "run")
    assert losses[-1] < losses[0] - 0.5
    assert contents(program.folder / "llama") == before


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to another process")
def test_resumed_is_the_uninterrupted_run_and_needs_the_pretrained_model_no_more(program: Program) -> None:
    words = [*SHORT, "--steps", "12", "--eval-every", "4", "--init-from", "llama", "--block-size", "8", "--dropout", "0.2"]
    program.good(*words, "--out", "whole")
    assert [settings_of(program.folder / "whole", "model")[name] for name in ("block_size", "dropout")] == [8, 0.2]
    printed = program.interrupted("step     4:", *words, "--out", "parts")
    assert printed.endswith("--out parts --resume\n")
    shutil.rmtree(program.folder / "llama")
    program.good("--out", "parts", "--resume")
    assert result_of(program.folder / "parts") == result_of(program.folder / "whole")


def test_a_shorter_context_of_learned_positions(program: Program) -> None:
    words = ["--init-from", "gpt2", "--block-size", "5", "--learning-rate", "0", "--schedule", "constant"]
    program.good(*SHORT, *words, "--out", "run")
    program.good("save", "shorter", "--out", "run")
    model, shorter = (from_pretrained(program.folder / name) for name in ("gpt2", "shorter"))
    ids = tt.tensor([[1, 2, 3, 4, 5]])
    with tt.no_grad():
        assert (model(ids).numpy() == shorter(ids).numpy()).all()
    assert shorter.config.block_size == 5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--d-model", "32"], "--d-model is 16 in these weights: leave it out"),
        (["--num-layers", "3", "--dropout", "0.1"], "--num-layers is 2 in these weights: leave it out"),
        (["--norm", "rms"], "--norm is 'layer' in these weights: leave it out"),
        (["--no-bias"], "--bias is True in these weights: leave it out"),
        (["--block-size", "17"], "--block-size must be at most 16, as in these weights"),
        (
            ["--tokenizer", "bpe", "--bpe-tokens", "300"],
            "--init-from decides what the model and its tokens are: leave out --tokenizer, --bpe-tokens",
        ),
        (["--architecture", "lstm"], "--init-from decides what the model and its tokens are: leave out --architecture"),
        (["--init-from", "text.txt"], "text.txt is a file: pass the folder that holds config.json and the weights"),
        (["--init-from", "bert"], "bert holds a BertForMaskedLM, which does not write texts: take GPT-2, Llama or Qwen"),
        (["--init-from", "bare"], "bare has no tokenizer: looked for tokenizer.json"),
        (["--data", "short.txt"], "for windows of 16: use at least 171, or a smaller --block-size"),
    ],
)
def test_what_cannot_be(program: Program, words: list[str], message: str) -> None:
    if "bert" in words:
        config = BertConfig(50, 0, num_layers=1, num_heads=2, d_model=8, d_ff=8, max_length=8)
        save_pretrained(BertForMaskedLM(config), program.folder / "bert")
    if "bare" in words:
        shutil.copytree(program.folder / "gpt2", program.folder / "bare")
        (program.folder / "bare" / "tokenizer.json").unlink()
    (program.folder / "short.txt").write_text(TEXT[:100], encoding="utf-8")
    assert message in program.bad(*FIRST_RUN, *words)
    assert not (program.folder / "run").exists()


def test_a_resumed_run_keeps_its_pretrained_model(finished: Program) -> None:
    before = contents(finished.folder / "run")
    assert "leave out --init-from, or start a new run" in finished.bad("--out", "run", "--resume", "--init-from", "llama")
    assert contents(finished.folder / "run") == before


def test_outputs_that_are_no_tokens_are_never_written(finished: Program) -> None:
    # The sample at the end of training, too: 500 tokens, when 110 of 400 outputs are none.
    finished.good("sample", "--out", "run", "--length", "300", "--temperature", "9")


# --------------------------------------------------------------------------------------------------- Hugging Face's layout


SAVED = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
CHARACTERS = [*SHORT, "--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--block-size", "8"]


def writes_the_same(program: Program, prompt: str, *flags: str) -> str:
    """Check that `tinyformer generate` writes with a run that was saved what ``sample`` writes with it. Returns that text."""
    printed = program.good("save", "saved model", "--out", "run", *flags)
    assert printed.endswith("generate 'saved model'\n")
    assert entries(program.folder / "saved model") == SAVED
    words = ["--prompt", prompt, "--length", "40", "--temperature", "0.9", "--top-k", "9", "--seed", "3"]
    sample = program.good("sample", "--out", "run", *flags, *words)
    writer = Program("generate", program.folder, program.environment)
    written = writer.good("--model", "saved model", *words).removesuffix("\n")
    assert written + "\n" == sample
    return sample


def test_a_pretrained_run_saved(copied: Program) -> None:
    best = writes_the_same(copied, "the lazy")
    shutil.rmtree(copied.folder / "saved model")
    (copied.folder / "run" / "best.safetensors").write_bytes((copied.folder / "run" / "latest.safetensors").read_bytes())
    assert writes_the_same(copied, "the lazy", "--latest") == best  # whose loss was the best at the last step


@pytest.mark.parametrize(
    "model", [[], ["--recipe", "nanogpt", "--bias"], ["--recipe", "nanogpt"], ["--no-query-key-norm", "--tokenizer", "bpe"]]
)
def test_a_run_saved(program: Program, model: list[str]) -> None:
    more = ["--bpe-tokens", "280"] if "bpe" in model else []
    program.good(*CHARACTERS, *model, *more, "--out", "run")
    writes_the_same(program, "the lazy dog")
    # A saved model is one to begin with, too.
    program.good(*SHORT, "--init-from", "saved model", "--out", "again")
    kept = ("d_model", "positions", "norm", "activation", "vocab_size", "block_size")
    first, again = (settings_of(program.folder / run, "model") for run in ("run", "again"))
    assert [first[name] for name in kept] == [again[name] for name in kept]


def test_where_nothing_is_saved(copied: Program) -> None:
    before = {name: contents(copied.folder / name) for name in ("run", "gpt2")}
    for name in ("run", "gpt2"):  # what was there would be lost
        assert copied.bad("save", name, "--out", "run") == f"{name} is not empty: name a new folder\n"
    assert "text.txt" in copied.bad("save", "text.txt", "--out", "run")
    assert "text.txt" in copied.bad("save", "text.txt/new", "--out", "run")
    assert "argument FOLDER: the path is empty" in copied.bad("save", "", "--out", "run")
    assert {name: contents(copied.folder / name) for name in ("run", "gpt2")} == before
    (copied.folder / "empty").mkdir()
    copied.good("save", "empty", "--out", "run")
    assert entries(copied.folder / "empty") == SAVED


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--architecture", "gru"], "GRU networks have no place in that layout: only a GPT can be written"),
        (["--positions", "sinusoidal"], "GPT-2: positions must be 'learned', got 'sinusoidal'"),
    ],
)
def test_runs_that_cannot_be_saved(program: Program, words: list[str], message: str) -> None:
    program.good(*SHORT, "--d-model", "16", "--block-size", "8", *words, "--out", "run")
    assert message in program.bad("save", "saved", "--out", "run")
    assert not (program.folder / "saved").exists()
