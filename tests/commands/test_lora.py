"""`tinyformer train gpt --lora-rank`: runs that store only the adapter of a pretrained model."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from commands.test_init_from import FIRST_RUN as TRAINED_WHOLE, write_data as write_models
from running import Program, result_of

import tinytensor as tt
from tinyformer import GPT, UserError, from_pretrained, load_adapter, quantize, save_pretrained
from tinyformer.chat.template import find_chat_template
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.quantizing import dtype_of

COMMAND = "train gpt"
FIRST_RUN = [*TRAINED_WHOLE, "--lora-rank", "2", "--learning-rate", "1e-2"]
IDS = tt.tensor([[1, 2, 3, 4, 5, 6]])
write_data = write_models


def logits(model):
    assert isinstance(model, GPT)
    with tt.no_grad():
        return model(IDS).numpy()


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to another process")
def test_resumed_is_the_uninterrupted_run(program: Program) -> None:
    words = [*FIRST_RUN[:-2], "--init-from", "llama", "--steps", "12", "--eval-every", "4", "--lora-dropout", "0.2"]
    program.good(*words, "--out", "whole")
    program.interrupted("step     4:", *words, "--out", "parts")
    program.good("--out", "parts", "--resume")
    assert result_of(program.folder / "parts") == result_of(program.folder / "whole")


def test_a_run_has_only_what_was_added(first_run: tuple[object, str], finished: Program) -> None:
    assert "GPT with 14,272 parameters, of which 1,024 learn, on" in first_run[1]
    for name in ("best", "latest"):
        tensors = tt.load(finished.folder / "run" / f"{name}.safetensors")
        assert all(".additions.0." in each for each in tensors if each.startswith("model/"))
    assert json.loads((finished.folder / "run" / "config.json").read_text())["lora"]["lora_rank"] == 2


def test_it_writes_and_is_saved_merged_and_alone(copied: Program) -> None:
    assert copied.good("sample", "--out", "run", "--length", "20")
    copied.good("save", "merged", "--out", "run")
    assert "Wrote alone. PEFT can read it" in copied.good("save", "alone", "--out", "run", "--adapter")
    base, merged = (from_pretrained(copied.folder / name) for name in ("gpt2", "merged"))
    found = logits(load_adapter(from_pretrained(copied.folder / "gpt2"), copied.folder / "alone"))
    np.testing.assert_allclose(found, logits(merged), atol=1e-5)
    assert np.abs(found - logits(base)).max() > 1e-3
    explored = Subjects([copied.folder / "run"]).get("best")
    np.testing.assert_allclose(logits(explored.model), found, atol=1e-5)


def test_an_adapter_is_opened_with_its_model(copied: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    copied.good("save", "alone", "--out", "run", "--adapter")
    monkeypatch.chdir(copied.folder)
    found = logits(load_adapter(from_pretrained("gpt2"), "alone"))
    np.testing.assert_array_equal(logits(from_pretrained("alone")), found)
    base, alone = (subject for subject in map(Subjects(["gpt2", "alone"]).get, ("gpt2: pretrained", "alone: pretrained")))
    np.testing.assert_array_equal(logits(alone.model), found)
    assert alone.tokenizer.encode("the fox").tolist() == base.tokenizer.encode("the fox").tolist()
    assert find_chat_template(Path("alone")) is None
    shutil.move("gpt2", "elsewhere")
    with pytest.raises(UserError, match=r"alone.adapter_config.json: base_model_name_or_path: .*gpt2"):
        from_pretrained("alone")
    settings = json.loads(Path("alone/adapter_config.json").read_text())
    Path("alone/adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": None}))
    with pytest.raises(UserError, match="base_model_name_or_path is empty: load the base model, then call load_adapter"):
        from_pretrained("alone")


def test_training_continues_from_an_adapter(copied: Program) -> None:
    copied.good("save", "alone", "--out", "run", "--adapter")
    copied.good(*TRAINED_WHOLE[:-1], "on", "--init-from", "alone")
    first = logits(from_pretrained(copied.folder / "alone"))
    copied.good("save", "all", "--out", "on")
    change = np.abs(logits(from_pretrained(copied.folder / "all")) - first).max()
    assert 1e-4 < change < 0.5  # of a few steps
    message = "--lora-rank adds to a whole model, and alone is an adapter: leave it out, or name a whole one with --init-from"
    assert message in copied.bad(*FIRST_RUN[:-4], "--lora-rank", "2", "--init-from", "alone", "--out", "more")


def test_it_is_used_from_another_folder(copied: Program) -> None:
    there = Program(COMMAND, copied.folder.parent, copied.environment)
    assert there.good("sample", "--out", "copy/run", "--length", "5")


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_quantized_base(dtype: str, program: Program) -> None:
    shutil.copytree(program.folder / "gpt2", program.folder / dtype)
    save_pretrained(quantize(from_pretrained(program.folder / "gpt2"), dtype), program.folder / dtype)
    program.good(*FIRST_RUN, "--init-from", dtype, "--out", "small")
    assert program.good("sample", "--out", "small", "--length", "5")
    program.good("--out", "small", "--resume-changed", "--steps", "8")


def test_only_the_blocks_of_a_model_with_an_output_layer(program: Program) -> None:
    program.good(*FIRST_RUN, "--init-from", "llama", "--lora-targets", "output,up", "--out", "targets")
    tensors = tt.load(program.folder / "targets" / "best.safetensors")
    assert {name.split(".weight")[0].partition(".")[2][2:] for name in tensors} == {"attention.output", "feed_forward.up"}


@pytest.mark.parametrize("part", [{}, {"init_from": 3}, "gpt2"], ids=str)
def test_damaged_settings(part: object, copied: Program) -> None:
    path = copied.folder / "run" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "text": part}))
    copied.bad("sample", "--out", "run")


@pytest.mark.parametrize("changed", [True, False], ids=["changed", "gone"])
def test_a_base_that_changed_is_refused(changed: bool, copied: Program) -> None:
    if changed:
        tensors = tt.load(copied.folder / "gpt2" / "model.safetensors")
        tt.save({name: value + 1 for name, value in tensors.items()}, copied.folder / "gpt2" / "model.safetensors")
        message = "gpt2 has changed since this run began, which needs it as it was: put that model back"
    else:
        shutil.rmtree(copied.folder / "gpt2")
        message = "gpt2"
    for words in (["sample"], ["save", "new"], ["--resume-changed", "--steps", "9"]):
        assert message in copied.bad(*words, "--out", "run")


MISTAKES = {
    "no base": (["--lora-rank", "2"], "--lora-rank adds to the weights of a pretrained model: name one with --init-from"),
    "rank": (["--init-from", "gpt2", "--lora-rank", "-1"], "--lora-rank must be at least 0, got -1"),
    "large": (["--init-from", "gpt2", "--lora-rank", "17"], "--lora-rank must be at most the model's width, 16, got 17"),
    "alpha": (["--init-from", "gpt2", "--lora-rank", "1", "--lora-alpha", "0"], "--lora-alpha must be positive, got 0.0"),
    "dropout": (["--init-from", "gpt2", "--lora-rank", "1", "--lora-dropout", "1"], "--lora-dropout must be at least 0"),
    "alone": (["--init-from", "gpt2", "--lora-alpha", "3"], "--lora-alpha has no effect with --lora-rank 0"),
    "targets": (["--init-from", "gpt2", "--lora-rank", "1", "--lora-targets", "foo"], "the blocks have no linear layer 'foo'"),
    "gate": (["--init-from", "gpt2", "--lora-rank", "1", "--lora-targets", "gate"], "the blocks have no linear layer 'gate'"),
}


@pytest.mark.parametrize("words, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes(words: list[str], message: str, program: Program) -> None:
    assert message in program.bad("--data", "text.txt", *words, "--out", "wrong")
    assert not (program.folder / "wrong").exists()


def test_a_run_of_all_weights_has_no_adapter(program: Program) -> None:
    program.good(*TRAINED_WHOLE)
    message = program.bad("save", "a", "--adapter", "--out", "run")
    assert "run has no adapter, as it trained all weights: leave out --adapter" in message


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_merged_model_is_saved_in_blocks(dtype: str, copied: Program) -> None:
    copied.good("save", "merged", "--out", "run")
    copied.good("save", dtype, "--out", "run", "--dtype", dtype)
    model = from_pretrained(copied.folder / dtype)
    assert dtype_of(model) == dtype
    np.testing.assert_array_equal(logits(model), logits(from_pretrained(copied.folder / "merged", dtype=dtype)))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_quantized_adapter(dtype: str, finished: Program) -> None:
    message = finished.bad("save", "a", "--adapter", "--dtype", dtype, "--out", "run")
    assert "an adapter has its numbers in float32: leave out --dtype" in message
