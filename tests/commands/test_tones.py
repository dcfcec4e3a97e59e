"""`tinyformer train tones` as its users run it, with tiny settings."""

from __future__ import annotations

import csv
import importlib
import re
import shutil
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from running import Program, check_record, contents, entries, log_of, result_of

from tinyformer.runs.commands import command
from tinyformer.tasks.dial_tones import DialTask

COMMAND = "train tones"
TINY = ["--d-model", "8", "--num-heads", "2", "--encoder-layers", "1", "--decoder-layers", "1", "--d-ff", "8", "--most", "3"]
TINY += ["--batch-size", "8", "--warmup", "2", "--shards", "1", "--test", "25"]
SHORT = ["--steps", "6", "--eval-every", "3", "--log-every", "3"]
FIRST_RUN = ["--out", "run", *TINY, *SHORT]
FILES = ["attention.png", "best.safetensors", "config.json", "latest.safetensors", "log.csv", "loss.png", "sample.txt"]


def write_data(folder: Path) -> None:
    """Nothing: the script makes its recordings itself."""


def test_it_trains_and_tests_with_each_level_of_noise(first_run: tuple[Path, str]) -> None:
    folder, printed = first_run
    assert entries(folder / "run") == FILES
    with open(folder / "run/sample.txt", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    found = {name: float(percent) for name, percent in re.findall(r"^    (\S.*?) +([\d.]+) %$", printed, flags=re.MULTILINE)}
    assert list(found) == ["clean", "10 dB", "0 dB", "no keys"]
    for name, percent in found.items():
        own = [row for row in rows if row["sound"] == name]
        assert len(own) == 25
        assert 100 * np.mean([row["dialed"] == row["heard"] for row in own]) == pytest.approx(percent)
        assert {len(row["dialed"]) for row in own} == {0 if name == "no keys" else 3}  # from 3 keys, the default, to 3
    right = {
        f"to {high}": [row["dialed"] == row["heard"] for row in rows[:75] if high - 2 < float(row["seconds"]) <= high]
        for high in (2, 4)
    }
    by_keys, by_seconds = re.findall(r"^By the number of keys: (.*); by the length in seconds: (.*)$", printed, re.MULTILINE)[0]
    assert by_keys == f"to 5 {100 * np.mean([row['dialed'] == row['heard'] for row in rows[:75]]):.1f} %"
    assert by_seconds.startswith(", ".join(f"{name} {100 * np.mean(found):.1f} %" for name, found in right.items()))
    assert printed.count("    dialed ") == 2 * 3
    assert "transcribe FILE.wav --out run\n" in printed
    check_record(folder / "run")


def test_the_same_seed_finds_the_same(first_run: tuple[Path, str], program: Program) -> None:
    program.good(*FIRST_RUN)
    assert result_of(program.folder / "run") == result_of(first_run[0] / "run")
    program.good(*FIRST_RUN, "--overwrite", "--seed", "5", "--steps", "1", "--test", "1")
    others, ours = (log_of(folder / "run")[0] for folder in (program.folder, first_run[0]))
    assert others["step"] == ours["step"] == "0" and others != ours


def test_an_interrupted_run_goes_on_as_if_it_was_not(first_run: tuple[Path, str], program: Program) -> None:
    assert f"Go on with: {command('train', 'tones')} " in program.interrupted("step     3: ", *FIRST_RUN)
    assert "sample.txt" not in entries(program.folder / "run")
    program.good("--out", "run", "--resume")
    assert result_of(program.folder / "run") == result_of(first_run[0] / "run")


def test_resuming_a_finished_run_repeats_its_end(copied: Program) -> None:
    before = contents(copied.folder / "run")
    (copied.folder / "run/sample.txt").unlink()
    copied.good("--out", "run", "--resume")
    after = contents(copied.folder / "run")
    assert after["sample.txt"] == before["sample.txt"]
    assert after["best.safetensors"] == before["best.safetensors"]
    message = copied.bad("--out", "run", "--resume", "--most", "4")
    assert "--most" in message
    assert "holds a run already" in copied.bad("--out", "run", *TINY, *SHORT)


# ------------------------------------------------------------------------------------------------------- recordings


def test_recordings_are_written_and_transcribed(copied: Program) -> None:
    printed = copied.good("record", "(1)-2 *", "--seed", "3")
    names = [f"12star_{noise}.wav" for noise in ("0dB", "10dB", "clean")]
    assert entries(copied.folder / "recordings") == names
    assert printed.count("12*, ") == 3
    before = contents(copied.folder / "recordings")
    copied.good("record", "12*", "--seed", "3", "--out", "again")
    assert contents(copied.folder / "again") == before
    printed = copied.good("transcribe", *(f"recordings/{name}" for name in names), "--out", "run")
    heard = dict(line.split("\t")[:2] for line in printed.splitlines())
    assert list(heard) == [f"recordings/{name}" for name in names]
    assert (
        copied.good("transcribe", f"recordings/{names[1]}", "--out", "run").split("\t")[1].strip()
        == heard[f"recordings/{names[1]}"]
    )
    copied.draws = True
    copied.good("transcribe", f"recordings/{names[0]}", "--out", "run", "--beam", "3", "--picture", "heard.png")
    assert (copied.folder / "heard.png").read_bytes().startswith(b"\x89PNG")
    assert contents(copied.folder / "recordings") == before


@pytest.mark.parametrize(("count", "noted"), [(2, True), (3, False), (12, False), (13, True), (100, True)])
def test_numbers_that_the_network_does_not_learn_are_recorded_with_a_note(program: Program, count: int, noted: bool) -> None:
    printed = program.good("record", "1" * count)
    note = f"This number has {count} keys; the network learns 3 to 12, unless it is trained with other --fewest and --most.\n"
    assert printed.endswith(note) == noted
    assert printed.count("\n") == 3 + noted


def test_recordings_that_cannot_be_written(program: Program) -> None:
    (program.folder / "afile").write_text("")
    assert "afile is a file, not a folder: choose another folder" in program.bad("record", "123", "--out", "afile")
    assert "File name too long" in program.bad("record", "*" * 100)  # named starstarstar...
    assert entries(program.folder / "recordings") == []


def test_a_number_that_is_not_finished_is_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = vars(importlib.import_module("tinyformer.programs.tones"))
    words = ["cut.wav", "whole.wav"]
    heard = SimpleNamespace(
        task=DialTask(most=4), check_length=lambda samples, path: None, transcribe=lambda recordings, beam: ["01234", "0123"]
    )
    monkeypatch.setitem(script["transcribe"].__globals__, "trained_transcriber", lambda folder: heard)
    monkeypatch.chdir(tmp_path)
    for name in words:
        write_wav(tmp_path / name)
    script["transcribe"](script["parse"](["transcribe", *words]))
    cut, whole = capsys.readouterr().out.splitlines()
    assert cut == "cut.wav\t01234\tnot finished: the model learned numbers of at most 4 keys"
    assert whole == "whole.wav\t0123"


def test_a_random_number_is_recorded_without_keys(program: Program) -> None:
    one, two = (program.good("record", "--out", name) for name in ("one", "two"))
    assert one.split(": ")[1] != two.split(": ")[1] or one.split(": ")[2] != two.split(": ")[2]
    assert len(entries(program.folder / "one")) == 3


def write_wav(path: Path, channels: int = 1, width: int = 2, rate: int = 8000, count: int = 4000) -> None:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(width)
        sound.setframerate(rate)
        sound.writeframes(bytes(count * channels * width))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"channels": 2}, "it.wav has 2 channels, not one: convert it, as in ffmpeg -i it.wav -ac 1 -ar 8000"),
        ({"rate": 44100}, "it.wav has 44,100 samples a second, not 8,000"),
        ({"width": 3}, "it.wav has 24-bit samples"),
        ({"count": 0}, "it.wav has no samples"),
        ({"count": 160000}, "it.wav lasts 20.0 s, longer than the 15.0 s that the model has learned to hear"),
    ],
)
def test_recordings_that_cannot_be_transcribed(copied: Program, how: dict[str, int], message: str) -> None:
    write_wav(copied.folder / "good.wav")
    write_wav(copied.folder / "it.wav", **how)
    result = copied("transcribe", "good.wav", "it.wav", "--out", "run")
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_silence_and_broken_files(copied: Program) -> None:
    write_wav(copied.folder / "one_sample.wav", count=1)
    copied.good("transcribe", "one_sample.wav", "--out", "run")
    (copied.folder / "text.wav").write_text("no sound")
    assert "text.wav is not a WAV file: pass one, or convert it" in copied.bad("transcribe", "text.wav", "--out", "run")
    assert "absent.wav does not exist: pass a WAV file" in copied.bad("transcribe", "absent.wav", "--out", "run")


