"""Runs of translation compared: their files, their names, and their scores by the length of the source."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from tinyformer.common.errors import UserError
from tinyformer.training.comparison import (
    FEWEST,
    MOST_BINS,
    Translated,
    bins_of,
    check_same_sentences,
    exactly_right,
    measures_of,
    middle_sentence,
    names_of_runs,
    read_translations,
    score_by_length,
    write_translations,
)
from tinyformer.training.run_folder import RunFolder
from tinyformer.training.translation import TranslationConfig

SENTENCES = [Translated("a b c", "x y", "x y z"), Translated("ä", "", "\u2028ö"), Translated("a b", "x", "x")]

# ---------------------------------------------------------------------------------------------------------------- files


def test_a_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "sample.txt"
    write_translations(path, *zip(*map(dataclasses.astuple, SENTENCES)))
    assert path.read_text(encoding="utf-8").startswith("source\tours\treference\na b c\tx y\tx y z\n")
    assert read_translations(path) == SENTENCES
    assert [one.length for one in SENTENCES] == [3, 1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged: line 1 should be source, ours, reference, with tabs between them"),
        (b"some text\n", "is damaged: line 1 should be source, ours, reference"),
        (b"source\tours\treference\na\tb\tc\na\tb\n", "is damaged: line 3 should be source, ours, reference"),
        (b"source\tours\treference\na\tb\tc\td\n", "is damaged: line 2 should be source, ours, reference"),
        (b"source\tours\treference\n", "is damaged: it has no sentences"),
        (b"source\tours\treference\ncaf\xe9\tb\tc\n", "is damaged: it is not UTF-8 text"),
        (None, "does not exist: a run has it once its training is finished, as by --resume"),
    ],
)
def test_files_that_will_not_do(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "sample.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_translations(path)
    assert str(caught.value).startswith(f"{path} {message}")


def test_only_the_same_sentences_are_compared() -> None:
    others = [dataclasses.replace(one, ours="another") for one in SENTENCES]
    check_same_sentences({"a": SENTENCES, "b": others})
    fewer = "a and c cannot be compared: the numbers of their held-out sentences are 3 and 2"
    differ = "a and c cannot be compared, as their held-out sentences differ:\nsentence 2 is {} in one and {} in the other"
    long = "x" * 100
    for found, message in (
        (others[:2], fewer),
        ([others[0], others[2], others[1]], differ.format("'ä'", "'a b'")),
        ([others[0], Translated("ä", "", "z")], differ.format(repr("\u2028ö"), "'z'")),
        ([others[0], Translated(long, "", "z")], differ.format("'ä'", repr("x" * 57 + "..."))),
    ):
        with pytest.raises(UserError) as caught:
            check_same_sentences({"a": SENTENCES, "b": others, "c": found})
        assert str(caught.value) == message


def test_the_middle_sentence() -> None:
    assert middle_sentence(SENTENCES) == "a b"
    assert middle_sentence(SENTENCES[:1]) == "a b c"
    assert middle_sentence([Translated(source, "", "") for source in ("b", "a", "c d", "c")]) == "c"


def make_run(path: Path, architecture: str) -> RunFolder:
    folder = RunFolder(path)
    folder.create({"task": TranslationConfig(architecture)})
    folder.move_into_place()
    return RunFolder(path)


def test_names_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = {"lstm": "lstm", "Big Attention": "attention", "third": "transformer", "a/run": "lstm", "b/run": "lstm"}
    folders = [make_run(Path(path), architecture) for path, architecture in made.items()]
    names = ["lstm", "Big Attention", "third (transformer)", f"{Path('a/run')} (lstm)", f"{Path('b/run')} (lstm)"]
    assert names_of_runs(folders) == dict(zip(names, folders))
    monkeypatch.chdir("lstm")
    here = RunFolder(".")
    assert list(names_of_runs([here, RunFolder("../third")])) == ["lstm", "third (transformer)"]
    for too_few in ([here], [here, RunFolder("../lstm")]):
        with pytest.raises(UserError, match="name two or more different runs to compare"):
            names_of_runs(too_few)
    with pytest.raises(UserError, match=r"^\.\. holds no run itself, but folders of runs: "):
        names_of_runs([here, RunFolder("..")])


# ---------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(
    ("counts", "bins"),
    [
        ({3: 192, 4: 107, 5: 122, 6: 66, 7: 9, 8: 4}, [(3, 3), (4, 4), (5, 5), (6, 8)]),  # the last joins the one before
        ({4: 6, 5: 18, 6: 504, 15: 364, 20: 82, 25: 24, 30: 2}, [(4, 5), (6, 10), (11, 15), (16, 20), (21, 30)]),
        ({1: 3, 2: 17, 9: 30}, [(1, 2), (3, 9)]),  # each bin ends at an even number, as they are two words wide
        ({1: 3, 5: 40, 14: 30}, [(1, 6), (7, 14)]),  # the first bins join the next
        ({7: 5}, [(7, 7)]),
        ({2: 1, 900: 1}, [(2, 900)]),
        ({0: 30, 1: 30}, [(0, 0), (1, 1)]),
    ],
)
def test_bins(counts: dict[int, int], bins: list[tuple[int, int]]) -> None:
    found = bins_of(list(Counter(counts).elements()))
    assert [(b[0], b[-1]) for b in found] == bins


@pytest.mark.parametrize("longest", [1, 8, 9, 33, 85, 1000])
def test_bins_have_enough_sentences_and_hold_each_length_once(longest: int) -> None:
    lengths = [1 + (i * i) % longest for i in range(300)]
    bins = bins_of(lengths)
    assert [length for b in bins for length in b] == list(range(min(lengths), max(lengths) + 1))
    assert len(bins) <= MOST_BINS
    assert all(sum(length in b for length in lengths) >= FEWEST for b in bins)


def test_exactly_right() -> None:
    assert exactly_right(["a", "b", "c", ""], ["a", "b", "x", "d"]) == 50.0


def test_scores_by_the_length_of_the_source() -> None:
    right = [Translated("a", "x", "x")] * 30 + [Translated("a b", "x", "x")] * 30
    wrong_if_long = [dataclasses.replace(one, ours="x" if one.length == 1 else "y") for one in right]
    table = score_by_length({"right": right, "a longer name here": wrong_if_long}, "exactly right (%)", exactly_right)
    assert (table.labels(), table.counts) == (["1", "2"], [60, 30, 30])
    assert table.scores == {"right": [100, 100, 100], "a longer name here": [50, 100, 0]}
    assert str(table) == (
        "words of the source      all        1        2\n"
        "sentences                 60       30       30\n"
        "right                 100.00   100.00   100.00\n"
        "a longer name here     50.00   100.00     0.00"
    )
    assert score_by_length({"a": [*right, Translated("a b c", "x", "x")]}, "right", exactly_right).labels() == ["1", "2-3"]


def test_bleu_is_that_of_each_bins_corpus() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    short = [Translated("a", "the dog saw a small cat", "the dog saw a big cat")] * 25
    long = [Translated("a b", "it is a red bird here", "it was a blue bird over there")] * 20
    runs = {"run": short + long}
    measures, settings = measures_of(runs, are_languages=True)
    assert list(measures) == ["BLEU", "chrF"]
    assert settings is not None
    table = score_by_length(runs, "BLEU", measures["BLEU"])
    expected = [
        sacrebleu.corpus_bleu([one.ours for one in part], [[one.reference for one in part]]).score
        for part in (short + long, short, long)
    ]
    assert table.scores == {"run": expected}
    assert 0 < expected[2] < expected[1]
