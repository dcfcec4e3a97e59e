"""`tinyformer train vectors` as its users run it, on small texts."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest
from running import Program, entries

from tinyformer.commands import asked_vectors, vectors as vectors_program
from tinyformer.common.makers import tinyformer_command
from tinyformer.word_vectors import Corpus, load_vectors, words_of

COMMAND = "train vectors"
FIRST_RUN = ["--data", "text.txt", "--width", "12", "--epochs", "4", "--end", "line", "--out", "runs"]


def sentences(seed: int, cats: str) -> str:
    """Lines about colors and people, in which ``cats`` are spoken of as of people or as of colors."""
    rng = np.random.default_rng(seed)
    people, colors = ["king", "queen", "man", "woman"], ["red", "green", "blue", "white"]
    (people if cats == "people" else colors).append("cats")
    rows = []
    for _ in range(600):
        words, sentence = (people, "the {} came and sat down") if rng.integers(2) else (colors, "a {} coat is what you wear")
        rows.append(sentence.format(words[int(rng.integers(5 if "cats" in words else 4))]))
    return "\n".join(rows)


def write_data(folder: Path) -> None:
    (folder / "text.txt").write_text(sentences(0, "people"))
    (folder / "other.txt").write_text(sentences(1, "colors"))
    (folder / "pairs.tsv").write_text("king\tqueen\t9\nred\tgreen\t8\nking\tred\t1\nking\tunicorn\t5\n")
    (folder / "questions.txt").write_text(": some\nking queen red green\nking queen red unicorn\n")


def test_a_run_shows_what_there_is(finished: Program, first_run: tuple[Path, str]) -> None:
    printed = first_run[1]
    vectors = load_vectors(finished.folder / "runs" / "vectors.txt")
    assert entries(finished.folder / "runs") == ["map.png", "vectors.txt"]
    assert vectors.matrix.shape == (len(vectors), 12)
    assert {"king", "cats", "coat"} <= set(vectors.words)
    assert re.search(r"^text\.txt: [\d,]+ words, with \d+ different ones of at least 5 occurrences$", printed, re.MULTILINE)
    assert "differs from it by 0." in printed
    for word in ("king", "queen", "man"):
        near = ", ".join(f"{other} {score:.2f}" for other, score in vectors.nearest(word, 8))
        assert f"{word:>14s}  cosine  {near}\n" in printed
    answer = ", ".join(f"{word} {score:.2f}" for word, score in vectors.analogy("man", "king", "woman", 4))
    assert f"  man is to king as woman is to: {answer}\n" in printed
    assert "map.png" in printed


def test_a_short_text_is_reported_with_the_epochs_it_needs(first_run: tuple[Path, str], program: Program) -> None:
    corpus = Corpus.of(words_of(line) for line in sentences(0, "people").split("\n"))
    found = re.search(r"^This text is short: .* Try --epochs (\d+), or$", first_run[1], re.MULTILINE)
    assert found
    assert (int(found[1]) - 1) * len(corpus.ids) < vectors_program.ENOUGH <= int(found[1]) * len(corpus.ids)


@pytest.mark.parametrize(("method", "enough", "told"), [("cbow", 1, False), ("cbow", 10**6, True), ("counts", 10**6, False)])
def test_what_is_short(
    program: Program, method: str, enough: int, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(vectors_program, "ENOUGH", enough)
    monkeypatch.chdir(program.folder)
    vectors_program.train(
        vectors_program.parse(["train", "--data", "text.txt", "--end", "line", "--method", method, "--width", "4"])
    )
    assert ("This text is short" in capsys.readouterr().out) == told


def test_saved_vectors_are_asked(finished: Program) -> None:
    source = ["vectors", "runs/vectors.txt"]
    vectors = load_vectors(finished.folder / "runs" / "vectors.txt")
    printed = finished.good(*source, "--analogy", "king", "queen", "red", "--odd", "red", "green", "king")
    assert printed.splitlines()[0] == f"runs/vectors.txt: {len(vectors)} words, 12 numbers a word"
    assert f"king is to queen as red is to: {vectors.analogy('king', 'queen', 'red')[0][0]} " in printed
    assert f"  red green king: {vectors.odd_one_out(['red', 'green', 'king'])}\n" in printed
    assert "Nearest words" not in printed
    printed = finished.good(*source, "--evaluate", "pairs.tsv", "questions.txt")
    assert re.search(r"Ratings of pairs\.tsv: Spearman's correlation -?[01]\.\d{3} on 3 pairs, 1 with an unknown word", printed)
    assert re.search(r"  all: [01] of 1 right \(.*%\), 1 with an unknown word left out", printed)


def test_a_flag_for_several_may_be_repeated(copied: Program) -> None:
    words = ["--ask", "king", "--ask", "red", "man", "--evaluate", "pairs.tsv", "--evaluate", "questions.txt"]
    printed = copied.good("vectors", "--vectors", "runs/vectors.txt", *words)
    assert re.findall(r"(\w+)  cosine  ", printed) == ["king", "red", "man"]
    assert "Ratings of pairs.tsv" in printed
    assert "Analogies of questions.txt" in printed


def test_the_map_shows_as_asked_for_only_what_was(finished: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drawn = []
    monkeypatch.setattr(asked_vectors, "word_map", lambda points, groups, *_: drawn.append(groups))
    path = finished.folder / "runs" / "vectors.txt"
    frequent = load_vectors(path).words[0]  # too frequent for the map, unless it is asked for
    for words in ([], ["--ask", "king", frequent]):
        vectors_program.ask(vectors_program.parse(["ask", str(path), "--out", str(tmp_path), *words]))
    assert [groups.get("asked for") for groups in drawn] == [None, [frequent]]


@pytest.mark.parametrize("method", ["counts", "cbow", "skip-gram"])
def test_every_method_finds_similar_words_and_repeats(program: Program, method: str) -> None:
    words = ["--method", method, "--data", "text.txt", "--end", "line", "--width", "8"]
    words += [] if method == "counts" else ["--epochs", "5", "--sample", "0", "--learning-rate", "0.15"]
    printed = program.good(*words, "--out", "one", "--ask", "king", "--odd", "king", "queen", "red")
    program.good(*words, "--out", "two", "--ask", "king")
    assert (program.folder / "one" / "vectors.txt").read_bytes() == (program.folder / "two" / "vectors.txt").read_bytes()
    vectors = load_vectors(program.folder / "one" / "vectors.txt")
    assert {word for word, _ in vectors.nearest("king", 4)} == {"queen", "man", "woman", "cats"}
    assert "  king queen red: red\n" in printed


def test_two_texts_are_compared(program: Program) -> None:
    words = ["--method", "counts", "--end", "line", "--width", "8", "--compare", "text.txt", "other.txt", "--out", "both"]
    printed = program.good(*words, "--ask", "cats", "king")
    assert entries(program.folder / "both") == ["first.txt", "second.txt"]
    first, second = (load_vectors(program.folder / "both" / name) for name in ("first.txt", "second.txt"))
    assert first.nearest("cats", 1)[0][0] in ("king", "queen", "man", "woman")
    assert second.nearest("cats", 1)[0][0] in ("red", "green", "blue", "white")
    found = re.search(r"^ +cats +\d+  first:  (.*)\n +second: (.*)$", printed, re.MULTILINE)
    assert found
    assert set(found[1].split(", ")[:4]) == {"king", "queen", "man", "woman"}
    assert set(found[2].split(", ")[:4]) == {"red", "green", "blue", "white"}
    assert "first.txt is there already" in program.bad(*words)
    printed = program.good(*words, "--overwrite")
    assert "On average over 20 words, both share" in printed
    assert "(of 20 frequent words the 8 whose neighbours differ most, and the 8 whose neighbours differ least)\n" in printed
    numbers = [int(number) for number in re.findall(r"(\d+)  first:", printed)]
    assert (len(numbers), numbers) == (16, sorted(numbers))


def test_words_that_few_texts_share_are_shown_once(program: Program) -> None:
    shared = " ".join(f"shared{i}" for i in range(14))
    for name in ("one", "two"):
        (program.folder / name).write_text(f"{shared} {name}\n" * 5)
    words = ["--method", "counts", "--end", "line", "--width", "4", "--compare", "one", "two"]
    printed = program.good(*words)
    assert "differ most" not in printed
    assert sorted(re.findall(r"(shared\d+) +\d+  first:", printed)) == sorted(shared.split())
    assert "On average over 14 words" in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["text.txt", "none.txt"], "none.txt does not exist: pass --compare a text file"),
        (["text.txt", "empty.txt"], "empty.txt has no text: pass --compare a text to learn from"),
        (["text.txt", "one.txt"], "one.txt has only one word, 50 times"),
        (["text.txt", "foreign.txt"], "the texts have 0 words in common, too few to compare"),
        (["text.txt", "other.txt", "--ask", "king", "kingg"], "unknown word 'kingg' in text.txt: did you mean king"),
        (["longer.txt", "text.txt", "--ask", "unicorn"], "unknown word 'unicorn' in text.txt"),
        (["text.txt", "other.txt", "--odd", "king", "queen", "red"], "--odd has no effect with --compare"),
        (["text.txt", "other.txt", "--analogy", "king", "queen", "red"], "--analogy has no effect with --compare"),
        (["text.txt", "other.txt", "--evaluate", "pairs.tsv"], "--evaluate has no effect with --compare"),
    ],
)
def test_what_cannot_be_compared_is_found_before_training(program: Program, words: list[str], message: str) -> None:
    (program.folder / "empty.txt").write_text("\n")
    (program.folder / "one.txt").write_text("word " * 50)
    (program.folder / "foreign.txt").write_text("bon jour " * 50)
    (program.folder / "longer.txt").write_text(sentences(0, "people") + "\na unicorn" * 5)
    assert message in program.bad("--end", "line", "--out", "both", "--compare", *words)
    assert not (program.folder / "both").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--ask", "king", "kingg"], "unknown word 'kingg': did you mean king"),
        (["--ask", "King"], "unknown word 'King': did you mean king"),
        (["--analogy", "king", "queen", "kingg"], "unknown word 'kingg'"),
        (["--odd", "king", "queen", "kingg"], "unknown word 'kingg'"),
        (["--odd", "king", "queen", "king"], "--odd needs at least three different words"),
        (["--evaluate", "pairs.tsv", "none.tsv"], "none.tsv does not exist: give a text file of word pairs"),
    ],
)
@pytest.mark.parametrize("source", [["vectors", "runs/vectors.txt"], ["--data", "text.txt", "--end", "line"]], ids=str)
def test_questions_are_checked_before_training_and_headings(
    finished: Program, source: list[str], words: list[str], message: str
) -> None:
    result = finished(*source, *words, *(["--out", "new"] if "--data" in source else []))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert message in result.stderr
    assert re.fullmatch(r"(text\.txt: .*words, with .*\n)?", result.stdout)
    assert not (finished.folder / "new").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "text.txt"], "text.txt is a file, not a folder: choose another folder"),
        (["--out", "text.txt/runs"], "Not a directory"),
        (["--out", "taken"], "taken/vectors.txt is a folder, and cannot be replaced by vectors"),
        (["--out", "taken", "--overwrite"], "taken/vectors.txt is a folder, and cannot be replaced by vectors"),
    ],
)
def test_a_folder_that_cannot_be_used_is_found_before_training(program: Program, words: list[str], message: str) -> None:
    (program.folder / "taken" / "vectors.txt").mkdir(parents=True)
    result = program(*FIRST_RUN, *words)
    assert (result.returncode, result.stderr.count("\n"), result.stdout) == (2, 1, "")
    assert message in result.stderr


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user who may not write everywhere")
def test_a_folder_that_may_not_be_written(program: Program) -> None:
    (program.folder / "runs").mkdir(mode=0o500)
    assert "Permission denied" in program.bad(*FIRST_RUN)


def test_an_interrupted_training_keeps_its_vectors(copied: Program) -> None:
    before = (copied.folder / "runs" / "vectors.txt").read_bytes()
    process = copied.begin(*FIRST_RUN, "--epochs", "300", "--overwrite")
    assert process.stderr is not None
    assert next(line for line in process.stderr if line.startswith("training: "))
    process.send_signal(signal.SIGINT)
    printed, errors = process.communicate()
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    assert re.search(r"Stopped by Ctrl-C after [\d,]+ of [\d,]+ words; the vectors so far are in runs/vectors-unf", printed)
    assert "Nearest words" not in printed
    assert len(load_vectors(copied.folder / "runs" / "vectors-unfinished.txt")) == 20
    assert entries(copied.folder / "runs") == ["map.png", "vectors-unfinished.txt", "vectors.txt"]
    assert (copied.folder / "runs" / "vectors.txt").read_bytes() == before  # the complete ones stay


def test_interrupted_counting_leaves_nothing(program: Program) -> None:
    rng = np.random.default_rng(0)
    (program.folder / "long.txt").write_text(" ".join(f"w{i}" for i in rng.integers(0, 5000, 300_000)))
    process = program.begin("--method", "counts", "--data", "long.txt", "--window", "100", "--out", "runs")
    assert process.stdout is not None
    assert process.stdout.readline().startswith("long.txt: 300,000 words")
    assert process.stdout.readline() == "counts, 100 numbers a word, from neighbours up to 100 words away\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate() == ("", "\ninterrupted\n")
    assert process.returncode == 130
    assert not (program.folder / "runs").exists()


def test_vectors_that_are_there_are_not_lost(copied: Program) -> None:
    before = (copied.folder / "runs" / "vectors.txt").read_bytes()
    message = copied.bad(*FIRST_RUN)
    how = tinyformer_command("vectors", "runs/vectors.txt")
    told = f"runs/vectors.txt is there already: ask it with `{how}`, or pass --overwrite, or another --out"
    assert told in message
    assert (copied.folder / "runs" / "vectors.txt").read_bytes() == before
    copied.good(*FIRST_RUN, "--overwrite", "--seed", "5")
    assert (copied.folder / "runs" / "vectors.txt").read_bytes() != before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "one.txt"], "one.txt has only one word, 50 times: vectors need at least two different words"),
        (["--data", "marks.txt"], "marks.txt has no words"),
        (["--data", "text.txt", "--min-count", "5000"], "--min-count=5000 leaves 0 of 20 different words in text.txt"),
        (["--data", "none.txt"], "none.txt does not exist"),
        (["vectors", "text.txt"], "text.txt, line 1:"),
        (["vectors", "none.txt"], "none.txt does not exist: give a file of word vectors"),
        (
            ["vectors", "good.txt", "--limit", "1"],
            "one word alone, 'king' of good.txt, has no neighbours: --limit 2 is the least",
        ),
        (["vectors", "good.txt", "--epochs", "3"], "unrecognized arguments: --epochs 3 (see tinyformer vectors --help)"),
        (["vectors"], "runs/word_vectors/vectors.txt does not exist: train first, or name another file"),
        (["vectors", "good.txt", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["vectors", "good.txt", "--evaluate", "text.txt"], "text.txt, line 1: expected two words and a number"),
        (["--data", "text.txt", "--limit", "5"], "unrecognized arguments: --limit 5 (see tinyformer train vectors --help)"),
        (["--data", "text.txt", "--method", "glove"], "--method must be one of counts, cbow, skip-gram, got 'glove'"),
        (["--data", "text.txt", "--method", "counts", "--epochs", "3"], "--epochs has no effect with --method counts"),
        (["--data", "text.txt", "--end", "word"], "--end must be one of paragraph, line"),
        (["--data", "text.txt", "--width", "0"], "--width must be at least 1, got 0"),
        (["--data", "text.txt", "--learning-rate", "1e30", "--min-learning-rate", "1e30"], "--learning-rate is too high"),
        (["--data", "text.txt", "--negative", "1000000000000"], "this --negative needs at least"),
        (["--data", "text.txt", "--compare", "text.txt", "one.txt"], "not allowed with"),
    ],
)
def test_mistakes(program: Program, words: list[str], message: str) -> None:
    (program.folder / "one.txt").write_text("word " * 50)
    (program.folder / "marks.txt").write_text("?! ...")
    (program.folder / "good.txt").write_text("3 2\nking 1 2\nqueen 2 1\nred -1 0\n")
    assert message in program.bad(*words)
    assert not (program.folder / "runs").exists()


def test_help(program: Program) -> None:
    printed = program.good("--help")
    for word in ("--method", "--compare", "--evaluate", "--analogy", "--window", "--min-count", "--seed"):
        assert word in printed
    assert "passes over the text (default: 10)" in " ".join(printed.split())
    assert "(default: [])" not in printed


def test_letters_and_accents_are_the_same_however_they_are_typed(program: Program) -> None:
    (program.folder / "text.txt").write_text("e\u0301te\u0301 chaud hiver froid\n" * 5, encoding="utf-8")
    words = ["--method", "counts", "--data", "text.txt", "--out", "runs"]
    for number, typed in enumerate(("e\u0301te\u0301", "\u00e9t\u00e9")):
        assert "           \u00e9t\u00e9  cosine  " in program.good(*words, "--ask", typed, *(["--overwrite"] * number))
