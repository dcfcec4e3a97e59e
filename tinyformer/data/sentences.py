"""Sentences labelled by the mark that ends them: cut out of a text, and drawn equally often for each mark."""

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

# Marks of scripts around the world: those that end a question, those that end a statement, and others that end a part of a
# sentence or open one, as in Spanish.
QUESTION_MARKS = "?？؟\u037e፧"
FULL_STOPS = ".。．｡।۔።။។։"
OTHER_MARKS = "!:;！：；؛…‥⋯‼⁇⁈⁉॥¿¡"
ENOUGH_SENTENCES = 200  # of a question mark and of a full stop, for a text to be asked about these two
SHORTEST_SENTENCE = 3  # tokens


def likely_marks(text: str) -> str:
    """The two marks of a text that are worth telling apart.

    They are the text's commonest question mark and full stop where it has enough sentences of both, and otherwise the two marks
    that most of its lines end with.
    """
    question, stop = (max(marks, key=text.count) for marks in (QUESTION_MARKS, FULL_STOPS))
    if min(map(len, sentences_before(text, question + stop).values())) >= ENOUGH_SENTENCES:
        return question + stop
    ends = Counter(line[-1] for line in text.split("\n") if line and is_mark(line[-1]))
    return "".join(mark for mark, _ in ends.most_common(2)) if len(ends) > 1 else "?."


def is_mark(character: str) -> bool:
    """Whether a character is punctuation or another sign: no letter, accent, digit, space or control character."""
    return unicodedata.category(character)[0] in "PS"


def check_marks(marks: str) -> None:
    """Raise SettingError unless these are two different marks."""
    if not (len(set(marks)) == len(marks) == 2 and all(map(is_mark, marks))):
        raise SettingError(f"marks must be two different punctuation characters, such as ?., not {marks!r}")


def sentences_before(text: str, marks: str) -> dict[str, list[str]]:
    """For each of the ``marks`` the sentences that it ends, without it.

    A sentence begins after the last mark or empty line. An empty line ends a sentence as a full stop does. The time is
    proportional to the text's length, whatever the text is.
    """
    ends = re.escape(QUESTION_MARKS + FULL_STOPS + OTHER_MARKS + marks)
    pieces = re.split(rf"(\n\n|[{ends}])", text)
    found: dict[str, list[str]] = {mark: [] for mark in marks}
    for sentence, end in zip(pieces[::2], pieces[1::2]):
        mark = "." if end == "\n\n" else end
        if sentence and mark in found:
            found[mark].append(sentence)
    return found


def labelled_sentences(
    text: str, marks: str, encode: Callable[[str], Any], start: int, end: int, longest: int, seed: int = 0
) -> list[Labelled]:
    """The sentences of a text, each labelled by the place in ``marks`` of its mark, shuffled; as many for each mark.

    A sentence is a list of ids between the tokens ``start`` and ``end``. Sentences with fewer tokens than SHORTEST_SENTENCE or
    more than ``longest`` are left out, and none is there twice.
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
    """Labelled sentences to train on (from the first 80 % of a text), to validate with (10 %) and to test with (10 %).

    The arguments are those of ``labelled_sentences``. A sentence to test with is in no other part. A line is printed if the
    text has sentences several times.
    """
    found = sentences_before(text, marks).values()
    if repeated := sum(len(sentences) - len(set(map(str.strip, sentences))) for sentences in found):
        print_line(f"left out {counted(repeated, 'sentence')} that occurred before, of {sum(map(len, found)):,}")
    cuts = [0, int(0.8 * len(text)), int(0.9 * len(text)), len(text)]
    parts = [text[first:last] for first, last in zip(cuts, cuts[1:])]
    training, validation, test = [labelled_sentences(part, marks, encode, start, end, longest, seed) for part in parts]
    known = {tuple(ids) for ids, _ in training + validation}
    return training, validation, [(ids, label) for ids, label in test if tuple(ids) not in known]
