"""Vectors beside people's ratings and analogies. tests/parity compares the figures with gensim's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tinyformer.common.errors import UserError
from tinyformer.word_vectors import evaluation
from tinyformer.word_vectors.evaluation import analogies, is_of_analogies, ranked, similarity, spearman
from tinyformer.word_vectors.vectors import WordVectors

ROUND = WordVectors("abcd", [[1, 0], [1, 1], [0, 1], [-1, 0]])
GRID = WordVectors(
    ["king", "queen", "man", "woman", "uncle", "aunt"], [[3, 0, 1], [3, 0, -1], [0, 3, 1], [0, 3, -1], [2, 2, 1], [2, 2, -1]]
)


def test_equal_numbers_share_their_ranks() -> None:
    assert ranked([30, 10, 20, 10, 30, 30]).tolist() == [5, 1.5, 3, 1.5, 5, 5]


def test_spearman() -> None:
    assert spearman([1, 2, 3], [10, 20, 1000]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, -9]) == pytest.approx(-1)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0
    # 1 - 6 sum d² / (n (n² - 1)), the formula without ties
    assert spearman([1, 2, 3, 4, 5], [2, 1, 4, 3, 5]) == pytest.approx(1 - 6 * 4 / (5 * 24))
    # With ties by hand: ranks 1.5, 1.5, 3 and 1, 2, 3.
    assert spearman([5, 5, 6], [1, 2, 3]) == pytest.approx(1.5 / np.sqrt(1.5 * 2))


@pytest.mark.parametrize(
    "text",
    [
        "a\tb\t9\na\tc\t5\na\td\t1\n",
        "Word 1,Word 2,Human (mean)\na,b,9\nA,c,5.0\na,d,1\n",
        "# note\n\na b 9\na  c 5\r\na d 1",
        "a b 9\ra c 5\ra d 1\r",
    ],
)
def test_ratings_that_the_vectors_agree_with(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(text + "\nunicorn a 3\n" if "," not in text else text + "\nunicorn,a,3\n")
    found = similarity(ROUND, path)
    assert (found.correlation, found.known, found.unknown) == (pytest.approx(1), 3, 1)
    assert not is_of_analogies(path)


def test_columns_as_simlex_999_is_published(tmp_path: Path) -> None:
    names = "word1 word2 POS SimLex999 conc(w1) conc(w2) concQ Assoc(USF) SimAssoc333 SD(SimLex)".split()
    rated = [[*pair, "A", rating, "2.7", "2.8", "2", "7.25", "1", "0.4"] for *pair, rating in ("ab9", "ac5", "ad1", "ax3")]
    path = tmp_path / "SimLex-999.txt"
    path.write_text("".join("\t".join(row) + "\r\n" for row in [names, *rated]), newline="")
    found = similarity(ROUND, path)
    assert (found.correlation, found.known, found.unknown) == (pytest.approx(1), 3, 1)
    path.write_text("\t".join(names) + "\na\tb\t5\n")
    with pytest.raises(UserError, match="line 2: expected two words and a number"):
        similarity(ROUND, path)


SETS = {
    "SimVerb-3500": ("", "{0}\t{1}\tV\t{2}\tSYNONYMS"),
    "Rare Words": ("", "{0}\t{1}\t{2}\t7\t6\t1\t6\t10\t9\t8\t8\t5\t1"),
    "WordSim-353, combined": ("Word 1,Word 2,Human (mean)\n", "{0},{1},{2}"),
    "WordSim-353, combined.tab": ("Word 1\tWord 2\tHuman (mean)\n", "{0}\t{1}\t{2}"),
    "WordSim-353, set 1": ("Word 1,Word 2,Human (Mean),1,2,3\n", "{0},{1},{2},9,5,1"),
    "WordSim-353, similarity": ("", "{0}\t{1}\t{2}"),
    "WordSim-353, agreed": ("# word pairs\n#\n", "i\t{0}\t{1}\t{2}"),
    "MEN": ("", "{0} {1} {2}.000000"),
    "RG-65": ("", "{0};{1};{2}"),
    "MTurk-771": ("", "{0},{1},{2}.5"),
    "numbered": (",word1,word2,score\n", "7,{0},{1},{2}"),
}


@pytest.mark.parametrize("name", SETS)
def test_sets_of_rated_pairs_as_they_are_published(name: str, tmp_path: Path) -> None:
    words = ["river", "bank", "cloud", "lamp"]
    vectors = WordVectors(words, [[1, 0], [2, 1], [1, 1], [0, 1]])
    head, row = SETS[name]
    path = tmp_path / "pairs"
    path.write_text(head + "".join(row.format("river", word, 9 - i) + "\n" for i, word in enumerate([*words[1:], "rare"])))
    assert not is_of_analogies(path)
    found = similarity(vectors, path)
    assert (found.correlation, found.known, found.unknown) == (pytest.approx(1), 3, 1)
    with open(path, "a") as file:
        file.write(row.format("river", "bank", "x").replace("9,5,1", "9,5") + "\n")
    if name != "Rare Words":
        with pytest.raises(UserError, match=f"line {len(head.splitlines()) + 5}: expected two words and a number"):
            similarity(vectors, path)


def test_accents_of_either_form(tmp_path: Path) -> None:
    vectors = WordVectors(["\u00e9", "b", "c"], [[1, 0], [1, 1], [0, 1]])
    (tmp_path / "pairs.txt").write_text("e\u0301 b 5\n\u00e9 c 1\n", encoding="utf-8")
    assert similarity(vectors, tmp_path / "pairs.txt").known == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b 1\na c x\n", "line 2: expected two words and a number, got 'a c x'"),
        ("a b 1\na c\n", "line 2: expected two words and a number, got 'a c'"),
        ("one line of text\n", "line 1: expected two words and a number"),
        ("a b 1\n\na c nan\n", "line 3: expected two words"),
        ("a b 1\nx y 2\n", "has 1 pair of two known words .of 2."),
        ("a b 1\na c 1\n", "all ratings of known words in .* are 1: a correlation needs different ones"),
        ("", "has no word pairs: each line needs two words and a number"),
        ("a b x\n", "has no word pairs"),
        ("\ta\t5\n", "line 1: expected two words and a number"),
    ],
)
def test_files_of_pairs_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pairs.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        similarity(ROUND, path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("piece", [1, 500])
def test_analogies_by_section(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "PIECE", piece)
    path = tmp_path / "questions.txt"
    path.write_text(
        ": family\nman King woman queen\nuncle aunt king queen\nuncle aunt king woman\n: other\nman woman x y\n: none\n"
    )
    found = analogies(GRID, path)
    assert [(s.name, s.right, s.asked, s.unknown) for s in found] == [
        ("family", 2, 3, 0), ("other", 0, 0, 1), ("none", 0, 0, 0), ("all", 2, 3, 1),
    ]  # fmt: skip
    assert found[-1].accuracy == pytest.approx(2 / 3)
    assert found[1].accuracy == 0
    assert is_of_analogies(path)
    path.write_text("man king woman queen\n")
    assert [(s.name, s.right, s.asked) for s in analogies(GRID, path)] == [("", 1, 1), ("all", 1, 1)]
    assert is_of_analogies(path)


def test_answers_are_those_of_the_vectors(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = WordVectors([f"w{i}" for i in range(40)], rng.standard_normal((40, 4)))
    questions = [[f"w{i}" for i in rng.choice(40, 3, replace=False)] for _ in range(60)]
    answers = [vectors.analogy(*words, count=1)[0][0] for words in questions]
    wrong = [f"w{rng.integers(40)}" if i % 3 == 0 else answer for i, answer in enumerate(answers)]
    (tmp_path / "q.txt").write_text("".join(" ".join([*q, a]) + "\n" for q, a in zip(questions, wrong)))
    right = sum(a == b for a, b in zip(answers, wrong))
    assert 40 <= right < 60
    assert analogies(vectors, tmp_path / "q.txt")[-1].right == right


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (": a\nman king woman\n", "line 2: expected four words, got 'man king woman'"),
        (": a\nx y z w\n", "no analogy in .* has four known words"),
        ("", "has no analogies: each line needs four words"),
        (": a\n: b\n", "has no analogies"),
    ],
)
def test_files_of_analogies_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "questions.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        analogies(GRID, path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for evaluate in (similarity, analogies):
        with pytest.raises(UserError, match="does not exist: give a text file of word pairs or of analogies"):
            evaluate(GRID, tmp_path / "none")
