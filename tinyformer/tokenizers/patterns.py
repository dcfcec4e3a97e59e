"""The regular expressions of tokenizer.json, which are Oniguruma's, in the syntax of Python's ``regex`` package.

The two engines share most of their syntax, and disagree in silence on some of it: ``{1,3}+`` never gives back what it took in
one and is a loop in the other, ``^`` matches at each line or at the start alone, ``\\w`` has other characters. So this reads a
pattern part by part, and lets pass only what means the same in both. That is all that published tokenizers of this kind need.

A pattern is a program by others, so it may be a bomb, too: ``(?:a{1000}){1000}`` takes memory, and ``(?:a|aa)+b`` takes time
that doubles with each letter. The first is refused when it is read. The second is stopped by a ``Clock`` while it works.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import regex

from tinyformer.common.errors import UserError, shortened

Found = TypeVar("Found")
Finder = Callable[[str], list[tuple[int, int]]]  # where something is in a text: from where to where

# How GPT-2 cuts a text into words: English contractions; then letters, digits or other signs, each with one space before them;
# then white space. Others begin in the same way.
GPT2_WORDS = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Patterns whose time is known to grow with the text and not faster. They need no clock, which takes a microsecond for a match.
_QUICK = {
    GPT2_WORDS, LLAMA3_WORDS, LLAMA3_WORDS.replace("{1,3}", ""), r"\p{N}", r"\p{N}+", r"\p{N}{1,3}", r"[\s\S]",
}  # fmt: skip

_MOST_PARTS = 10_000  # of a pattern whose repeats are written out; those of published tokenizers have up to some hundred
_LEAST_SECONDS, _CHARACTERS_A_SECOND = 2.0, 500_000  # that a pattern may take; the slowest of published ones is 5 times as fast

# What a pattern may be made of. Everything else is refused.
_OPENING = regex.compile(r"\((?:\?(?::|i:|=|!|<=|<!|>))?(?!\?)")
_REPEAT = regex.compile(r"[*+?][?+]?|\{\d+(?:,\d*)?\}(?![+?])")
_ESCAPE = regex.compile(r"\\(?:[sSdDrnt]|[pP]\{[A-Z][a-z]?\}|[pP]\{(?:Han|Hiragana|Katakana|Hangul|Thai)\}|u[0-9A-Fa-f]{4})")
_QUOTED = regex.compile(r"\\[^\w\s]")  # a sign that stands for itself
# In a class, doubled signs join classes in one of the engines, and a range cannot end in a class.
_CLASS_SIGN = regex.compile(r"(?!&&|--|\|\||~~|-\\[sSdDpP])[^\[\]\\]|-(?=\])")
_BEGINS_NO_RANGE = regex.compile(r"\\(?:[sSdD]|[pP]\{\w+\})-[^\]]")
# Without regard to case, some characters equal two others, as ß equals ss, and dotted i has rules of its own.
_ANY_CASE = regex.compile(r"(?!ss|st|ff|fl|[iI])(?:[A-Za-z'’|]|\[[A-HJ-Za-hj-z]+\])", regex.IGNORECASE)


@functools.cache
def compiled(pattern: str) -> regex.Pattern[str]:
    """A pattern of tokenizer.json as one of Python's ``regex``.

    Raises UserError, which names the place, for what the two may understand in different ways, and for a pattern that matches
    the empty string.
    """
    reader = _Reader(pattern)
    empty = reader.alternatives()
    if reader.place < len(pattern):
        raise reader.refused("a bracket that was not opened")
    if empty:
        raise UserError(f"the regular expression {shortened(pattern, 120)!r} matches the empty string")
    try:
        return regex.compile("".join(reader.out))
    except (regex.error, OverflowError) as error:
        raise UserError(f"the regular expression {shortened(pattern, 120)!r} is wrong: {error}") from None


def is_quick(pattern: str) -> bool:
    """Whether a pattern is known to need no clock."""
    return pattern in _QUICK


class TooSlow(UserError):
    """A pattern takes so long on a text that it may never end."""


class Clock:
    """The time that patterns may take to cut one text. It starts now, and grows with the ``length`` of the text."""

    def __init__(self, length: int):
        self.seconds = _LEAST_SECONDS + length / _CHARACTERS_A_SECOND
        self.end = time.monotonic() + self.seconds

    def run(self, pattern: str, match: Callable[[float], Found]) -> Found:
        """What ``match`` returns, which is called with the seconds that it may take. Raises TooSlow if it takes longer, or if
        the time was over before."""
        allowed = self.seconds
        while time.monotonic() < self.end:
            try:
                return match(allowed)
            except TimeoutError:  # of the processor's seconds: while other threads work, these pass faster than the clock's
                allowed *= 2
        raise TooSlow(f"the regular expression {shortened(pattern, 120)!r} takes too long: it may be made to hang programs")


@contextmanager
def one_clock(length: int) -> Iterator[None]:
    """A context in which what all finders find takes together no longer than it may for one text of this length."""
    before = _shared_clock.set(Clock(length))
    try:
        yield
    finally:
        _shared_clock.reset(before)


def finder(pattern: Mapping[str, str]) -> Finder:
    """Finds the pattern of a section of tokenizer.json, which has one key: {"String": what is looked for}, or {"Regex": a
    regular expression}. Raises UserError as ``compiled`` does; and TooSlow while it looks."""
    ((kind, content),) = pattern.items()
    if kind not in ("String", "Regex") or not content:
        raise UserError(f"{shortened(repr(dict(pattern)), 80)} is no pattern")
    if kind == "String":
        literal = regex.compile(regex.escape(content, special_only=True)).finditer
        return lambda text: [match.span() for match in literal(text)]
    matches = compiled(content).finditer
    if is_quick(content):
        return lambda text: [match.span() for match in matches(text)]

    def find(text: str) -> list[tuple[int, int]]:
        clock = _shared_clock.get() or Clock(len(text))
        return clock.run(content, lambda seconds: [match.span() for match in matches(text, timeout=seconds)])

    return find


_shared_clock: ContextVar[Clock | None] = ContextVar("_shared_clock", default=None)


class _Reader:
    """Reads a pattern from left to right. ``out`` is what was read, in Python's syntax. Each method that reads a part returns
    whether this part may match the empty string. ``parts`` is how many parts were read, with repeats written out."""

    def __init__(self, pattern: str):
        self.pattern = pattern
        self.place = 0
        self.out: list[str] = []
        self.parts = 0

    def alternatives(self, depth: int = 0) -> bool:
        """Everything up to the end of the pattern or of a group: runs of parts with | between them."""
        if depth > 50:
            raise self.refused("too many brackets in one another")
        empty = self._run(depth)
        while self._take("|"):
            empty = self._run(depth) or empty
        return empty

    def _run(self, depth: int) -> bool:
        empty = True
        while self.place < len(self.pattern) and self.pattern[self.place] not in "|)":
            before = self.parts
            part_empty = self._part(depth)
            repeat = _REPEAT.match(self.pattern, self.place)
            if repeat and part_empty:  # the engines leave such a loop at different times
                raise self.refused("a repeat of what may be empty")
            if repeat:
                self._copy(repeat[0])
                self._count((self.parts - before) * (_times(repeat[0]) - 1))
                part_empty = repeat[0][0] in "*?" or bool(regex.match(r"\{0+[,}]", repeat[0]))
            empty = empty and part_empty
        return empty

    def _part(self, depth: int) -> bool:
        """One character, class or group."""
        self._count(1)
        opening = _OPENING.match(self.pattern, self.place)
        if opening:
            return self._group(opening[0], depth)
        if self._take("["):
            self._class()
        elif found := _ESCAPE.match(self.pattern, self.place) or _QUOTED.match(self.pattern, self.place):
            self._copy(found[0])
        elif (sign := self.pattern[self.place]) not in "\\^$*+?{}[]()":
            self.place += 1
            self.out.append(sign if sign == "." else regex.escape(sign, special_only=True))
        else:
            raise self.refused(repr(self.pattern[self.place : self.place + 2]))
        return False

    def _group(self, opening: str, depth: int) -> bool:
        self.place += len(opening)
        self.out.append("(?:" if opening == "(" else opening)  # nothing asks for what a group matched
        if opening == "(?i:":
            start = self.place
            while found := _ANY_CASE.match(self.pattern, self.place):
                self._copy(found[0])
            if not self._take(")") or "" in self.pattern[start : self.place - 1].split("|"):
                raise self.refused("something other than a few letters without regard to case")
            return False
        empty = self.alternatives(depth + 1)
        if not self._take(")"):
            raise self.refused("a bracket that is not closed")
        return empty or opening in ("(?=", "(?!", "(?<=", "(?<!")

    def _class(self) -> None:
        """The rest of a class after its ["""
        self._take("^")
        if self.pattern[self.place : self.place + 1] == "]":
            raise self.refused("a class that begins with ]")
        while not self._take("]"):
            found = (
                _ESCAPE.match(self.pattern, self.place)
                or _QUOTED.match(self.pattern, self.place)
                or _CLASS_SIGN.match(self.pattern, self.place)
            )
            if not found or _BEGINS_NO_RANGE.match(self.pattern, self.place):
                raise self.refused(f"{self.pattern[self.place : self.place + 2]!r} in a class")
            self._copy(found[0])
            self._count(1)

    def _count(self, parts: int) -> None:
        self.parts += parts
        if self.parts > _MOST_PARTS:
            raise UserError(
                f"the regular expression {shortened(self.pattern, 120)!r} is too large: its repeats, written out, have more "
                f"than {_MOST_PARTS:,} parts"
            )

    def _take(self, sign: str) -> bool:
        if not self.pattern.startswith(sign, self.place):
            return False
        self._copy(sign)
        return True

    def _copy(self, text: str) -> None:
        self.place += len(text)
        self.out.append(text)

    def refused(self, what: str) -> UserError:
        """The error for something that is not let pass."""
        where = f"at position {self.place} of the regular expression {shortened(self.pattern, 120)!r}"
        return UserError(f"{what} {where} is not supported: it may mean something else in Python")


def _times(repeat: str) -> int:
    """How often a repeat is written out: its larger number; 2 where there is no end, as one goes before the loop."""
    numbers = [int(number[:9]) for number in regex.findall(r"\d+", repeat)]
    return max([2, *numbers])
