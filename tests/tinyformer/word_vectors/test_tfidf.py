"""TF-IDF against its formula. tests/parity compares it with scikit-learn's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tinyformer.common.errors import UserError
from tinyformer.word_vectors.counts import TfIdf


def test_weights_against_their_formula() -> None:
    weights = TfIdf(["The cat, the dog", "a cat", "birds"])
    assert weights.words == ["birds", "cat", "dog", "the"]
    rare, common = math.log(4 / 2) + 1, math.log(4 / 3) + 1
    np.testing.assert_allclose(weights.idf, [rare, common, rare, rare])
    first = np.array([0, common, rare, 2 * rare])
    want = [first / np.linalg.norm(first), [0, 1, 0, 0], [1, 0, 0, 0]]
    np.testing.assert_allclose(weights(["The cat, the dog", "a cat", "birds"]).toarray(), want, atol=1e-15)


def test_other_documents() -> None:
    weights = TfIdf(["cat dog", "dog bird"])
    matrix = weights(["CAT unicorn", "unicorn", "", "dog dog"]).toarray()
    assert matrix.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert weights([]).toarray().shape == (0, 3)


@pytest.mark.parametrize("documents", [[], ["", "?!"], ["a b c"]])
def test_documents_without_words(documents: list[str]) -> None:
    with pytest.raises(UserError, match="the documents have no words of at least two letters"):
        TfIdf(documents)
