"""Word vectors by counting: how often words stand near each other, as a matrix with a row for each word.

The counts tell mostly how frequent words are. Positive pointwise mutual information (PPMI) tells how much more often two words
meet than by chance (Church and Hanks 1990), and a truncated singular value decomposition makes short rows of long ones.
word2vec with negative sampling factorises nearly the same matrix (Levy and Goldberg 2014).
"""

from __future__ import annotations

from tinyformer.common.errors import SettingError
from tinyformer.common.settings import check_counts
from tinyformer.word_vectors.corpus import Corpus
from tinyformer.word_vectors.sparse import SparseMatrix, truncated_svd
from tinyformer.word_vectors.vectors import WordVectors
from tinytensor.device.backend import default_dtype, host


def cooccurrences(corpus: Corpus, window: int = 5) -> SparseMatrix:
    """How often each word (a row) has each word (a column) among its ``window`` neighbours to the left and as many to the
    right, within a passage: (words, words), symmetric."""
    check_counts(window=window)
    size, ids, passage = len(corpus.vocabulary), corpus.ids, corpus.passage_of
    counts = SparseMatrix((size, size), host.empty(0, dtype=host.int64), host.empty(0))
    for distance in range(1, min(window, corpus.reach) + 1):
        together = passage[distance:] == passage[:-distance]
        left, right = ids[:-distance][together], ids[distance:][together]
        found, times = host.unique(host.concatenate([left * size + right, right * size + left]), return_counts=True)
        both = (counts.keys, found), (counts.values, times)
        counts = SparseMatrix.sum_of(counts.shape, *map(host.concatenate, both))
    return counts


def ppmi(counts: SparseMatrix, smoothing: float = 0.75) -> SparseMatrix:
    """max(0, log(P(row, column) / (P(row) P(column)))) of each pair.

    P(column) is proportional to its count to the power of ``smoothing``. Below 1 this makes rare columns less rare, without
    which they would have the highest values of all (Levy, Goldberg and Dagan 2015). 1 is the plain definition.
    """
    if not 0 < smoothing <= 1:
        raise SettingError(f"smoothing must be above 0 and at most 1, not {smoothing}")
    of_rows, of_columns = counts.sums(1), counts.sums(0) ** smoothing
    chance = of_rows[counts.rows] * of_columns[counts.columns] / of_columns.sum()
    return counts.with_values(host.maximum(host.log(counts.values / chance), 0.0))


def count_vectors(
    corpus: Corpus, width: int = 100, window: int = 5, smoothing: float = 0.75, power: float = 0.5, seed: int = 0
) -> WordVectors:
    """Vectors (words, width), float32, from the PPMI of co-occurrences: U sᵖᵒʷᵉʳ of its truncated singular value decomposition.

    With a ``power`` of 1 the dot products of vectors are those of whole rows of PPMI. Lower ones are better for most questions
    (Levy, Goldberg and Dagan 2015). Raises SettingError for a width above the number of words.
    """
    check_counts(width=width)
    if width > len(corpus.vocabulary):
        raise SettingError(f"width must be at most {len(corpus.vocabulary)}, the number of words, not {width}")
    u, s, _ = truncated_svd(ppmi(cooccurrences(corpus, window), smoothing), width, seed)
    signs = host.where(host.take_along_axis(u, abs(u).argmax(axis=0)[None], axis=0) < 0, -1.0, 1.0)  # either would be right
    return WordVectors(corpus.vocabulary.words, (u * signs * s**power).astype(default_dtype))
