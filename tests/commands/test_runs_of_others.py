"""A folder that is given to another program than the one that uses it: the message says what it holds, and the command for it.

Every command of every program is tried with what every other program makes: runs that say what made them, and runs of before,
which do not, and are known by their settings.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tinyformer import Commands, UserError
from tinyformer.commands.main import ALL, command_of
from tinyformer.common.makers import Maker, tinyformer_command
from tinyformer.explore.views.subjects import Subjects
from tinyformer.export.runs import load_run

FILL = "a sentence with a [MASK]"
FOUND = {  # a folder: what its config.json says, what that is, and the words that use it
    "gpt": ({"text": {"architecture": "gpt", "bpe_tokens": 0}}, "a run of a language model", "sample --out gpt"),
    "bert": ({"text": {"wordpieces": 40}}, "a run of a masked language model", f"fill '{FILL}' --out bert"),
    "translator": ({"task": {"length_penalty": 1.0}}, "a run of a translator", "translate 'a sentence' --out translator"),
    # Of a command that is gone, and of the script that it was before.
    "tones": (
        {"made_by": {"kind": "dial tone transcriber", "program": "tinyformer", "use": ["transcribe", "FILE.wav"]}},
        "a run of a dial tone transcriber",
        "",
    ),
    "memory/rnn": (
        {"made_by": {"kind": "recall network", "program": "memory.py", "use": ["rnn", "--resume"], "several": True}},
        "a run of a recall network",
        "",
    ),
    "llama": ({"model_type": "llama"}, "a pretrained model", "generate llama"),
    "published": ({"model_type": "bert"}, "a pretrained model", f"fill '{FILL}' --model published"),
    "opus": ({"model_type": "marian"}, "a pretrained model", "translate 'a sentence' --model opus"),
    "words": (None, "word vectors", "vectors words/vectors.txt"),
}
# What the runs of today say of themselves, and the scripts that those of before name.
KINDS = {
    "gpt": ("language model", "char_gpt.py", ["sample"]),
    "bert": ("masked language model", "fill_mask.py", ["fill", FILL]),
    "translator": ("translator", "translate.py", ["translate", "a sentence"]),
}
OF_RUNS = {  # the words that use a run, and the folder that they can use
    "sample": "gpt",
    "sample --out": "gpt",
    "save new --out": "gpt",
    "train gpt --resume --out": "gpt",
    "train gpt --resume-changed --steps 9 --out": "gpt",
    "fill [MASK] --out": "bert",
    "train bert --resume --out": "bert",
    "translate one --out": "translator",
    "train translator --resume --out": "translator",
    "compare translator": "translator",
}
OF_PRETRAINED = [
    "generate",
    "generate --model",
    "fill [MASK] --model",
    "translate one --model",
    "train gpt --data text.txt --init-from",
]
MAKERS = {  # the words that begin a run, and the folder of their own
    "train gpt --data text.txt --block-size 8 --out": "gpt",
    "train bert --data text.txt --window 8 --out": "bert",
    "train translator --data pairs.tsv --validation 2 --test 2 --out": "translator",
}


def record_of(name: str, by_script: bool) -> dict[str, Any]:
    """What a run says in its config.json of what made it."""
    kind, script, use = KINDS[name]
    if by_script:
        return {"kind": kind, "program": script, "use": use}
    return dataclasses.asdict(Maker.of_kind(kind))


@pytest.fixture(scope="module", params=["today", "by a script", "before"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """A function that runs the words of a command line in a folder with all that FOUND has, and returns the error."""
    folder = tmp_path_factory.mktemp("others")
    for name, (settings, _, _) in FOUND.items():
        (folder / name).mkdir(parents=True)
        if settings is not None:
            says = request.param != "before" and name in KINDS
            record = {"made_by": record_of(name, request.param == "by a script"), "model": {}} if says else settings
            (folder / name / "config.json").write_text(json.dumps(record))
    (folder / "words/vectors.txt").write_text("2 2\none 0 1\ntwo 1 0\n")
    (folder / "text.txt").write_text("to be or not to be. " * 40)
    (folder / "pairs.tsv").write_text("".join(f"{i}\t{i + 1}\n" for i in range(60)))

    def run(line: str) -> str:
        name, words = command_of(shlex.split(line))
        _, _, module, first = ALL[name]
        with pytest.raises(UserError) as caught:
            arguments = importlib.import_module(f"tinyformer.commands.{module}").parse([first, *words] if first else words)
            arguments.run(arguments)
        return str(caught.value)

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        yield run


def remedy(name: str) -> str:
    """What to do with a folder."""
    words = FOUND[name][2]
    return f"use it with {tinyformer_command(*shlex.split(words))}" if words else "choose another folder"


@pytest.mark.parametrize("words", OF_RUNS)
def test_a_command_that_uses_a_run(words: str, run: Callable[[str], str]) -> None:
    wanted = f"a run of a {KINDS[OF_RUNS[words]][0]}"
    for name in FOUND.keys() - {OF_RUNS[words]}:
        assert run(f"{words} {name}") == f"{name} holds {FOUND[name][1]}, not {wanted}: {remedy(name)}"
    assert run(f"{words} memory") == "memory holds no run itself, but folders of runs: memory/rnn"


def test_word_vectors_are_asked_for_by_their_folder(run: Callable[[str], str]) -> None:
    assert "unknown word 'zero'" in run("vectors words --ask zero")
    for name in FOUND.keys() - {"words"}:
        asked = run(f"vectors {name} --ask zero")
        assert asked == f"{name} holds {FOUND[name][1]}, not word vectors: {remedy(name)}"


@pytest.mark.parametrize("words", OF_PRETRAINED)
def test_a_command_that_uses_a_pretrained_model(words: str, run: Callable[[str], str]) -> None:
    for name, (_, what, _) in FOUND.items():
        if what != "a pretrained model":
            save = tinyformer_command("save", "gpt", "gpt-pretrained")
            saving = f", or write a pretrained model with {save}" if name == "gpt" else ""
            assert run(f"{words} {name}") == f"{name} holds {what}, not a pretrained model: {remedy(name)}{saving}"


@pytest.mark.parametrize("words", MAKERS)
def test_a_new_run_in_the_folder_of_another(words: str, run: Callable[[str], str]) -> None:
    for name in FOUND.keys() - {"words", MAKERS[words]}:
        what = FOUND[name][1]
        if what == "a pretrained model":
            for more in ("", " --overwrite"):
                assert run(f"{words} {name}{more}") == f"{name} holds {what}, which no run may replace: choose another folder"
        else:
            assert run(f"{words} {name}") == f"{name} holds {what} already: --overwrite replaces it, --out starts another"


def test_exporting_and_exploring(run: Callable[[str], str]) -> None:
    refused = {name: f"holds {FOUND[name][1]}: only a run of a language model" for name in ("tones", "memory/rnn")}
    refused["words"] = f"holds word vectors, not a run: {remedy('words')}"
    refused["memory"] = "holds no run itself, but folders of runs: memory/rnn"
    for use in (load_run, lambda path: Subjects([path])):
        for name, message in refused.items():
            with pytest.raises(UserError) as caught:
                use(name)
            assert str(caught.value).startswith(f"{name} {message}")


def test_a_script_of_ones_own_uses_runs_of_its_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many begin as a copy of one of the examples. One without a kind knows its own runs."""

    def train(arguments: argparse.Namespace) -> None:
        """A command."""

    def sample(arguments: argparse.Namespace) -> None:
        """Another command."""

    monkeypatch.setattr(sys, "argv", ["somewhere/script.py"])  # which no other lies beside
    made_by = {"kind": "language model", "program": "my_gpt.py", "use": ["sample"]}
    for number, settings in enumerate((FOUND["gpt"][0], {"made_by": made_by})):
        run = tmp_path / str(number)
        run.mkdir()
        (run / "config.json").write_text(json.dumps(settings))
        for kind, allowed in (("", True), ("language model", True), ("translator", False)):
            commands = Commands("script.py", "A script.", "runs/my", kind)
            commands.add(train, help="train", description="Train.")
            commands.add_use(sample, help="sample", description="Sample.")
            if allowed:
                assert commands.parse(["sample", "--out", str(run)]).out == str(run)
                continue
            with pytest.raises(UserError) as caught:
                commands.parse(["sample", "--out", str(run)])
            what = ("a language model", "my_gpt.py")[number]
            how = (tinyformer_command("sample"), "python my_gpt.py sample")[number]
            said = f"{run} holds a run of {what}, not a run of a translator: use it with {how} --out {run}"
            assert str(caught.value) == said
