"""A small run of each kind, kept as a program wrote it: every later version must load it, and write the same.

``kept_runs`` has for each of them the folder of the run, without its log and its latest checkpoint; and what the
program wrote with it (.txt). To keep one more, add a row to RUNS and run this file, which makes those that are not
there yet. The others must not be made anew: ``runs_of_before`` has the still older ones.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running import ROOT, Program

from tinyformer import BertConfig, GPTConfig, RecurrentConfig, TrainingConfig, TransformerConfig
from tinyformer.models.seq2seq import Seq2SeqConfig
from tinyformer.training.translation import TranslationConfig
from tinytensor.io import load_with_metadata, save

KEPT = Path(__file__).with_name("kept_runs")
BEFORE = Path(__file__).with_name("runs_of_before")  # the data
FILES = "config.json tokenizer.json best.safetensors vectors.txt model.safetensors tokenizer_config.json generation_config.json"
TRAIN = "--steps 4 --log-every 2 --eval-every 2 --batch-size 4 --shards 1 --warmup 2 --learning-rate 0.03 --out run"
GPT = f"train gpt --data text.txt --num-layers 1 --num-heads 2 --d-model 8 --block-size 8 {TRAIN}"
RECURRENT = f"train gpt --data text.txt --num-layers 1 --d-model 8 --block-size 8 --context 4 {TRAIN} --architecture"
PAIRS = f"train translator --data pairs.tsv --validation 3 --test 3 --max-tokens 12 --vocab-size 270 --d-model 4 {TRAIN}"
SAMPLE, TRANSLATE = "sample --length 40 --out run", "translate 'one two ten' --out run"
RUNS = {  # a name: the command lines that make a run, and the one that uses it
    "first": ([], SAMPLE),  # by the first version, which had no part for the text, and no settings in its checkpoints
    "gpt": ([GPT], SAMPLE),
    "says": ([GPT], SAMPLE),  # by the first version whose runs say what they are
    "lstm": ([f"{RECURRENT} lstm"], SAMPLE),
    "gru": ([f"{RECURRENT} gru"], SAMPLE),
    "rnn": ([f"{RECURRENT} rnn"], SAMPLE),
    "transformer": ([f"{PAIRS} --encoder-layers 1 --decoder-layers 1 --num-heads 2 --d-ff 8"], f"{TRANSLATE} --beam 2"),
    "attention": ([f"{PAIRS} --architecture attention --d-embedding 4"], TRANSLATE),
    "context": ([f"{PAIRS} --architecture lstm --d-embedding 4 --num-layers 1"], TRANSLATE),
    "bert": (
        [
            "train bert --data text.txt --num-layers 1 --num-heads 2 --d-model 8 --d-ff 16 --wordpieces 40 --window 8 "
            f"--classify-steps 0 {TRAIN}"
        ],
        "fill 'the red [MASK] is [MASK]' --out run",
    ),
    "vectors": (
        ["train vectors --data text.txt --width 4 --epochs 1 --min-count 1 --end line --out run"],
        "vectors --vectors run/vectors.txt --ask is",
    ),
    "pretrained": (
        [GPT.replace("--out run", "--out gpt"), "save run --out gpt"],
        "generate --model run --length 40 --prompt 'one '",
    ),
}
CONFIGS = (  # the settings of which a run may lack some, as it was made before these came
    BertConfig, GPTConfig, RecurrentConfig, Seq2SeqConfig, TrainingConfig, TransformerConfig, TranslationConfig
)  # fmt: skip


def write_data(folder: Path) -> None:
    """Write a text and pairs."""
    for name in ("text.txt", "pairs.tsv"):
        shutil.copy(BEFORE / name, folder)


def lasting(written: str) -> str:
    """What a program writes, without the times that it took, the backend and its kernels."""
    written = re.sub(r"(?m)^(Trained in |Drew |This run was trained with the kernels of ).*\n", "", written)
    return re.sub(r"(?m) on \w+(?=; run folder)", "", written)  # the backend


@pytest.fixture
def use(tmp_path: Path, environment: dict[str, str]) -> Iterator[Any]:
    """A function that gives the program which uses the kept run of a name, and the words with which it does, in a copy."""
    write_data(tmp_path)

    def prepare(name: str) -> tuple[Program, list[str]]:
        shutil.copytree(KEPT / name, tmp_path / "run")
        return Program("", tmp_path, environment), shlex.split(RUNS[name][1])

    yield prepare


def expected(name: str) -> str:
    return (KEPT / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RUNS)
def test_a_saved_run_still_writes_the_same(name: str, use: Any) -> None:
    program, words = use(name)
    assert lasting(program.good(*words)) == expected(name)


OF_SETTINGS = [name for name in RUNS if name not in ("first", "vectors", "pretrained")]


def change_settings(run: Path, change: Any) -> None:
    """Change the settings of a run, both in its config.json and in its checkpoints."""
    for file in run.rglob("config.json"):
        settings = json.loads(file.read_text(encoding="utf-8"))
        change(settings)
        file.write_text(json.dumps(settings), encoding="utf-8")
    for file in run.rglob("*.safetensors"):
        tensors, metadata = load_with_metadata(file)
        state = json.loads(metadata["state"])
        change(state["settings"])
        copies = {name: tensor.copy() for name, tensor in tensors.items()}  # as the file is mapped
        save(copies, file, {**metadata, "state": json.dumps(state)})


def at_their_defaults(part: Any) -> list[str]:
    """The settings of a part of config.json that have their defaults."""
    for kind in CONFIGS:
        defaults = {field.name: field.default for field in dataclasses.fields(kind)}
        # A run that was kept before a setting came lacks that one.
        if isinstance(part, dict) and part.keys() <= defaults.keys() and 2 * len(part) > len(defaults):
            return [name for name, value in part.items() if value == defaults[name]]
    return []


@pytest.mark.parametrize("name", OF_SETTINGS)
def test_a_run_of_another_version(name: str, use: Any) -> None:
    """One that lacks the settings that are at their defaults, as of an earlier version that did not have them; and that has
    some which are switched off, as of a later version."""
    program, words = use(name)
    (config,) = (program.folder / "run").rglob("config.json")
    settings = json.loads(config.read_text(encoding="utf-8"))
    missing = {part: at_their_defaults(values) for part, values in settings.items()}
    assert sum(map(len, missing.values())) > 10

    def change(settings: dict[str, Any]) -> None:
        for part in filter(missing.get, settings):
            for setting in missing[part]:
                settings[part].pop(setting, None)  # a checkpoint has only those that a resumed run cannot change
            settings[part] |= {"later": None, "new": False, "also_new": 0, "kind_of_new": "none"}

    change_settings(program.folder / "run", change)
    assert lasting(program.good(*words)) == expected(name)


@pytest.mark.parametrize("name", OF_SETTINGS)
def test_a_run_of_a_later_version_with_what_is_not_known(name: str, use: Any) -> None:
    program, words = use(name)
    change_settings(program.folder / "run", lambda settings: settings["model"].update(later={"kind": "sparse"}))
    message = program.bad(*words).replace("\\", "/")
    told = r"run/\S*config.json: model.later is {'kind': 'sparse'}, a field that this version does not know"
    remedy = "remove it if you added it, or use the version that wrote it, or a later one"
    assert re.fullmatch(f"{told}: {remedy}\n", message)


# ---------------------------------------------------------------------------------------------------------------- making


def keep(name: str, folder: Path) -> None:
    """Make a run, and keep what a program needs to use it."""

    def call(line: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TINYTENSOR_KERNELS": "numpy", "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "tinyformer", *shlex.split(line)]
        return subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True).stdout.decode()

    made, use = RUNS[name]
    for line in made:
        call(line)
    for file in (folder / "run").rglob("*"):
        if file.name in FILES.split():
            kept = KEPT / name / file.relative_to(folder / "run")
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, kept)
    (KEPT / f"{name}.txt").write_text(lasting(call(use)), encoding="utf-8", newline="")


if __name__ == "__main__":
    for each in RUNS:
        if not (KEPT / each).exists():
            with tempfile.TemporaryDirectory() as path:
                write_data(Path(path))
                keep(each, Path(path))
