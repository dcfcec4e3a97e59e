"""The likeliest of many tokens, without sorting all of them."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import host

_GROUPS = 1024


def likeliest(scores: Any, count: int) -> Any:
    """The places of the ``count`` highest of some scores (n,), a NumPy array: the highest first, and the first of equal ones
    first. Those that are -inf, as the logarithm of probability 0 is, are left out. Returns int64 (count or fewer,)."""
    least = host.finfo(scores.dtype).min
    if count < len(scores):
        least = max(least, _reached(scores, count))
    places = host.flatnonzero(scores >= least)
    return places[host.argsort(-scores[places], kind="stable")][:count]


def _reached(scores: Any, count: int) -> Any:
    """A number that at least ``count`` scores reach, and few more: it takes much less time than to sort all.

    Of many scores, groups are compared by their highest. The highest of all seldom share a group, so that few scores besides
    them reach the lowest of the ``count`` highest groups.
    """
    size = len(scores) // _GROUPS
    if size > 1 and count <= _GROUPS // 4:
        scores = scores[: size * _GROUPS].reshape(size, _GROUPS).max(axis=0)
    return host.partition(scores, len(scores) - count)[-count]
