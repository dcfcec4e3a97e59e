"""What can be asked of word vectors."""

from __future__ import annotations

import numpy as np
import pytest

from tinyformer.common.errors import SettingError, UserError
from tinyformer.word_vectors.vectors import WordVectors

# Two directions: royal or not, and the sex.
ROYAL = WordVectors(
    ["king", "queen", "man", "woman", "throne", "nothing"], [[1, 1], [1, -1], [0.1, 1], [0.1, -1], [5, 0.3], [0, 0]]
)


def test_a_row_is_the_product_with_a_one_hot_vector() -> None:
    for number, word in enumerate(ROYAL.words):
        one_hot = np.eye(len(ROYAL), dtype=np.float32)[number]
        assert (one_hot @ ROYAL.matrix == ROYAL[word]).all()
    assert (len(ROYAL), ROYAL.width) == (6, 2)
    assert ROYAL.matrix.dtype == "float32"
    assert "king" in ROYAL
    assert "kong" not in ROYAL


def test_nearest_by_cosine_and_by_dot_product() -> None:
    by_cosine, by_dot = ROYAL.nearest("king"), ROYAL.nearest("king", by="dot")
    assert [word for word, _ in by_cosine] == ["man", "throne", "queen", "nothing", "woman"]
    assert [word for word, _ in by_dot] == ["throne", "man", "queen", "nothing", "woman"]  # a long vector comes first
    np.testing.assert_allclose([score for _, score in by_dot], [5.3, 1.1, 0, 0, -0.9], atol=1e-6)
    cosines = [1.1 / np.sqrt(2 * 1.01), 5.3 / np.sqrt(2 * 25.09), 0, 0, -0.9 / np.sqrt(2 * 1.01)]
    np.testing.assert_allclose([score for _, score in by_cosine], cosines, atol=1e-6)
    assert ROYAL.nearest("king", 2) == by_cosine[:2]
    assert ROYAL.similarity("king", "man") == pytest.approx(cosines[0])
    assert ROYAL.similarity("nothing", "man") == 0


def test_questions_that_cannot_be_asked() -> None:
    with pytest.raises(SettingError, match="by must be one of cosine, dot, got 'length'"):
        ROYAL.nearest("king", by="length")
    with pytest.raises(SettingError, match="count must be at least 1, got 0"):
        ROYAL.nearest("king", 0)
    for ask in (ROYAL.nearest, ROYAL.__getitem__, lambda word: ROYAL.analogy("man", word, "woman")):
        with pytest.raises(UserError, match=r"unknown word 'quen': did you mean queen\?"):
            ask("quen")


def test_king_minus_man_plus_woman() -> None:
    (best, score), *others = ROYAL.analogy("man", "king", "woman")
    assert best == "queen"
    assert score > 0.9
    assert not {"man", "king", "woman"} & {word for word, _ in others}
    assert ROYAL.analogy("nothing", "nothing", "nothing", 1) == [("king", 0.0)]


def test_odd_one_out() -> None:
    vectors = WordVectors(["red", "green", "blue", "king"], [[1, 0.1], [1, 0], [30, -3], [0.1, 1]])
    for words in (["red", "green", "blue", "king"], ["king", "red", "blue"]):
        assert vectors.odd_one_out(words) == "king"
    for words in (["red", "king"], ["red", "king", "red"], []):
        with pytest.raises(UserError, match="at least three different words"):
            vectors.odd_one_out(words)


def test_the_plane_that_shows_most() -> None:
    rng = np.random.default_rng(0)
    vectors = WordVectors([f"w{i}" for i in range(30)], rng.standard_normal((30, 6)) * [9, 5, 1, 1, 1, 1])
    words = vectors.words[4:24]
    points, share = vectors.plane(words)
    rows = vectors.directions[4:24].astype(np.float64)
    values, axes = np.linalg.eigh(np.cov(rows.T))
    assert share == pytest.approx(values[-2:].sum() / values.sum(), abs=1e-5)
    want = (rows - rows.mean(axis=0)) @ axes[:, [-1, -2]]
    np.testing.assert_allclose(abs(points), abs(want), atol=1e-5)  # the axes may point either way


def test_the_plane_of_few_words() -> None:
    assert ROYAL.plane(["king"])[0].tolist() == [[0, 0]]
    with pytest.raises(UserError, match="a plane needs at least one word"):
        ROYAL.plane([])
    points, share = ROYAL.plane(["king", "queen"])
    assert share == pytest.approx(1)
    assert abs(points[0, 0] - points[1, 0]) == pytest.approx(np.sqrt(2))
    assert WordVectors(["a", "b", "c"], [[1], [2], [-1]]).plane(["a", "b", "c"])[0].shape == (3, 2)


@pytest.mark.parametrize(
    ("words", "matrix", "message"),
    [
        (["a", "b"], [[1.0]], r"a vocabulary of 2 words needs a matrix of as many rows, got shape \(1, 1\)"),
        (["a"], [1.0], "a vocabulary of 1 word needs a matrix"),
        ([], np.empty((0, 3)), "a vocabulary of 0 words needs a matrix"),
        (["a", "b", "a"], np.ones((3, 1)), "the word 'a' has two vectors"),
        (["a"], [[np.nan]], "not finite"),
        (["a"], [[1e39]], "not finite"),
        (["a"], [[1e20]], "whose squares overflow float32"),
    ],
)
def test_vectors_that_are_none(words: list[str], matrix: object, message: str) -> None:
    with np.errstate(over="ignore"), pytest.raises(UserError, match=message):
        WordVectors(words, matrix)
