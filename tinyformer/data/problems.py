"""Problems that need no data: digits to sort, to copy and to add, with their answers as digits."""

from __future__ import annotations

import itertools
from typing import Any

from tinytensor.device.backend import host

Problem = tuple[list[int], list[int]]  # the digits of a question and of its answer


def sorting(rng: Any) -> list[Problem]:
    """Every row of six digits from 0 to 2, and the same digits in order."""
    return [(list(digits), sorted(digits)) for digits in itertools.product(range(3), repeat=6)]


def copying(rng: Any) -> list[Problem]:
    """Random rows of ten digits, to be written again as they are."""
    return [(row, row) for row in host.unique(rng.integers(0, 10, (30_000, 10)), axis=0).tolist()]


def adding(rng: Any) -> list[Problem]:
    """Every sum of two numbers below 100; the answer begins with its ones, as one who adds by hand finds them."""
    return [([*divmod(a, 10), *divmod(b, 10)], [int(d) for d in f"{a + b:03d}"[::-1]]) for a in range(100) for b in range(100)]
