"""Words as vectors: words with similar uses get vectors of similar direction.

Read in this order:

1. ``corpus``: a text as rows of word ids, with its vocabulary.
2. ``vectors``: a vector for each word, and questions about them: neighbors, analogies, the odd one out.
3. ``counts``: vectors by counting neighbors, and documents as vectors of word weights (TF-IDF), in SciPy's sparse arrays.
4. ``word2vec``: vectors by learning to predict words (continuous bag of words and skip-gram), from the examples of ``batches``.
5. ``text_format``: files that other programs read and write. ``evaluation``: agreement with human judgments.
"""

from tinyformer.word_vectors.corpus import Corpus, Vocabulary, passages, words_of
from tinyformer.word_vectors.counts import TfIdf, cooccurrences, count_vectors, ppmi, truncated_svd
from tinyformer.word_vectors.evaluation import Agreement, Section, analogies, is_of_analogies, similarity
from tinyformer.word_vectors.text_format import load_vectors, save_vectors
from tinyformer.word_vectors.vectors import WordVectors
from tinyformer.word_vectors.word2vec import Word2Vec, Word2VecConfig, negative_sampling_loss

__all__ = [
    "Agreement",
    "Corpus",
    "Section",
    "TfIdf",
    "Vocabulary",
    "Word2Vec",
    "Word2VecConfig",
    "WordVectors",
    "analogies",
    "cooccurrences",
    "count_vectors",
    "is_of_analogies",
    "load_vectors",
    "negative_sampling_loss",
    "passages",
    "ppmi",
    "save_vectors",
    "similarity",
    "truncated_svd",
    "words_of",
]
