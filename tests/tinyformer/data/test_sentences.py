"""Sentences cut out of a text by the marks that end them."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest

from tinyformer.common.errors import SettingError
from tinyformer.data.sentences import check_marks, labelled_sentences, likely_marks, sentence_parts, sentences_before


def test_sentences_stand_before_their_marks() -> None:
    text = "Who? I am. A: b; c! d?\n\nno mark\n\nlast? ?.end"
    assert sentences_before(text, "?.") == {"?": ["Who", " d", "last", " "], ".": [" I am", "no mark"]}
    assert sentences_before(text, "!b") == {"!": [" c"], "b": [" "]}
    assert sentences_before("你是谁？我是。好！吧？\n\n诗", "？。") == {"？": ["你是谁", "吧"], "。": ["我是"]}
    assert sentences_before("Sí. ¿Qué hora es? Pero ¿por qué?", "?.") == {"?": ["Qué hora es", "por qué"], ".": ["Sí"]}
    assert sentences_before("a]b^c-d\\e", "-]") == {"-": ["b^c"], "]": ["a"]}


@pytest.mark.parametrize("piece", ["emma\n", "no marks ", "a: ", "诗", "a\n\n", "?", "Why? So. "])
def test_cutting_takes_time_in_proportion_to_the_text(piece: str) -> None:
    text = piece * (20_000 // len(piece))
    before = time.process_time()
    sentences_before(text, likely_marks(text))
    assert time.process_time() - before < 2  # milliseconds; a search that begins anew at each character takes 10 seconds


@pytest.mark.parametrize("marks", ["?.", "？。", "?。", "？．", "?｡", "؟.", "؟۔", "?।", "\u037e.", "፧።"])
def test_the_question_mark_and_full_stop_are_those_of_the_text(marks: str) -> None:
    question, stop = marks
    # Dialogues end their paragraphs with a quotation mark: an empty line after it is no full stop of theirs.
    text = f"「ab cd{question}」\n\n「ef gh{stop}」\n\n" * 200 + "3.14 " + "a? " * 9
    assert likely_marks(text) == marks


def test_a_text_of_few_questions_is_asked_for_what_ends_its_lines() -> None:
    assert likely_marks("x = f(\n1)\n2)\n" * 300 + "why?\n" * 100) == ")("
    assert likely_marks("x = 1\n" * 300) == "?."
    vowels = "कि\nकी\nकि,\nकी,\nकि!\n"  # vowel signs are no letters to Python, and no marks
    assert likely_marks(vowels * 100) == ",!"


@pytest.mark.parametrize("marks", ["?", "??", "?.!", "a.", "? ", "?\n"])
def test_marks_that_are_not_two_different_ones(marks: str) -> None:
    check_marks("?.")
    with pytest.raises(SettingError, match="marks must be two different punctuation characters"):
        check_marks(marks)


def encode(sentence: str) -> np.ndarray:
    """A token for each word: its length."""
    return np.array([len(word) for word in sentence.split()])


def test_labelled_sentences_are_as_many_of_each_mark() -> None:
    text = "why is it so? it is so. too short. why? " + "one two three four five six. " + "a bb ccc dddd. " * 3
    found = labelled_sentences(text, "?.", encode, 100, 101, longest=5)
    assert Counter(label for _, label in found) == {0: 1, 1: 1}
    assert [100, 3, 2, 2, 2, 101] in [ids for ids, label in found if label == 0]
    assert next(ids for ids, label in found if label == 1) in ([100, 2, 2, 2, 101], [100, 1, 2, 3, 4, 101])


def test_repeated_sentences_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    sentence_parts("a bb ccc? one two three. " * 4, "?.", encode, 100, 101, longest=5)
    assert capsys.readouterr().out == "left out 6 sentences that occurred before, of 8\n"


def test_no_sentence_to_test_with_is_in_another_part() -> None:
    rng = np.random.default_rng(0)
    words = ["a", "bb", "ccc", "dddd"]
    text = "".join(" ".join(rng.choice(words, rng.integers(3, 6))) + rng.choice(["?", "."]) + " " for _ in range(500))
    training, validation, test = sentence_parts(text, "?.", encode, 100, 101, longest=5)
    known = {tuple(ids) for ids, _ in training + validation}
    assert len(training) > len(validation) > len(test) > 10
    assert not known & {tuple(ids) for ids, _ in test}
    whole = labelled_sentences(text[int(0.9 * len(text)) :], "?.", encode, 100, 101, longest=5)
    assert any(tuple(ids) in known for ids, _ in whole)  # which the text's end has, too
