"""Merging neighbouring tokens: the core of byte-pair encoding, and of WordPiece's training.

``learn_merges`` finds which pairs to merge. ``apply_merges`` merges them in a word.
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
    """Merge the most frequent pair of neighbours, again and again. Of equally frequent pairs the smallest is merged first.

    ``words`` are sequences of ids, and ``counts`` says how often each word occurs. ``merge(pair)`` returns the id of the new
    token, or None to stop. The merging also stops when no pair occurs twice. The words are counted once, and the counts of
    pairs are kept up to date, so a merge touches only the words that contain its pair.

    No two merges make the same text. The reason: the letters of a token are merged among themselves before anything beside
    them joins in, so the same merges happen in the same order wherever that text stands.
    """
    counter = _PairCounter(words, counts)
    with show_progress("learning merges", None, "merge", quiet=not progress) as bar:
        while (pair := counter.most_frequent()) is not None and (new := merge(pair)) is not None:
            counter.merge(pair, new)
            bar.update()


def replace_pair(ids: Sequence[int], pair: Pair, new: int) -> list[int]:
    """The ids, with each occurrence of the neighbours ``pair`` replaced by ``new``, from left to right."""
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
    """How often each pair of neighbours occurs in the words. It is kept up to date while pairs are merged."""

    def __init__(self, words: Sequence[Sequence[int]], counts: Sequence[int]):
        self.words = [list(word) for word in words]
        self.counts = counts
        self.pairs: Counter[Pair] = Counter()
        self.places: defaultdict[Pair, set[int]] = defaultdict(set)  # the words that have, or once had, the pair
        for place in range(len(self.words)):
            self._count(place, +1)
        # Only the counts of pairs beside a merge change. Outdated entries stay in the heap until they come up.
        self.heap = [(-count, pair) for pair, count in self.pairs.items()]
        heapq.heapify(self.heap)

    def _count(self, place: int, sign: int) -> None:
        word = self.words[place]
        for pair in pairwise(word):
            self.pairs[pair] += sign * self.counts[place]
            if sign > 0:
                self.places[pair].add(place)

    def most_frequent(self) -> Pair | None:
        """The most frequent pair; None if no pair occurs twice."""
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


_GONE = -1  # not an id: it stands in place of one that was merged into the id before it


def apply_merges(ids: Sequence[int], merges: Mapping[Pair, tuple[int, int]]) -> list[int]:
    """Merge the pair of neighbours with the lowest rank, again and again, until no pair is in ``merges``. Of several places
    the leftmost comes first. ``merges`` maps a pair to (its rank, the id of the new token).

    The pairs are in a heap and the ids in a linked list, so a word of n ids takes n log n steps. That matters for languages
    without spaces, whose words are long.
    """
    ids = [*ids, _GONE]  # so that every id has neighbours on both sides: the left one of the first, ids[-1], is this one, too
    left = list(range(-1, len(ids) - 1))
    right = list(range(1, len(ids) + 1))
    heap = [(merges[pair], place) for place, pair in enumerate(pairwise(ids)) if pair in merges]
    heapq.heapify(heap)
    while heap:
        entry, place = heapq.heappop(heap)
        end = right[place]
        if ids[place] == _GONE or merges.get((ids[place], ids[end])) != entry:
            continue  # one of the two was merged with another id meanwhile
        ids[place], ids[end] = entry[1], _GONE
        right[place] = right[end]
        left[right[end]] = place
        for start, stop in ((left[place], place), (place, right[place])):
            found = merges.get((ids[start], ids[stop]))
            if found is not None:
                heapq.heappush(heap, (found, start))
    return [i for i in ids if i != _GONE]
