"""Co-occurrence counts, PPMI and their vectors."""

from __future__ import annotations

import sys
from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from tinyformer.common.errors import SettingError, UserError
from tinyformer.word_vectors import counts as counting
from tinyformer.word_vectors.corpus import Corpus
from tinyformer.word_vectors.counts import TfIdf, cooccurrences, count_vectors, ppmi, truncated_svd


def some_corpus(seed: int = 0, words: int = 12, lengths: int = 30) -> Corpus:
    rng = np.random.default_rng(seed)
    rows = [rng.zipf(1.5, rng.integers(1, lengths)) % words for _ in range(40)]
    return Corpus.of([[f"w{i}" for i in row] for row in rows], 1)


def some_matrix(rows: int, columns: int) -> sparse.csr_array:
    rng = np.random.default_rng(0)
    return sparse.csr_array(rng.standard_normal((rows, columns)) * (rng.random((rows, columns)) < 0.3))


@pytest.fixture(params=["dense", "ARPACK"])
def solver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Small matrices go to this solver."""
    if request.param == "ARPACK":
        monkeypatch.setattr(counting, "SMALL", 0)
    return request.param


@pytest.mark.parametrize("window", [1, 3, 100])
def test_each_pair_within_a_window_is_counted(window: int) -> None:
    corpus = some_corpus()
    found: Counter[tuple[int, int]] = Counter()
    for first, last in zip(corpus.starts, corpus.starts[1:]):
        ids = corpus.ids[first:last].tolist()
        found.update((a, b) for i, a in enumerate(ids) for j, b in enumerate(ids) if i != j and abs(i - j) <= window)
    size = len(corpus.vocabulary)
    want = [[found[row, column] for column in range(size)] for row in range(size)]
    assert cooccurrences(corpus, window).toarray().tolist() == want


def test_ppmi_is_the_definition() -> None:
    counts = cooccurrences(some_corpus(), 2)
    joint = counts.toarray() / counts.sum()
    with np.errstate(divide="ignore"):
        plain = np.maximum(np.log(joint / np.outer(joint.sum(1), joint.sum(0))), 0)
        smooth = counts.toarray().sum(0) ** 0.75
        smoothed = np.maximum(np.log(joint / np.outer(joint.sum(1), smooth / smooth.sum())), 0)
    np.testing.assert_allclose(ppmi(counts, 1.0).toarray(), plain, atol=1e-12)
    np.testing.assert_allclose(ppmi(counts).toarray(), smoothed, atol=1e-12)
    assert ppmi(counts).nnz < counts.nnz  # what is 0 takes no memory
    for wrong in (0, 1.1, -1):
        with pytest.raises(SettingError, match="smoothing must be above 0 and at most 1"):
            ppmi(counts, wrong)


def test_a_window_beyond_the_longest_passage_takes_no_longer() -> None:
    corpus = Corpus.of([["a", "b", "c"]] * 1000, 1)
    assert (cooccurrences(corpus, 10**30) != cooccurrences(corpus, 2)).nnz == 0


def test_a_window_of_none() -> None:
    with pytest.raises(SettingError, match="window must be at least 1, got 0"):
        cooccurrences(some_corpus(), 0)


def test_without_scipy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    for call in (lambda: cooccurrences(some_corpus()), lambda: TfIdf(["some words"])(["words"])):
        with pytest.raises(UserError, match=r"count vectors and TF-IDF need SciPy: pip install 'tinyformer\[vectors\]'"):
            call()


# ------------------------------------------------------------------------------------------------- singular values


@pytest.mark.parametrize(
    ("shape", "rank"), [((60, 60), 1), ((60, 60), 40), ((90, 40), 5), ((90, 40), 40), ((40, 90), 1), ((600, 450), 5)]
)
def test_the_reconstruction_is_that_of_numpys_svd(shape: tuple[int, int], rank: int, solver: str) -> None:
    matrix = some_matrix(*shape)
    u, s, vt = np.linalg.svd(matrix.toarray(), full_matrices=False)
    ours = truncated_svd(matrix, rank)
    assert [part.shape for part in ours] == [(shape[0], rank), (rank,), (shape[1], rank)]
    np.testing.assert_allclose(ours[1], s[:rank], rtol=1e-9)
    np.testing.assert_allclose((ours[0] * ours[1]) @ ours[2].T, (u[:, :rank] * s[:rank]) @ vt[:rank], atol=1e-9)
    np.testing.assert_allclose(matrix.T @ ours[0], ours[2] * ours[1], atol=1e-9 * s[0])
    for vectors in (ours[0], ours[2]):
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(rank), atol=1e-9)
    assert all((again == part).all() for again, part in zip(truncated_svd(matrix, rank), ours))


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 1e9, 1e200])
def test_matrices_of_low_rank_and_equal_singular_values(scale: float, solver: str) -> None:
    low = np.outer(np.arange(1, 31), np.arange(1, 41)) * scale
    u, s, v = truncated_svd(sparse.csr_array(low), 3)
    np.testing.assert_allclose((u * s) @ v.T, low, rtol=1e-9)
    assert s[1] < 1e-9 * s[0]
    _, s, _ = truncated_svd(sparse.csr_array(np.eye(50) * scale), 20)
    np.testing.assert_allclose(s, scale)


def test_a_matrix_of_zeros(solver: str) -> None:
    u, s, v = truncated_svd(sparse.csr_array((30, 20)), 3)
    assert (s == 0).all()
    for vectors in (u, v):
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(3), atol=1e-12)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_elements_that_are_not_finite(value: float) -> None:
    with pytest.raises(UserError, match="the matrix has elements that are NaN or infinite"):
        truncated_svd(sparse.csr_array([[1.0, value], [2.0, 0.0]]), 1)


@pytest.mark.parametrize("rank", [0, 10])
def test_a_rank_that_cannot_be(rank: int) -> None:
    with pytest.raises(SettingError, match="rank must be from 1 to 9, the smaller side of the matrix"):
        truncated_svd(some_matrix(9, 14), rank)


# --------------------------------------------------------------------------------------------------------- vectors


def test_products_of_vectors_are_those_of_ppmi() -> None:
    corpus = some_corpus()
    matrix = ppmi(cooccurrences(corpus), 0.75).toarray()
    size = len(corpus.vocabulary)
    vectors = count_vectors(corpus, width=size, power=1.0).matrix
    np.testing.assert_allclose(vectors @ vectors.T, matrix @ matrix.T, atol=1e-5)


def test_the_sign_of_vectors_does_not_depend_on_the_seed(solver: str) -> None:
    corpus = some_corpus(words=40)
    one, two = (count_vectors(corpus, width=4, seed=seed).matrix for seed in (0, 1))
    np.testing.assert_allclose(one, two, atol=1e-6)
    assert (count_vectors(corpus, width=4).matrix == one).all()


def test_words_with_the_same_neighbours_are_near_each_other() -> None:
    rng = np.random.default_rng(0)
    sentences = [[f"noun{rng.integers(3)}", "verb", f"thing{rng.integers(3)}"] for _ in range(300)]
    vectors = count_vectors(Corpus.of(sentences, 1), width=3, window=1)
    assert {word for word, _ in vectors.nearest("verb", 10)} == set(vectors.words) - {"verb"}
    assert vectors.similarity("noun0", "noun1") > 0.9


def test_a_width_that_cannot_be() -> None:
    with pytest.raises(SettingError, match="width must be at most 12, the number of words, got 13"):
        counting.count_vectors(some_corpus(), width=13)
