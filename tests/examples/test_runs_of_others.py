"""A folder that is given to another program than the one that uses it: the message says what it holds, and the command for it.

Every command of every program is tried with what every other program makes: runs that say what made them, and runs of before,
which do not, and are known by their settings.
"""

from __future__ import annotations

import argparse
import json
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from running import ROOT

from tinyformer import Commands, UserError
from tinyformer.explore.views.subjects import Subjects
from tinyformer.export.runs import load_run

FILL = "a sentence with a [MASK]"
MODEL = {"num_layers": 1, "num_heads": 2, "d_model": 16, "dropout": 0.1}
FOUND = {  # a folder: what its config.json says, what that is, and the words that use it
    "gpt": ({"text": {"architecture": "gpt", "bpe_tokens": 0}}, "a run of char_gpt.py", "char_gpt.py sample --out gpt"),
    "bert": ({"text": {"wordpieces": 40}}, "a run of fill_mask.py", f"fill_mask.py fill '{FILL}' --out bert"),
    "translator": (
        {"task": {"length_penalty": 1.0}},
        "a run of translate.py",
        "translate.py translate 'a sentence' --out translator",
    ),
    "tones": ({"task": {"snr": 0.0}}, "a run of dial_tones.py", "dial_tones.py transcribe FILE.wav --out tones"),
    "memory/rnn": ({"task": {"distance": 6}}, "a run of memory.py", "memory.py rnn --resume --out memory"),
    "sorted/sort-gpt": (
        {"model": MODEL, "training": {}},
        "a run of algorithms.py",
        "algorithms.py sort --model gpt --resume --out sorted",
    ),
    "llama": ({"model_type": "llama"}, "a pretrained model", "generate.py --model llama"),
    "published": ({"model_type": "bert"}, "a pretrained model", f"fill_mask.py fill '{FILL}' --model published"),
    "opus": ({"model_type": "marian"}, "a pretrained model", "translate.py translate 'a sentence' --model opus"),
    "words": (None, "word vectors", "word_vectors.py --vectors words/vectors.txt"),
}
# What the runs of today say of themselves.
KINDS = {
    "gpt": "language model",
    "bert": "masked language model",
    "translator": "translator",
    "tones": "dial tone transcriber",
    "memory/rnn": "recall network",
    "sorted/sort-gpt": "problem solver",
}
OF_RUNS = {  # the words that use a run, and the folder that they can use
    "char_gpt.py sample --out": "gpt",
    "char_gpt.py save new --out": "gpt",
    "char_gpt.py --resume --out": "gpt",
    "char_gpt.py --resume-changed --steps 9 --out": "gpt",
    "markov.py --data text.txt --gpt": "gpt",
    "fill_mask.py fill [MASK] --out": "bert",
    "fill_mask.py --resume --out": "bert",
    "translate.py translate one --out": "translator",
    "translate.py --resume --out": "translator",
    "translate.py train --resume --out": "translator",
    "translate.py compare translator": "translator",
    "dial_tones.py transcribe a.wav --out": "tones",
    "dial_tones.py --resume --out": "tones",
}
OF_PRETRAINED = [
    "generate.py --model",
    "fill_mask.py fill [MASK] --model",
    "translate.py translate one --model",
    "char_gpt.py --data text.txt --init-from",
]
OF_SEVERAL = ["memory.py --resume --out", "algorithms.py --resume --out"]  # of folders of runs
MAKERS = {  # the words that begin a run, and the folder of their own
    "char_gpt.py --data text.txt --block-size 8 --out": "gpt",
    "fill_mask.py --data text.txt --window 8 --out": "bert",
    "translate.py --data pairs.tsv --validation 2 --test 2 --out": "translator",
    "dial_tones.py --d-model 8 --num-heads 1 --out": "tones",
}


def record_of(name: str) -> dict[str, Any]:
    """What a run says in its config.json of what made it."""
    program, *use = shlex.split(FOUND[name][2])
    several = "/" in name
    return {"kind": KINDS[name], "program": program, "use": use[: use.index("--out")], "several": several}


