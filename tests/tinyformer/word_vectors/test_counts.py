"""Counting neighbours, and what is made of the counts."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from tinyformer.common.errors import SettingError, UserError
from tinyformer.word_vectors import counts as counting, sparse
from tinyformer.word_vectors.corpus import Corpus
from tinyformer.word_vectors.counts import cooccurrences, count_vectors, ppmi
from tinyformer.word_vectors.sparse import SparseMatrix, truncated_svd


def some_corpus(seed: int = 0, words: int = 12, lengths: int = 30) -> Corpus:
    rng = np.random.default_rng(seed)
    rows = [rng.zipf(1.5, rng.integers(1, lengths)) % words for _ in range(40)]
    return Corpus.of([[f"w{i}" for i in row] for row in rows], 1)


def some_matrix(rows: int, columns: int, seed: int = 0, density: float = 0.3) -> SparseMatrix:
    rng = np.random.default_rng(seed)
    keys = np.flatnonzero(rng.random(rows * columns) < density)
    return SparseMatrix((rows, columns), keys, rng.standard_normal(len(keys)))


@pytest.mark.parametrize("window", [1, 3, 100])
def test_each_pair_within_a_window_is_counted(window: int) -> None:
    corpus = some_corpus()
    found: Counter[tuple[int, int]] = Counter()
    for first, last in zip(corpus.starts, corpus.starts[1:]):
        ids = corpus.ids[first:last].tolist()
        found.update((a, b) for i, a in enumerate(ids) for j, b in enumerate(ids) if i != j and abs(i - j) <= window)
    size = len(corpus.vocabulary)
    want = [[found[row, column] for column in range(size)] for row in range(size)]
    assert cooccurrences(corpus, window).dense().tolist() == want


def test_ppmi_is_the_definition() -> None:
    counts = cooccurrences(some_corpus(), 2)
    joint = counts.dense() / counts.values.sum()
    with np.errstate(divide="ignore"):
        plain = np.maximum(np.log(joint / np.outer(joint.sum(1), joint.sum(0))), 0)
        smooth = counts.dense().sum(0) ** 0.75
        smoothed = np.maximum(np.log(joint / np.outer(joint.sum(1), smooth / smooth.sum())), 0)
    np.testing.assert_allclose(ppmi(counts, 1.0).dense(), plain, atol=1e-12)
    np.testing.assert_allclose(ppmi(counts).dense(), smoothed, atol=1e-12)
    assert len(ppmi(counts).values) < len(counts.values)  # what is 0 takes no memory
    for wrong in (0, 1.1, -1):
        with pytest.raises(SettingError, match="smoothing must be above 0 and at most 1"):
            ppmi(counts, wrong)


def test_a_window_beyond_the_longest_passage_takes_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus.of([["a", "b", "c"]] * 1000, 1)
    sums = []
    sum_of = SparseMatrix.sum_of
    monkeypatch.setattr(SparseMatrix, "sum_of", lambda *parts: (sums.append(parts), sum_of(*parts))[1])
    cooccurrences(corpus, 10**30)
    assert len(sums) == 2


def test_a_window_of_none() -> None:
    with pytest.raises(SettingError, match="window must be at least 1, not 0"):
        cooccurrences(some_corpus(), 0)


# -------------------------------------------------------------------------------------------------- sparse matrices


def test_elements_in_any_order_are_added_up() -> None:
    matrix = SparseMatrix.sum_of((2, 3), np.array([4, 0, 4, 2]), [1, 2, 3, 4])
    assert matrix.dense().tolist() == [[2, 0, 4], [0, 4, 0]]
    assert matrix.T.dense().tolist() == [[2, 0], [0, 4], [4, 0]]
    assert (matrix.sums(0).tolist(), matrix.sums(1).tolist()) == ([2, 4, 4], [6, 4])
    empty = SparseMatrix.sum_of((2, 3), np.empty(0, int), [])
    assert empty.dense().tolist() == [[0, 0, 0], [0, 0, 0]]
    assert (empty @ np.ones((3, 2))).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("piece", [1, 7, 50, 10_000])
def test_products_in_pieces_are_those_of_dense_matrices(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "PIECE", piece)
    matrix, other = some_matrix(9, 14), np.random.default_rng(1).standard_normal((14, 3))
    np.testing.assert_allclose(matrix @ other, matrix.dense() @ other, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "rank"), [((60, 60), 1), ((60, 60), 40), ((90, 40), 5), ((90, 40), 40), ((40, 90), 1), ((400, 300), 5)]
)
def test_the_reconstruction_is_that_of_numpys_svd(shape: tuple[int, int], rank: int) -> None:
    matrix = some_matrix(*shape)
    u, s, vt = np.linalg.svd(matrix.dense(), full_matrices=False)
    ours = truncated_svd(matrix, rank)
    assert [part.shape for part in ours] == [(shape[0], rank), (rank,), (shape[1], rank)]
    np.testing.assert_allclose(ours[1], s[:rank], rtol=1e-9)
    np.testing.assert_allclose((ours[0] * ours[1]) @ ours[2].T, (u[:, :rank] * s[:rank]) @ vt[:rank], atol=1e-6)
    for vectors in (ours[0], ours[2]):
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(rank), atol=1e-9)


def test_the_svd_of_a_large_matrix_does_not_need_all_of_its_space(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    within = sparse._within
    monkeypatch.setattr(sparse, "_within", lambda basis, *rest: (sizes.append(basis.shape[1]), within(basis, *rest))[1])
    truncated_svd(ppmi(cooccurrences(some_corpus(words=800, lengths=400))), 10)
    assert sizes[-1] < 400


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 1e9, 1e200])
def test_matrices_of_low_rank_and_equal_singular_values(scale: float) -> None:
    low = np.outer(np.arange(1, 31), np.arange(1, 41)) * scale
    u, s, v = truncated_svd(SparseMatrix((30, 40), np.arange(1200), low.reshape(-1)), 3)
    np.testing.assert_allclose((u * s) @ v.T, low, rtol=1e-9)
    assert s[1] < 1e-9 * s[0]
    _, s, _ = truncated_svd(SparseMatrix((50, 50), np.arange(50) * 51, np.full(50, scale)), 20)
    np.testing.assert_allclose(s, scale)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_elements_that_are_not_finite(value: float) -> None:
    with pytest.raises(UserError, match="a matrix with elements that are not finite has no singular values"):
        truncated_svd(SparseMatrix((2, 2), np.arange(3), np.array([1.0, value, 2.0])), 1)


@pytest.mark.parametrize("rank", [0, 10])
def test_a_rank_that_cannot_be(rank: int) -> None:
    with pytest.raises(SettingError, match="rank must be from 1 to 9, the smaller side of the matrix"):
        truncated_svd(some_matrix(9, 14), rank)


# --------------------------------------------------------------------------------------------------------- vectors


def test_products_of_vectors_are_those_of_ppmi() -> None:
    corpus = some_corpus()
    matrix = ppmi(cooccurrences(corpus), 0.75).dense()
    size = len(corpus.vocabulary)
    vectors = count_vectors(corpus, width=size, power=1.0).matrix
    np.testing.assert_allclose(vectors @ vectors.T, matrix @ matrix.T, atol=1e-5)


def test_the_sign_of_vectors_does_not_depend_on_the_seed() -> None:
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
    with pytest.raises(SettingError, match="width must be at most 12, the number of words, not 13"):
        counting.count_vectors(some_corpus(), width=13)
