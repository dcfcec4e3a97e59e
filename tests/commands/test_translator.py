"""`tinyformer train translator` as its users run it from a command line, with and without mistakes."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from running import Program, contents, entries, log_of, result_of, validation_losses

from tinyformer.commands import translator as translator_program
from tinyformer.common.makers import tinyformer_command
from tinyformer.decoding.beam_search import Hypothesis
from tinyformer.models.seq2seq import Seq2SeqConfig
from tinyformer.models.transformer import TransformerConfig
from tinyformer.tokenizers import BPETokenizer, CharTokenizer
from tinyformer.training.checkpoints import load_checkpoint
from tinyformer.training.config import TrainingConfig
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.translation import TranslationConfig, Translator, trained_translator

COMMAND = "train translator"
MODEL = ["--d-model", "16", "--num-heads", "2", "--d-ff", "16", "--encoder-layers", "1", "--decoder-layers", "1"]
HELD_OUT = ["--validation", "6", "--test", "5"]
OTHERWISE = ["--vocab-size", "280", "--max-tokens", "30", "--batch-size", "8"]
TASK = [*OTHERWISE, *HELD_OUT]
SHORT = ["--steps", "12", "--eval-every", "6", "--log-every", "3", "--warmup", "4", "--beam", "2"]
TINY = [*MODEL, *TASK, *SHORT]
PICTURES = ["attention.png", "attention_heads.png", "loss.png"]
FILES = [*PICTURES, "best.safetensors", "config.json", "latest.safetensors", "log.csv", "sample.txt", "tokenizer.json"]
FILES.sort()
LONGER = ["--steps", "150", "--eval-every", "50", "--learning-rate", "2e-2", "--dropout", "0"]
FIRST_RUN = ["--data", "pairs.tsv", "--out", "run", *TINY, *LONGER]
RECURRENT = ["--d-model", "16", "--d-embedding", "8", "--num-layers", "2", *TASK, *SHORT]


def some_pairs(count: int = 60) -> list[tuple[str, str]]:
    """Different sentences, and their translations word by word."""
    english = "red blue small dog cat bird sees likes".split()
    spanish = dict(zip(english, "rojo azul pequeño perro gato pájaro ve quiere".split()))
    rng = random.Random(0)
    sources: dict[str, None] = {}
    while len(sources) < count:
        sources[" ".join(rng.choice(english) for _ in range(rng.randrange(2, 6)))] = None
    return [(source, " ".join(spanish[word] for word in source.split())) for source in sources]


def write_pairs(path: Path, pairs: list[tuple[str, str]]) -> None:
    path.write_text("".join(f"{s}\t{t}\n" for s, t in pairs), encoding="utf-8")


def write_data(folder: Path) -> None:
    write_pairs(folder / "pairs.tsv", some_pairs())


def sample_of(run: Path) -> list[list[str]]:
    """The held-out sentences, their translations, and the references."""
    header, *lines = (run / "sample.txt").read_text(encoding="utf-8").splitlines()
    assert header == "source\tours\treference"
    return [line.split("\t") for line in lines]


# ---------------------------------------------------------------------------------------------------------- training


def test_a_run_leaves_its_files_and_says_what_it_does(first_run: tuple[Path, str]) -> None:
    folder, printed = first_run
    run = folder / "run"
    assert entries(run) == FILES
    assert "49 pairs for training, 6 for validation, 5 for testing" in printed
    assert "left out" not in printed
    assert "Best validation loss" in printed
    assert "translate 'a sentence' --out run\n" in printed
    assert [row["step"] for row in log_of(run) if row["validation_loss"]] == ["0", "50", "100", "150"]
    first, *later = validation_losses(run)
    assert min(later) < first - 2
    settings = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert settings["training"]["steps"] == 150
    assert settings["model"]["d_model"] == 16
    assert settings["task"] == {
        "architecture": "transformer", "vocab_size": 280, "lowercase": False, "max_tokens": 30, "length_penalty": 0.6,
        "label_smoothing": 0.1, "validation": 6, "test": 5,
    }  # fmt: skip
    for name in PICTURES:
        assert (run / name).read_bytes().startswith(b"\x89PNG")
    assert "\nDrew {}, {} and {}\n".format(*(Path("run") / name for name in (PICTURES[2], *PICTURES[:2]))) in printed
    # Each held-out sentence is there once, as it was given, and as it was shown.
    given = dict(some_pairs())
    sample = sample_of(run)
    assert len({source for source, _, _ in sample}) == 5
    for source, ours, reference in sample:
        assert given[source] == reference
        assert f"    {source}  ->  {ours}   (reference: {reference})\n" in printed


def test_scores_of_languages(first_run: tuple[Path, str]) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    folder, printed = first_run
    assert re.search(r"^greedy: BLEU \d+\.\d\d, chrF \d+\.\d\d$", printed, re.MULTILINE)
    # The sample has the translations of the beam.
    _, ours, references = zip(*sample_of(folder / "run"))
    bleu, chrf = (score(ours, [references]).score for score in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf))
    assert f"\nbeam 2: BLEU {bleu:.2f}, chrF {chrf:.2f}\nBLEU nrefs:1|" in printed
    assert re.search(r"^BLEU nrefs:1\|.*\|tok:13a\|.*\nchrF nrefs:1\|", printed, re.MULTILINE)


def test_scores_of_dates_are_exact_matches() -> None:
    scores = script()["scores"]
    assert (
        scores(["2000-01-01", "2000-01-02", "x"], ["2000-01-01", "2000-01-03", "y"], "dates")
        == "1 of 3 exactly right (33.33 %)"
    )


def test_without_optional_packages_it_trains_and_names_them(program: Program) -> None:
    bare = program.without("sacrebleu", "matplotlib")
    printed = program.good("--data", "pairs.tsv", "--out", "run", *TINY, "--beam", "1", **bare)
    assert printed.count("greedy: (no scores: they need sacrebleu, pip install sacrebleu)\n") == 1
    assert "beam" not in printed  # a beam of 1 is greedy, which is there already
    assert "no pictures: pip install matplotlib" in printed
    assert entries(program.folder / "run") == sorted(set(FILES) - set(PICTURES))
    message = program.bad("translate", "--out", "run", "--heat-map", "red dog", **bare)
    assert message == "the package 'matplotlib' is not installed: pip install matplotlib\n"


def test_without_files_it_learns_dates(program: Program) -> None:
    words = [*MODEL, *SHORT, "--validation", "20", "--test", "10", "--batch-size", "16"]
    printed = program.good(*words)
    assert re.search(r"^19,9[67]\d pairs for training, 20 for validation, 10 for testing$", printed, re.MULTILINE)
    assert re.search(r"^greedy: \d+ of 10 exactly right \(\d+\.\d\d %\)$", printed, re.MULTILINE)
    assert "translate 'a sentence' --out runs/translate\n" in printed
    run = program.folder / "runs" / "translate"
    assert entries(run) == FILES
    for _, _, reference in sample_of(run):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", reference)


def test_two_files_zipped_or_not_with_given_splits(program: Program) -> None:
    pairs = some_pairs()
    for name, part in (("train", pairs[:40]), ("valid", pairs[40:50]), ("test", pairs[50:])):
        for side, lines in zip(("en", "es"), zip(*part)):
            (program.folder / f"{name}.{side}.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    (program.folder / "train.es").write_bytes(gzip.decompress((program.folder / "train.es.gz").read_bytes()))
    words = ["--source", "train.en.gz", "--target", "train.es", "--test-source", "test.en.gz", "--test-target", "test.es.gz"]
    printed = program.good(*words, "--out", "held out", *MODEL, *OTHERWISE, *SHORT, "--validation", "6")
    assert "34 pairs for training, 6 for validation, 10 for testing" in printed
    assert [[s, t] for s, _, t in sample_of(program.folder / "held out")] == [list(pair) for pair in pairs[50:]]
    words += ["--validation-source", "valid.en.gz", "--validation-target", "valid.es.gz"]
    printed = program.good(*words, "--out", "own", *MODEL, *OTHERWISE, *SHORT, "--average", "2")
    assert "40 pairs for training, 10 for validation, 10 for testing" in printed
    assert "the mean of the weights of the last 2 evaluations: validation loss" in printed
    assert entries(program.folder / "own") == [*FILES, "weights-00000006.safetensors", "weights-00000012.safetensors"]


def test_lower_case_and_spaces_are_made_one_before_the_split(program: Program) -> None:
    # To the model "Red Dog" and "red dog" are one sentence, so they must not be in two parts.
    pairs = some_pairs()
    shouted = [(s.upper().replace(" ", "  "), t.upper()) for s, t in pairs]
    write_pairs(program.folder / "pairs.tsv", pairs + shouted)
    printed = program.good("--data", "pairs.tsv", "--out", "run", *TINY, "--lowercase")
    assert "49 pairs for training, 6 for validation, 5 for testing" in printed
    found = program.good("translate", "--out", "run", "  RED   dog ")
    assert found == program.good("translate", "--out", "run", "red dog") != "\n"
    assert all(text == text.lower() for line in sample_of(program.folder / "run") for text in (line[0], line[2]))


def test_skipped_rows_are_reported(program: Program) -> None:
    # Long ones on either side, so many that each part has some; and such without one side or both.
    pairs = some_pairs()
    pairs += [(f"{s} {'x ' * 60}", t) for s, t in pairs] + [(t, f"{s} {'x ' * 60}") for s, t in pairs]
    lines = [*(f"{s}\t{t}" for s, t in pairs), "", "\tnada", "nothing\t", " \t "]
    (program.folder / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    printed = program.good("--data", "pairs.tsv", "--out", "run", *TINY, "--validation", "20", "--test", "20")
    assert "pairs.tsv: skipped 4 pairs with an empty side\n" in printed
    assert "(skipped 120 pairs with a side of more than 30 tokens)\n" in printed
    counts = re.search(r"(\d+) pairs for training, (\d+) for validation, (\d+) for testing", printed)
    assert counts is not None
    assert sum(map(int, counts.groups())) == 60
    sample = sample_of(program.folder / "run")
    assert len(sample) == int(counts[3]) < 20
    assert {(s, t) for s, _, t in sample} <= set(some_pairs())


# ------------------------------------------------------------------------------------------- folders that are in use


def test_a_run_is_replaced_only_with_overwrite(copied: Program) -> None:
    before = contents(copied.folder / "run")
    words = ["--data", "pairs.tsv", "--out", "run", *TINY]
    assert "run holds a run already: --resume continues it, --overwrite replaces it" in copied.bad(*words)
    assert contents(copied.folder / "run") == before
    for mistake in (["--num-heads", "3"], ["--data", "nothing.tsv"], ["--beam", "0"], ["--clip", "-1"]):
        copied.bad(*words, "--overwrite", *mistake)
        assert contents(copied.folder / "run") == before
    (copied.folder / "run" / "weights-00000099.safetensors").write_bytes(b"of the run before")
    copied.good(*words, "--overwrite")
    assert entries(copied.folder / "run") == FILES
    assert json.loads((copied.folder / "run/config.json").read_text(encoding="utf-8"))["training"]["steps"] == 12


# ---------------------------------------------------------------------------------------------------------- resuming


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to another process")
def test_interrupted_and_resumed_is_the_uninterrupted_run(program: Program) -> None:
    words = ["--data", "pairs.tsv", *TINY, "--steps", "16", "--eval-every", "4", "--average", "2"]
    program.good(*words, "--out", "whole")
    printed = program.interrupted("step     4:", *words, "--out", "two parts")
    parts = program.folder / "two parts"
    step = load_checkpoint(parts / "latest.safetensors", "latest")[1]["step"]
    assert 4 <= step <= 5
    # The command that it says is one that a shell takes as it stands.
    again = f"{tinyformer_command('train', 'translator', '--out', 'two parts', '--resume')}\n"
    assert printed.endswith(f"Stopped by Ctrl-C after step {step} and saved. Resume with: {again}")
    assert "sample.txt" not in entries(parts)

    assert "Best validation loss" in program.good("--out", "two parts", "--resume", "--beam", "2")
    assert entries(parts) == entries(program.folder / "whole")
    assert result_of(parts) == result_of(program.folder / "whole")


@pytest.mark.skipif(os.name != "posix", reason="needs a signal sent to another process")
@pytest.mark.parametrize("words", [["lstm", "--cell", "gru", "--reverse-source"], ["attention"]])
def test_recurrent_networks_resumed_are_the_uninterrupted_run(program: Program, words: list[str]) -> None:
    # Dropout, and which words the decoder reads, are random: the random states must be resumed, too.
    random_parts = ["--dropout", "0.2", "--teacher-forcing", "0.7"]
    steps = ["--steps", "12", "--eval-every", "4", "--average", "2"]
    words = ["--data", "pairs.tsv", *RECURRENT, *random_parts, *steps, "--architecture", *words]
    program.good(*words, "--out", "whole")
    program.interrupted("step     4:", *words, "--out", "parts")
    parts = program.folder / "parts"
    assert load_checkpoint(parts / "latest.safetensors", "latest")[1]["step"] <= 5
    program.good("--out", "parts", "--resume", "--beam", "2")
    assert entries(parts) == entries(program.folder / "whole")
    assert result_of(parts) == result_of(program.folder / "whole")


def test_resuming_with_other_settings(finished: Program) -> None:
    for words, said in (
        (
            ["--steps", "30", "--d-model", "32", "--vocab-size", "300", "--test", "6"],
            "--vocab-size, --test, or start a new run",
        ),
        (["--steps", "30", "--d-model", "32"], "--d-model, or start a new run"),
        (["--steps", "30", "--schedule", "noam"], "--steps, --schedule, or start a new run, or pass --resume-changed"),
        (["--length-penalty", "0"], "--length-penalty, or start a new run, or pass --resume-changed"),
    ):
        message = finished.bad("--out", "run", "--resume", *words)
        assert message == f"--resume keeps the settings of run: leave out {said}\n"


def test_resuming_with_other_sentences(copied: Program) -> None:
    before = contents(copied.folder / "run")
    path = copied.folder / "pairs.tsv"
    path.rename(copied.folder / "moved.tsv")
    assert "pairs.tsv does not exist" in copied.bad("--out", "run", "--resume")
    write_pairs(path, some_pairs(59))
    assert "the sentences are not the ones run was trained on" in copied.bad("--out", "run", "--resume")
    assert contents(copied.folder / "run") == before
    expected = result_of(copied.folder / "run")
    copied.good("--out", "run", "--resume", "--data", "moved.tsv", "--beam", "2")  # the same, wherever they are now
    assert result_of(copied.folder / "run") == expected


# ------------------------------------------------------------------------------------------------------- architectures


@pytest.fixture(scope="module")
def recurrent_runs(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> dict[str, tuple[Program, str]]:
    """A finished run of each recurrent architecture, in folders of these names, and what it printed. Tests only read them."""
    folder = tmp_path_factory.mktemp("recurrent")
    write_data(folder)
    program = Program(COMMAND, folder, environment)
    longer = ["--steps", "80", "--eval-every", "40", "--learning-rate", "3e-2", "--dropout", "0", "--num-layers", "1"]
    words = ["--data", "pairs.tsv", *RECURRENT, *longer]
    return {name: (program, program.good(*words, "--architecture", name, "--out", name)) for name in ("lstm", "attention")}


@pytest.mark.parametrize("architecture", ["lstm", "attention"])
def test_a_recurrent_run_learns_and_records_its_type(recurrent_runs: dict[str, tuple[Program, str]], architecture: str) -> None:
    program, printed = recurrent_runs[architecture]
    run = program.folder / architecture
    has_maps = architecture == "attention"
    assert entries(run) == sorted(set(FILES) - ({"attention.png", "attention_heads.png"} if not has_maps else set()))
    model = {"lstm": "ContextVectorModel", "attention": "AdditiveAttentionModel"}[architecture]
    assert f"\n{model} with " in printed
    first, *later = validation_losses(run)
    assert min(later) < first - 1
    settings = json.loads((run / "config.json").read_text(encoding="utf-8"))
    assert (settings["task"]["architecture"], settings["model"]["attention"]) == (architecture, has_maps)
    # Another process knows by the folder what translates, greedily and with a beam.
    sources, ours, _ = zip(*sample_of(run))
    assert len(set(ours)) > 1
    words = ["translate", "--out", architecture]
    assert program.good(*words, "--beam", "2", *sources).splitlines() == list(ours)
    lines = [line.split("\t") for line in program.good(*words, "--beam", "4", "--n-best", "3", sources[0]).splitlines()]
    scores = [float(score) for score, _ in lines]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert program.good(*words, "--beam", "4", sources[0]) == lines[0][1] + "\n"


def test_maps_of_additive_attention_only(recurrent_runs: dict[str, tuple[Program, str]], tmp_path: Path) -> None:
    program, _ = recurrent_runs["lstm"]
    message = program.bad("translate", "--out", "lstm", "--heat-map", "red dog")
    assert message == "the network of lstm has no attention to draw: leave out --heat-map\n"
    translator = trained_translator(RunFolder(program.folder / "attention"))
    seen = translator.attended("red dog")
    shape = (1, len(seen.written), len(seen.source))
    assert {name: weights.shape for name, weights in seen.weights.items()} == {"cross_attention": shape}
    folder = RunFolder(tmp_path)
    assert script()["draw_attention"](translator, "red dog", folder) == [folder.attention, folder.attention_heads]
    assert entries(tmp_path) == ["attention.png", "attention_heads.png"]


def test_a_resumed_run_keeps_its_architecture(recurrent_runs: dict[str, tuple[Program, str]], finished: Program) -> None:
    program, _ = recurrent_runs["lstm"]
    leave_out = "--resume keeps the settings of {}: leave out {}, or start a new run\n"
    for words in (["attention"], ["transformer"], ["transformer", "--num-heads", "2"]):
        message = program.bad("--out", "lstm", "--resume", "--architecture", *words)
        assert message == leave_out.format("lstm", "--architecture")
    message = finished.bad("--out", "run", "--resume", "--architecture", "lstm")
    assert message == leave_out.format("run", "--architecture")
    # Its folder decides which flags there are: none is ignored, and none needs --architecture.
    message = program.bad("--out", "lstm", "--resume", "--num-heads", "2")
    assert message == "unrecognized arguments: --num-heads 2 (see tinyformer train translator --architecture lstm --help)\n"
    assert program.bad("--out", "lstm", "--resume", "--d-embedding", "9") == leave_out.format("lstm", "--d-embedding")
    message = program.bad("--out", "lstm", "--resume", "--teacher-forcing", "0.5")
    assert message.endswith("leave out --teacher-forcing, or start a new run, or pass --resume-changed\n")


def test_resuming_with_another_teacher_forcing(
    recurrent_runs: dict[str, tuple[Program, str]], tmp_path: Path, environment: dict[str, str]
) -> None:
    shutil.copytree(recurrent_runs["attention"][0].folder, tmp_path / "copy")
    program = Program(COMMAND, tmp_path / "copy", environment)
    program.good("--out", "attention", "--resume-changed", "--teacher-forcing", "0.5", "--steps", "83")
    assert log_of(program.folder / "attention")[-1]["step"] == "83"
    settings = json.loads((program.folder / "attention/config.json").read_text(encoding="utf-8"))
    assert settings["model"]["teacher_forcing"] == 0.5


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gru"], "--architecture must be one of transformer, lstm, attention, got 'gru'"),
        (["LSTM"], "--architecture must be one of transformer, lstm, attention, got 'LSTM'"),
        ([], "argument --architecture: expected one argument"),
        (["attention", "--reverse-source"], "--reverse-source has no effect with attention (the encoder is bidirectional)"),
        (
            ["lstm", "--num-heads", "2"],
            "unrecognized arguments: --num-heads 2 (see tinyformer train translator --architecture lstm --help)",
        ),
        (["transformer", "--cell", "gru"], "unrecognized arguments: --d-embedding 8 --num-layers 2 --cell gru"),
        (["lstm", "--teacher-forcing", "1.5"], "--teacher-forcing must be from 0 to 1, got 1.5"),
        (["attention", "--teacher-forcing", "nan"], "--teacher-forcing must be a finite number, got nan"),
        (["lstm", "--cell", "transformer"], "--cell must be one of rnn, gru, lstm, got 'transformer'"),
        (["lstm", "--dropout", "1"], "--dropout must be at least 0 and less than 1, got 1.0"),
        (["attention", "--num-layers", "0"], "--num-layers must be at least 1, got 0"),
        (["attention", "--d-model", "1" + 12 * "0"], "a model of this size needs at least 10^"),
        (["lstm", "--beam", "281"], "the beam must be 1 to 280 wide"),
    ],
)
def test_architectures_that_will_not_do(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad("--data", "pairs.tsv", "--out", "run", *RECURRENT, "--architecture", *words)
    assert not (program.folder / "run").exists()


# ---------------------------------------------------------------------------------------------------------- translating


def test_a_new_process_translates_as_the_one_that_trained(first_run: tuple[Path, str], finished: Program) -> None:
    sources, ours, _ = zip(*sample_of(first_run[0] / "run"))
    assert len(set(ours)) > 2
    words = ["translate", "--out", "run", "--beam", "2"]
    assert finished.good(*words, *sources).splitlines() == list(ours)
    piped = "".join(f"{source}\n" for source in sources)
    assert finished.good(*words, typed=piped).splitlines() == list(ours)


def test_each_line_of_a_pipe_has_a_line(finished: Program) -> None:
    words = ["translate", "--out", "run", "--beam", "2"]
    assert finished.good(*words, typed="") == ""
    assert finished.good(*words, typed="\n\n") == "\n\n"
    dog, cat = finished.good(*words, "red dog", "blue cat").splitlines()
    assert finished.good(*words, typed="red dog\n\n \nblue cat\n\n").split("\n") == [dog, "", "", cat, "", ""]
    twice = finished.good(*words, "--n-best", "2", typed="red dog\n\nblue cat").split("\n")
    assert [line.split("\t")[-1] for line in twice][::3] == [dog, cat] and twice[2] == twice[5] == ""
    many = finished.good(*words, typed=300 * "red dog\nblue cat\n\n").split("\n")  # more lines than a block has
    assert many == [*(300 * [dog, cat, ""]), ""]


def test_typing_on_a_terminal(copied: Program, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    typed = io.StringIO("red dog\n" + 31 * "x " + "\n blue cat\n\nnot read\n")
    monkeypatch.setattr(typed, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", typed)
    words = ["translate", "--out", str(copied.folder / "run"), "--beam", "2"]
    example = script()
    arguments = example["parse"](words)
    arguments.run(arguments)
    expected = copied.good(*words, "red dog", "blue cat")
    printed, told = capsys.readouterr()
    assert printed == expected
    assert re.fullmatch(
        r"Type a sentence to translate; an empty line ends\.\nthe sentence has \d+ tokens, more than .*\n", told
    )


def test_the_best_translations_with_their_scores(finished: Program) -> None:
    words = ["translate", "--out", "run", "--beam", "4", "red dog sees"]
    lines = [line.split("\t") for line in finished.good(*words, "--n-best", "4").splitlines()]
    assert len(lines) == 4
    assert len({text for _, text in lines}) > 1
    scores = [float(score) for score, _ in lines]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] < 0
    assert finished.good(*words) == lines[0][1] + "\n"


def test_the_length_penalty_is_the_runs(copied: Program) -> None:
    path = copied.folder / "run/config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    best = []
    for penalty in (0.0, 2.0):  # divides the log-probability by nothing, and by ((5 + length) / 6) ** 2
        settings["task"]["length_penalty"] = penalty
        path.write_text(json.dumps(settings), encoding="utf-8")
        lines = copied.good("translate", "--out", "run", "--beam", "4", "--n-best", "4", "red dog sees").splitlines()
        best.append({text: float(score) for score, text in (line.split("\t") for line in lines)})
    shared = set(best[0]) & set(best[1])
    assert shared
    assert all(best[0][text] < best[1][text] < 0 for text in shared if text)


def test_pairs_of_records_are_learned_as_those_between_tabs(program: Program) -> None:
    printed = program.good("--data", "pairs.tsv", "--out", "run", *TINY)
    records = [json.dumps({"id": i, "translation": {"en": s, "es": t}}) for i, (s, t) in enumerate(some_pairs())]
    (program.folder / "pairs.jsonl").write_text("\n".join(records), encoding="utf-8")
    again = program.good("--data", "pairs.jsonl", "--out", "other", *TINY)
    assert again.startswith("pairs.jsonl: learns to translate en to es\n")
    assert result_of(program.folder / "other")["tensors"] == result_of(program.folder / "run")["tensors"]
    assert "49 pairs for training" in printed and "49 pairs for training" in again


def test_maps_of_the_attention(copied: Program) -> None:
    copied.draws = True
    paths = [copied.folder / "run" / name for name in ("attention.png", "attention_heads.png")]
    for path in paths:
        path.unlink()
    result = copied("translate", "--out", "run", "--heat-map", "$red$ dog 日本")
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr.endswith(f"Drew {Path('run/attention.png')} and {Path('run/attention_heads.png')}\n")
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_maps_have_each_token_and_parts_of_characters_as_bytes(finished: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    example = script()
    drawn: list[Any] = []
    for name in ("attention_means", "attention_maps"):
        monkeypatch.setattr(example["plots"], name, lambda *arguments: drawn.append(arguments) or arguments[-1])
    folder = RunFolder(finished.folder / "run")
    translator = trained_translator(folder)
    assert example["draw_attention"](translator, "red dog é", folder) == [folder.attention, folder.attention_heads]
    for maps, source, target, _ in drawn:
        assert "".join(source) == "red dog \\xc3\\xa9[EOS]"
        assert source[-4:] == [" ", "\\xc3", "\\xa9", "[EOS]"]
        assert target[0] == "[BOS]"
        shapes = {name: weights.shape for name, weights in maps.items()}
        s, t = len(source), len(target)
        assert shapes == {
            "encoder.blocks.0.attention": (2, s, s), "decoder.blocks.0.attention": (2, t, t),
            "decoder.blocks.0.cross_attention": (2, t, s),
        }  # fmt: skip


def test_the_picture_of_the_losses_says_why_the_training_loss_may_be_the_higher(first_run: tuple[Path, str]) -> None:
    # This run smooths labels: the note is on its picture, under the curves, which take 540 rows.
    assert int.from_bytes((first_run[0] / "run/loss.png").read_bytes()[20:24], "big") > 540


def test_a_translation_is_one_line_without_special_tokens(finished: Program) -> None:
    # What an early model writes may have new lines and tokens such as [PAD], which are no words.
    tokenizer = BPETokenizer.train("a b\n", 259, special=("[PAD]", "[BOS]", "[EOS]"))
    ids = [*tokenizer.encode(" a\n\tb\n"), tokenizer.special["[PAD]"], *tokenizer.encode("c")]
    translator = Translator(None, tokenizer, TranslationConfig())
    assert translator.text(Hypothesis(tuple(int(i) for i in ids), 0.0)) == "a b c"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([""], "the sentence is empty"),
        (["red dog", "  "], "the sentence is empty"),
        (["x " * 31], "tokens, more than the 30 that this model translates"),
        (["red dog", "--beam", "9999"], "the beam must be 1 to 280 wide, as there are as many tokens, got 9999"),
        (["red dog", "--beam", "0"], "the beam must be 1 to 280 wide"),
        (["red dog", "--beam", "2", "--n-best", "3"], "--n-best must be at most --beam, 2, got 3"),
        (["red dog", "--n-best", "0"], "--n-best must be at least 1, got 0"),
        (["red dog", "--out", "nothing"], "nothing does not exist: train first, or name the folder of another run"),
        (["red dog", "blue cat", "--heat-map"], "--heat-map draws the attention of one sentence, and there are 2"),
        (["red dog", "--steps", "3"], "unrecognized arguments: --steps 3"),
    ],
)
def test_translations_that_will_not_do(finished: Program, words: list[str], message: str) -> None:
    assert message in finished.bad("translate", "--out", "run", *words)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (b"red dog\ncaf\xe9\n", "the input is not utf-8 text"),
        (b"red dog\n\n" + 31 * b"x " + b"\n", "line 3: the sentence has "),
        (b"red dog\n" + 3 * (31 * b"x " + b"\n"), "that this model translates: split it (2 more like it: 3, 4)\n"),
        (12 * (31 * b"x " + b"\n"), "(11 more like it: 2, 3, 4, 5, 6, 7, 8, 9, 10, ...)\n"),
    ],
)
def test_lines_of_a_pipe_that_will_not_do(finished: Program, lines: bytes, message: str) -> None:
    assert message in finished.bad("translate", "--out", "run", typed=lines)


def test_a_locale_that_lets_bytes_pass_that_are_no_text(finished: Program) -> None:
    locale = {"PYTHONIOENCODING": "utf-8:surrogateescape"}
    assert "the input is not utf-8 text" in finished.bad("translate", "--out", "run", typed=b"red dog\ncaf\xe9\n", **locale)


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "pairs.tsv does not exist"),
        (b"", "pairs.tsv has no pair of sentences: every line is empty on one side"),
        (b"\n\ta\nb\t\n", "pairs.tsv has no pair of sentences: every line is empty on one side"),
        (b"a\tb\n\nc d\n", "pairs.tsv, line 3: no tab"),
        (b"a\tb\ncaf\xe9\tc\n", "pairs.tsv is not UTF-8 text (byte 7)"),
        (b"a\tb\nc\td\n", "cannot hold out 11 of 2 pairs and train on the others"),
        (b"".join(b"%d %s\tb\n" % (i, b"x " * 60) for i in range(20)), "too few pairs have at most 30 tokens on both sides"),
    ],
)
def test_pairs_that_will_not_do(program: Program, content: bytes | None, message: str) -> None:
    path = program.folder / "pairs.tsv"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert message in program.bad("--data", "pairs.tsv", "--out", "run", *TINY)
    assert not (program.folder / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source", "a.en", "--target", "b.es"], "a.en has 3 lines and b.es has 2"),
        (["--source", "a.en"], "a source and a target file belong together"),
        (["--target", "a.en"], "a source and a target file belong together"),
        (["--data", "pairs.tsv", "--test-target", "a.en"], "a source and a target file belong together"),
        (["--data", "pairs.tsv", "--validation-source", "a.en"], "a source and a target file belong together"),
        (["--data", "pairs.tsv", "--source", "a.en", "--target", "a.en"], "give either --data, or --source and --target"),
        (["--test-source", "a.en", "--test-target", "a.en"], "there are no sentences to train on"),
        (["--source", "a.en", "--target", "cut.gz"], "cut.gz is not a complete gzip file"),
        (["--source", "a.en", "--target", "."], ". is a folder, not a regular file: pass a file of sentences"),
    ],
)
def test_files_that_do_not_go_together(program: Program, words: list[str], message: str) -> None:
    (program.folder / "a.en").write_text("one\ntwo\nthree\n")
    (program.folder / "b.es").write_text("uno\ndos\n")
    (program.folder / "cut.gz").write_bytes(gzip.compress(b"uno\ndos\ntres\n" * 50)[:-12])
    assert message in program.bad(*words, "--out", "run", *MODEL, *OTHERWISE, *SHORT)
    assert not (program.folder / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-heads", "3"], "--num-heads=3 does not divide --d-model=16"),
        (["--vocab-size", "200"], "--vocab-size must be at least 259 (256 bytes and 3 special tokens), got 200"),
        (["--test", "0"], "--test must be at least 1, got 0"),
        (["--validation", "-1"], "--validation must be at least 1, got -1"),
        (["--max-tokens", "0"], "--max-tokens must be at least 1, got 0"),
        (["--length-penalty", "-1"], "--length-penalty must be from 0 to 50, got -1"),
        (["--length-penalty", "1e9"], "--length-penalty must be from 0 to 50, got 1000000000"),
        (["--max-tokens", "1" + 30 * "0"], "a cache for this --max-tokens needs at least 10^"),
        (["--label-smoothing", "nan"], "--label-smoothing must be a finite number, got nan"),
        (["--label-smoothing", "2"], "--label-smoothing must be from 0 to 1, got 2.0"),
        (["--beam", "0"], "the beam must be 1 to 280 wide"),
        (["--beam", "281"], "the beam must be 1 to 280 wide"),
        (["--average", "0"], "--average must be at least 1, got 0"),
        (["--schedule", "step"], "--schedule must be one of cosine, linear, constant, noam, got 'step'"),
        (
            ["--positions", "learned", "--max-length", "30"],
            "--max-length must be more than 30, the longest sentence, as its end",
        ),
        (["--resume", "--overwrite"], "not allowed with argument"),
        (["--resume"], "config.json does not exist: is run the folder of a run?"),
    ],
)
def test_settings_that_will_not_do(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad("--data", "pairs.tsv", "--out", "run", *TINY, *words)
    assert not (program.folder / "run").exists()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def another_vocabulary(path: Path) -> None:
    BPETokenizer.train("red dog", 259, special=("[PAD]", "[BOS]", "[EOS]")).save(path)


def without_special_tokens(path: Path) -> None:
    BPETokenizer.train("red dog sees blue cat likes small bird " * 9, 280).save(path)


def letters(path: Path) -> None:
    CharTokenizer("".join(map(chr, range(0x4E00, 0x4E00 + 280)))).save(path)


def wider(path: Path) -> None:
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings["model"]["d_model"] = 32
    path.write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("config.json", truncate, "config.json is damaged"),
        ("config.json", lambda path: path.write_text('{"task": []}'), "config.json is damaged"),
        ("config.json", wider, "config.json says 32 for model.d_model, but "),
        ("tokenizer.json", Path.unlink, "tokenizer.json does not exist"),
        ("tokenizer.json", truncate, "tokenizer.json is damaged"),
        ("tokenizer.json", lambda path: path.write_text("{}"), "tokenizer.json has no tokenizer"),
        ("tokenizer.json", another_vocabulary, "tokenizer.json has 259 tokens, but the model has 280"),
        ("tokenizer.json", without_special_tokens, "the tokenizer lacks [PAD], [BOS], [EOS]"),
        ("tokenizer.json", letters, "the tokenizer lacks [PAD], [BOS], [EOS]"),
        ("*.safetensors", Path.unlink, "safetensors does not exist"),
        ("*.safetensors", truncate, "safetensors is not a whole safetensors file"),
    ],
)
def test_runs_that_are_damaged(copied: Program, file: str, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    for path in list((copied.folder / "run").glob(file)):
        damage(path)
    before = contents(copied.folder / "run")
    assert message in copied.bad("translate", "--out", "run", "red dog")
    assert message in copied.bad("--out", "run", "--resume")
    assert contents(copied.folder / "run") == before


# ---------------------------------------------------------------------------------------------------------- help


def script() -> dict[str, Any]:
    """The names that the script defines."""
    return vars(translator_program)


@pytest.mark.parametrize(
    ("architecture", "kind", "sizes"),
    [
        (None, TransformerConfig, "--num-heads 4"),
        ("lstm", Seq2SeqConfig, "--d-model 128"),
        ("attention", Seq2SeqConfig, "--cell gru"),
    ],
)
def test_help_shows_every_setting_with_its_default(finished: Program, architecture: str | None, kind: type, sizes: str) -> None:
    text = " ".join(finished.good(*(["--architecture", architecture] if architecture else []), "--help").split())
    shown = 0
    for settings in (TranslationConfig, kind, TrainingConfig):
        for field in dataclasses.fields(settings):
            if "help" in field.metadata:
                assert f"{field.metadata['help']} (default: {field.default})" in text
                assert f"--{field.name.replace('_', '-')}" in text
                shown += 1
    assert shown > 25
    for name in ("data", "source", "target", "validation-source", "validation-target", "test-source", "test-target"):
        assert f"--{name} FILE" in text
    assert "--vocab-size 400" in text  # what dates are learned with is not the default
    assert sizes in text
    assert ("--teacher-forcing FLOAT" in text, "--num-heads INT" in text) == (bool(architecture), not architecture)


def test_help_of_the_translate_command(finished: Program) -> None:
    text = " ".join(finished.good("translate", "--help").split())
    for flag in ("--out", "--beam", "--n-best", "--heat-map"):
        assert flag in text
