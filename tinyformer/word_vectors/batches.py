"""What word2vec learns from: words, the words around them, and words that were drawn at random (Mikolov et al. 2013)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tinyformer.common.memory import check_fits
from tinyformer.word_vectors.corpus import Corpus
from tinytensor.device.backend import Array, host

PIECE = 10_000  # words of the text from which examples are made at a time; no window reaches into the next piece
TABLE = 1 << 20  # the least size of the table from which words are drawn
PLACES = 32  # and its least size for each word, so that rare words get about their share


class Examples:
    """Examples for negative sampling, from one run over a corpus after the other.

    With ``is_skip_gram`` an example is a word and one of the words around it, which is its only context. Otherwise an example
    is a word with all of the words around it: a continuous bag of words.

    window: The most words to each side. For each word a number from 1 to ``window`` is drawn, so near words count more. A
        window that is longer than the longest passage is as one of its length.
    negative: How many words are drawn for each example, to be told from the right one.
    sample: Words that are more frequent than this fraction of the text are left out at random.

    Raises SettingError for a window, or a number of words to be drawn, that does not fit in memory.
    """

    def __init__(self, corpus: Corpus, is_skip_gram: bool, window: int, negative: int, sample: float):
        self.corpus = corpus
        self.is_skip_gram = is_skip_gram
        self.window = min(window, corpus.reach, PIECE)
        self.negative = negative
        counts = corpus.vocabulary.counts
        self.kept = keep_probabilities(counts, sample)
        self.table = word_table(counts)
        words = int(min(PIECE, len(corpus.ids)) * (self.kept @ counts) / counts.sum())  # of a piece, in the mean
        for name, columns in (("window", 2 * self.window), ("negative", negative)):
            what = f"what is made of a piece of the text with this {name}"
            check_fits(8 * words * columns, what, "choose a smaller one", name, on_host=True)

    def of_an_epoch(self, rng: Any) -> Iterator[tuple[int, Array, Array]]:
        """For each piece of the text how many words it has, the contexts and the targets of its examples.

        contexts: ids (examples, 1 or 2 * window), int64, -1 where there is no word. targets: ids (examples, 1 + negative), the
        right word and then those that were drawn. A word that was drawn and is the right one becomes -1.
        """
        for first in range(0, len(self.corpus.ids), PIECE):
            ids = self.corpus.ids[first : first + PIECE]
            passage = self.corpus.passage_of[first : first + PIECE]
            kept = rng.random(len(ids)) < self.kept[ids]
            centers, contexts = windows(ids[kept], passage[kept], self.window, rng)
            if self.is_skip_gram:
                there = contexts >= 0
                centers, contexts = host.repeat(centers, there.sum(axis=1)), contexts[there][:, None]
            drawn = self.table[rng.integers(0, len(self.table), (len(centers), self.negative), dtype=host.uint32)]
            drawn[drawn == centers[:, None]] = -1
            yield len(ids), contexts, host.concatenate([centers[:, None], drawn], axis=1)


def windows(ids: Array, passage: Array, window: int, rng: Any) -> tuple[Array, Array]:
    """The words that have others around them, and these: (words,) and (words, 2 * window), with -1 where there is none.

    ids, passage: the words, and the number of each one's passage, both (length,). The window of each word is drawn from 1 to
    ``window``.
    """
    places = host.arange(len(ids))
    distances = host.concatenate([host.arange(-window, 0), host.arange(1, window + 1)])
    around = places[:, None] + distances
    reached = abs(distances) <= rng.integers(1, window + 1, len(ids))[:, None]
    inside = (around >= 0) & (around < len(ids))
    around[~inside] = 0
    there = reached & inside & (passage[around] == passage[:, None])
    contexts = host.where(there, ids[around], -1)
    has_context = there.any(axis=1)
    return ids[has_context], contexts[has_context]


def keep_probabilities(counts: Array, sample: float) -> Array:
    """The probability that an occurrence of a word is kept, (words,).

    With f the fraction of all words that are this one, it is sqrt(sample / f) + sample / f, at most 1, as in Mikolov's program.
    (The paper has only the first term.) A ``sample`` of 0 keeps all.
    """
    if sample == 0:
        return host.ones(len(counts))
    ratio = sample * counts.sum() / counts
    return host.minimum(host.sqrt(ratio) + ratio, 1.0)


def word_table(counts: Array, power: float = 0.75) -> Array:
    """A table of ids, int64, in which each word has places in proportion to its count to the power of 0.75. A place that is
    drawn evenly is a word that is drawn with that probability."""
    size = max(TABLE, PLACES * len(counts))
    ends = host.cumsum(counts.astype(host.float64) ** power)
    return host.searchsorted(ends / ends[-1], (host.arange(size) + 0.5) / size).astype(host.int64)
