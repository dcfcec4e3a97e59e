"""`tinyformer train bert` as its users run it, with tiny settings."""

from __future__ import annotations

import io
import json
import math
import random
import shutil
import sys
from pathlib import Path

import pytest
from running import Program, entries, log_of, result_of, validation_losses

from tinyformer.commands import bert as bert_program
from tinyformer.common.errors import SettingError
from tinyformer.common.makers import tinyformer_command
from tinyformer.tokenizers import CharTokenizer
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.run_folder import RunFolder

COMMAND = "train bert"
MODEL = ["--num-layers", "1", "--num-heads", "2", "--d-model", "16", "--d-ff", "32", "--window", "8"]
TINY = [*MODEL, "--batch-size", "4", "--wordpieces", "100", "--warmup", "2", "--classify-steps", "6"]
SHORT = ["--steps", "8", "--eval-every", "4", "--log-every", "2"]
FILES = ["best.safetensors", "config.json", "latest.safetensors", "log.csv", "loss.png", "tokenizer.json"]
FIRST_RUN = ["--data", "text.txt", "--out", "run", *TINY, *SHORT]


def some_text(sentences: int = 500) -> str:
    """Questions and statements, which begin with different words."""
    rng = random.Random(0)
    words = ["fox", "dog", "cat", "sees", "likes", "brown", "lazy", "small", "bird"]
    made = []
    for _ in range(sentences):
        asks = rng.random() < 0.5
        opening = rng.choice(["why does the", "where is the"] if asks else ["then the", "so the"])
        made.append(f"{opening} {' '.join(rng.choice(words) for _ in range(rng.randint(2, 4)))}{'?' if asks else '.'}")
    return "\n".join(made)


def write_data(folder: Path) -> None:
    (folder / "text.txt").write_text(some_text(), encoding="utf-8")


def test_a_run_ends_with_scores_filled_sentences_and_a_classification(first_run: tuple[Path, str]) -> None:
    folder, printed = first_run
    assert "per masked token" in printed
    filled = printed[printed.index("validate") : printed.index("Classify sentences")]
    assert "[MASK]" in filled
    assert filled.count(" %, ") >= 4
    assert "sentences for training" in printed
    for start in ("from scratch", "pretrained", "always the same mark"):
        assert f"\n{start}: " in printed
    assert "fill 'a sentence with a [MASK]' --out run\n" in printed
    assert entries(folder / "run") == sorted([*FILES, "from-scratch", "pretrained"])
    settings = json.loads((folder / "run/config.json").read_text(encoding="utf-8"))
    assert settings["model"]["d_model"] == 16
    assert (settings["model"]["norm_first"], settings["model"]["positions"]) == (True, "rotary")


def test_the_same_command_finds_the_same(first_run: tuple[Path, str], copied: Program) -> None:
    printed = copied.good("--data", "text.txt", "--out", "again", *TINY, *SHORT)
    assert result_of(copied.folder / "again") == result_of(copied.folder / "run")
    ours, theirs = (
        text[text.index("Held-out text") : text.index("Fill in more")].replace("again/", "run/")
        for text in (printed, first_run[1])
    )
    assert ours == theirs


def test_without_network_it_trains_on_pythons_own_sources(program: Program) -> None:
    # Only the size of the model and the number of steps are not the defaults, to be quick.
    printed = program.good(*MODEL, "--window", "32", "--steps", "2", "--classify-steps", "2")
    assert "Tiny Shakespeare could not be downloaded" in printed
    assert "Python's standard library: " in printed
    assert "[MASK] os\n    " in printed
    assert "fill 'a sentence with a [MASK]' --out runs/fill_mask\n" in printed
    assert entries(program.folder / "runs" / "fill_mask") == sorted([*FILES, "from-scratch", "pretrained"])


def test_fill(finished: Program) -> None:
    lines = finished.good("fill", "--out", "run", "--best", "3", "why does the [MASK] fox [MASK]?").splitlines()
    assert lines[0] == "why does the [MASK] fox [MASK]?"
    assert len(lines) == 3  # a line for each mask
    shares = [float(piece.split()[-2]) for piece in lines[1].split(", ")[-3:]]
    assert shares == sorted(shares, reverse=True)
    assert 0 < sum(shares) <= 100


def test_fill_in_the_lines_of_a_pipe(finished: Program) -> None:
    sentences = ["why does the [MASK] fox", "the [MASK] dog"]
    expected = finished.good("fill", "--out", "run", *sentences)
    assert finished.good("fill", "--out", "run", typed="\r\n\n".join(sentences)) == expected


