"""Named heads: heads that are built to do one thing have its score of 1, and others what they should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tinyformer.models.named_heads import KINDS, head_scores, names_of, repeated_tokens

NAMES = [kind.name for kind in KINDS]
LENGTH = 12
REPEATED = np.array([[3, 1, 4, 2, 3, 1, 4, 2, 3, 1, 4, 2]])  # three copies of four tokens


def scored(pattern: Any, ids: Any = REPEATED, causal: bool = True) -> dict[str, float]:
    """The scores of one head with this pattern (queries, keys)."""
    scores, _ = head_scores(np.asarray(pattern, dtype=np.float32)[None, None], np.asarray(ids), causal)
    return dict(zip(NAMES, scores[0].tolist()))


def looking(key: Any, length: int = LENGTH) -> np.ndarray:
    """The weights of a head that looks only at ``key(query)``."""
    pattern = np.zeros((length, length))
    for query in range(length):
        pattern[query, key(query)] = 1
    return pattern


def test_a_previous_token_head_scores_one() -> None:
    found = scored(looking(lambda q: max(q - 1, 0)))
    assert found["previous token"] == 1 and found["positional"] == 1
    assert found["induction"] == 0 and found["same token"] == 0
    assert found["first token"] == pytest.approx(1 / 11)  # from the second token alone
    assert names_of(list(found.values())) == ["previous token", "positional"]


def test_an_induction_head_scores_one() -> None:
    """It attends to the token after the same token in the previous copy. The first copy has nothing to repeat."""
    found = scored(looking(lambda q: q - 3 if q >= 4 else 0))
    assert found["induction"] == 1 and found["same token"] == 0 and found["previous token"] == pytest.approx(1 / 11)
    assert found["positional"] == pytest.approx(9 / 11)  # 8 of the later copies, and the fourth token
    assert names_of(list(found.values())) == ["induction"]


def test_a_same_token_head_scores_one() -> None:
    found = scored(looking(lambda q: q % 4))
    assert found["same token"] == 1 and found["induction"] == 0
    assert names_of(list(found.values())) == ["same token"]


def test_a_first_token_head_scores_one() -> None:
    found = scored(looking(lambda q: 0))
    assert found["first token"] == 1
    assert found["positional"] == pytest.approx(1 / 11)  # each at a distance of its own
    assert names_of(list(found.values())) == ["first token"]


@pytest.mark.parametrize("distance", [0, 2, 3])
def test_a_positional_head_scores_one_and_has_its_distance(distance: int) -> None:
    pattern = looking(lambda q: max(q - distance, 0))
    scores, distances = head_scores(pattern[None, None], REPEATED, causal=True)
    expected = 1 if distance < 2 else (LENGTH - distance) / (LENGTH - 1)
    assert scores[0][NAMES.index("positional")] == pytest.approx(expected) and distances.tolist() == [distance]


def test_uniform_attention_scores_what_chance_gives() -> None:
    pattern = np.tril(np.ones((LENGTH, LENGTH)))
    pattern /= pattern.sum(-1, keepdims=True)
    found = scored(pattern)
    assert found["previous token"] == pytest.approx(np.mean([1 / (q + 1) for q in range(1, LENGTH)]))
    assert found["first token"] == pytest.approx(found["previous token"])
    later = range(4, LENGTH)
    assert found["same token"] == pytest.approx(np.mean([(q // 4) / (q + 1) for q in later]))
    assert found["induction"] == pytest.approx(np.mean([(q // 4) / (q + 1) for q in later]))
    assert names_of(list(found.values())) == []


def test_a_text_without_repetition_has_no_score_of_it() -> None:
    found = scored(looking(lambda q: 0), [list(range(LENGTH))])
    assert np.isnan(found["induction"]) and np.isnan(found["same token"]) and found["first token"] == 1
    assert names_of(list(found.values())) == ["first token"]


def test_a_text_of_one_token_has_no_scores() -> None:
    assert all(np.isnan(score) for score in scored([[1.0]], [[3]]).values())


def test_where_tokens_see_both_sides_the_same_token_may_be_behind_and_nothing_is_induction() -> None:
    found = scored(looking(lambda q: (q + 4) % LENGTH), causal=False)
    assert found["same token"] == 1 and np.isnan(found["induction"])
    behind = looking(lambda q: min(q + 1, LENGTH - 1))
    scores, distances = head_scores(behind[None, None], REPEATED, causal=False)
    assert scores[0][NAMES.index("positional")] == pytest.approx(11 / 12) and distances.tolist() == [-1]


def test_several_texts_and_heads_are_averaged() -> None:
    previous, first = looking(lambda q: max(q - 1, 0)), looking(lambda q: 0)
    weights = np.stack([np.stack([previous, first]), np.stack([first, first])])
    scores, _ = head_scores(weights, np.concatenate([REPEATED, REPEATED]), causal=True)
    assert scores[:, NAMES.index("first token")].tolist() == pytest.approx([(1 + 1 / 11) / 2, 1])


@pytest.mark.parametrize(
    ("vocabulary", "room", "expected"), [(100, 300, (25, 4)), (100, 40, (10, 4)), (100, 20, (10, 2)), (5, 300, (5, 4))]
)
def test_random_tokens_are_repeated(vocabulary: int, room: int, expected: tuple[int, int]) -> None:
    count, copies = expected
    ids = repeated_tokens(range(7, 7 + vocabulary), room, rows=3)
    assert ids.shape == (3, count * copies)
    for row in ids.tolist():
        assert row == row[:count] * copies and len(set(row)) == count and min(row) >= 7
    assert ids[0].tolist() != ids[1].tolist()
    assert ids.tolist() == repeated_tokens(range(7, 7 + vocabulary), room, rows=3).tolist()
