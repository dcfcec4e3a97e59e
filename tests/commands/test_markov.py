"""`tinyformer train markov` as its users run it: what it prints about sentences is true, and what it does with a text."""

from __future__ import annotations

import csv
import importlib
import math
import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import Program, entries

import tinytensor as tt
from tinyformer import CharTokenizer
from tinyformer.markov import KneserNey, SkipVotes, TransitionTable

COMMAND = "train markov"
TEXT = "the cat sat on the mat, and the dog sat on the log. " * 30
SHORT = ["--data", "text.txt", "--order", "3", "--length", "20", "--prompt", "the "]
FIRST_RUN = [*SHORT, "--out", "found"]


def write_data(folder: Path) -> None:
    (folder / "text.txt").write_text(TEXT)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return vars(importlib.import_module("tinyformer.programs.markov"))


def guess(some: Any, probabilities: Any) -> tuple[str, float]:
    """The likeliest word and its probability."""
    best = int(probabilities.argmax().item())
    return some.words[best], probabilities.tolist()[best]


def test_two_words_know_what_one_does_not(script: dict[str, Any]) -> None:
    some = script["Sentences"](script["DRINKS"])
    one, two = (TransitionTable(some.ids, len(some.words), order) for order in (1, 2))
    for sentence, ids in zip(script["DRINKS"], some.ids):
        last = sentence.split()[-1]
        assert one.predict(ids[:-1]).tolist()[some.words.index(last)] == pytest.approx(0.5)
        assert guess(some, two.predict(ids[:-1])) == (last, 1)