def test_a_run_that_is_damaged_or_absent(copied: Program) -> None:
    write_wav(copied.folder / "good.wav")
    assert "nowhere" in copied.bad("transcribe", "good.wav", "--out", "nowhere")
    shutil.copy(copied.folder / "run/log.csv", copied.folder / "run/best.safetensors")
    assert "best.safetensors" in copied.bad("transcribe", "good.wav", "--out", "run")


# ---------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fewest", "0"], "--fewest must be at least 1, not 0"),
        (["--most", "2"], "--most must be at least --fewest, 3, not 2"),
        (["--snr", "99"], "--snr must be from -30 to 30, not 99"),
        (["--num-heads", "5"], "--num-heads=5 does not divide --d-model=64"),
        (["--share-embeddings"], "share-embeddings off"),
        (
            ["--positions", "learned", "--max-length", "8"],
            "--max-length must be at least 376, for the longest recording, not 8",
        ),
        (["--d-model", "4000000"], "needs at least"),
        (["--resume", "--out", "nowhere"], "nowhere"),
        (["record", "12A"], "there is no key 'A': use 0123456789*#"),
        (["record", " - "], "no keys are given"),
        (["record", "1" * 300], "the number has 300 keys: choose at most 100"),
        (["record", "12", "--seed", "-1"], "--seed must be at least 0, not -1"),
        (["transcribe"], "the following arguments are required: FILE"),
        (["transcribe", "it.wav", "--beam", "many"], "invalid int value: 'many'"),
    ],
)
def test_mistakes(program: Program, words: list[str], message: str) -> None:
    assert message in program.bad(*words)
    assert list(program.folder.iterdir()) == []


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["transcribe", "--help"], ["record", "--help"]])
def test_help(program: Program, words: list[str]) -> None:
    assert "usage: tinyformer " in program.good(*words)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return vars(importlib.import_module("tinyformer.programs.tones"))


def test_test_recordings_are_the_same_keys_with_any_noise(script: dict[str, Any]) -> None:
    task = script["DialTask"]()
    clean, noisy = (script["test_recordings"](task, snr, 1337, 20) for snr in (None, 0.0))
    assert [keys for keys, _ in clean] == [keys for keys, _ in noisy]
    assert len({keys for keys, _ in clean}) > 15
    other = script["test_recordings"](task, None, 1, 20)
    assert [keys for keys, _ in other] != [keys for keys, _ in clean]
