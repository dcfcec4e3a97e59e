"""Training examples for word2vec: words, their context words, and negative samples (Mikolov et al. 2013)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinyformer.common.memory import check_fits
from tinyformer.word_vectors.corpus import Corpus
from tinytensor.device.backend import Array, host

PIECE = 10_000  # words per piece; no window reaches into the next piece
TABLE = 1 << 20  # minimum size of the sampling table
SLOTS = 32  # minimum slots per word, so that rare words get roughly their share


class Examples:
    """Negative-sampling examples from repeated epochs over a corpus.

    If ``is_skip_gram``, the context of an example is one of the words around it. Otherwise it is all words around it: a
    continuous bag of words.

    window: Maximum words to each side. The size is sampled per word from 1 to ``window``, so nearby words count more. A window
        longer than the longest passage is cut to its length.
    negative: Number of negative samples per example.
    sample: Words more frequent than this fraction of the corpus are dropped at random.

    Raises SettingError if the window or the number of negative samples does not fit in memory.
    """

    def __init__(self, corpus: Corpus, is_skip_gram: bool, window: int, negative: int, sample: float):
        self.corpus = corpus
        self.is_skip_gram = is_skip_gram
        self.window = min(window, corpus.reach, PIECE)
        self.negative = negative
        counts = corpus.vocabulary.counts
        self.kept = keep_probabilities(counts, sample)
        self.table = word_table(counts)
        words = int(min(PIECE, len(corpus.ids)) * (self.kept @ counts) / counts.sum())  # of a mean piece
        for name, columns in (("window", 2 * self.window), ("negative", negative)):
            label = f"the examples of a piece of the text with this {name}"
            check_fits(8 * words * columns, label, "choose a smaller one", name, on_host=True)

    def of_an_epoch(self, rng: Any) -> Iterator[tuple[int, Array, Array]]:
        """For each piece of the corpus, yield its number of words, and the contexts and targets of its examples.

        contexts: ids (examples, 1 or 2 * window), int64, -1 for no word. targets: ids (examples, 1 + negative), the correct
        word followed by negative samples. A sample that equals the correct word becomes -1.
        """
        for first in range(0, len(self.corpus.ids), PIECE):
            ids = self.corpus.ids[first : first + PIECE]
            passage = self.corpus.passage_of[first : first + PIECE]
            kept = rng.random(len(ids)) < self.kept[ids]
            centers, contexts = windows(ids[kept], passage[kept], self.window, rng)
            if self.is_skip_gram:
                is_word = contexts >= 0
                centers, contexts = host.repeat(centers, is_word.sum(axis=1)), contexts[is_word][:, None]
            drawn = self.table[rng.integers(0, len(self.table), (len(centers), self.negative), dtype=host.uint32)]
            drawn[drawn == centers[:, None]] = -1
            yield len(ids), contexts, host.concatenate([centers[:, None], drawn], axis=1)


def windows(ids: Array, passage: Array, window: int, rng: Any) -> tuple[Array, Array]:
    """Return the words that have context (words,), and their contexts (words, 2 * window), with -1 for no word.

    ids, passage: the words and their passage numbers, both (length,). Window sizes are sampled from 1 to ``window``.
    """
    distances = host.concatenate([host.arange(-window, 0), host.arange(1, window + 1)])
    around = host.arange(len(ids))[:, None] + distances
    reached = abs(distances) <= rng.integers(1, window + 1, len(ids))[:, None]
    inside = (around >= 0) & (around < len(ids))
    around[~inside] = 0
    is_context = reached & inside & (passage[around] == passage[:, None])
    contexts = host.where(is_context, ids[around], -1)
    has_context = is_context.any(axis=1)
    return ids[has_context], contexts[has_context]


def keep_probabilities(counts: Array, sample: float) -> Array:
    """Return the probability of keeping an occurrence of each word, (words,).

    For a word with frequency f, it is sqrt(sample / f) + sample / f, at most 1, as in Mikolov's program. (The paper has only
    the first term.) If ``sample`` is 0, all words are kept.
    """
    if sample == 0:
        return host.ones(len(counts))
    ratio = sample * counts.sum() / counts
    return host.minimum(host.sqrt(ratio) + ratio, 1.0)


def word_table(counts: Array, power: float = 0.75) -> Array:
    """Return a table of ids, int64. Each word's number of slots is proportional to its count to the ``power``. A uniformly
    random slot samples a word with that probability."""
    size = max(TABLE, SLOTS * len(counts))
    ends = host.cumsum(counts.astype(host.float64) ** power)
    return host.searchsorted(ends / ends[-1], (host.arange(size) + 0.5) / size).astype(host.int64)
