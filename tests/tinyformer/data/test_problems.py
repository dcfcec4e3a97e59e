"""Problems of digits: what they ask, that the answers are right, and that none comes twice."""

from __future__ import annotations

import numpy as np
import pytest

from tinyformer.data.synthetic import Problem, adding, copying, sorting

PROBLEMS = {make.__name__: make(np.random.default_rng(0)) for make in (sorting, copying, adding)}


def test_questions_and_answers() -> None:
    assert len(PROBLEMS["sorting"]) == 3**6
    assert ([2, 0, 1, 1, 0, 2], [0, 0, 1, 1, 2, 2]) in PROBLEMS["sorting"]
    assert all(answer == question and len(answer) == 10 for question, answer in PROBLEMS["copying"])
    assert len(PROBLEMS["adding"]) == 10_000
    assert ([8, 5, 5, 0], [5, 3, 1]) in PROBLEMS["adding"]  # 85 + 50, and the ones of 135 first


@pytest.mark.parametrize("problems", PROBLEMS.values(), ids=PROBLEMS)
def test_no_question_comes_twice(problems: list[Problem]) -> None:
    """So none that is held out is trained on."""
    assert len({tuple(question) for question, _ in problems}) == len(problems)
    assert len({(len(question), len(answer)) for question, answer in problems}) == 1
