"""Merging neighbouring tokens: the core of byte-pair encoding, and of WordPiece's training.

``learn_merges`` finds which pairs to merge. ``apply_merges`` merges them in a word.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from tinyformer.common.progress import show_progress

Pair = tuple[int, int]


_GONE = -1  # not an id: it stands in place of one that was merged into the id before it, and between words


def learn_merges(
    words: Sequence[Sequence[int]], counts: Sequence[int], merge: Callable[[Pair], int | None], progress: bool = False
) -> None:
    """Merge the most frequent pair of neighbours, again and again. Of equally frequent pairs the smallest is merged first.

    ``words`` are sequences of ids, and ``counts`` says how often each word occurs. ``merge(pair)`` returns the id of the new
    token, or None to stop. The merging also stops when no pair occurs twice. The words are counted once, and the counts of
    pairs are kept up to date. A merge touches only the places of its pair, however long the words are, so the time for all
    merges grows with the text and not with its square.

    No two merges make the same text. The reason: the letters of a token are merged among themselves before anything beside
    them joins in, so the same merges happen in the same order wherever that text stands.
    """
    counter = _PairCounter(words, counts)
    with show_progress("learning merges", None, "merge", quiet=not progress) as bar:
        while (pair := counter.most_frequent()) is not None and (new := merge(pair)) is not None:
            counter.merge(pair, new)
            bar.update()


class _PairCounter:
    """How often each pair of neighbours occurs in the words. It is kept up to date while pairs are merged.

    All words lie in one linked list of ids, with ``_GONE`` between them. ``left`` and ``right`` are the places of the
    neighbours, and ``weights`` how often the word of a place occurs.
    """

    def __init__(self, words: Sequence[Sequence[int]], counts: Sequence[int]):
        self.ids, self.weights = array("q", [_GONE]), array("q", [0])
        for word, count in zip(words, counts):
            self.ids.extend([*word, _GONE])
            self.weights.extend([count] * (len(word) + 1))
        self.left = array("q", range(-1, len(self.ids) - 1))
        self.right = array("q", range(1, len(self.ids) + 1))
        self.pairs: dict[Pair, int] = {}
        self.places: dict[Pair, array[int]] = {}  # of the first id of a pair: where it is, or once was
        for place, pair in enumerate(pairwise(self.ids)):
            self._add(pair, place, self.weights[place])
        # Each pair that occurs twice is in the heap once. Its count there is at least the present one: after the merge that
        # makes a pair, its count only falls.
        self.heap = [(-count, pair) for pair, count in self.pairs.items() if count >= 2]
        heapq.heapify(self.heap)

    def _add(self, pair: Pair, place: int, count: int) -> None:
        if _GONE in pair:
            return
        if pair in self.pairs:
            self.pairs[pair] += count
            self.places[pair].append(place)
        else:
            self.pairs[pair] = count
            self.places[pair] = array("q", [place])

    def most_frequent(self) -> Pair | None:
        """The most frequent pair; None if no pair occurs twice."""
        while self.heap:
            negative, pair = self.heap[0]
            count = self.pairs[pair]
            if count == -negative:
                return pair if count >= 2 else None
            heapq.heapreplace(self.heap, (-count, pair))
        return None

    def merge(self, pair: Pair, new: int) -> None:
        """Replace the pair by ``new`` wherever it stands, in each word from left to right."""
        ids, left, right, pairs = self.ids, self.left, self.right, self.pairs
        first, second = pair
        made: dict[Pair, None] = {}  # the pairs that have the new token in them, each once
        places: Iterable[int] = self.places.pop(pair)
        for place in sorted(places) if first == second else places:  # aaa: only then does one place overlap the next
            end = right[place]
            if ids[place] != first or ids[end] != second:
                continue  # one of the two was merged with another id meanwhile
            before, after, count = left[place], right[end], self.weights[place]
            if ids[before] != _GONE:
                pairs[ids[before], first] -= count
            if ids[after] != _GONE:
                pairs[second, ids[after]] -= count
            ids[place], ids[end] = new, _GONE
            right[place] = after
            left[after] = place
            for start, made_pair in ((before, (ids[before], new)), (place, (new, ids[after]))):
                self._add(made_pair, start, count)
                made[made_pair] = None
        pairs[pair] = 0
        for found in made:
            if pairs.get(found, 0) >= 2:
                heapq.heappush(self.heap, (-pairs[found], found))


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
