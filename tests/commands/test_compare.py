"""`tinyformer train translator` compare: finished runs side by side, with and without mistakes."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest
from running import Program, contents, entries

COMMAND = "train translator"
RUNS = ["lstm", "attention", "a third"]
COMMON = "--data pairs.tsv --test 50 --validation 6 --vocab-size 280 --max-tokens 30 --beam 2 --batch-size 8".split()
COMMON += ["--steps", "12", "--eval-every", "6", "--log-every", "3", "--warmup", "4"]
RECURRENT = ["--d-model", "16", "--d-embedding", "8", *COMMON]
MODEL = ["--d-model", "16", "--num-heads", "2", "--d-ff", "16", "--encoder-layers", "1", "--decoder-layers", "2", *COMMON]
PICTURES = ["alignments.png", "score_by_length.png"]


def write_data(folder: Path, ending: str = "", name: str = "pairs.tsv") -> None:
    """Sentences of two to five words with an ``ending``, and their translations word by word."""
    english = "red blue small dog cat bird sees likes".split()
    spanish = dict(zip(english, "rojo azul pequeño perro gato pájaro ve quiere".split()))
    rng = random.Random(0)
    sources = dict.fromkeys(tuple(rng.choices(english, k=rng.randrange(2, 6))) for _ in range(130))
    lines = [f"{' '.join(words)}{ending}\t{' '.join(spanish[word] for word in words)}\n" for words in sources]
    (folder / name).write_text("".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def told() -> dict[str, str]:
    """What each of the runs printed."""
    return {}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], told: dict[str, str]) -> Program:
    """A folder with a finished run of each architecture, which tests only read."""
    folder = tmp_path_factory.mktemp("runs")
    write_data(folder)
    program = Program(COMMAND, folder, environment)
    for name in ("lstm", "attention"):
        told[name] = program.good("--architecture", name, *RECURRENT, "--out", name)
    longer = ["--steps", "100", "--eval-every", "50", "--learning-rate", "1e-2", "--dropout", "0"]  # so that it translates
    told["a third"] = program.good(*MODEL, *longer, "--out", "a third")
    return program


@pytest.fixture
def changed(runs: Program, tmp_path: Path) -> Program:
    """A copy of the runs, for tests that change them."""
    shutil.copytree(runs.folder, tmp_path / "copy")
    return Program(COMMAND, tmp_path / "copy", runs.environment)


def drew(*names: str) -> str:
    return "Drew " + " and ".join(str(Path(name)) for name in names) + "\n"


def test_runs_are_compared(changed: Program) -> None:
    pytest.importorskip("sacrebleu")
    changed.draws = True
    before = {name: contents(changed.folder / name) for name in RUNS}
    printed = changed.good("compare", *RUNS)
    tables, settings, rest = printed.split("\n\nBLEU nrefs")[0], printed.split("\n\n")[2], printed.split("\n\n", 3)[3]
    sentence, first, second, third, note, last = rest.splitlines()
    assert re.fullmatch(r"BLEU nrefs:1\|.*\|tok:13a\|.*\nchrF nrefs:1\|.*", settings)
    bleu, chrf = tables.split("\n\n")
    assert chrf.startswith("chrF: for the 50 held-out sentences, by source length\nwords of the source")
    heading, words, sentences, *rows = bleu.splitlines()
    assert heading == "BLEU: for the 50 held-out sentences, by source length"
    assert re.fullmatch(r"words of the source +all( +\d(-\d)?)+", words)
    _, everything, *counts = sentences.split()
    assert everything == "50"
    assert sum(map(int, counts)) == 50
    assert min(map(int, counts)) >= 20
    assert [re.split(r"  +", row)[0] for row in rows] == ["lstm", "attention", "a third (transformer)"]
    assert all(re.fullmatch(r".+?( +\d+\.\d\d)+", row) for row in rows)
    source = sentence.removesuffix("  ->")
    assert source in (changed.folder / "lstm/sample.txt").read_text(encoding="utf-8")
    # What a run wrote is what it writes, greedily.
    for name, label, line in zip(RUNS, ("lstm", "attention", "a third (transformer)"), (first, second, third)):
        assert line == f"    {changed.good('translate', '--out', name, '--beam', '1', source)[:-1]}   ({label})"
    assert note == "No alignments for lstm: no attention to draw"
    out = Path("runs/translate_comparison")
    assert last + "\n" == drew(f"{out}/score_by_length.png", f"{out}/alignments.png")
    assert entries(changed.folder / out) == PICTURES  # no temporary files
    for name in PICTURES:
        assert (changed.folder / out / name).read_bytes().startswith(b"\x89PNG")
    assert {name: contents(changed.folder / name) for name in RUNS} == before


def test_the_score_of_all_sentences_is_the_runs(changed: Program, told: dict[str, str]) -> None:
    pytest.importorskip("sacrebleu")
    scores = {name: re.findall(r"^beam 2: BLEU (\d+\.\d\d)", printed, re.MULTILINE) for name, printed in told.items()}
    rows = changed.good("compare", *RUNS).splitlines()[3:6]
    assert [re.findall(r"\d+\.\d\d", row)[:1] for row in rows] == list(scores.values())
    assert float(scores["a third"][0]) > 1


def test_a_sentence_and_a_folder_of_ones_own(changed: Program) -> None:
    changed.draws = True
    words = ["compare", "attention/", "a third", "--sentence", "  RED $x^$  日本 ", "--out", "some/where"]
    printed = changed.good(*words)
    assert "\n  RED $x^$  日本   ->\n" in printed
    assert "No alignments" not in printed
    assert printed.endswith(drew("some/where/score_by_length.png", "some/where/alignments.png"))
    pictures = contents(changed.folder / "some/where")
    changed.good(*words)  # which replaces them
    assert contents(changed.folder / "some/where") == pictures


def test_runs_without_attention_alone(changed: Program) -> None:
    changed.good("--architecture", "lstm", *RECURRENT, "--out", "other/lstm", "--seed", "2")
    printed = changed.good("compare", "lstm", "other/lstm")
    *_, note, last = printed.splitlines()
    assert note == f"No alignments for lstm, {Path('other/lstm')}: no attention to draw"
    assert last + "\n" == drew("runs/translate_comparison/score_by_length.png")
    assert entries(changed.folder / "runs/translate_comparison") == ["score_by_length.png"]


def test_dates_are_compared_by_exact_matches(program: Program) -> None:
    few = ["--validation", "5", "--test", "40", "--vocab-size", "270", "--max-tokens", "60", "--steps", "2", "--beam", "1"]
    sizes = ["--d-model", "8", "--d-embedding", "8"]
    program.good("--architecture", "lstm", *sizes, *few, "--batch-size", "8", "--out", "lstm")
    shutil.copytree(program.folder / "lstm", program.folder / "again")
    printed = program.good("compare", "lstm", "again")
    assert printed.startswith("exactly right (%): for the 40 held-out sentences, by source length\n")
    assert re.search(r"\nlstm( +0\.00)+\nagain \(lstm\)( +0\.00)+\n\n", printed)


def test_without_optional_packages(changed: Program) -> None:
    bare = changed.without("sacrebleu", "matplotlib")
    printed = changed.good("compare", *RUNS, **bare)
    assert printed.startswith("(no scores: they need sacrebleu, pip install sacrebleu)\n")
    assert printed.endswith("(no pictures: pip install matplotlib)\n")
    assert not (changed.folder / "runs").exists()
    (changed.folder / "absent/matplotlib.py").unlink()
    printed = changed.good("compare", *RUNS, **bare)
    assert printed.endswith(drew("runs/translate_comparison/alignments.png"))
    shutil.copytree(changed.folder / "lstm", changed.folder / "again")
    printed = changed.good("compare", "lstm", "again", **bare)  # neither scores nor attention
    assert printed.endswith("No alignments for lstm, again (lstm): no attention to draw\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lstm"], "name two or more different runs to compare"),
        (["lstm", "./lstm"], "name two or more different runs to compare"),
        ([], "the following arguments are required: RUN"),
        (["lstm", ""], "argument RUN: the path is empty"),
        (["lstm", "nothing"], "nothing does not exist: train first, or name the folder of another run"),
        (["lstm", "pairs.tsv"], "pairs.tsv is a file: name the folder of a run"),
        (["lstm", "attention", "--sentence", ""], "lstm: the sentence is empty: give at least one word to translate"),
        (["attention", "a third", "--sentence", " \t "], "attention: the sentence is empty"),
        (["lstm", "attention", "--sentence", "x " * 31], "tokens, more than the 30 that this model translates"),
        (["lstm", "attention", "--out", "pairs.tsv"], "pairs.tsv: File exists"),
        (["lstm", "attention", "--out", ""], "argument --out: the path is empty"),
        (["lstm", "attention", "--beam", "3"], "unrecognized arguments: --beam 3"),
    ],
)
def test_comparisons_that_will_not_do(runs: Program, words: list[str], message: str) -> None:
    assert message in runs.bad("compare", *words).replace("\\", "/")
    assert entries(runs.folder) == sorted([*RUNS, "pairs.tsv"])


def test_runs_that_cannot_be_compared(changed: Program) -> None:
    lstm = changed.folder / "lstm"
    write_data(changed.folder, " indeed", "others.tsv")
    changed.good("--architecture", "lstm", *RECURRENT, "--data", "others.tsv", "--out", "others")
    message = changed.bad("compare", "lstm", "others").splitlines()
    assert message[0] == "lstm and others (lstm) cannot be compared, as their held-out sentences differ:"
    assert re.fullmatch("sentence 1 is '.*' in one and '.* indeed' in the other", message[1])
    changed.good("--architecture", "lstm", *RECURRENT, "--test", "5", "--out", "fewer")
    assert "lstm and fewer (lstm) cannot be compared" in changed.bad("compare", "lstm", "fewer")
    sample = lstm / "sample.txt"
    for content, said in ((b"", "is damaged: line 1 should be"), (b"\xff\n", "is damaged: it is not UTF-8 text")):
        sample.write_bytes(content)
        assert f"lstm/sample.txt {said}" in changed.bad("compare", "attention", "lstm").replace("\\", "/")
    sample.unlink()  # as in a run that was stopped
    message = changed.bad("compare", "attention", "lstm").replace("\\", "/")
    assert message.startswith("lstm/sample.txt does not exist: a run has it once its training is finished, as by ")
    assert message.endswith("train translator --out lstm --resume\n")
    (lstm / "config.json").write_text('{"model": {}, "text": {}}')  # a run of another program
    message = changed.bad("compare", "lstm", "a third").replace("\\", "/")
    assert "lstm/config.json is damaged, or of another program: task is missing" in message
    for file in (changed.folder / "attention").glob("best*"):
        file.write_bytes(file.read_bytes()[:-100])
    assert "best.safetensors is not a whole safetensors file" in changed.bad("compare", "attention", "a third")
    assert not (changed.folder / "runs").exists()


def test_help_of_the_compare_command(runs: Program) -> None:
    text = " ".join(runs.good("compare", "--help").split())
    for words in ("RUN [RUN ...]", "--sentence TEXT", "(default: runs/translate_comparison)", "median length"):
        assert words in text
