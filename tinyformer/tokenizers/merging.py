"""Merging neighbours: the heart of byte-pair encoding, and of WordPiece's training.

``learn_merges`` finds out which pairs to merge; ``apply_merges`` merges them in a word.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tinyformer.progress import show_progress

Pair = tuple[int, int]


def learn_merges(
    words: Sequence[Sequence[int]], counts: Sequence[int], merge: Callable[[Pair], int | None], progress: bool = False
) -> None:
    """Merge the most frequent pair of neighbours (of equals, the smallest), again and again.

    ``words`` are sequences of ids, ``counts`` how often each occurs. ``merge(pair)`` returns the new id of the two together,
    or None to stop. It also stops when no pair occurs twice. Words are counted once and pair counts kept up to date, so that
    a merge touches only the words that hold its pair.

    No two merges make the same text. While it grows into one token, a stretch of text is never merged with what is beside
    it, so the same merges, in the same order, happen wherever it stands: it is always cut alike.
    """
    counter = _PairCounter(words, counts)
    with show_progress("learning merges", None, "merge", quiet=not progress) as bar:
        while (pair := counter.most_frequent()) is not None and (new := merge(pair)) is not None:
            counter.merge(pair, new)
            bar.update()


def replace_pair(ids: Sequence[int], pair: Pair, new: int) -> list[int]:
    """``ids`` with each occurrence of the neighbours ``pair``, from the left, replaced by ``new``."""
    out: list[int] = []
    i = 0
    while i < len(ids):
        if i + 1 < len(ids) and (ids[i], ids[i + 1]) == pair:
            out.append(new)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


class _PairCounter:
    """How often each pair of neighbours occurs in a set of counted words, while pairs are being merged."""

    def __init__(self, words: Sequence[Sequence[int]], counts: Sequence[int]):
        self.words = [list(word) for word in words]
        self.counts = counts
        self.pairs: Counter[Pair] = Counter()
        self.places: defaultdict[Pair, set[int]] = defaultdict(set)  # the words that hold, or once held, the pair
        for place in range(len(self.words)):
            self._count(place, +1)
        # Counts only change for pairs beside a merge; stale entries of the heap are thrown away when they come up.
        self.heap = [(-count, pair) for pair, count in self.pairs.items()]
        heapq.heapify(self.heap)

    def _count(self, place: int, sign: int) -> None:
        word = self.words[place]
        for pair in pairwise(word):
            self.pairs[pair] += sign * self.counts[place]
            if sign > 0:
                self.places[pair].add(place)

    def most_frequent(self) -> Pair | None:
        """The pair that occurs most, at least twice; None where there is none."""
        while self.heap:
            negative, pair = self.heap[0]
            if -negative == self.pairs[pair]:
                return pair if -negative >= 2 else None
            heapq.heappop(self.heap)
        return None

    def merge(self, pair: Pair, new: int) -> None:
        """Replace the pair by ``new`` in every word."""
        touched: set[Pair] = set()
        for place in self.places.pop(pair):
            before = self.words[place]
            after = replace_pair(before, pair, new)
            if len(after) < len(before):
                self._count(place, -1)
                touched.update(pairwise(before))
                self.words[place] = after
                self._count(place, +1)
                touched.update(pairwise(after))
        for changed in touched:
            if self.pairs[changed] > 0:
                heapq.heappush(self.heap, (-self.pairs[changed], changed))


_GONE = -1  # no id; in place of an id that became part of the one before it


def apply_merges(ids: Sequence[int], merges: Mapping[Pair, tuple[int, int]]) -> list[int]:
    """Merge the neighbours of lowest rank, of equals the leftmost, until no pair of them is in ``merges``, which maps a pair
    to (rank, the id of the two together).

    The pairs wait in a heap and the ids are a linked list, so that a word of n ids takes n log n steps: where nobody writes
    spaces, words are long.
    """
    ids = [*ids, _GONE]  # so that the first and the last have neighbours on both sides: ids[-1], too, is this one
    left = list(range(-1, len(ids) - 1))
    right = list(range(1, len(ids) + 1))
    heap = [(merges[pair], place) for place, pair in enumerate(pairwise(ids)) if pair in merges]
    heapq.heapify(heap)
    while heap:
        entry, place = heapq.heappop(heap)
        end = right[place]
        if ids[place] == _GONE or merges.get((ids[place], ids[end])) != entry:
            continue  # one of the two has been merged with another since
        ids[place], ids[end] = entry[1], _GONE
        right[place] = right[end]
        left[right[end]] = place
        for start, stop in ((left[place], place), (place, right[place])):
            found = merges.get((ids[start], ids[stop]))
            if found is not None:
                heapq.heappush(heap, (found, start))
    return [i for i in ids if i != _GONE]
