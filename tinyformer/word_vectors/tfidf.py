"""TF-IDF: documents as vectors of word weights (Salton and Buckley 1988), by the definition of scikit-learn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tinyformer.common.errors import UserError
from tinyformer.word_vectors.counts import scipy_sparse
from tinytensor.device.backend import Array, host

if TYPE_CHECKING:
    from scipy.sparse import csr_array

WORDS = re.compile(r"(?u)\b\w\w+\b")  # at least two letters or digits, as scikit-learn's


class TfIdf:
    """The weights of words in documents: how often a word is in the document, times its idf, in rows of length 1.

    idf = ln((1 + n) / (1 + df)) + 1 for a word that is in df of n documents: the rarer a word, the more it tells. The 1 that is
    added to both counts is an imaginary document with all words. ::

        weights = TfIdf(documents)
        matrix = weights(documents)               # (documents, words), sparse
        similar = (matrix @ matrix.T).toarray()   # the cosines of all pairs

    Attributes:
        words: The words of the documents, in the order of their characters; the columns.
        idf: The idf of each word, (words,), float64.
    """

    def __init__(self, documents: Iterable[str]):
        """Count the words of documents, in lower case. Raises UserError if there are none."""
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
        """Return the weights of documents, (documents, words), float64. Words that are not in ``words`` are left out, and a
        document without any other words is a row of zeros. Raises UserError if SciPy is not installed."""
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
