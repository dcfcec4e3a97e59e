"""Runs that an earlier version wrote still load, write the same text, and go on to the same losses.

``runs_of_before`` holds for each of three programs, made by that version: the folder of a run that was stopped after step 3 of
6, the log of the same run when it is not stopped (.csv), and what its model writes (.txt). The settings then were called
d_inner, accumulation and gelu, and the layers expand and contract.
"""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
from running import Program, check_record, log_of

from tinyformer.common.settings import LAYERS, SETTINGS
from tinytensor import backend_name
from tinytensor.io import load_with_metadata

BEFORE = Path(__file__).with_name("runs_of_before")

COMMON = ["--steps", "6", "--log-every", "1", "--eval-every", "2", "--batch-size", "4", "--shards", "1", "--warmup", "2"]
COMMON += ["--learning-rate", "0.03", "--accumulation", "2", "--num-heads", "2"]
DATA = {"char_gpt": "text.txt", "translate": "pairs.tsv", "fill_mask": "text.txt"}
TRAINS = {"char_gpt": "train gpt", "translate": "train translator", "fill_mask": "train bert"}
# The words that made the run, with the flags of that time, and with its defaults where others have come since.
OPTIMIZER = "--optimizer adamw --schedule cosine --min-learning-rate 1e-4 --beta2 0.98 --weight-decay 0.01"
POSITIONS = "--positions sinusoidal --no-query-key-norm"
TRAIN = {
    "char_gpt": "--recipe nanogpt --num-layers 1 --d-model 8 --block-size 8 --dropout 0.1 --bias --average 2 --activation gelu",
    "translate": "--encoder-layers 1 --decoder-layers 1 --d-model 4 --d-inner 8 --activation swiglu --vocab-size 270 "
    f"--validation 3 --test 3 --max-tokens 12 --beam 2 --dropout 0.1 {POSITIONS} {OPTIMIZER}",
    "fill_mask": "--num-layers 1 --d-model 8 --d-inner 16 --wordpieces 40 --window 8 --classify-steps 0 "
    f"{POSITIONS} {OPTIMIZER}",
}
WRITE = {
    "char_gpt": ["sample", "--length", "60", "--prompt", "the "],
    "translate": ["translate", "one two ten", "--beam", "2", "--n-best", "2"],
    "fill_mask": ["fill", "the red [MASK] is [MASK]"],
}

pytestmark = pytest.mark.parametrize("example", DATA)


@pytest.fixture
def program(example: str, tmp_path: Path, environment: dict[str, str]) -> Program:
    """The program in a folder with a copy of its run of before, and of the data."""
    shutil.copytree(BEFORE / example, tmp_path / "run")
    shutil.copy(BEFORE / DATA[example], tmp_path)
    return Program(TRAINS[example], tmp_path, environment)


def numbers(rows: list[dict[str, str]]) -> list[float]:
    """The losses and gradient norms of a log."""
    columns = ("train_loss", "validation_loss", "gradient_norm")
    return [float(row[column]) for row in rows for column in columns if row[column]]


def test_it_is_of_before(program: Program, example: str) -> None:
    tensors, metadata = load_with_metadata(program.folder / "run/latest.safetensors")
    assert any(set(LAYERS) & set(name.split(".")) for name in tensors)
    assert any(f'"{old}": ' in metadata["state"] for old in SETTINGS)
    assert '"architecture": ' not in metadata["state"]  # there was only one then


def test_it_writes_the_same(program: Program, example: str) -> None:
    assert program.good(*WRITE[example], "--out", "run") == (BEFORE / f"{example}.txt").read_text(encoding="utf-8")


@pytest.mark.skipif(backend_name != "numpy", reason="the runs are of the NumPy backend: a GPU draws other dropout masks")
def test_it_resumes_with_the_same_losses(program: Program, example: str) -> None:
    with open(BEFORE / f"{example}.csv", newline="", encoding="utf-8") as file:
        expected = numbers(list(csv.DictReader(file)))
    program.good(*TRAIN[example].split(), *COMMON, "--data", DATA[example], "--out", "new")
    check_record(program.folder / "new")
    program.good("--resume", "--data", DATA[example], "--out", "run")
    resumed, new = numbers(log_of(program.folder / "run")), numbers(log_of(program.folder / "new"))
    if new == expected:  # this processor rounds like the one that trained the run of before: then to the last bit
        assert resumed == expected
    # Other processors round differently, by 1e-7 an operation, and training multiplies that.
    assert resumed == pytest.approx(expected, rel=1e-4)
    assert new == pytest.approx(expected, rel=1e-4)
