"""TF-IDF: documents as vectors of word weights (Salton and Buckley 1988), by the definition of scikit-learn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tinyformer.common.errors import UserError
from tinyformer.word_vectors.sparse import SparseMatrix
from tinytensor.device.backend import Array, host

WORDS = re.compile(r"(?u)\b\w\w+\b")  # at least two letters or digits, as scikit-learn's


class TfIdf:
    """The weights of words in documents: how often a word is in the document, times its idf, in rows of length 1.

    idf = ln((1 + n) / (1 + df)) + 1 for a word that is in df of n documents: the rarer a word, the more it tells. The 1 that is
    added to both counts is an imaginary document with all words. ::

        weights = TfIdf(documents)
        matrix = weights(documents)           # (documents, words)
        similar = matrix @ matrix.dense().T   # the cosines of all pairs

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

    def __call__(self, documents: Iterable[str]) -> SparseMatrix:
        """The weights of documents, (documents, words). Words that the documents of the beginning did not have are left out. A
        document without any other words is a row of zeros."""
        keys: list[int] = []
        times: list[int] = []
        rows = 0
        for row, document in enumerate(documents):
            counts = Counter(word for word in WORDS.findall(document.lower()) if word in self._columns)
            keys += [row * len(self.words) + self._columns[word] for word in counts]
            times += counts.values()
            rows = row + 1
        counted = SparseMatrix.sum_of((rows, len(self.words)), host.array(keys, dtype=host.int64), times)
        weights = counted.values * self.idf[counted.columns]
        lengths = host.sqrt(host.bincount(counted.rows, weights=weights**2, minlength=rows))
        return counted.with_values(weights / lengths[counted.rows])
