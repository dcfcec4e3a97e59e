"""The settings of training, and the schedules that they name."""

from __future__ import annotations

import math
import re

import pytest

from tinyformer.common.errors import SettingError
from tinyformer.common.settings import check_effects
from tinyformer.training.config import SCHEDULES, TrainingConfig


def factors(schedule: str, steps: int = 12, warmup: int = 4, learning_rate: float = 1e-2) -> list[float]:
    config = TrainingConfig(
        steps=steps, warmup=warmup, schedule=schedule, learning_rate=learning_rate, min_learning_rate=learning_rate / 10
    )
    chosen = config.make_schedule()
    return [chosen(i) for i in range(steps + 3)]


def test_schedules_by_name() -> None:
    rising = [0.2, 0.4, 0.6, 0.8]
    assert factors("constant") == pytest.approx([*rising, *[1.0] * 11])
    assert factors("linear") == pytest.approx([*rising, *[1 - 0.9 * i / 8 for i in range(9)], 0.1, 0.1])
    cosine = [0.1 + 0.45 * (1 + math.cos(math.pi * i / 8)) for i in range(9)]
    assert factors("cosine") == pytest.approx([*rising, *cosine, 0.1, 0.1])
    assert len({tuple(factors(name)) for name in SCHEDULES}) == len(SCHEDULES) == 4


@pytest.mark.parametrize("warmup", [1, 4, 100])
def test_noam_reaches_1_at_the_end_of_the_warm_up_and_falls_as_the_root(warmup: int) -> None:
    scales = factors("noam", steps=16 * warmup, warmup=warmup)
    assert scales.index(max(scales)) == warmup - 1
    assert scales[warmup - 1] == pytest.approx(1.0)
    assert scales[:warmup] == pytest.approx([s / warmup for s in range(1, warmup + 1)])
    assert [scales[4 * warmup - 1], scales[16 * warmup - 1]] == pytest.approx([1 / 2, 1 / 4])


def test_noam_without_warm_up_and_a_rate_of_0() -> None:
    assert factors("noam", warmup=0)[:4] == pytest.approx([1, 2**-0.5, 3**-0.5, 1 / 2])
    for name in SCHEDULES:
        assert all(0 <= factor <= 1 for factor in factors(name, learning_rate=0.0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": -1}, "batch_size must be at least 1, got -1"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be at least 1, got 0"),
        ({"eval_every": 0}, "eval_every must be at least 1, got 0"),
        ({"log_every": 0}, "log_every must be at least 1, got 0"),
        ({"learning_rate": -1e-3}, "learning_rate must be at least 0, got -0.001"),
        ({"learning_rate": math.nan}, "learning_rate must be a finite number, got nan"),
        ({"min_learning_rate": math.inf}, "min_learning_rate must be a finite number, got inf"),
        ({"warmup": -1}, "warmup must be at least 0, got -1"),
        ({"weight_decay": -0.1}, "weight_decay must be at least 0, got -0.1"),
        ({"clip": -1.0}, "clip must be at least 0, got -1.0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"shards": -1}, "shards must be at least 0, got -1"),
        ({"average": 0}, "average must be at least 1, got 0"),
        ({"schedule": "step"}, "schedule must be one of cosine, linear, constant, noam, got 'step'"),
        ({"beta1": 1.0}, "beta1 must be at least 0 and less than 1, got 1.0"),
        ({"beta2": math.nan}, "beta2 must be a finite number, got nan"),
        ({"steps": 2.0}, "steps must be an integer, got 2.0"),
        ({"steps": "20"}, "steps must be an integer, got '20'"),
        ({"batch_size": True}, "batch_size must be an integer, got True"),
        pytest.param({"learning_rate": 10**400}, "learning_rate must be a finite number, got 1000", id="huge"),
        ({"dtype": None}, "dtype must be text, got None"),
        ({"steps": 10**400}, "steps must be at most 1,000,000,000,000,000"),
        ({"shards": 1025}, "shards must be at most 1024, as each is a thread, got 1025"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, float], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        TrainingConfig(**settings)
    assert str(caught.value).startswith(message)
    (name,) = settings
    assert caught.value.names == (name,)


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        ({"steps": 50, "warmup": 50}, ["schedule"], "schedule has no effect, as warmup, 50, is not below steps, 50: choose a"),
        ({"steps": 50}, ["min_learning_rate"], "min_learning_rate has no effect, as warmup, 100, is not below steps, 50"),
        ({"shards": 13}, ["shards"], "a batch of 12 sequences cannot be cut into 13 shards: choose a smaller shards"),
    ],
)
def test_what_changes_nothing_is_refused_where_it_was_asked_for(settings, given, message):
    check_effects(TrainingConfig(**settings), ["steps"])
    with pytest.raises(SettingError, match=re.escape(message)):
        check_effects(TrainingConfig(**settings), given)
