"""How beam search compares texts, and when it stops: small searches with known results.

tests/parity/test_generate.py holds Hugging Face's rule to their own searches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tinyformer.common.errors import SettingError
from tinyformer.decoding.beam_search import BeamRule, HuggingFaceRule, WuRule, beam_search

START, END = 3, 2

# With a beam of 2, two texts have ended after two steps: the empty one, and (0,). One is left that no longer loses anything.
PROBABILITIES = {(): [0.3, 0.1, 0.6, 0.0], (0,): [0.1, 0.0, 0.9, 0.0], **{(1,) * n: [0.0, 1.0, 0.0, 0.0] for n in range(1, 9)}}


class Given:
    """A decoder that knows the probabilities after each text."""

    def __init__(self, probabilities: dict[tuple[int, ...], list[float]]):
        self.probabilities = probabilities
        self.texts: list[tuple[int, ...]] = [()]
        self.steps = 0

    def next_logits(self, new: Any) -> Any:
        self.steps += 1
        if self.steps > 1:
            self.texts = [(*text, int(i)) for text, (i,) in zip(self.texts, new)]
        certain = [0.0, 0.0, 1.0, 0.0]
        with np.errstate(divide="ignore"):
            return np.log(np.array([self.probabilities.get(text, certain) for text in self.texts]))

    def select(self, rows: Any) -> None:
        self.texts = [self.texts[row] for row in rows]


def search(rule: BeamRule, **settings: Any) -> tuple[list[tuple[tuple[int, ...], float]], int]:
    """The texts and scores that are found in ``PROBABILITIES``, and the number of steps."""
    decoder = Given(PROBABILITIES)
    (found,) = beam_search(decoder, [[START]], END, **{"beam": 2, "max_tokens": 8, "rule": rule, **settings})
    return [(hypothesis.ids, hypothesis.score) for hypothesis in found], decoder.steps


def test_scores() -> None:
    assert WuRule(0.0).score(-2.0, 9) == HuggingFaceRule(0.0).score(-2.0, 9) == -2.0
    assert WuRule(1.0).score(-2.0, 7) == -1.0
    assert HuggingFaceRule().score(-2.0, 4) == -0.5
    assert HuggingFaceRule(2.0).score(-2.0, 4) == -0.125
    assert HuggingFaceRule(-1.0).score(-2.0, 4) == -8.0


def test_what_is_expected_of_unfinished_texts() -> None:
    assert WuRule(1.0).attainable(-2.0, 6, 13) == pytest.approx(-2.0 / 3)  # thirteen tokens favour it more than seven
    assert WuRule(-1.0).attainable(-2.0, 6, 13) == -4.0  # and here seven
    for early_stopping in (False, True):
        assert HuggingFaceRule(1.0, early_stopping).attainable(-2.0, 4, 8) == -0.5
    assert HuggingFaceRule(1.0, "never").attainable(-2.0, 4, 8) == -0.25
    assert HuggingFaceRule(-1.0, "never").attainable(-2.0, 4, 8) == -8.0


def test_a_text_that_can_only_be_as_good_does_not_count() -> None:
    decoder = Given({(): [0.5, 0.0, 0.5, 0.0]})
    (found,) = beam_search(decoder, [[START]], END, beam=2, max_tokens=8, rule=WuRule(0.0))
    assert (found[0].ids, decoder.steps) == ((), 1)


@pytest.mark.parametrize(
    ("early_stopping", "steps", "best"),
    [
        (True, 2, ((0,), math.log(0.27) / 2**2)),  # two texts have ended
        (False, 2, ((0,), math.log(0.27) / 2**2)),  # what is left would score log 0.1 / 4, below log 0.6, if it ended there
        ("never", 8, ((1,) * 8, math.log(0.1) / 8**2)),  # if it goes on to the last token, it wins
    ],
)
def test_what_early_stopping_misses(early_stopping: bool | str, steps: int, best: tuple[tuple[int, ...], float]) -> None:
    found, taken = search(HuggingFaceRule(2.0, early_stopping))
    assert taken == steps
    assert found == [(best[0], pytest.approx(best[1]))]


def test_without_early_stopping_a_search_waits_for_as_many_texts_as_the_beam_is_wide() -> None:
    for penalty, expected in [(2.0, 2), (4.0, 8)]:  # log 0.1 / 2^4 = -0.14 is above log 0.6 = -0.51
        assert search(HuggingFaceRule(penalty))[1] == expected
    # One text that cannot be beaten is enough for Wu et al.'s rule, if no more are asked for.
    assert search(WuRule(0.0))[1] == 1
    assert search(WuRule(0.0), n_best=2)[1] == 2
    assert search(HuggingFaceRule(0.0))[1] == 2


def test_an_end_that_is_not_among_the_likeliest_does_not_count() -> None:
    probabilities = {(): [0.5, 0.3, 0.2, 0.0], (0,): [1.0, 0.0, 0.0, 0.0], (1,): [0.0, 1.0, 0.0, 0.0]}
    for rule in (HuggingFaceRule(), HuggingFaceRule(1.0, True), HuggingFaceRule(1.0, "never"), WuRule()):
        (found,) = beam_search(Given(probabilities), [[START]], END, beam=2, max_tokens=3, n_best=2, rule=rule)
        assert [hypothesis.ids for hypothesis in found] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("rule", [HuggingFaceRule(2.0, "never"), HuggingFaceRule(), HuggingFaceRule(1.0, True), WuRule(2.0)])
def test_a_beam_of_one_is_greedy(rule: BeamRule) -> None:
    found, steps = search(rule, beam=1)
    assert (found, steps) == ([((), pytest.approx(math.log(0.6)))], 1)


def test_a_search_without_ends_stops_at_the_last_token() -> None:
    for rule in (WuRule(), HuggingFaceRule()):
        (found,) = beam_search(Given(PROBABILITIES), [[START]], None, beam=3, max_tokens=2, n_best=3, rule=rule)
        assert {(hypothesis.ids, hypothesis.end) for hypothesis in found} == {((2, 2), None), ((0, 2), None), ((1, 1), None)}


@pytest.mark.parametrize("exponent", [math.nan, math.inf, -math.inf, 50.5, -51])
def test_exponents_that_make_no_sense(exponent: float) -> None:
    with pytest.raises(SettingError, match=f"alpha must be a number from -50 to 50, got {exponent}"):
        WuRule(exponent)
    with pytest.raises(SettingError, match=f"length_penalty must be a number from -50 to 50, got {exponent}"):
        HuggingFaceRule(exponent)


@pytest.mark.parametrize("early_stopping", ["always", 1, 0, None])
def test_ways_to_stop_that_there_are_not(early_stopping: Any) -> None:
    with pytest.raises(SettingError, match=f'early_stopping must be True, False or "never", got {early_stopping!r}'):
        HuggingFaceRule(1.0, early_stopping)
