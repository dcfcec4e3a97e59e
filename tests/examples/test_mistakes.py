"""Users' mistakes in scripts of examples/ print one line with the fix, and leave no files."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tinyformer import BertConfig, BertForMaskedLM, WordPieceTokenizer, save_pretrained, save_pretrained_tokenizer

LATIN_1 = "Käse und Brötchen\n".encode("latin-1") * 300


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "0"], "argument --steps: it must be at least 1, got 0"),
        (["--steps", "x"], "argument --steps: invalid int value: 'x'"),
        (["--layers", "2"], "unrecognized arguments: --layers 2 (see char_gpt.py --help)"),
        (["--data", ""], "argument --data: the path is empty"),
        (["--data", "missing.txt"], "missing.txt does not exist"),
        (["--data", "short.txt"], "the text has only 5 tokens for windows of 128: use at least 1,291\n"),
        (["--data", "latin.txt"], "latin.txt is not UTF-8"),
    ],
)
def test_mistakes_on_the_command_line(words, message, script):
    (script.folder / "short.txt").write_text("hello", encoding="utf-8")
    (script.folder / "latin.txt").write_bytes(LATIN_1)
    assert message in script.bad("char_gpt", *words)
    assert not (script.folder / "runs").exists()


def test_help_describes_the_script_and_its_flags(script):
    said = script.good("algorithms", "--help")
    assert "Train a GPT to sort or copy digits" in said
    assert "--task {sort,copy,add}" in said


def test_a_package_that_is_missing_prints_one_line(script):
    (script.folder / "cupy.py").write_text("raise ModuleNotFoundError('none', name='cupy')\n", encoding="utf-8")
    path = os.pathsep.join([str(script.folder), script.environment["PYTHONPATH"]])
    assert "cupy" in script.bad("char_gpt", TINYTENSOR_BACKEND="cupy", PYTHONPATH=path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fill_mask", "for windows of 64"),
        ("fine_tune", "the text needs at least 20 tokens, and has 2"),
        ("search", "has only 0 passages of 16 words"),
        ("markov", "a text of 1 token has no token to predict"),
        ("word_vectors", "two different words"),
    ],
)
def test_a_text_that_is_too_short(name, message, script, small_gpt):
    (script.folder / "short.txt").write_text("hey", encoding="utf-8")
    words = ["--model", str(small_gpt)] if name == "fine_tune" else []
    assert message in script.bad(name, "--data", "short.txt", *words)


def test_a_model_that_does_not_continue_texts(script, tmp_path):
    tokenizer = WordPieceTokenizer.train("the quick brown fox " * 20, 40)
    save_pretrained(
        BertForMaskedLM(BertConfig(tokenizer.vocab_size, num_layers=1, num_heads=2, d_model=8, d_ff=16)), tmp_path / "bert"
    )
    save_pretrained_tokenizer(tokenizer, tmp_path / "bert")
    for name in ("generate", "fine_tune"):
        assert "does not continue texts: take GPT-2, Llama or Qwen" in script.bad(name, "--model", "bert")


def test_a_folder_that_cannot_be_made_is_reported_before_training(script):
    (script.folder / "runs").write_text("a file", encoding="utf-8")
    assert "runs" in script.bad("char_gpt", "--steps", "1000000", "--data", "long.txt")


def begin(script, *words, **how):
    command = script.command("char_gpt", "--data", "long.txt", *words)
    return subprocess.Popen(command, cwd=script.folder, env=script.environment, stdout=subprocess.PIPE, text=True, **how)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for a process alone")
def test_ctrl_c_ends_with_a_line_and_leaves_nothing(script):
    process = begin(script, "--steps", "1000000", stderr=subprocess.PIPE)
    assert process.stdout.readline().startswith("long.txt: ")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.replace("\n", "") == "interrupted"
    assert not (script.folder / "runs").exists()


@pytest.mark.skipif(os.name == "nt", reason="a closed pipe is another error on Windows")
def test_a_closed_output_ends_the_program_silently(script):
    reading, writing = os.pipe()
    os.close(reading)
    streams = {"stdout": writing, "stderr": subprocess.PIPE}
    command = script.command("micrograd", "--steps", "1")
    result = subprocess.run(command, cwd=script.folder, env=script.environment, check=False, **streams)
    os.close(writing)
    assert result.returncode == 1
    assert result.stderr == b""
