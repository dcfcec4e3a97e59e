"""Merge adjacent tokens: the core of byte-pair encoding and WordPiece training.

``learn_merges`` selects the pairs to merge. ``apply_merges`` merges them in a word.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from tinyformer.common.progress import show_progress

Pair = tuple[int, int]


_GONE = -1  # separates words and replaces ids that were merged into their left neighbor


def learn_merges(
    words: Sequence[Sequence[int]], counts: Sequence[int], merge: Callable[[Pair], int | None], progress: bool = False
) -> None:
    """Repeatedly merge the most frequent adjacent pair. In a tie, merge the smallest pair.

    ``words`` are sequences of ids, and ``counts`` the frequency of each word. ``merge(pair)`` returns the id of the new token,
    or None to stop. Merging also stops if no pair occurs twice. A merge updates only the counts around its pair, however long
    the words. The total time is linear in the text length.

    No two merges produce the same string: the characters of a token merge with each other before they merge with neighbors. The
    same merges therefore happen in the same order wherever that string occurs.
    """
    counter = _PairCounter(words, counts)
    with show_progress("learning merges", None, "merge", quiet=not progress) as bar:
        while (pair := counter.most_frequent()) is not None and (new := merge(pair)) is not None:
            counter.merge(pair, new)
            bar.update()


class _PairCounter:
    """Counts of adjacent pairs in the words, updated as pairs are merged.

    All words form one linked list of ids, separated by ``_GONE``. ``left`` and ``right`` hold the neighbors' positions, and
    ``weights`` the frequency of the word at each position.
    """

    def __init__(self, words: Sequence[Sequence[int]], counts: Sequence[int]):
        self.ids, self.weights = array("q", [_GONE]), array("q", [0])
        for word, count in zip(words, counts):
            self.ids.extend([*word, _GONE])
            self.weights.extend([count] * (len(word) + 1))
        self.left = array("q", range(-1, len(self.ids) - 1))
        self.right = array("q", range(1, len(self.ids) + 1))
        self.pairs: dict[Pair, int] = {}
        self.positions: dict[Pair, array[int]] = {}  # of a pair's first id, including outdated ones
        for position, pair in enumerate(pairwise(self.ids)):
            self._add(pair, position, self.weights[position])
        # Each pair that occurs twice is in the heap once, with at least its current count. After the merge that creates a pair,
        # its count only falls.
        self.heap = [(-count, pair) for pair, count in self.pairs.items() if count >= 2]
        heapq.heapify(self.heap)

    def _add(self, pair: Pair, position: int, count: int) -> None:
        if _GONE in pair:
            return
        if pair in self.pairs:
            self.pairs[pair] += count
            self.positions[pair].append(position)
        else:
            self.pairs[pair] = count
            self.positions[pair] = array("q", [position])

    def most_frequent(self) -> Pair | None:
        """Return the most frequent pair, or None if no pair occurs twice."""
        while self.heap:
            negative, pair = self.heap[0]
            count = self.pairs[pair]
            if count == -negative:
                return pair if count >= 2 else None
            heapq.heapreplace(self.heap, (-count, pair))
        return None

    def merge(self, pair: Pair, new: int) -> None:
        """Replace the pair by ``new`` in all words, from left to right."""
        ids, left, right, pairs = self.ids, self.left, self.right, self.pairs
        first, second = pair
        made: dict[Pair, None] = {}  # pairs with the new token, without duplicates
        positions: Iterable[int] = self.positions.pop(pair)
        for position in sorted(positions) if first == second else positions:  # only pairs as in aaa overlap
            end = right[position]
            if ids[position] != first or ids[end] != second:
                continue  # one of the two has since been merged with another id
            before, after, count = left[position], right[end], self.weights[position]
            if ids[before] != _GONE:
                pairs[ids[before], first] -= count
            if ids[after] != _GONE:
                pairs[second, ids[after]] -= count
            ids[position], ids[end] = new, _GONE
            right[position] = after
            left[after] = position
            for start, made_pair in ((before, (ids[before], new)), (position, (new, ids[after]))):
                self._add(made_pair, start, count)
                made[made_pair] = None
        pairs[pair] = 0
        for made_pair in made:
            if pairs.get(made_pair, 0) >= 2:
                heapq.heappush(self.heap, (-pairs[made_pair], made_pair))


def apply_merges(ids: Sequence[int], merges: Mapping[Pair, tuple[int, int]]) -> list[int]:
    """Repeatedly merge the adjacent pair with the lowest rank, leftmost first, until no pair is in ``merges``. ``merges`` maps
    a pair to (rank, id of the new token).

    A heap of pairs and a linked list of ids take n log n steps for a word of n ids. Languages without spaces have long words.
    """
    ids = [*ids, _GONE]  # every id now has neighbors on both sides: ids[-1] is left of the first
    left = list(range(-1, len(ids) - 1))
    right = list(range(1, len(ids) + 1))
    heap = [(merges[pair], position) for position, pair in enumerate(pairwise(ids)) if pair in merges]
    heapq.heapify(heap)
    while heap:
        entry, position = heapq.heappop(heap)
        end = right[position]
        if ids[position] == _GONE or merges.get((ids[position], ids[end])) != entry:
            continue  # one of the two has since been merged with another id
        ids[position], ids[end] = entry[1], _GONE
        right[position] = right[end]
        left[right[end]] = position
        for start, stop in ((left[position], position), (position, right[position])):
            merged = merges.get((ids[start], ids[stop]))
            if merged is not None:
                heapq.heappush(heap, (merged, start))
    return [i for i in ids if i != _GONE]