@pytest.fixture(scope="module", params=["today", "before"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """A function that runs the words of a command line in a folder with all that FOUND has, and returns the error."""
    folder = tmp_path_factory.mktemp("others")
    for name, (settings, _, _) in FOUND.items():
        (folder / name).mkdir(parents=True)
        if settings is not None:
            says = request.param == "today" and name in KINDS
            record = {"made_by": record_of(name), "model": {}} if says else settings
            (folder / name / "config.json").write_text(json.dumps(record))
    (folder / "words/vectors.txt").write_text("2 2\none 0 1\ntwo 1 0\n")
    (folder / "text.txt").write_text("to be or not to be. " * 40)
    (folder / "pairs.tsv").write_text("".join(f"{i}\t{i + 1}\n" for i in range(60)))
    scripts: dict[str, Any] = {}

    def run(line: str) -> str:
        script, *words = shlex.split(line)
        if script not in scripts:
            scripts[script] = runpy.run_path(str(ROOT / "examples" / script))
        patched.setattr(sys, "argv", [str(ROOT / "examples" / script), *words])
        with pytest.raises(UserError) as caught:
            arguments = scripts[script]["parse"](words)
            arguments.run(arguments)
        return str(caught.value)

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        yield run


def used(name: str, beside: Path | None = ROOT / "examples") -> str:
    """The command for a folder."""
    script, _, rest = FOUND[name][2].partition(" ")
    return f"python {(beside or Path('examples')) / script} {rest}"


@pytest.mark.parametrize("words", OF_RUNS)
def test_a_command_that_uses_a_run(words: str, run: Callable[[str], str]) -> None:
    wanted = f"a run of a {KINDS[OF_RUNS[words]]}"
    for name in FOUND.keys() - {OF_RUNS[words]}:
        assert run(f"{words} {name}") == f"{name} holds {FOUND[name][1]}, not {wanted}: use it with {used(name)}"
    for several in ("memory", "sorted"):
        (inside,) = (name for name in FOUND if name.startswith(several))
        assert run(f"{words} {several}") == f"{several} holds no run itself, but folders of runs: {inside}"


@pytest.mark.parametrize("words", OF_PRETRAINED)
def test_a_command_that_uses_a_pretrained_model(words: str, run: Callable[[str], str]) -> None:
    for name, (_, what, _) in FOUND.items():
        if what != "a pretrained model":
            assert run(f"{words} {name}") == f"{name} holds {what}, not a pretrained model: use it with {used(name)}"


@pytest.mark.parametrize("words", OF_SEVERAL)
def test_a_command_that_resumes_several_runs(words: str, run: Callable[[str], str]) -> None:
    for name, (_, what, _) in FOUND.items():
        assert run(f"{words} {name}") == f"{name} holds {what}, not folders of runs: use it with {used(name)}"


@pytest.mark.parametrize("words", MAKERS)
def test_a_new_run_in_the_folder_of_another(words: str, run: Callable[[str], str]) -> None:
    for name in FOUND.keys() - {"words", MAKERS[words]}:
        what = FOUND[name][1]
        if what == "a pretrained model":
            for more in ("", " --overwrite"):
                assert run(f"{words} {name}{more}") == f"{name} holds {what}, which no run may replace: choose another --out"
        else:
            assert run(f"{words} {name}") == f"{name} holds {what} already: --overwrite replaces it, --out starts another"


def test_exporting_and_exploring(run: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["somewhere/tinyformer/export/__main__.py"])  # which the scripts do not lie beside
    refused = {
        name: f"holds {FOUND[name][1]}: only a run of a language model" for name in ("tones", "memory/rnn", "sorted/sort-gpt")
    }
    refused["words"] = f"holds word vectors, not a run: use it with {used('words', None)}"
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
            path = (Path("examples/char_gpt.py"), Path("my_gpt.py"))[number]
            said = f"{run} holds a run of {path.name}, not a run of a translator: use it with python {path} sample --out {run}"
            assert str(caught.value) == said
