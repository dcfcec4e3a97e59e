"""examples/fill_mask.py as its users run it, with tiny settings."""

from __future__ import annotations

import csv
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "fill_mask.py"
MODEL = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--d-inner", "32", "--window", "8"]
TINY = [*MODEL, "--batch-size", "4", "--wordpieces", "100", "--warmup", "2", "--classify-steps", "6"]
SHORT = ["--steps", "8", "--eval-every", "4", "--log-every", "2"]
FILES = ["best.safetensors", "config.json", "latest.safetensors", "log.csv", "loss.png", "tokenizer.json"]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    paths = [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *paths]), "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, str(SCRIPT), *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8", check=False)


def good(folder: Path, *words: str) -> str:
    result = run(folder, *words)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    return result.stdout


def bad(folder: Path, *words: str) -> str:
    """What it says where the user made a mistake: a line or two, and never a traceback."""
    result = run(folder, *words)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.rstrip("\n").count("\n") <= 1, result.stderr
    return result.stderr


def some_text(sentences: int = 500) -> str:
    """Sentences of which those that ask begin with a word of their own."""
    rng = random.Random(0)
    words = ["fox", "dog", "cat", "sees", "likes", "brown", "lazy", "small", "bird"]
    made = []
    for _ in range(sentences):
        asks = rng.random() < 0.5
        opening = rng.choice(["why does the", "where is the"] if asks else ["then the", "so the"])
        made.append(f"{opening} {' '.join(rng.choice(words) for _ in range(rng.randint(2, 4)))}{'?' if asks else '.'}")
    return "\n".join(made)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a finished run in it, and what that run printed."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "text.txt").write_text(some_text(), encoding="utf-8")
    return folder, good(folder, "--data", "text.txt", "--out", "run", *TINY, *SHORT)


@pytest.fixture
def copied(finished: tuple[Path, str], tmp_path: Path) -> Path:
    """A copy of the finished run, to change."""
    shutil.copytree(finished[0], tmp_path / "copy")
    return tmp_path / "copy"


def losses(run: Path) -> list[dict[str, str]]:
    with open(run / "log.csv", newline="", encoding="utf-8") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def test_a_run_ends_with_scores_filled_sentences_and_a_classification(finished: tuple[Path, str]) -> None:
    folder, printed = finished
    assert "a hidden token" in printed
    filled = printed[printed.index("validate") : printed.index("Which mark")]
    assert "[MASK]" in filled
    assert filled.count(" %, ") >= 4
    assert "sentences to learn from" in printed
    for start in ("from scratch", "pretrained", "always the same mark"):
        assert f"\n{start}: " in printed
    assert "fill --out run" in printed
    assert sorted(p.name for p in (folder / "run").iterdir() if p.is_file()) == FILES


def test_the_same_command_finds_the_same(finished: tuple[Path, str], copied: Path) -> None:
    printed = good(copied, "train", "--data", "text.txt", "--out", "again", *TINY, *SHORT)
    assert losses(copied / "again") == losses(finished[0] / "run")
    ours, theirs = (
        text[text.index("Held-out text") : text.index("Fill in more")].replace("again/", "run/")
        for text in (printed, finished[1])
    )
    assert ours == theirs


def test_fill(finished: tuple[Path, str]) -> None:
    lines = good(finished[0], "fill", "--out", "run", "--best", "3", "why does the [MASK] fox [MASK]?").splitlines()
    assert lines[0] == "why does the [MASK] fox [MASK]?"
    assert len(lines) == 3  # a line for each mask
    shares = [float(piece.split()[-2]) for piece in lines[1].split(", ")[-3:]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100


def test_a_model_that_learned_can_tell(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(some_text(2000), encoding="utf-8")
    learned = ["--steps", "150", "--batch-size", "16", "--classify-steps", "100", "--classify-learning-rate", "3e-3"]
    printed = good(tmp_path, "--data", "text.txt", "--out", "run", *TINY, *learned, "--learning-rate", "3e-3")
    line = next(line for line in printed.splitlines() if line.startswith("pretrained: "))
    assert float(line.split()[1]) > 90
    rows = losses(tmp_path / "run")
    assert float(rows[-1]["validation_loss"]) < float(rows[0]["validation_loss"]) - 1


def test_resume(finished: tuple[Path, str], copied: Path) -> None:
    printed = good(copied, "--out", "run", "--resume")
    assert "a hidden token" in printed
    assert losses(copied / "run") == losses(finished[0] / "run")
    assert "leave out --window" in bad(copied, "--out", "run", "--resume", "--window", "9")
    (copied / "text.txt").write_text(some_text(501), encoding="utf-8")
    assert "is not the one that run was trained on" in bad(copied, "--out", "run", "--resume")
    assert "holds a run already" in bad(copied, "--data", "text.txt", "--out", "run", *TINY, *SHORT)


def test_a_text_without_marks_trains_no_classifier(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a few words in a row\n" * 100, encoding="utf-8")
    assert "(Too few sentences" in good(tmp_path, "--data", "text.txt", "--out", "run", *TINY, *SHORT)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "none.txt"], "none.txt does not exist"),
        (["--data", "text.txt", "--num-heads", "5"], "num_heads=5 does not divide d_model=128"),
        (["--data", "text.txt", "--masked", "2"], "share of masked tokens must be above 0"),
        (["--data", "text.txt", "--marks", "?"], "marks must be two different marks"),
        (["--data", "text.txt", "--window", "0"], "window must be at least 1, not 0"),
        (["--data", "text.txt", "--window", "100000"], "too few for windows of 100000"),
        (["--data", "text.txt", "--window", "20", "--max-length", "20"], "a max_length of at least 22"),
        (["--data", "text.txt", "--wordpieces", "9"], "at least"),
        (["--data", "text.txt", "--steps", "0"], "steps must be at least 1, not 0"),
        (["fill", "--out", "none", "a [MASK]"], "config.json does not exist"),
        (["fill"], "required: SENTENCE"),
    ],
)
def test_mistakes(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "text.txt").write_text(some_text(50), encoding="utf-8")
    assert message in bad(tmp_path, *words)
    assert [p.name for p in tmp_path.iterdir()] == ["text.txt"]


def test_sentences_that_cannot_be_filled(finished: tuple[Path, str], copied: Path) -> None:
    assert "there is no [MASK]" in bad(copied, "fill", "--out", "run", "the fox")
    assert "more than the 8 of this run" in bad(copied, "fill", "--out", "run", "the fox [MASK] " * 5)
    assert "--best must be from 1" in bad(copied, "fill", "--out", "run", "--best", "0", "the [MASK]")
    (copied / "run/config.json").write_text("{}", encoding="utf-8")
    assert "config.json is damaged" in bad(copied, "fill", "--out", "run", "the [MASK]")
