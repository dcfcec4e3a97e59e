"""A small run of each kind, kept as a program wrote it: every later version must load it, and write the same.

``kept_runs`` has for each of them the folder of the run, without its log and its latest checkpoint, and what the program wrote
with it (.txt). To keep one more, add a row to RUNS and run this file, which makes those that are not there yet. The others must
not be made anew: ``runs_of_before`` has the still older ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT, Program

KEPT = Path(__file__).with_name("kept_runs")
BEFORE = Path(__file__).with_name("runs_of_before")  # the data
COMMON = "--steps 4 --log-every 2 --eval-every 2 --batch-size 4 --shards 1 --warmup 2 --learning-rate 0.03"
PAIRS = "--data pairs.tsv --validation 3 --test 3 --max-tokens 12 --vocab-size 270 --d-model 4"
RUNS = {  # a name: the script, the words that make a run, and those that use it
    "gpt": (
        "char_gpt.py",
        "--data text.txt --num-layers 1 --num-heads 2 --d-model 8 --block-size 8",
        ["sample", "--length", "40"],
    ),
    "lstm": (
        "char_gpt.py",
        "--data text.txt --architecture lstm --num-layers 1 --d-model 8 --block-size 8 --context 4",
        ["sample", "--length", "40"],
    ),
    "transformer": (
        "translate.py",
        f"{PAIRS} --encoder-layers 1 --decoder-layers 1 --num-heads 2 --d-ff 8",
        ["translate", "one two ten", "--beam", "2"],
    ),
    "attention": ("translate.py", f"{PAIRS} --architecture attention --d-embedding 4", ["translate", "one two ten"]),
    "bert": (
        "fill_mask.py",
        "--data text.txt --num-layers 1 --num-heads 2 --d-model 8 --d-ff 16 --wordpieces 40 --window 8 --classify-steps 0",
        ["fill", "the red [MASK] is [MASK]"],
    ),
    "tones": (
        "dial_tones.py",
        "--d-model 8 --num-heads 2 --encoder-layers 1 --decoder-layers 1 --d-ff 8 --most 3 --test 2",
        ["transcribe", "one.wav"],
    ),
}


def write_data(folder: Path, environment: dict[str, str]) -> None:
    for name in ("text.txt", "pairs.tsv"):
        shutil.copy(BEFORE / name, folder)
    Program("dial_tones.py", folder, environment).good("record", "0123", "--seed", "1", "--out", ".")
    (folder / "0123_clean.wav").rename(folder / "one.wav")


@pytest.mark.parametrize("name", RUNS)
def test_a_kept_run_writes_what_it_wrote(name: str, tmp_path: Path, environment: dict[str, str]) -> None:
    script, _, use = RUNS[name]
    write_data(tmp_path, environment)
    shutil.copytree(KEPT / name, tmp_path / "run")
    written = Program(script, tmp_path, environment).good(*use, "--out", "run")
    assert written == (KEPT / f"{name}.txt").read_text(encoding="utf-8")


def keep(name: str, folder: Path) -> None:
    """Make a run, and keep what a program needs to use it."""
    script, words, use = RUNS[name]
    command = [sys.executable, str(ROOT / "examples" / script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TINYTENSOR_KERNELS": "numpy"}
    subprocess.run([*command, *words.split(), *COMMON.split(), "--out", "run"], cwd=folder, env=environment, check=True)
    used = subprocess.run([*command, *use, "--out", "run"], cwd=folder, env=environment, check=True, capture_output=True)
    for file in ("config.json", "tokenizer.json", "best.safetensors"):
        if (folder / "run" / file).exists():
            (KEPT / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "run" / file, KEPT / name)
    (KEPT / f"{name}.txt").write_bytes(used.stdout)


if __name__ == "__main__":
    import tempfile

    for each in RUNS:
        if not (KEPT / each).exists():
            with tempfile.TemporaryDirectory() as made:
                write_data(Path(made), dict(os.environ))
                keep(each, Path(made))
