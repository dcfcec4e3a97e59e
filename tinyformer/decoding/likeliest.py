"""The likeliest of many tokens, without sorting all of them."""

from __future__ import annotations

from typing import Any

from tinytensor.device.backend import host


def likeliest(scores: Any, count: int) -> Any:
    """The places of the ``count`` highest of some scores (n,), a NumPy array: the highest first, and the first of equal ones
    first. Those that are -inf, as the logarithm of probability 0 is, are left out. Returns int64 (count or fewer,)."""
    least = host.finfo(scores.dtype).min
    if count < len(scores):  # to find the lowest of the highest takes much less time than to sort all
        least = max(least, host.partition(scores, len(scores) - count)[-count])
    places = host.flatnonzero(scores >= least)
    return places[host.argsort(-scores[places], kind="stable")][:count]