def test_fill_in_the_lines_that_are_typed(finished: Program, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    expected = finished.good("fill", "--out", "run", "the [MASK] dog")
    typed = io.StringIO("no mask\nthe [MASK] dog\n\nthe [MASK] fox\n")
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    arguments = bert_program.parse(["fill", "--out", str(finished.folder / "run")])
    arguments.run(arguments)
    printed, said = capsys.readouterr()
    assert printed == expected
    first, second = said.splitlines()
    assert first == "Type a sentence with a [MASK]; an empty line ends." and "there is no [MASK]" in second


def test_a_model_that_learned_can_tell(program: Program) -> None:
    (program.folder / "text.txt").write_text(some_text(2000), encoding="utf-8")
    learned = ["--steps", "60", "--batch-size", "16", "--classify-steps", "40", "--classify-learning-rate", "1e-2"]
    printed = program.good("--data", "text.txt", "--out", "run", *TINY, *learned, "--learning-rate", "1e-2")
    line = next(line for line in printed.splitlines() if line.startswith("pretrained: "))
    assert float(line.split()[1]) > 90
    losses = validation_losses(program.folder / "run")
    assert losses[-1] < losses[0] - 1


def test_resume(finished: Program, copied: Program) -> None:
    printed = copied.good("--out", "run", "--resume")
    assert "per masked token" in printed
    assert log_of(copied.folder / "run") == log_of(finished.folder / "run")
    assert "leave out --window" in copied.bad("--out", "run", "--resume", "--window", "9")
    (copied.folder / "text.txt").write_text(some_text(501), encoding="utf-8")
    assert "is not the one that run was trained on" in copied.bad("--out", "run", "--resume")
    assert "holds a run already" in copied.bad(*FIRST_RUN)


def test_what_a_killed_classifier_left_is_removed(copied: Program) -> None:
    folder = copied.folder / "run" / "from-scratch"
    expected = entries(folder)
    (folder / f".latest.safetensors.{'0' * 16}.tmp").write_bytes(b"half of it")
    for name in (".tinyformer.new", ".tinyformer.complete"):  # killed before and while it took its place
        (folder / name).mkdir()
        (folder / name / "config.json").write_text("{}", encoding="utf-8")
    copied.good("--out", "run", "--resume")
    assert entries(folder) == expected


def test_one_classifier_starts_from_what_was_learned_and_one_does_not(copied: Program) -> None:
    copied.good(*FIRST_RUN, "--overwrite", "--classify-learning-rate", "0", "--classify-steps", "1")
    learned, pretrained, scratch = (
        load_checkpoint(copied.folder / "run" / part / "best.safetensors", "best")[0]["model"]
        for part in ("", "pretrained", "from-scratch")
    )
    name = "bert.token_embedding.weight"
    assert pretrained[name].tolist() == learned[name].tolist() != scratch[name].tolist()


def test_what_a_kill_left_of_a_classifier_is_removed(copied: Program) -> None:
    own = copied.folder / "run" / "from-scratch"
    before = entries(own)
    shutil.copytree(own, own / RunFolder(own)._complete.name)
    (own / ".latest.safetensors.0123456789abcdef.tmp").write_text("half of it")
    assert "\nfrom scratch: " in copied.good("--out", "run", "--resume")
    assert entries(own) == before


def test_ctrl_c_stops_a_classifier_and_says_so(copied: Program) -> None:
    printed = copied.interrupted("step    10:", *FIRST_RUN, "--overwrite", "--classify-steps", "60")
    assert "Stopped by Ctrl-C. The language model is saved" in printed
    again = tinyformer_command("train", "bert", "--out", "run", "--resume")
    assert printed.endswith(f"Train the classifiers again with: {again}\n")
    assert "Fill in more" not in printed
    assert "\npretrained: " in copied.good("--out", "run", "--resume-changed", "--classify-steps", "6")


def test_a_text_without_marks_trains_no_classifier(program: Program) -> None:
    (program.folder / "text.txt").write_text("a few words in a row\n" * 100, encoding="utf-8")
    assert "(Too few sentences" in program.good(*FIRST_RUN)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data", "none.txt"], "none.txt does not exist"),
        (["--data", "text.txt", "--num-heads", "5"], "--num-heads=5 does not divide --d-model=128"),
        (["--data", "text.txt", "--window", "100000"], "windows of 100000: use a longer one, or a smaller --window"),
        (["--data", "text.txt", "--window", "20", "--max-length", "20"], "--max-length must be at least 22, the window"),
        (["--data", "text.txt", "--wordpieces", "9"], "or more"),
        (["--data", "text.txt", "--steps", "0"], "--steps must be at least 1, got 0"),
        (["fill", "--out", "none", "a [MASK]"], "none does not exist: train first"),
        (
            ["--data", "text.txt", "--positions", "relative"],
            "positions must be one of learned, sinusoidal, sinusoidal_halves, rotary, got 'relative'",
        ),
    ],
)
def test_mistakes(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad(*words)
    assert entries(program.folder) == ["text.txt"]


def test_a_setting_that_cannot_be_is_refused_at_the_start(program: Program) -> None:
    message = program.bad("--data", "text.txt", "--classify-learning-rate", "nan")
    assert message == "--classify-learning-rate must be a finite number, got nan\n"
    assert entries(program.folder) == ["text.txt"]


def test_a_classifier_that_fails_names_its_own_learning_rate(program: Program) -> None:
    result = program(*FIRST_RUN, "--classify-learning-rate", "1e30")
    assert result.returncode == 2
    assert "a lower --classify-learning-rate\n" in result.stderr


# ---------------------------------------------------------------------------------------------- the example as a module


MARKS = "marks must be two different punctuation characters, such as ?., got "


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("wordpieces", 5, "wordpieces must be at least 6, got 5"),
        ("wordpieces", -1, "wordpieces must be at least 6, got -1"),
        ("window", 0, "window must be at least 1, got 0"),
        ("window", -3, "window must be at least 1, got -3"),
        ("masked", 0.0, "masked must be above 0 and at most 1, got 0.0"),
        ("masked", 1.01, "masked must be above 0 and at most 1, got 1.01"),
        ("masked", math.nan, "masked must be a finite number, got nan"),
        ("masked", -math.inf, "masked must be a finite number, got -inf"),
        ("marks", "?", f"{MARKS}'?'"),
        ("marks", "??", f"{MARKS}'??'"),
        ("marks", "?.!", f"{MARKS}'?.!'"),
        ("marks", "??.", f"{MARKS}'??.'"),
        ("marks", "? ", f"{MARKS}'? '"),
        ("marks", "a.", f"{MARKS}'a.'"),
        ("marks", "?\n", f"{MARKS}'?\\n'"),
        ("marks", "?\udcff", f"{MARKS}'?\\udcff'"),  # what a byte that is no UTF-8 becomes on a command line
        ("classify_steps", -1, "classify_steps must be at least 0, got -1"),
        ("classify_learning_rate", math.nan, "classify_learning_rate must be a finite number, got nan"),
        ("classify_learning_rate", math.inf, "classify_learning_rate must be a finite number, got inf"),
        ("classify_learning_rate", -1.0, "classify_learning_rate must be at least 0, got -1.0"),
    ],
)
def test_settings_that_cannot_be(name: str, value: object, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        bert_program.TextConfig(**{name: value})
    assert str(caught.value) == message


def test_chinese_is_classified_by_its_own_marks(program: Program) -> None:
    rng = random.Random(0)
    draw = "狐狗猫看爱棕懒小鸟山水火"
    made = []
    for _ in range(500):
        asks = rng.random() < 0.5
        made.append(f"{'谁' if asks else '我'}{''.join(rng.choices(draw, k=rng.randint(3, 5)))}{'？' if asks else '。'}")
    (program.folder / "text.txt").write_text("".join(made), encoding="utf-8")
    learned = ["--steps", "2", "--batch-size", "16", "--classify-steps", "30", "--classify-learning-rate", "2e-2"]
    printed = program.good("--data", "text.txt", "--out", "run", *TINY, *learned)
    assert "Classify sentences by their last mark, ？ or 。:" in printed
    line = next(line for line in printed.splitlines() if line.startswith("from scratch: "))
    assert float(line.split()[2]) > 90


def test_sentences_that_cannot_be_filled(copied: Program) -> None:
    words = ["fill", "--out", "run"]
    assert "there is no [MASK]" in copied.bad(*words, "the fox")
    assert "more than the 8 that this model reads" in copied.bad(*words, "the fox [MASK] " * 5)
    assert "--best must be from 1" in copied.bad(*words, "--best", "0", "the [MASK]")
    tokens = len(json.loads((copied.folder / "run/tokenizer.json").read_text(encoding="utf-8"))["tokens"])
    CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + tokens)))).save(copied.folder / "run/tokenizer.json")
    assert "tokenizer.json has no WordPieces" in copied.bad(*words, "the [MASK]")
    (copied.folder / "run/config.json").write_text("{}", encoding="utf-8")
    assert "config.json is damaged" in copied.bad(*words, "the [MASK]")


def test_words_that_become_unk_are_counted_and_a_text_of_such_words_is_refused(program: Program) -> None:
    text = (program.folder / "text.txt").read_text(encoding="utf-8")
    (program.folder / "text.txt").write_text(f"{text} {'a' * 150} {'b' * 101}\n", encoding="utf-8")
    assert "\n[UNK] occurs 2 times, for words of over 100 characters" in program.good(*FIRST_RUN)
    (program.folder / "text.txt").write_text(f"{'a' * 150} " * 3000, encoding="utf-8")
    message = program.bad(*FIRST_RUN, "--overwrite")
    assert message.startswith("all 3,000 tokens of the text are special and cannot be hidden, such as [UNK]")


def test_words_that_a_trained_model_reads_as_unk_are_named(copied: Program) -> None:
    long = "x" * 101
    result = copied("fill", "--out", "run", f"the {long} [MASK]", f"[UNK] 狗 {long} [MASK]", "the fox [MASK]")
    assert result.returncode == 0 and result.stdout.count(" %") == 15
    assert result.stderr == (f"(2 unknown words, too long or with unknown characters, read as [UNK]: '{'x' * 27}...', '狗')\n")
    assert copied("fill", "--out", "run", "the [UNK] [MASK]").stderr == ""
