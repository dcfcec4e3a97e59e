"""Unigram (Kudo 2018): a word becomes the pieces whose scores, logarithms of probabilities, have the largest sum."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def lengths_of(pieces: Collection[str]) -> dict[str, list[int]]:
    """The lengths of the pieces that begin with a character, the shortest first."""
    found: dict[str, set[int]] = {}
    for piece in pieces:
        if piece:
            found.setdefault(piece[0], set()).add(len(piece))
    return {character: sorted(lengths) for character, lengths in found.items()}


def likeliest_pieces(
    word: str, scores: Mapping[str, float], lengths: Mapping[str, Sequence[int]], unknown: str | None, penalty: float
) -> list[str]:
    """The pieces of a word (Viterbi 1967): of all ways to cut it, the one with the largest sum of scores.

    ``lengths`` are those of ``lengths_of(scores)``. A character that is no piece has the score ``penalty``, and stands together
    with others of its kind that are beside it, and with the piece that is named ``unknown``. The time grows with the length of
    the word. Of two ways with the same sum, the one whose last piece is longer counts.
    """
    best = [0.0] * (len(word) + 1)  # the sum of the scores up to here
    start_of = [-1] * (len(word) + 1)  # where the last piece up to here begins; -1 where there is none yet
    is_unknown = [False] * (len(word) + 1)
    for start, character in enumerate(word):
        lengths_here = lengths.get(character, ())
        candidates = [] if lengths_here and lengths_here[0] == 1 else [(start + 1, penalty, True)]
        for length in lengths_here:
            piece = word[start : start + length]
            if len(piece) == length and piece in scores:
                candidates.append((start + length, scores[piece], piece == unknown))
        for end, score, is_other in candidates:
            if start_of[end] < 0 or best[start] + score > best[end]:
                best[end], start_of[end], is_unknown[end] = best[start] + score, start, is_other
    pieces = []
    end = stop = len(word)
    while end:
        start = start_of[end]
        if not (is_unknown[end] and is_unknown[start]):
            pieces.append(word[start:stop])
            stop = start
        end = start
    return pieces[::-1]
