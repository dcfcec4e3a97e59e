"""Caches of models."""

from __future__ import annotations

import gc

import pytest

from tinyformer.explore.views.reading import Kept


class Model:
    pass


def test_finished_parts_are_not_repeated() -> None:
    kept, model, made = Kept(100), Model(), []
    for _ in range(2):
        assert kept.get(model, "a", lambda: made.append(1) or len(made), lambda _: 10) == 1
    assert kept.get(Model(), "a", lambda: "of another model", lambda _: 10) == "of another model"


def test_the_one_that_was_asked_for_least_lately_goes_first() -> None:
    kept, model = Kept(100), Model()
    for key in "ab":
        kept.get(model, key, lambda: 0, lambda _: 50)
    kept.get(model, "a", lambda: 1, lambda _: 50)
    kept.get(model, "c", lambda: 0, lambda _: 50)
    assert kept.num_bytes == 100
    assert kept.get(model, "a", lambda: "made again", lambda _: 50) == 0
    assert kept.get(model, "b", lambda: "made again", lambda _: 50) == "made again"


def test_the_newest_stays_even_if_it_is_too_large() -> None:
    kept, model = Kept(100), Model()
    kept.get(model, "small", lambda: 0, lambda _: 50)
    kept.get(model, "large", lambda: 0, lambda _: 500)
    assert len(kept) == 1
    assert kept.get(model, "large", lambda: "made again", lambda _: 500) == 0


def test_nothing_is_kept_of_a_model_that_is_gone() -> None:
    kept, model = Kept(100), Model()
    kept.get(model, "a", lambda: 0, lambda _: 10)
    del model
    gc.collect()
    other = Model()
    kept.get(other, "b", lambda: 0, lambda _: 10)
    assert len(kept) == 1


def test_an_answer_may_be_none() -> None:
    kept, model = Kept(100), Model()
    for value in (None, "made again"):
        assert kept.get(model, "a", lambda value=value: value, lambda _: 10) is None


def test_what_cannot_be_made_is_not_kept() -> None:
    kept, model = Kept(100), Model()
    with pytest.raises(ZeroDivisionError):
        kept.get(model, "a", lambda: 1 // 0, lambda _: 10)
    assert kept.get(model, "a", lambda: 1, lambda _: 10) == 1
