"""Word vectors: words with similar uses have vectors with similar directions.

Read in this order:

1. ``corpus``: a corpus as word ids, with its vocabulary.
2. ``vectors``: one vector per word, and questions about them: neighbors, analogies, odd one out.
3. ``counts``: vectors from neighbor counts, and documents as vectors of word weights (TF-IDF), in SciPy sparse arrays.
4. ``word2vec``: vectors trained to predict words (continuous bag of words and skip-gram), with examples from ``batches``.
5. ``text_format``: exchange files with other programs. ``evaluation``: agreement with human judgments.
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
