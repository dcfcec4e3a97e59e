"""Count-based vectors: words represented by nearby words, documents by their words.

Raw counts mostly reflect word frequency. Positive pointwise mutual information (PPMI) measures how much more often two words
co-occur than by chance (Church and Hanks 1990). A truncated singular value decomposition shortens the rows. word2vec with
negative sampling factorizes nearly the same matrix (Levy and Goldberg 2014).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tinyformer.common.errors import SettingError, UserError
from tinyformer.common.settings import check_counts
from tinyformer.word_vectors.corpus import Corpus
from tinyformer.word_vectors.vectors import WordVectors
from tinytensor.device.backend import Array, default_dtype, host

if TYPE_CHECKING:
    from scipy.sparse import csr_array

SMALL = 500 * 500  # maximum number of elements for which a dense SVD is fast


def scipy_sparse() -> Any:
    """Return the module ``scipy.sparse``. Raises UserError if SciPy is not installed."""
    try:
        import scipy.sparse.linalg
    except ImportError:
        raise UserError("count vectors and TF-IDF need SciPy: pip install 'tinyformer[vectors]'") from None
    return scipy.sparse


def cooccurrences(corpus: Corpus, window: int = 5) -> csr_array:
    """Count how often each word (row) has each word (column) among its ``window`` neighbors on either side, within a passage:
    (words, words), symmetric, float64. Raises UserError if SciPy is not installed."""
    check_counts(window=window)
    csr_array = scipy_sparse().csr_array
    size, ids, passage = len(corpus.vocabulary), corpus.ids, corpus.passage_of
    counts = csr_array((size, size))
    for distance in range(1, min(window, corpus.reach) + 1):
        together = passage[distance:] == passage[:-distance]
        left, right = ids[:-distance][together], ids[distance:][together]
        counts = counts + csr_array((host.ones(len(left)), (left, right)), shape=counts.shape)  # adds up equal pairs
    return counts + counts.T


def ppmi(counts: csr_array, smoothing: float = 0.75) -> csr_array:
    """Return max(0, log(P(row, column) / (P(row) P(column)))) for each pair.

    P(column) is proportional to the count to the power of ``smoothing``. Values below 1 lower the PPMI of rare columns, which
    would otherwise be the highest (Levy, Goldberg and Dagan 2015). 1 is the standard definition.
    """
    if not 0 < smoothing <= 1:
        raise SettingError(f"smoothing must be above 0 and at most 1, got {smoothing}")
    pairs = counts.tocoo()
    of_rows, of_columns = counts.sum(axis=1), counts.sum(axis=0) ** smoothing
    chance = of_rows[pairs.row] * of_columns[pairs.col] / of_columns.sum()
    pairs.data = host.maximum(host.log(pairs.data / chance), 0.0)
    pairs.eliminate_zeros()
    return pairs.tocsr()


def truncated_svd(matrix: csr_array, rank: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Return the largest ``rank`` singular values of a matrix, descending, and their vectors: U (rows, rank), s (rank,) and V
    (columns, rank), with matrix ≈ U diag(s) Vᵀ. This is the closest matrix of that rank (Eckart and Young 1936).

    ARPACK repeatedly multiplies a random vector (from ``seed``) by matrixᵀ matrix, so the matrix stays sparse. The result
    agrees with a dense SVD up to rounding, except for singular values below 1e-8 times the largest, whose squares vanish. Small
    matrices, and a rank equal to the smaller side, use NumPy's dense SVD.

    Raises SettingError unless the rank is at least 1 and no larger than the matrix. Raises UserError if an element is not
    finite or SciPy is not installed.
    """
    smaller = min(matrix.shape)
    if not 1 <= rank <= smaller:
        raise SettingError(f"rank must be from 1 to {smaller}, the smaller side of the matrix, got {rank}")
    sparse = scipy_sparse()
    matrix = sparse.csr_array(matrix, dtype=host.float64, copy=True)
    largest = float(host.abs(matrix.data).max()) if matrix.nnz else 0.0
    if not math.isfinite(largest):
        raise UserError("the matrix has elements that are NaN or infinite, so it has no singular values")
    exponent = math.frexp(largest)[1]  # scaling to at most 1 prevents overflow of squares and relevant underflow
    matrix.data = host.ldexp(matrix.data, -exponent)
    if rank == smaller or math.prod(matrix.shape) <= SMALL:
        u, s, vt = host.linalg.svd(matrix.toarray(), full_matrices=False)
    elif largest:
        u, s, vt = sparse.linalg.svds(matrix, rank, v0=host.random.default_rng(seed).standard_normal(smaller))
    else:  # ARPACK cannot start from a zero product
        u, s, vt = host.eye(matrix.shape[0], rank), host.zeros(rank), host.eye(rank, matrix.shape[1])
    order = host.argsort(-s, kind="stable")[:rank]
    return u[:, order], host.ldexp(s[order], exponent), vt[order].T


