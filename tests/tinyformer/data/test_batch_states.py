"""States of batches: of another batch size, as after ``--resume-changed``, and missing ones."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tinyformer.audio.dial_tones import DialBatches, DialTask
from tinyformer.data.batches import LabelledBatches
from tinyformer.data.masking import MaskedBatches, Masking
from tinyformer.data.pairs import PairBatches, Specials
from tinyformer.data.text import TextBatches

PAIRS = [([3 + i % 7] * (1 + i % 5), [3 + i]) for i in range(20)]  # the targets tell them apart


def pairs(batch_size: int = 4) -> PairBatches:
    return PairBatches(PAIRS, PAIRS[:2], Specials(0, 1, 2), batch_size, seed=5)


def texts(batch_size: int = 4) -> TextBatches:
    return TextBatches(np.arange(300) % 11, 8, batch_size, seed=5)


def masked(batch_size: int = 4) -> MaskedBatches:
    return MaskedBatches(np.arange(300) % 11, Masking(14, 11, (12, 13)), 12, 13, 8, batch_size, seed=5)


def labelled(batch_size: int = 4) -> LabelledBatches:
    return LabelledBatches([([i, i + 1], i % 2) for i in range(20)], [([1, 2], 0)], 0, batch_size, seed=5)


def recordings() -> DialBatches:
    return DialBatches(DialTask(), 4, seed=5)


KINDS = [pairs, texts, masked, labelled]


def saved(batches: Any) -> Any:
    return json.loads(json.dumps(batches.get_state()))


def arrays(batch: Any) -> list[bytes]:
    return [value.numpy().tobytes() for value in vars(batch).values() if hasattr(value, "numpy")]


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("taken", [0, 1, 3, 5, 7])
def test_a_state_of_another_batch_size(make: Callable[[int], Any], taken: int) -> None:
    before = make(4)
    for _ in range(taken):
        before.sample()
    batches = make(3)
    batches.set_state(saved(before))
    # A run that goes on with it is saved at once; and goes on from there like this one.
    again = make(3)
    again.set_state(saved(batches))
    for _ in range(20):
        batch = batches.sample()
        assert len(next(iter(vars(batch).values()))) in ((2, 3) if make is pairs else (3,))
        assert arrays(again.sample()) == arrays(batch)
    assert saved(again) == saved(batches)


@pytest.mark.parametrize("taken", [0, 1, 3, 5, 7])
def test_pairs_of_another_batch_size_begin_a_new_epoch(taken: int) -> None:
    before = pairs(4)
    for _ in range(taken):
        before.sample()
    batches = pairs(3)
    batches.set_state(saved(before))
    epochs = []
    for _ in range(2):
        rows = [batches.sample().target_inputs.numpy() for _ in range(7)]  # 20 pairs by threes
        assert [len(part) for part in rows].count(3) == 6
        assert Counter(int(i) for part in rows for i in part[:, 1]) == Counter(3 + i for i in range(20))  # each of them once
        epochs.append([part.tobytes() for part in rows])
    assert epochs[0] != epochs[1]
    if taken:  # not the order of the epoch that was left
        same = pairs(3)
        same.set_state({**saved(before), "started": False, "place": 0})
        assert [same.sample().target_inputs.numpy().tobytes() for _ in range(7)] != epochs[0]


def test_old_states_of_pairs_resume_in_their_epoch() -> None:
    before = pairs()
    for _ in range(3):
        before.sample()
    state = saved(before)
    del state["batch_size"]  # they did not say it
    again = pairs()
    again.set_state(state)
    for _ in range(9):
        assert arrays(again.sample()) == arrays(before.sample())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"place": 6}, "batch 6 of an epoch of 5 is not a valid position"),
        ({"place": 10**30}, "batch 1000000000000000000000000000000 of an epoch of 5"),
        ({"place": -1}, "batch -1"),
        ({"place": 2.0}, "batch 2.0"),
        ({"place": True}, "batch True"),
        ({"place": "2"}, "batch '2'"),
        ({"place": None}, "batch None"),
        ({"started": 1}, "batch 3"),
        ({"started": None}, "batch 3"),
        ({"started": False}, "batch 3 of an epoch of 0"),
    ],
)
def test_places_where_pairs_cannot_be(changes: dict[str, Any], message: str) -> None:
    batches = pairs()
    for _ in range(3):
        batches.sample()
    with pytest.raises(ValueError, match=f"^{message}"):
        pairs().set_state({**saved(batches), **changes})
    pairs().set_state(saved(batches))


@pytest.mark.parametrize("place", [0, 5])
def test_places_at_the_ends_of_an_epoch(place: int) -> None:
    batches = pairs()
    batches.sample()
    batches.set_state({**saved(batches), "place": place})
    assert len(batches.sample().source) == 4


def spoil(state: Any) -> None:
    """Change every number in a state, however deep."""
    for key, value in state.items():
        if isinstance(value, dict):
            spoil(value)
        elif isinstance(value, int):
            state[key] = value + 1


@pytest.mark.parametrize("make", [*KINDS, recordings])
def test_states_are_copies(make: Callable[[], Any]) -> None:
    batches = make()
    before = saved(batches)
    spoil(batches.get_state())
    assert saved(batches) == before
    given = copy.deepcopy(before)
    batches.set_state(given)
    spoil(given)
    assert saved(batches) == before


GARBAGE = [
    {},
    {"bit_generator": "PCG64"},
    {"bit_generator": "MT19937"},
    {"bit_generator": "PCG64", "state": {}, "has_uint32": 0, "uinteger": 0},
    {"bit_generator": "PCG64", "state": {"state": "x", "inc": 1}, "has_uint32": 0, "uinteger": 0},
    {"bit_generator": "PCG64", "state": {"state": -1, "inc": 1}, "has_uint32": 0, "uinteger": 0},
    {"bit_generator": "PCG64", "state": {"state": 2**200, "inc": 1}, "has_uint32": 0, "uinteger": 0},
    {"bit_generator": "PCG64", "state": {"state": 1, "inc": 1}, "has_uint32": 0, "uinteger": "many"},
    {"bit_generator": ["PCG64"], "state": 3},
]
REFUSALS = (KeyError, TypeError, ValueError, OverflowError, AttributeError, IndexError)  # which a trainer tells in a line


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("garbage", [*GARBAGE, None, 3, [], "state"])
def test_not_a_valid_state(make: Callable[[], Any], garbage: Any) -> None:
    batches = make()
    with pytest.raises(REFUSALS):
        batches.set_state(copy.deepcopy(garbage))
    if make is pairs:
        with pytest.raises(REFUSALS):
            batches.set_state({**saved(pairs()), "epoch": copy.deepcopy(garbage)})
        for name in ("epoch", "place", "started"):
            with pytest.raises(KeyError):
                batches.set_state({key: value for key, value in saved(pairs()).items() if key != name})
