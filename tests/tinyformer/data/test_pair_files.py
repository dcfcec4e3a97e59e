"""The files of a translation run. What a user sees of them is in tests/examples/test_translate.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tinyformer.common.errors import UserError
from tinyformer.data.pair_files import PairFiles, one_line

PAIRS = [(f"Word {i}", f"Wort  {i}") for i in range(20)]


@pytest.fixture(autouse=True)
def some_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS), encoding="utf-8")
    for name, part in (("train", PAIRS[:12]), ("valid", PAIRS[12:15]), ("test", PAIRS[15:])):
        for side, lines in zip(("en", "de"), zip(*part)):
            Path(f"{name}.{side}").write_text("\n".join(lines), encoding="utf-8")


def test_pairs_are_held_out_of_one_file() -> None:
    training, validation, test = PairFiles("pairs.tsv").read(False, 4, 3)
    assert (len(training), len(validation), len(test)) == (13, 4, 3)
    assert {*training, *validation, *test} == {(s, one_line(t)) for s, t in PAIRS}


def test_a_part_may_write_its_own_files() -> None:
    own_test = PairFiles(source="train.en", target="train.de", test_source="test.en", test_target="test.de")
    training, validation, test = own_test.read(True, 4, 3)
    assert (len(training), len(validation)) == (8, 4)
    assert test == [(f"word {i}", f"wort {i}") for i in range(15, 20)]
    own_validation = PairFiles("pairs.tsv", validation_source="valid.en", validation_target="valid.de")
    training, validation, test = own_validation.read(False, 4, 3)
    assert (len(training), len(validation), len(test)) == (17, 3, 3)
    assert validation == [(f"Word {i}", f"Wort {i}") for i in range(12, 15)]


def test_whether_files_are_given() -> None:
    assert not PairFiles().are_given()
    assert PairFiles("pairs.tsv").are_given()
    assert PairFiles(test_target="test.de").are_given()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (PairFiles(), "there are no sentences to train on"),
        (PairFiles(source="train.en"), "a source and a target file belong together"),
        (PairFiles("pairs.tsv", "train.en", "train.de"), "give either --data, or --source and --target"),
        (PairFiles("pairs.tsv", test_source="test.en"), "a source and a target file belong together"),
    ],
)
def test_files_that_do_not_go_together(files: PairFiles, message: str) -> None:
    with pytest.raises(UserError, match=message):
        files.read(False, 4, 3)


def test_pairs_with_an_empty_side_are_left_out_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("some.tsv").write_text("a\tb\n \tc\nd\t\ne\tf\n", encoding="utf-8")
    training, *held_out = PairFiles("some.tsv", None, None, "valid.en", "valid.de", "test.en", "test.de").read(False, 4, 3)
    assert sorted(training) == [("a", "b"), ("e", "f")]
    assert list(map(len, held_out)) == [3, 5]
    assert capsys.readouterr().out == "some.tsv: skipped 2 pairs with an empty side\n"
    Path("some.tsv").write_text("\tb\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"some\.tsv has no pair of sentences"):
        PairFiles("some.tsv").read(False, 4, 3)


def test_repeated_pairs_are_skipped_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("again.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in [*PAIRS, *PAIRS[:7]]), encoding="utf-8")
    parts = PairFiles("again.tsv").read(False, 4, 3)
    assert sum(map(len, parts)) == 20
    assert capsys.readouterr().out == "again.tsv: left out 7 repeated pairs of 27\n"
    Path("again.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in [*PAIRS, PAIRS[0]]), encoding="utf-8")
    PairFiles("again.tsv").read(False, 4, 3)
    assert capsys.readouterr().out == "again.tsv: left out 1 repeated pair of 21\n"