def count_vectors(
    corpus: Corpus, width: int = 100, window: int = 5, smoothing: float = 0.75, power: float = 0.5, seed: int = 0
) -> WordVectors:
    """Return word vectors (words, width), float32, from the co-occurrence PPMI: U sᵖᵒʷᵉʳ of its truncated SVD.

    If ``power`` is 1, dot products of vectors approximate dot products of PPMI rows. Lower powers are better for most questions
    (Levy, Goldberg and Dagan 2015). Raises SettingError if ``width`` exceeds the number of words.
    """
    check_counts(width=width)
    if width > len(corpus.vocabulary):
        raise SettingError(f"width must be at most {len(corpus.vocabulary)}, the number of words, got {width}")
    u, s, _ = truncated_svd(ppmi(cooccurrences(corpus, window), smoothing), width, seed)
    signs = host.where(host.take_along_axis(u, abs(u).argmax(axis=0)[None], axis=0) < 0, -1.0, 1.0)  # fix the arbitrary sign
    return WordVectors(corpus.vocabulary.words, (u * signs * s**power).astype(default_dtype))


# ------------------------------------------------------------------------------------------------------------ documents


WORDS = re.compile(r"(?u)\b\w\w+\b")  # at least two letters or digits, as in scikit-learn


class TfIdf:
    """TF-IDF weights of words in documents (Salton and Buckley 1988), with scikit-learn's definition.

    A weight is the word's count in the document times its idf. Each row is scaled to length 1. For a word in df of n documents,
    idf = ln((1 + n) / (1 + df)) + 1: rare words weigh more. The 1 in both counts is an imaginary document with all words.
    ::

        weights = TfIdf(documents)
        matrix = weights(documents)               # (documents, words), sparse
        similar = (matrix @ matrix.T).toarray()   # the cosines of all pairs

    Attributes:
        words: The words of the documents, sorted; one per column.
        idf: The idf of each word, (words,), float64.
    """

    def __init__(self, documents: Iterable[str]):
        """Count the words of documents, lowercased. Raises UserError if there are none."""
        counts: Counter[str] = Counter()
        number = 0
        for document in documents:
            counts.update(set(WORDS.findall(document.lower())))
            number += 1
        if not counts:
            raise UserError("the documents have no words of at least two letters")
        self.words: Sequence[str] = sorted(counts)
        self.idf: Array = host.log((1 + number) / (1 + host.array([counts[word] for word in self.words]))) + 1
        self._columns = {word: column for column, word in enumerate(self.words)}

    def __call__(self, documents: Iterable[str]) -> csr_array:
        """Return the weights of documents, (documents, words), float64. Unknown words are ignored. A document of only unknown
        words becomes a row of zeros. Raises UserError if SciPy is not installed."""
        sparse = scipy_sparse()
        columns: list[int] = []
        times: list[int] = []
        ends = [0]
        for document in documents:
            counts = Counter(word for word in WORDS.findall(document.lower()) if word in self._columns)
            columns += [self._columns[word] for word in counts]
            times += counts.values()
            ends.append(len(columns))
        weights = self.idf[columns] * host.array(times, dtype=host.float64)
        matrix = sparse.csr_array((weights, columns, ends), shape=(len(ends) - 1, len(self.words)))
        matrix.data /= host.repeat(sparse.linalg.norm(matrix, axis=1), host.diff(ends))
        matrix.sort_indices()
        return matrix
