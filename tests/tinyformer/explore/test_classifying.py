"""The question "classes": its numbers are those of the model's own forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import gpt_run
from heads import HEADS, head_folder

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.evaluating import evaluating

TEXT = "the quick fox jumps"


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subjects]:
    folder = tmp_path_factory.mktemp("heads")
    return {name: Subjects([head_folder(folder / name, name)]) for name in HEADS}


def passage(subjects: Subjects, text: str = TEXT) -> dict[str, Any]:
    model = subjects.names[0]
    return {"model": model, "ids": ask(subjects, "encode", {"model": model, "text": text})["ids"]}


def softmax(logits: Any, axis: int) -> Any:
    weights = np.exp(logits - logits.max(axis, keepdims=True))
    return weights / weights.sum(axis, keepdims=True)


@pytest.mark.parametrize(
    ("name", "of", "labels"),
    [
        ("texts", "text", ["sad", "glad", "<b>neither"]),
        ("sentences", "text", ["next", "random"]),
        ("tokens", "tokens", ["none", "name", "place"]),
        ("answers", "places", ["start", "end"]),
    ],
)
def test_the_probabilities_are_the_models(subjects: dict[str, Subjects], name: str, of: str, labels: list[str]) -> None:
    mine = subjects[name]
    asked = passage(mine)
    found = ask(mine, "classes", {"passage": asked})
    assert (found["of"], found["labels"], found["value"]) == (of, labels, None)
    model = mine.get("pretrained").model
    with tt.no_grad(), evaluating(model):
        logits = model(tt.tensor([asked["ids"]])).numpy()[0].astype(float)
    expected = softmax(logits, 0).T if of == "places" else softmax(logits, -1).T
    np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-6)
    assert ask(mine, "facts", {"model": "pretrained"})["labels"] == labels


def test_what_follows_the_first_end_is_the_second_segment(subjects: dict[str, Subjects]) -> None:
    mine = subjects["answers"]
    asked = passage(mine, "the quick [SEP] fox")
    model = mine.get("pretrained").model
    with tt.no_grad(), evaluating(model):
        one, two = (model(tt.tensor([asked["ids"]]), tt.tensor([ids])).numpy()[0] for ids in ([0] * 6, [0, 0, 0, 0, 1, 1]))
    found = ask(mine, "classes", {"passage": asked})["probabilities"]
    np.testing.assert_allclose(found, softmax(two.astype(float), 0).T, rtol=1e-6)
    assert found != pytest.approx(softmax(one.astype(float), 0).T, rel=1e-3)


def test_a_model_with_one_class_gives_a_number(subjects: dict[str, Subjects]) -> None:
    mine = subjects["number"]
    asked = passage(mine)
    model = mine.get("pretrained").model
    with tt.no_grad(), evaluating(model):
        expected = model(tt.tensor([asked["ids"]])).item()
    assert ask(mine, "classes", {"passage": asked})["value"] == pytest.approx(expected, rel=1e-6)


def test_what_has_no_classes_is_refused(subjects: dict[str, Subjects], tmp_path: Path) -> None:
    for mine in (subjects["vectors"], Subjects([gpt_run(tmp_path / "run")])):
        assert ask(mine, "facts", {"model": mine.names[0]})["labels"] is None
        with pytest.raises(UserError, match="tells no classes"):
            ask(mine, "classes", {"passage": passage(mine)})


def test_a_text_that_is_too_long_is_refused(subjects: dict[str, Subjects]) -> None:
    mine = subjects["texts"]
    with pytest.raises(UserError, match="has 25 tokens, more than the 24"):
        ask(mine, "classes", {"passage": {"model": "pretrained", "ids": [5] * 25}})
