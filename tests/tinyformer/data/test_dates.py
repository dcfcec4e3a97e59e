"""Dates in words: each way of saying one, read back by an independent reader, is the date it is paired with."""

from __future__ import annotations

import calendar
import random
import re
from datetime import date, timedelta

import pytest

from tinyformer.data.synthetic import date_in_words, dates, number_in_words, ordinal_in_words, year_in_words

ALL_DAYS = [date(1900, 1, 1) + timedelta(days=i) for i in range(73_049)]


class Listening(random.Random):
    """Remembers what it had to choose from."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        self.seen = list(seq)
        return self.seen[0]


def styles_of(day: date) -> list[str]:
    rng = Listening()
    date_in_words(day, rng)
    return rng.seen


# ------------------------------------------------------------------------------------------- a reader of its own

UNITS = {word: n for n, word in enumerate(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"], start=1)}
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
NUMBERS = {**UNITS, **{word: n for n, word in enumerate(TEENS, start=10)}}
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
for i, ten in enumerate(TENS, start=2):
    NUMBERS[ten] = 10 * i
    NUMBERS |= {f"{ten}-{word}": 10 * i + n for word, n in UNITS.items()}
IRREGULAR = {"first": "one", "second": "two", "third": "three", "fifth": "five", "eighth": "eight", "ninth": "nine"}
IRREGULAR |= {"twelfth": "twelve", "twentieth": "twenty", "thirtieth": "thirty"}


def read_ordinal(words: str) -> int:
    head, dash, last = words.rpartition("-")
    return NUMBERS[head + dash + IRREGULAR.get(last, last.removesuffix("th"))]


def read_year(words: str) -> int:
    if words.startswith("two thousand"):
        return 2000 + NUMBERS.get(words.removeprefix("two thousand").removeprefix(" and "), 0)
    century, rest = words.split(" ", 1)
    return 100 * NUMBERS[century] + (0 if rest == "hundred" else NUMBERS[rest.removeprefix("oh ")])


def read(words: str) -> date:
    """The one date that words say; a day of the week that they name must be its own."""
    months = {name: n for n in range(1, 13) for name in (calendar.month_name[n], calendar.month_name[n][:3])}
    (month,) = {n for name, n in months.items() if re.search(rf"\b{name}\b", words)}
    named = [n for n in range(7) if calendar.day_name[n] in words]
    rest = re.sub("|".join([*calendar.day_name, *sorted(months, key=len, reverse=True)]), "|", words)
    if match := re.search(r"the ([a-z-]+)", rest):
        day = read_ordinal(match[1])
    else:
        day = int(re.search(r"(?<!')\b(\d{1,2})(st|nd|rd|th)?\b", rest)[1])  # type: ignore[index]
    if match := re.search(r"(\d{4})$", rest):
        year = int(match[1])
    elif match := re.search(r"'(\d\d)$", rest):
        year = 2000 + int(match[1])
    else:
        year = read_year(re.search(r"((two thousand|nineteen |twenty )[a-z -]*)$", rest)[1])  # type: ignore[index]
    found = date(year, month, day)
    assert named in ([], [found.weekday()]), words
    return found


def test_every_style_is_read_back_as_its_day() -> None:
    for day in ALL_DAYS[::97] + [date(year, month, 29) for year in range(1900, 2100, 11) for month in (1, 3, 12)]:
        for words in styles_of(day):
            assert read(words) == day, words


def test_no_two_days_are_said_alike() -> None:
    """Neither those of some years, nor a day before and a day after the end of February in all years: two years that agree in
    the day of the week at one of these agree at all on its side."""
    meant: dict[str, date] = {}
    some = [day for day in ALL_DAYS if day.year in (1907, 1912, 2000, 2007, 2012) or (day.month, day.day) in ((1, 12), (3, 12))]
    for day in some:
        for words in styles_of(day):
            assert meant.setdefault(words, day) == day, words


@pytest.mark.parametrize(
    ("year", "words"),
    [
        (1900, "nineteen hundred"),
        (1905, "nineteen oh five"),
        (1910, "nineteen ten"),
        (1999, "nineteen ninety-nine"),
        (2000, "two thousand"),
        (2007, "two thousand and seven"),
        (2010, "twenty ten"),
        (2024, "twenty twenty-four"),
        (2099, "twenty ninety-nine"),
    ],
)
def test_years(year: int, words: str) -> None:
    assert year_in_words(year) == words


def test_numbers_and_ordinals() -> None:
    words = "zero seven thirteen twenty forty forty-one ninety-nine".split()
    assert [number_in_words(n) for n in (0, 7, 13, 20, 40, 41, 99)] == words
    first = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    rest = "sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third twenty-fourth "
    last = "twenty-fifth twenty-sixth twenty-seventh twenty-eighth twenty-ninth thirtieth thirty-first"
    assert [ordinal_in_words(n) for n in range(1, 32)] == (first + rest + last).split()


def test_the_endings_of_days() -> None:
    endings = [styles_of(date(2024, 1, n))[2].split()[2].lstrip("0123456789") for n in range(1, 32)]
    expected = {1: "st", 21: "st", 31: "st", 2: "nd", 22: "nd", 3: "rd", 23: "rd"}
    assert endings == [expected.get(n, "th") for n in range(1, 32)]


def test_the_styles() -> None:
    assert styles_of(date(2007, 3, 12)) == [
        "March 12, 2007",
        "12 March 2007",
        "Monday, Mar 12th 2007",
        "the twelfth of March, two thousand and seven",
        "March the twelfth, two thousand and seven",
        "Monday 12 Mar '07",
        "12th of March two thousand and seven",
    ]
    assert styles_of(date(1907, 3, 12))[5] == "12 Mar 1907"  # '07 would be 2007


def test_dates_are_different_pairs_and_repeat() -> None:
    pairs = dates(3000, seed=1)
    assert len(pairs) == len({words for words, _ in pairs}) == 3000
    for words, iso in pairs:
        assert read(words).isoformat() == iso
    assert dates(3000, seed=1) == pairs
    assert dates(3000, seed=2) != pairs
    years = {iso[:4] for _, iso in pairs}
    assert {"1900", "2099"} <= years <= {str(year) for year in range(1900, 2100)}
    assert len(dates()) == 20_000
