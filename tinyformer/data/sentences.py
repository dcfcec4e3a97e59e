"""Extract sentences from a text, labeled by the mark that ends them, equally many per mark."""

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

# Marks in the world's scripts that end a question, end a statement, or end or open a phrase, as in Spanish.
QUESTION_MARKS = "?？؟\u037e፧"
FULL_STOPS = ".。．｡।۔።။។։"
OTHER_MARKS = "!:;！：；؛…‥⋯‼⁇⁈⁉॥¿¡"
ENOUGH_SENTENCES = 200  # minimum per mark to choose the question mark and full stop
SHORTEST_SENTENCE = 3  # tokens


def likely_marks(text: str) -> str:
    """Return two marks of a text for classification: its most common question mark and full stop if both end enough sentences,
    else the two most common marks at line ends."""
    question, stop = (max(marks, key=text.count) for marks in (QUESTION_MARKS, FULL_STOPS))
    if min(map(len, sentences_before(text, question + stop).values())) >= ENOUGH_SENTENCES:
        return question + stop
    ends = Counter(line[-1] for line in text.split("\n") if line and is_mark(line[-1]))
    return "".join(mark for mark, _ in ends.most_common(2)) if len(ends) > 1 else "?."


def is_mark(character: str) -> bool:
    """Return True for punctuation and symbols: anything but letters, accents, digits, spaces and control characters."""
    return unicodedata.category(character)[0] in "PS"


def check_marks(marks: str) -> None:
    """Raise SettingError unless these are two distinct marks."""
    if not (len(set(marks)) == len(marks) == 2 and all(map(is_mark, marks))):
        raise SettingError(f"marks must be two different punctuation characters, such as ?., got {marks!r}")


def sentences_before(text: str, marks: str) -> dict[str, list[str]]:
    """Return the sentences that each of the ``marks`` ends, without the mark.

    A sentence starts after the last mark or empty line. An empty line ends a sentence, like a full stop. The running time is
    always linear in the text length.
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
    """Return shuffled sentences of a text, equally many per mark, labeled by the mark's index in ``marks``.

    A sentence is a list of ids between the tokens ``start`` and ``end``. Duplicates and sentences with fewer than
    SHORTEST_SENTENCE or more than ``longest`` tokens are dropped.
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
    """Return labeled sentences for training (first 80 % of a text), validation (10 %) and testing (10 %).

    For the arguments, see ``labelled_sentences``. No test sentence occurs in another split. A line is printed if sentences
    repeat.
    """
    lists = sentences_before(text, marks).values()
    if repeated := sum(len(sentences) - len(set(map(str.strip, sentences))) for sentences in lists):
        print_line(f"left out {counted(repeated, 'sentence')} that occurred before, of {sum(map(len, lists)):,}")
    cuts = [0, int(0.8 * len(text)), int(0.9 * len(text)), len(text)]
    parts = [text[first:last] for first, last in zip(cuts, cuts[1:])]
    training, validation, test = [labelled_sentences(part, marks, encode, start, end, longest, seed) for part in parts]
    known = {tuple(ids) for ids, _ in training + validation}
    return training, validation, [(ids, label) for ids, label in test if tuple(ids) not in known]
