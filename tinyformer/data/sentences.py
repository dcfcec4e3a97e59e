"""Sentences cut out of a text and labeled by the mark that ends them, equally many for each mark."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from typing import Any

from tqdm import tqdm

from tinyformer.common.errors import SettingError, print_line
from tinyformer.data.batches import Labelled
from tinytensor.common.wording import counted
from tinytensor.device.backend import host

# Marks of the world's scripts that end a question, end a statement, or end or open a part of a sentence, as in Spanish.
QUESTION_MARKS = "?？؟\u037e፧"
FULL_STOPS = ".。．｡।۔።။។։"
OTHER_MARKS = "!:;！：；؛…‥⋯‼⁇⁈⁉॥¿¡"
ENOUGH_SENTENCES = 200  # of each of the question mark and the full stop, to choose these two
SHORTEST_SENTENCE = 3  # tokens


def likely_marks(text: str) -> str:
    """Return the two marks of a text that are worth telling apart: its most common question mark and full stop if it has enough
    sentences of both, else the two marks that most of its lines end with."""
    question, stop = (max(marks, key=text.count) for marks in (QUESTION_MARKS, FULL_STOPS))
    if min(map(len, sentences_before(text, question + stop).values())) >= ENOUGH_SENTENCES:
        return question + stop
    ends = Counter(line[-1] for line in text.split("\n") if line and is_mark(line[-1]))
    return "".join(mark for mark, _ in ends.most_common(2)) if len(ends) > 1 else "?."


def is_mark(character: str) -> bool:
    """Return True for punctuation and symbols: no letter, accent, digit, space or control character."""
    return unicodedata.category(character)[0] in "PS"


def check_marks(marks: str) -> None:
    """Raise SettingError unless these are two different marks."""
    if not (len(set(marks)) == len(marks) == 2 and all(map(is_mark, marks))):
        raise SettingError(f"marks must be two different punctuation characters, such as ?., got {marks!r}")


def sentences_before(text: str, marks: str) -> dict[str, list[str]]:
    """Return for each of the ``marks`` the sentences that it ends, without the mark.

    A sentence begins after the last mark or empty line. An empty line ends a sentence as a full stop does. The time is linear
    in the text's length for any text.
    """
    ends = re.escape(QUESTION_MARKS + FULL_STOPS + OTHER_MARKS + marks)
    pieces = re.split(rf"(\n\n|[{ends}])", text)
    sentences: dict[str, list[str]] = {mark: [] for mark in marks}
    for sentence, end in zip(pieces[::2], pieces[1::2]):
        mark = "." if end == "\n\n" else end
        if sentence and mark in sentences:
            sentences[mark].append(sentence)
    return sentences


def labelled_sentences(
    text: str, marks: str, encode: Callable[[str], Any], start: int, end: int, longest: int, seed: int = 0
) -> list[Labelled]:
    """Return shuffled sentences of a text, equally many for each mark, labeled by the mark's index in ``marks``.

    A sentence is a list of ids between the tokens ``start`` and ``end``. Duplicates are left out, and so are sentences with
    fewer tokens than SHORTEST_SENTENCE or more than ``longest``.
    """
    classes = []
    for label, sentences in enumerate(sentences_before(text, marks).values()):
        bar = tqdm(set(sentences), desc="reading sentences", unit="sentence", leave=False, delay=1, disable=None)
        encoded = {tuple(encode(sentence).tolist()) for sentence in bar}
        fitting = sorted(ids for ids in encoded if SHORTEST_SENTENCE <= len(ids) <= longest)
        classes.append([([start, *ids, end], label) for ids in fitting])
    rng = host.random.default_rng(seed)
    size = min(map(len, classes))
    drawn = [examples[i] for examples in classes for i in rng.permutation(len(examples))[:size]]
    return [drawn[i] for i in rng.permutation(len(drawn))]


def sentence_parts(
    text: str, marks: str, encode: Callable[[str], Any], start: int, end: int, longest: int, seed: int = 0
) -> tuple[list[Labelled], list[Labelled], list[Labelled]]:
    """Return labeled sentences for training (from the first 80 % of a text), validation (10 %) and testing (10 %).

    The arguments are those of ``labelled_sentences``. No test sentence is in another part. A line is printed if sentences are
    repeated.
    """
    lists = sentences_before(text, marks).values()
    if repeated := sum(len(sentences) - len(set(map(str.strip, sentences))) for sentences in lists):
        print_line(f"left out {counted(repeated, 'sentence')} that occurred before, of {sum(map(len, lists)):,}")
    cuts = [0, int(0.8 * len(text)), int(0.9 * len(text)), len(text)]
    parts = [text[first:last] for first, last in zip(cuts, cuts[1:])]
    training, validation, test = [labelled_sentences(part, marks, encode, start, end, longest, seed) for part in parts]
    known = {tuple(ids) for ids, _ in training + validation}
    return training, validation, [(ids, label) for ids, label in test if tuple(ids) not in known]
