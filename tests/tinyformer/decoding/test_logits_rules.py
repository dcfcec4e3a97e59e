"""Rules for the next token given the text so far. tests/parity compares them with transformers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinyformer.common.errors import SettingError
from tinyformer.decoding.beam_search import HuggingFaceRule, beam_search
from tinyformer.decoding.generation import GPTDecoder, generate, sample
from tinyformer.decoding.sampling import (
    ForbiddenFirst,
    ForbiddenSequences,
    ForcedAfterStart,
    LogitsRule,
    MinimalLength,
    NoRepeatedNgrams,
    Renormalized,
    RepetitionPenalty,
    Sampling,
)

OUT = -np.inf
GREEDY = Sampling(temperature=0.0)
SCORES = np.array([[1.0, -2.0, 3.0, 0.5], [-1.0, 2.0, OUT, 4.0]], np.float32)
TEXTS = np.array([[0, 1, 0, 1], [3, 3, 2, 3]])


@pytest.mark.parametrize(
    ("rule", "written", "expected"),
    [
        (RepetitionPenalty(2.0), 0, [[0.5, -4.0, 3.0, 0.5], [-1.0, 2.0, OUT, 2.0]]),
        (NoRepeatedNgrams(1), 0, [[OUT, OUT, 3.0, 0.5], [-1.0, 2.0, OUT, OUT]]),
        (NoRepeatedNgrams(2), 0, [[OUT, -2.0, 3.0, 0.5], [-1.0, 2.0, OUT, OUT]]),
        (NoRepeatedNgrams(3), 0, [[OUT, -2.0, 3.0, 0.5], [-1.0, 2.0, OUT, 4.0]]),
        (NoRepeatedNgrams(5), 0, SCORES),
        (ForbiddenSequences(((1, 2), (3,), (0, 1, 1), (9, 9, 9, 9, 9, 0))), 0, [[1.0, OUT, OUT, OUT], [-1.0, 2.0, OUT, OUT]]),
        (MinimalLength((0, 3), 5), 0, [[OUT, -2.0, 3.0, OUT], [OUT, 2.0, OUT, OUT]]),
        (MinimalLength((0, 3), 4), 0, SCORES),
        (MinimalLength((1,), 0, 2), 1, [[1.0, OUT, 3.0, 0.5], [-1.0, OUT, OUT, 4.0]]),
        (MinimalLength((1,), 0, 2), 2, SCORES),
        (ForcedAfterStart(1), 0, SCORES),
        (ForbiddenFirst((2, 3)), 0, [[1.0, -2.0, OUT, OUT], [-1.0, 2.0, OUT, OUT]]),
        (ForbiddenFirst((2, 3)), 1, SCORES),
        (ForbiddenFirst((0,), after_forced=True), 3, SCORES),
        (ForbiddenFirst((0,), after_forced=True), 0, [[OUT, -2.0, 3.0, 0.5], [OUT, 2.0, OUT, 4.0]]),
    ],
    ids=repr,
)
def test_each_rule(rule: LogitsRule, written: int, expected: Any) -> None:
    before = SCORES.copy()
    found = rule(SCORES, TEXTS, written)
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    assert found.dtype == np.float32
    np.testing.assert_array_equal(SCORES, before)


def test_rules_for_the_token_after_the_start() -> None:
    start = TEXTS[:, :1]
    np.testing.assert_array_equal(ForcedAfterStart(1)(SCORES, start, 0), [[OUT, 0.0, OUT, OUT]] * 2)
    first = ForbiddenFirst((0,), after_forced=True)  # the forced token does not count
    np.testing.assert_array_equal(first(SCORES, start, 0), SCORES)
    assert (first(SCORES, TEXTS[:, :2], 1)[:, 0] == OUT).all()


def test_renormalized_probabilities_sum_to_one() -> None:
    found = Renormalized()(SCORES, TEXTS, 0)
    np.testing.assert_allclose(np.exp(found).sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(found[0] - SCORES[0], found[0, 0] - SCORES[0, 0], rtol=1e-5)
    assert (Renormalized()(np.full((1, 3), OUT), TEXTS, 0) == OUT).all()


@pytest.mark.parametrize("penalty", [0.0, -1.0, float("inf"), float("nan")])
def test_penalties_that_cannot_be(penalty: float) -> None:
    with pytest.raises(SettingError, match="repetition_penalty must be a number above 0"):
        RepetitionPenalty(penalty)
    with pytest.raises(SettingError, match="no_repeat_ngram_size must be at least 1, got 0"):
        NoRepeatedNgrams(0)


def test_rules_see_the_prompt_and_what_was_written(make_gpt) -> None:
    model, prompts = make_gpt(3), np.array([[1, 2, 1], [4, 4, 5]])
    seen: list[tuple[list[list[int]], int]] = []

    def watch(scores: Any, texts: Any, written: int) -> Any:
        seen.append((texts.tolist(), written))
        return scores

    rows = np.array(list(sample(GPTDecoder(model), prompts, 4, Sampling(seed=1), rules=[watch]))).T
    assert seen == [(np.concatenate([prompts, rows[:, :n]], axis=1).tolist(), n) for n in range(4)]
    seen.clear()
    best = beam_search(GPTDecoder(model), prompts, None, beam=3, max_tokens=4, n_best=3, rules=[watch])
    assert [len(texts) for texts, _ in seen] == [2, 6, 6, 6]
    last = {tuple(text) for text in seen[-1][0]}
    assert all((*prompt, *found.ids[:-1]) in last for prompt, row in zip(prompts.tolist(), best) for found in row)


def test_what_is_written_obeys_the_rules(make_gpt) -> None:
    model = make_gpt(3)
    rules = [NoRepeatedNgrams(2), MinimalLength((0,), 0, 6), ForbiddenFirst((5, 6)), ForbiddenSequences(((7, 8),))]
    for seed in range(8):
        ids = list(generate(model, [1, 2], 30, Sampling(seed=seed), end=0, rules=rules))
        text = [1, 2, *ids]
        pairs = list(zip(text, text[1:]))
        assert len(set(pairs)) == len(pairs) and (7, 8) not in pairs
        assert ids[0] not in (5, 6)
        assert 0 not in ids[:6]


def test_a_beam_of_one_is_greedy_with_rules_too(make_gpt) -> None:
    for seed in range(6):
        model = make_gpt(seed)
        for parameter in model.parameters():
            parameter.assign(parameter * 6)
        rules = [RepetitionPenalty(1.7), NoRepeatedNgrams(2)]  # the penalty depends on the signs, so on what is normalised
        expected = list(generate(model, [1, 2], 9, GREEDY, rules=rules))
        ((found,),) = beam_search(GPTDecoder(model), [[1, 2]], None, 1, 9, rule=HuggingFaceRule(), rules=rules)
        assert list(found.ids) == expected
