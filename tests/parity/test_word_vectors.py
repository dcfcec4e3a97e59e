"""TF-IDF beside scikit-learn's, and word vectors beside gensim's: the same weights, answers and files, and vectors that agree
with people as well.

Needs scikit-learn and gensim. Files of word pairs and of analogies come with gensim; the texts are read from ../shared/data
beside the repository.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import word2vec

from tinyformer.word_vectors import TfIdf, WordVectors, analogies, load_vectors, passages, save_vectors, similarity

sklearn_text = pytest.importorskip("sklearn.feature_extraction.text")
gensim = pytest.importorskip("gensim")
models = pytest.importorskip("gensim.models")
datapath = pytest.importorskip("gensim.test.utils").datapath

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def data(name: str) -> Path:
    """A file of the data folder, which may be missing only as a whole."""
    if not DATA.is_dir():
        pytest.skip("there is no ../shared/data beside the repository")
    return DATA / name


# ---------------------------------------------------------------------------------------------------------- TF-IDF

DOCUMENTS = [
    "The cat sat on the mat.",
    "The cats' dog -- a big_dog -- didn't sit; 2 x 22!",
    "ÉTÉ été Straße STRASSE İstanbul e\u0301 中文 字",
    "a b c",
    "",
    "the the the THE cat\tsat\nover\u00a0there",
]


def assert_same_weights(documents: list[str], others: list[str]) -> None:
    theirs = sklearn_text.TfidfVectorizer()
    matrix = theirs.fit_transform(documents)
    ours = TfIdf(documents)
    assert list(ours.words) == theirs.get_feature_names_out().tolist()
    np.testing.assert_allclose(ours.idf, theirs.idf_, rtol=1e-12)
    for texts, want in ((documents, matrix), (others, theirs.transform(others))):
        got = ours(texts)
        assert got.shape == want.shape
        assert got.nnz == want.nnz
        np.testing.assert_allclose(got.toarray(), want.toarray(), rtol=1e-12, atol=1e-12)


def test_tfidf_is_scikit_learns() -> None:
    assert_same_weights(DOCUMENTS, ["a cat and a unicorn", "unicorn", "", "mat mat İSTANBUL"])


def test_tfidf_of_a_whole_text_is_scikit_learns() -> None:
    speeches = data("tinyshakespeare.txt").read_text(encoding="utf-8").split("\n\n")[:800]
    assert_same_weights(speeches, speeches[::-7])


# --------------------------------------------------------------------------------------------- questions and files


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[WordVectors, object]:
    """The same vectors, here and in gensim."""
    words = [*"abcdefghijklmnopqrstuvwxyz", "don't", "中文"]
    matrix = np.random.default_rng(0).standard_normal((len(words), 12)).astype(np.float32)
    theirs = models.KeyedVectors(12)
    theirs.add_vectors(words, matrix)
    return WordVectors(words, matrix), theirs


def test_nearest_words_and_analogies_are_gensims(both) -> None:
    ours, theirs = both
    for got, want in [
        (ours.nearest("c", 9), theirs.most_similar("c", topn=9)),
        (ours.analogy("a", "b", "c", 9), theirs.most_similar(positive=["b", "c"], negative=["a"], topn=9)),
    ]:
        assert [word for word, _ in got] == [word for word, _ in want]
        np.testing.assert_allclose([score for _, score in got], [score for _, score in want], atol=1e-6)
    assert ours.similarity("x", "中文") == pytest.approx(theirs.similarity("x", "中文"), abs=1e-6)


def test_the_odd_one_out_is_gensims(both) -> None:
    ours, theirs = both
    rng = np.random.default_rng(1)
    for _ in range(30):
        words = rng.choice(ours.words, int(rng.integers(3, 9)), replace=False).tolist()
        assert ours.odd_one_out(words) == theirs.doesnt_match(words)


def test_gensim_reads_our_files(both, tmp_path: Path) -> None:
    ours, _ = both
    save_vectors(ours, tmp_path / "v.txt")
    theirs = models.KeyedVectors.load_word2vec_format(str(tmp_path / "v.txt"))
    assert theirs.index_to_key == ours.words
    assert theirs.vectors.tobytes() == ours.matrix.tobytes()


def test_what_gensim_writes_is_read_here(both, tmp_path: Path) -> None:
    ours, theirs = both
    theirs.save_word2vec_format(str(tmp_path / "v.txt"))
    again = load_vectors(tmp_path / "v.txt")
    assert again.words == ours.words
    assert again.matrix.tobytes() == ours.matrix.tobytes()


# ------------------------------------------------------------------------------------------------------ evaluation


def sentences() -> list[list[str]]:
    """Captions of pictures, which have many words of the files of pairs."""
    lines = gzip.decompress(data("multi30k/train.en.gz").read_bytes()).decode()
    return [list(words) for words in passages(lines, "line")]


@pytest.fixture(scope="module")
def trained() -> tuple[list[list[str]], object]:
    """Captions, and gensim's vectors of them."""
    rows = sentences()
    return rows, models.Word2Vec(rows, vector_size=50, window=5, min_count=5, workers=1, sg=1, epochs=5, seed=1)


def test_figures_are_gensims(trained) -> None:
    theirs = trained[1].wv
    ours = WordVectors(theirs.index_to_key, theirs.vectors)
    for name in ("wordsim353.tsv", "simlex999.txt"):
        _, correlation, unknown = theirs.evaluate_word_pairs(datapath(name))
        found = similarity(ours, datapath(name))
        assert found.correlation == pytest.approx(correlation.statistic, abs=1e-6)
        assert 100 * found.unknown / (found.known + found.unknown) == pytest.approx(unknown)
    accuracy, sections = theirs.evaluate_word_analogies(datapath("questions-words.txt"))
    found = analogies(ours, datapath("questions-words.txt"))
    assert found[-1].accuracy == pytest.approx(accuracy, abs=1e-12)
    right = {section["section"]: len(section["correct"]) for section in sections[:-1]}
    assert {section.name: section.right for section in found[:-1] if section.name in right} == right


@pytest.mark.parametrize("method", ["skip-gram", "cbow"])
def test_the_benchmarks_sides_learn_alike(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sentences()[:12000]
    monkeypatch.setattr(word2vec.Task, "passages", lambda task: rows)
    monkeypatch.setattr(word2vec, "on_one_core", lambda: None)
    task = word2vec.Task(method, width=20)
    ours, theirs = word2vec.Tinyformer(task), word2vec.Gensim(task)
    assert ours.corpus.num_words == theirs.model.corpus_total_words == sum(map(len, rows))
    before = word2vec.loss(task, ours.vectors())
    for side in (ours, theirs):
        side.step()
    found = [word2vec.loss(task, side.vectors()) for side in (ours, theirs)]
    assert max(found) < 0.9 * before
    assert found[0] == pytest.approx(found[1], rel=word2vec.SIMILAR)
