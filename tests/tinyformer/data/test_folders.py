"""Folders of texts: which files are skipped, and the message."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyformer.common.errors import UserError
from tinyformer.data.files import mark_results, texts_in
from tinyformer.data.reading import read_text
from tinyformer.training.run_folder import RunFolder

PICTURE = b"\x89PNG\r\n\x1a\n\0\0\0"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("words")
    return tmp_path / "texts"


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    "content",
    [
        PICTURE,
        b"caf\xe9",
        "wörter".encode("utf-16"),
        "words".encode("utf-16-le"),
        b"a\0b",
        b"\xcb\r\r\n\0\0\0",
        b"cut \xe2\x82",
    ],
)
def test_files_that_are_not_utf8_are_skipped_and_named(content: bytes, folder: Path, capsys) -> None:
    (folder / "b").write_bytes(content)
    assert read_text(folder) == "words"
    assert lines(capsys) == [f"{folder}: left out 1 file other than UTF-8 text: {folder}/b"]
    (folder / "b").replace(folder / "c.png")
    (folder / "b").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    assert read_text(folder) == "words"
    assert lines(capsys) == [f"{folder}: left out 3 files other than UTF-8 text, such as {folder}/b"]


def test_a_letter_across_two_reads_is_text(folder: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyformer.data.files.SNIFFED", 4)
    (folder / "b").write_text("wör€ter 😀", encoding="utf-8")
    assert read_text(folder) == "words\nwör€ter 😀"
    assert lines(capsys) == []


def test_the_log_has_no_other_rows(folder: Path, capsys) -> None:
    (folder / ".hidden").write_bytes(PICTURE)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "model.safetensors").write_bytes(PICTURE)
    assert read_text(folder) == "words"
    assert lines(capsys) == []


def test_a_folder_without_texts(tmp_path: Path, capsys) -> None:
    (tmp_path / "b.png").write_bytes(PICTURE)
    with pytest.raises(UserError, match="has no UTF-8 text files: pass --data"):
        read_text(tmp_path)
    assert lines(capsys) == [f"{tmp_path}: left out 1 file other than UTF-8 text: {tmp_path}/b.png"]


@pytest.mark.parametrize("file", ["best.safetensors", "model.safetensors", "weights.pt", "x.ckpt", "pytorch_model-1-of-2.bin"])
def test_folders_of_runs_and_models_are_left_out_with_all_they_hold(file: str, folder: Path, capsys) -> None:
    (folder / "anything" / "inside").mkdir(parents=True)
    (folder / "anything" / file).write_bytes(b"\xff")
    (folder / "anything" / "sample.txt").write_text("written by a model")
    (folder / "anything" / "inside" / "log.csv").write_text("step,loss")
    assert read_text(folder) == "words"
    assert lines(capsys) == [f"{folder}: left out 1 folder of runs or models: {folder}/anything"]


def test_a_folder_of_results_is_left_out(folder: Path) -> None:
    (folder / "results").mkdir()
    (folder / "results" / "vectors.txt").write_text("1 2\nword 1 2")
    assert len(texts_in(folder)[0]) == 2
    mark_results(folder / "results")
    assert [path.name for path in texts_in(folder)[0]] == ["a.txt"]


def test_a_run_is_left_out_from_its_beginning_on(folder: Path) -> None:
    """The folder of a run may hold texts before. They are never data of that run: it could not be resumed otherwise."""
    (folder / "run").mkdir()
    (folder / "run" / "notes.txt").write_text("mine")
    assert read_text(folder) == "words\nmine"
    with RunFolder(folder / "run").held():
        assert read_text(folder) == "words"


def test_a_folder_that_is_named_itself_may_be_that_of_a_run(folder: Path, capsys) -> None:
    with RunFolder(folder).held():
        before = read_text(folder)
    for name in ("config.json", "tokenizer.json", "log.csv", "sample.txt"):
        (folder / name).write_text("of the run")
    for name in ("loss.png", "best.safetensors", "latest.safetensors", "weights-00000010.safetensors"):
        (folder / name).write_bytes(PICTURE)
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "events.out.tfevents.1").write_text("of the run")
    assert read_text(folder) == before == "words"
    assert lines(capsys) == []