def test_only_pairs_reach_a_word_that_is_far_away(script: dict[str, Any]) -> None:
    some = script["Sentences"](script["ANIMALS"])
    votes = SkipVotes(some.ids, len(some.words))
    two = TransitionTable(some.ids, len(some.words), 2)
    for sentence, ids in zip(script["ANIMALS"], some.ids):
        last, context = sentence.split()[-1], ids[:-1]
        for table in (votes.first_order, two):
            assert table.predict(context).tolist()[some.words.index(last)] == pytest.approx(1 / 6)
        assert guess(some, votes.predict(context, masked=False)) == (last, pytest.approx(2 / 7))
        assert guess(some, votes.predict(context)) == (last, pytest.approx(1))
        assert votes.weights(context).tolist() == [0, 1, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("missed", [0, 1, 2])
def test_one_animal_may_be_told_by_the_absence_of_the_others(
    script: dict[str, Any], missed: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    some = script["Sentences"](script["ANIMALS"])
    weights = np.zeros((18, 7), np.float32)
    weights[:, 1] = 1
    weights[: 3 * missed] = weights[0, ::-1]  # on another word
    expected = tt.ones((18, len(some.words))) / len(some.words)
    monkeypatch.setitem(script["attention"].__globals__, "train_attention", lambda *_: (tt.tensor(weights), expected))
    script["attention"](0)
    printed = capsys.readouterr().out
    assert f"\nFor {6 - missed} of 6 animals the largest weight is on the animal.\n" in printed
    assert ("it saw none of these" in printed) == (missed == 1)


def test_without_a_mask_the_frequent_wins(script: dict[str, Any]) -> None:
    some = script["Sentences"](script["UNEVEN"])
    votes = SkipVotes(some.ids, len(some.words))
    assert guess(some, votes.predict(some.ids[2][:-1], masked=False)) == ("barked", pytest.approx(11 / 21))
    for sentence, ids in zip(script["UNEVEN"], some.ids):
        assert guess(some, votes.predict(ids[:-1])) == (sentence.split()[-1], pytest.approx(1))


@pytest.mark.parametrize("seed", [1337, 1, 2])
def test_attention_learns_the_mask(script: dict[str, Any], seed: int) -> None:
    some = script["Sentences"](script["ANIMALS"])
    weights, expected = script["train_attention"](some, seed)
    largest = weights.numpy().argmax(axis=1).reshape(6, 3)
    assert ((largest == 1).all(axis=1)).sum() >= 5  # the last animal may be told by the absence of the others
    for sentence, probabilities in zip(script["ANIMALS"], expected):
        word, probability = guess(some, probabilities)
        assert word == sentence.split()[-1]
        assert probability > 0.95


def test_what_is_printed(first_run: tuple[Path, str]) -> None:
    folder, printed = first_run
    for line in [
        "    one word        ink 50 %, tea 50 %",
        "    two words       tea 100 %",
        "    votes           hooted 29 %, barked 14 %, howled 14 %, purred 14 %, quacked 14 %, roared 14 %",
        "    owl ... park      counts    hooted 100 %",
        "    votes           barked 52 %, purred 48 %",
        "    Q M K^T = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]",
        "For 5 of 6 animals the largest weight is on the animal.",
        "All it has to know of the other one is that it saw none of these.",
        "Written with 1 character of context:",
        "Written with 3 characters of context:",
    ]:
        assert line in printed.splitlines()
    assert printed.count("masked votes    hooted 100 %") == printed.count("masked votes    purred 100 %") == 1
    assert entries(folder / "found") == ["losses.csv", "losses.png"]
    assert (folder / "found/losses.png").read_bytes().startswith(b"\x89PNG")


def test_losses_are_those_of_the_end_of_the_text(first_run: tuple[Path, str], program: Program) -> None:
    folder, printed = first_run
    tokenizer = CharTokenizer.train(TEXT)
    ids = tokenizer.encode(TEXT)
    cut = int(len(ids) * 0.9)
    with open(folder / "found" / "losses.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["order"]) for row in rows] == [0, 1, 2, 3]
    for row in rows:
        loss = KneserNey(ids[:cut], int(row["order"]), tokenizer.vocab_size).loss(ids[cut:])
        assert float(row["validation_loss"]) == loss
        assert f"{row['order']:>14s}  {loss:11.4f}  {math.exp(loss):10.2f}" in printed
    assert printed == program.good(*SHORT, "--out", "found")
    assert printed != program.good(*SHORT, "--out", "found", "--seed", "5")


def test_beside_a_gpt(program: Program, environment: dict[str, str]) -> None:
    gpt = Program("train gpt", program.folder, environment)
    tiny = "--steps 2 --eval-every 1 --num-layers 1 --num-heads 1 --d-model 8 --block-size 8 --batch-size 2".split()
    gpt.good("--data", "text.txt", "--out", "gpt", *tiny)
    with open(program.folder / "gpt" / "log.csv", newline="", encoding="utf-8") as file:
        best = min(float(row["validation_loss"]) for row in csv.DictReader(file) if row["validation_loss"])
    printed = program.good(*SHORT, "--gpt", "gpt")
    assert f"           GPT  {best:11.4f}  {math.exp(best):10.2f}      0.0 %" in printed
    (program.folder / "other.txt").write_text(TEXT[1:])
    assert "gpt learned another text, text.txt, and cannot be compared: choose that with --data" in program.bad(
        "--data", "other.txt", "--gpt", "gpt"
    )
    gpt.good("--data", "text.txt", "--out", "pairs", "--tokenizer", "bpe", "--bpe-tokens", "270", *tiny)
    assert "pairs does not predict characters, and cannot be compared" in program.bad(*SHORT, "--gpt", "pairs")
    best = program.folder / "gpt" / "best.safetensors"
    best.write_bytes(best.read_bytes()[:-1])  # cut short
    assert "gpt/best.safetensors" in program.bad(*SHORT, "--gpt", "gpt")
    best.unlink()  # as in a run that has not validated yet
    assert "gpt/best.safetensors" in program.bad(*SHORT, "--gpt", "gpt")


@pytest.mark.skipif(os.name != "posix", reason="needs signals of POSIX")
@pytest.mark.parametrize(("by", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_when_it_is_stopped_the_orders_so_far_count(program: Program, by: signal.Signals, name: str) -> None:
    words = ["--data", "text.txt", "--order", "5", "--length", "20", "--out", "found"]
    rest = program.interrupted("             1 ", *words, by=by)
    stopped = re.search(rf"\nStopped by {name} after (\d+) of 6 orders\.\n", rest)
    assert stopped
    with open(program.folder / "found" / "losses.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["order"]) for row in rows] == list(range(int(stopped[1])))
    assert len(rows) < 6
    assert "Wrote the losses, as .csv and .png, to found" in rest
    assert entries(program.folder / "found") == ["losses.csv", "losses.png"]


def test_losses_are_kept_as_orders_finish(script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(ids: Any, order: int, vocab_size: int) -> KneserNey:
        if order == 2:
            raise MemoryError
        return KneserNey(ids, order, vocab_size)

    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(script["learn_text"].__globals__, "KneserNey", counted)
    arguments = script["parse"]([*SHORT, "--out", "found"])
    data = script["read"](arguments)
    with pytest.raises(MemoryError):
        script["learn_text"](data, arguments)
    assert entries(tmp_path / "found") == ["losses.csv"]
    lines = (tmp_path / "found" / "losses.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["order", "0", "1"]


def test_the_folder_is_checked_before_the_work(program: Program) -> None:
    (program.folder / "afile").write_text("")
    result = program(*SHORT, "--out", "afile")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: afile is a file, not a folder: choose another folder\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "missing.txt"], "missing.txt does not exist"),
        (["--order", "-1"], "argument --order: it must be at least 0, not -1"),
        (["--length", "-5"], "argument --length: it must be at least 0, not -5"),
        (["--data", "text.txt", "--prompt", "é"], "the character 'é' (U+00E9) at position 0 is not among"),
        (["--data", "text.txt", "--order", "5000"], "too few for --order 5000: choose a longer text, or a lower --order"),
        (["--data", "short.txt", "--order", "0"], "short.txt has 9 characters, too few for --order 0: choose a longer text\n"),
        (["--data", "text.txt", "--gpt", "nowhere"], "nowhere does not exist: train first"),
    ],
)
def test_mistakes_are_told_in_a_line(program: Program, words: list[str], message: str) -> None:
    (program.folder / "short.txt").write_text("too short")
    assert message in program.bad(*words)
