"""Synthetic data: dates in words with their ISO form, and digits to sort, copy and add."""

from __future__ import annotations

import itertools
import random
from datetime import date, timedelta
from typing import Any

from tinytensor.device.backend import host

MONTHS = "January February March April May June July August September October November December".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen".split()
ONES += ["eighteen", "nineteen"]
TENS = "- - twenty thirty forty fifty sixty seventy eighty ninety".split()
ORDINALS = "- first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth".split()
ORDINALS += "fifteenth sixteenth seventeenth eighteenth nineteenth twentieth".split()


def number_in_words(n: int) -> str:
    """Return a number from 0 to 99 in words."""
    return ONES[n] if n < 20 else TENS[n // 10] + (f"-{ONES[n % 10]}" if n % 10 else "")


def ordinal_in_words(n: int) -> str:
    """Return the ordinal of a number from 1 to 31 in words."""
    return ORDINALS[n] if n <= 20 else f"{TENS[n // 10]}-{ORDINALS[n % 10]}" if n % 10 else "thirtieth"


def year_in_words(year: int) -> str:
    """Return a year from 1900 to 2099 as spoken: nineteen oh five, two thousand and seven, twenty twenty-four."""
    century, rest = divmod(year, 100)
    if 2000 <= year < 2010:
        return "two thousand" + (f" and {ONES[rest]}" if rest else "")
    tail = "hundred" if rest == 0 else f"oh {ONES[rest]}" if rest < 10 else number_in_words(rest)
    return f"{number_in_words(century)} {tail}"


def date_in_words(day: date, rng: random.Random) -> str:
    """Return a date in words, in a randomly chosen style."""
    month, short = MONTHS[day.month - 1], MONTHS[day.month - 1][:3]
    ending = {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10 if day.day not in (11, 12, 13) else 0, "th")
    return rng.choice(
        [
            f"{month} {day.day}, {day.year}",
            f"{day.day} {month} {day.year}",
            f"{DAYS[day.weekday()]}, {short} {day.day}{ending} {day.year}",
            f"the {ordinal_in_words(day.day)} of {month}, {year_in_words(day.year)}",
            f"{month} the {ordinal_in_words(day.day)}, {year_in_words(day.year)}",
            f"{DAYS[day.weekday()]} {day.day} {short} '{day.year % 100:02d}"
            if day.year >= 2000
            else f"{day.day} {short} {day.year}",
            f"{day.day}{ending} of {month} {year_in_words(day.year)}",
        ]
    )


def dates(count: int = 20_000, seed: int = 0) -> list[tuple[str, str]]:
    """Return ``count`` distinct pairs of a date in words and the same date in ISO form, from 1900 to 2099.

    >>> from tinyformer import dates
    >>> len(dates(10)), all(len(iso) == 10 for words, iso in dates(10))
    (10, True)
    """
    rng = random.Random(seed)
    pairs: dict[str, str] = {}
    while len(pairs) < count:
        day = date(1900, 1, 1) + timedelta(days=rng.randrange(73_049))
        pairs[date_in_words(day, rng)] = day.isoformat()
    return list(pairs.items())


Problem = tuple[list[int], list[int]]  # the digits of a question and its answer


def sorting(rng: Any) -> list[Problem]:
    """Return every sequence of six digits from 0 to 2, with its sorted digits."""
    return [(list(digits), sorted(digits)) for digits in itertools.product(range(3), repeat=6)]


def copying(rng: Any) -> list[Problem]:
    """Return random sequences of ten digits to copy."""
    return [(row, row) for row in host.unique(rng.integers(0, 10, (30_000, 10)), axis=0).tolist()]


def adding(rng: Any) -> list[Problem]:
    """Return every sum of two numbers below 100. Answers start with the ones digit, as in manual addition."""
    return [([*divmod(a, 10), *divmod(b, 10)], [int(d) for d in f"{a + b:03d}"[::-1]]) for a in range(100) for b in range(100)]
