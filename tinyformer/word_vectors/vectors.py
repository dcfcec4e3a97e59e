"""Word vectors, and questions about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tinyformer.common.errors import SettingError, UserError
from tinyformer.word_vectors.components import principal_components
from tinyformer.word_vectors.corpus import check_known
from tinytensor.common.wording import counted
from tinytensor.device.backend import Array, host
from tinytensor.device.forks import cached_property

BY = ("cosine", "dot")


class WordVectors:
    """Word vectors, as the rows of a matrix.

    Looking up a row equals the product of the word's one-hot vector (1 at its id, 0 elsewhere) with the matrix, without
    computing the zeros. A Transformer's embedding works the same way. ::

        vectors["king"] == one_hot(vectors.ids["king"]) @ vectors.matrix

    Attributes:
        words: The words in id order, usually most frequent first.
        matrix: The vectors, (words, width), float32, on the CPU.

    >>> from tinyformer import WordVectors
    >>> vectors = WordVectors(["up", "high", "down"], [[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]])
    >>> vectors.nearest("up", 1)
    [('high', 1.0)]
    """

    def __init__(self, words: Iterable[str], matrix: Any):
        """Raises UserError unless there is one vector of finite length per word and no duplicate word."""
        self.words: Sequence[str] = list(words)
        self.matrix: Array = host.asarray(matrix, dtype=host.float32)
        if self.matrix.ndim != 2 or len(self.matrix) != len(self.words) or not self.matrix.size:
            needed = f"a vocabulary of {counted(len(self.words), 'word')} needs a matrix of as many rows"
            raise UserError(f"{needed}, got shape {self.matrix.shape}")
        self.ids = {word: number for number, word in enumerate(self.words)}
        if len(self.ids) < len(self.words):
            (twice, *_) = (word for number, word in enumerate(self.words) if self.ids[word] != number)
            raise UserError(f"the word {twice!r} has two vectors")
        if not host.isfinite(self.lengths).all():
            raise UserError("a vector has numbers that are not finite, or whose squares overflow float32")

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.ids

    def __getitem__(self, word: str) -> Array:
        """Return a word's vector, (width,). Raises UserError for an unknown word, and suggests similar spellings."""
        return self.matrix[self.id_of(word)]

    @property
    def width(self) -> int:
        """The width of a vector."""
        return int(self.matrix.shape[1])

    def id_of(self, word: str) -> int:
        """Return a word's id. Raises UserError for an unknown word, and suggests similar spellings."""
        check_known(word, self.ids, self.words)
        return self.ids[word]

    @cached_property
    def lengths(self) -> Array:
        """The Euclidean length of each vector, (words,)."""
        return host.sqrt(host.einsum("ij,ij->i", self.matrix, self.matrix))

    @cached_property
    def directions(self) -> Array:
        """The vectors scaled to unit length, (words, width). A zero vector stays zero."""
        return self.matrix / host.where(self.lengths == 0, 1, self.lengths)[:, None]

    def similarity(self, first: str, second: str) -> float:
        """Return the cosine similarity of two words: 1 for the same direction, 0 for a right angle."""
        return float(self.directions[self.id_of(first)] @ self.directions[self.id_of(second)])

    def nearest(self, word: str, count: int = 10, by: str = "cosine") -> list[tuple[str, float]]:
        """Return the words with the highest scores, excluding the word itself: by "cosine" or by "dot" product.

        The dot product is the cosine times both lengths, so it favors long vectors. In word2vec, frequent words with few uses
        have long vectors (Schakel and Wilson 2015).
        """
        if by not in BY:
            raise SettingError(f"by must be one of {', '.join(BY)}, got {by!r}")
        number = self.id_of(word)
        rows = self.directions if by == "cosine" else self.matrix
        return self.ranked(rows @ rows[number], count, [number])

    def analogy(self, first: str, second: str, third: str, count: int = 10) -> list[tuple[str, float]]:
        """Return the words that are to ``third`` as ``second`` is to ``first``: ``analogy("man", "king", "woman")``.

        These are the words nearest to second - first + third (of the directions) by cosine. The three words themselves are
        often nearest and are excluded (Mikolov, Yih and Zweig 2013).
        """
        a, b, c = numbers = [self.id_of(word) for word in (first, second, third)]
        wanted = self.directions[b] - self.directions[a] + self.directions[c]
        length = float(host.linalg.norm(wanted)) or 1.0
        return self.ranked(self.directions @ (wanted / length), count, numbers)

    def odd_one_out(self, words: Sequence[str]) -> str:
        """Return the word whose direction is farthest from the mean. Raises UserError for fewer than three words."""
        if len(set(words)) < 3:
            raise UserError(f"an odd one out needs at least three different words, got {len(set(words))}")
        rows = self.directions[[self.id_of(word) for word in words]]
        return words[int((rows @ rows.mean(axis=0)).argmin())]

    def plane(self, words: Sequence[str]) -> tuple[Array, float]:
        """Project the directions of words onto a plane. Return the points (words, 2) and the fraction of variance shown.

        The plane is spanned by the first two principal components (Pearson 1901). Raises UserError if there are no words.
        """
        if not words:
            raise UserError("a plane needs at least one word, got none")
        rows = self.directions[[self.id_of(word) for word in words]]
        points, explained = principal_components(rows)
        return points, float(explained.sum())

    def ranked(self, scores: Array, count: int, left_out: Sequence[int] = ()) -> list[tuple[str, float]]:
        """Return the ``count`` words with the highest scores (words,), except the ``left_out`` ids. Ties are ordered by id."""
        if count < 1:
            raise SettingError(f"count must be at least 1, got {count}")
        order = host.argsort(-scores, kind="stable")[: count + len(left_out)]
        return [(self.words[i], float(scores[i])) for i in order if i not in left_out][:count]
