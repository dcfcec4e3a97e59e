"""Each script of examples/ runs with few steps, and leaves what it says: a picture, and a run that others open."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tinyformer import CharTokenizer, KneserNey, RunFolder
from tinyformer.training.opening import open_pretrained, open_run

TEXT = ("--data", "long.txt")
# By the name of a script: the words of a short run, its pictures, and how it says what came out.
RUNS = {
    "algorithms": (["--steps", "2", "--task", "add"], ["add/attention.png"], r"  \d \d \d \d  ->  \d \d \d   (right|wrong)"),
    "char_gpt": (["--steps", "2", *TEXT], ["char_gpt/loss.png"], r"step     2: loss \d\.\d{4}, validation \d\.\d{4}"),
    "dial_tones": (["--steps", "1"], ["dial_tones/listening.png"], r"as loud as the noise +\d+ %"),
    "fill_mask": (["--steps", "2", *TEXT], ["fill_mask/loss.png"], r"\[MASK\] .* \d+ %   \(correct: \w+\)"),
    "markov": (TEXT, ["markov/losses.png"], r"masked votes +purred 100 %\n +attention, 600 steps +purred (9\d|100) %"),
    "memory": (["--steps", "2"], ["memory/accuracy.png"], r"attention( +\d+\.\d){6}"),
    "micrograd": (["--steps", "30"], ["micrograd/moons.png"], r"step   30: loss 0\.\d+, 1[5-9]\d|200 of 200 points right"),
    "search": (["--steps", "2", *TEXT], ["search/loss.png"], r"step     2: loss \d\.\d{4}, \d+ of \d+ halves are matched"),
    "translate": (["--steps", "2"], ["translate/attention.png"], r"\d+ of 500 held-out dates"),
    "word_vectors": (["--steps", "2", *TEXT], ["word_vectors/map.png"], r"lazy +\w+ -?\d\.\d\d,"),
}


def is_a_picture(path: Path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


@pytest.mark.parametrize("name", RUNS)
def test_a_short_run(name, script):
    words, pictures, result = RUNS[name]
    said = script.good(name, *words)
    assert re.search(result, said), said
    for picture in pictures:
        assert is_a_picture(script.folder / "runs" / picture)
        assert f"runs/{picture}" in said
    kept = {path.name for path in (script.folder / "runs" / pictures[0]).parent.iterdir()}
    assert not {name for name in kept if name.startswith(".")}  # no lock, and nothing unfinished
    if {"config.json"} & kept:
        check_run(script.folder / "runs" / name)


def check_run(path: Path) -> None:
    """Check that a run opens as those of the programs do, with its weights."""
    opened = open_run(RunFolder(path))
    assert opened.model.num_parameters() > 1000
    assert not opened.model.training
    log = (path / "log.csv").read_text(encoding="utf-8")
    assert log.startswith("step,train_loss,validation_loss\n1,")  # a short run logs each step
    assert not (path / "latest.safetensors").exists()


def test_sorting_is_learned(script):
    said = script.good("algorithms", "--steps", "150")
    first, last = (float(share) for share in re.findall(r"step +\d+: loss .*, +([\d.]+) % of held-out problems right", said))
    assert first < last and last > 90


def test_each_model_is_measured_from_each_distance(script):
    said = script.good("memory", "--steps", "1")
    assert re.findall(r"(\w+) with [\d,]+ parameters", said) == ["RNN", "GRU", "LSTM", "attention"]
    sizes = [int(size.replace(",", "")) for size in re.findall(r"with ([\d,]+) parameters", said)]
    assert max(sizes) < 1.1 * min(sizes)
    assert len(re.findall(r"(?m)^    \w+ +" + r" +\d+\.\d" * 6 + "$", said)) == 4


def test_losses_of_a_text_are_those_of_its_last_tenth(script):
    said = script.good("markov", *TEXT)
    text = (script.folder / "long.txt").read_text(encoding="utf-8")
    tokenizer = CharTokenizer.train(text)
    ids = tokenizer.encode(text)
    cut = len(ids) * 9 // 10
    printed = re.findall(r"(?m)^    (\d)    ([\d.]+) nats$", said)
    assert [int(order) for order, _ in printed] == list(range(9))
    for order, loss in printed[:3]:
        assert float(loss) == round(KneserNey(ids[:cut], int(order), tokenizer.vocab_size).loss(ids[cut:]), 4)


def test_a_pretrained_model_writes_and_trains(script, small_gpt):
    said = script.good("generate", "--model", str(small_gpt), "--prompt", "the fox")
    assert said.startswith("the fox")
    assert is_a_picture(script.folder / "runs/generate/sure.png")
    said = script.good("fine_tune", "--model", str(small_gpt), "--data", "text.txt", "--steps", "40")
    before, after = (float(loss) for loss in re.findall(r"(?:Before|After), with a loss of ([\d.]+):", said))
    assert after < before - 0.03
    assert is_a_picture(script.folder / "runs/fine_tuned/loss.png")
    assert open_pretrained(script.folder / "runs/fine_tuned").kind == "language"


def test_without_a_model_a_small_llama_learns_first(script):
    short = "import tinyformer.data.reading as reading\nreading.default_text = lambda: (30 * open('long.txt').read(), 'it')"
    said = script.good("generate", "--steps", "2", before=short)
    assert "Saved it to runs/small_llama" in said
    assert "Saved" not in script.good("generate")  # it is there
    assert "Before, with a loss of" in script.good("fine_tune", "--data", "text.txt", "--steps", "1")


def test_the_same_seed_repeats_a_run(script):
    first, second = (script.good("char_gpt", "--steps", "3", *TEXT) for _ in range(2))
    assert second.replace("char_gpt-2", "char_gpt").partition("\n")[2] == first
    assert [path.name for path in sorted((script.folder / "runs/char_gpt").glob("snapshot-*"))] == [
        f"snapshot-{step:08d}.safetensors" for step in range(4)
    ]
    assert (script.folder / "runs/char_gpt/log.csv").read_bytes() == (script.folder / "runs/char_gpt-2/log.csv").read_bytes()


def test_nothing_is_overwritten_and_a_finished_run_is_not_resumed(script):
    for number in (1, 2):
        said = script.good("char_gpt", "--steps", "1", *TEXT)
        assert ("runs/char_gpt is not empty" in said) == (number == 2)
    assert sorted(path.name for path in (script.folder / "runs").iterdir()) == ["char_gpt", "char_gpt-2"]
    command = [sys.executable, "-m", "tinyformer", "train", "gpt", "--resume", "--out", "runs/char_gpt"]
    result = subprocess.run(command, cwd=script.folder, env=script.environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "latest.safetensors does not exist: without it this run can be used, but not resumed" in result.stderr
