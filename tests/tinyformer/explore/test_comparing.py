"""Comparing two models: their next token, and the loss of each token of a text, against the library's own functions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import TEXT, gpt_run, masked_run, recurrent_run, translation_run

import tinytensor as tt
from tinyformer import CharTokenizer, UserError, perplexity, token_losses
from tinyformer.explore.views import comparing
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects

LONG = "The quick brown fox jumps over the lazy dog.\n" * 5


def lines(subjects: Subjects, model: str, text: str, **more: Any) -> list[Any]:
    return list(ask(subjects, "losses", {"model": model, "text": text, **more}))


def joined(answers: list[Any], key: str) -> list[Any]:
    return [value for answer in answers for value in answer[key]]


def check(answers: list[Any], expected: Any, text: str) -> None:
    """The lines have these losses, and means that fit."""
    np.testing.assert_array_equal(joined(answers, "losses"), expected)
    done = np.cumsum([len(answer["losses"]) for answer in answers])
    assert [answer["done"] for answer in answers] == done.tolist()
    assert {answer["tokens"] for answer in answers} == {len(expected)}
    for answer in answers:
        assert answer["mean"] == pytest.approx(expected[: answer["done"]].mean())
        assert answer["perplexity"] == pytest.approx(perplexity(answer["mean"]))
    bits = [answer["bits_per_character"] for answer in answers]
    assert bits[:-1] == [None] * (len(answers) - 1)
    assert bits[-1] == pytest.approx(expected.sum() / math.log(2) / len(text))


@pytest.mark.parametrize("make", [gpt_run, recurrent_run])
@pytest.mark.parametrize("text", ["f", "the quick", LONG])
@pytest.mark.parametrize("soon", [0.0, 100.0])
def test_the_losses_of_a_language_model(tmp_path: Path, monkeypatch: Any, make: Any, text: str, soon: float) -> None:
    monkeypatch.setattr(comparing, "SOON", soon)
    subjects = Subjects([make(tmp_path / "run")])
    subject = subjects.get("best")
    answers = lines(subjects, "best", text)
    expected = token_losses(subject.model, [*subject.start, *subject.encode(text)])[1:]
    check(answers, expected, text)
    assert "".join(joined(answers, "texts")) == text
    assert answers[0]["uniform"] == math.log(subject.num_tokens)
    assert len(answers) == 1 if soon or len(text) < 30 else len(answers) > 2


@pytest.mark.parametrize("architecture", ["transformer", "lstm", "attention"])
def test_the_losses_of_a_translation(tmp_path: Path, architecture: str) -> None:
    subjects = Subjects([translation_run(tmp_path / "run", architecture)])
    subject = subjects.get("best")
    answers = lines(subjects, "best", "dog", source="the lazy")
    ids = [*subject.encode("dog"), *subject.ends]
    check(answers, token_losses(subject.model, ids, subject.encode("the lazy", source=True))[1:], "dog")
    assert joined(answers, "texts")[:3] == list("dog") and answers[-1]["tokens"] == 4
    with pytest.raises(UserError, match="the sentence is empty"):
        lines(subjects, "best", "dog")
    assert lines(subjects, "best", "d" * 40, source="fox")[-1]["tokens"] == 41
    with pytest.raises(UserError, match="more than the 41"):
        lines(subjects, "best", "d" * 41, source="fox")


def test_the_pseudo_log_likelihood_of_a_bert(tmp_path: Path) -> None:
    subjects = Subjects([masked_run(tmp_path / "run")])
    subject = subjects.get("best")
    text = "the lazy dog jumps"
    answers = lines(subjects, "best", text)
    check(answers, token_losses(subject.model, subject.encode(text), mask=subject.mask)[1:-1], text)
    assert joined(answers, "texts") == ["the", "lazy", "dog", "jump", "##s"]
    with pytest.raises(UserError, match="more than the 24"):
        lines(subjects, "best", "dog " * 23)


def test_texts_that_have_no_losses(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run")])
    for text, message in (("", "empty"), ("ñ", "ñ"), ("x" * 200_001, "200,001 characters")):
        with pytest.raises(UserError, match=message):
            lines(subjects, "best", text)
    with pytest.raises(UserError, match="no model 'other'"):
        lines(subjects, "other", "fox")
    model = subjects.get("best").model
    next(model.parameters()).assign(next(model.parameters()) * math.nan)
    with pytest.raises(UserError, match="not finite"):
        lines(subjects, "best", "fox")


def test_other_questions_are_answered_while_losses_are_computed(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(comparing, "SOON", 0.0)
    subjects = Subjects([gpt_run(tmp_path / "run")])
    answers = ask(subjects, "losses", {"model": "best", "text": LONG})
    first = next(answers)  # type: ignore[arg-type]
    assert first["done"] < first["tokens"]
    passage = {"model": "best", "ids": [1, 2, 3], "source": []}
    found = ask(subjects, "divergence", {"a": passage, "b": passage})
    assert found["alike"] and found["a_to_b"] == 0.0  # type: ignore[index]
    assert tt.tensor(1.0, requires_grad=True).tanh().requires_grad  # gradients are recorded in between


def passage_of(subjects: Subjects, model: str, text: str, source: str = "") -> dict[str, Any]:
    subject = subjects.get(model)
    return {"model": model, "ids": subject.encode(text), "source": subject.encode(source, source=True) if source else []}


def both(subjects: Subjects, text: str, source: str = "", names: tuple[str, str] | None = None) -> Any:
    names = names or (subjects.names[0], subjects.names[1])
    a, b = (passage_of(subjects, name, text, source) for name in names)
    return ask(subjects, "divergence", {"a": a, "b": b})


def probabilities_of(subjects: Subjects, model: str, text: str) -> Any:
    subject = subjects.get(model)
    with tt.no_grad():
        logits = subject.model(tt.tensor([subject.encode(text)]))
    logits = logits[0] if isinstance(logits, tuple) else logits
    return logits[0, -1].softmax().numpy().astype("float64")


def test_the_next_token_of_two_checkpoints(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run")])
    found = both(subjects, "the qu")
    p, q = (probabilities_of(subjects, name, "the qu") for name in ("best", "latest"))
    assert found["alike"]
    assert found["a_to_b"] == pytest.approx((p * np.log(p / q)).sum(), rel=1e-4) and found["a_to_b"] > 0.01
    assert found["b_to_a"] == pytest.approx((q * np.log(q / p)).sum(), rel=1e-4)
    ids = [token["id"] for token in found["tokens"]]
    assert set(ids) == {*p.argsort()[-10:].tolist(), *q.argsort()[-10:].tolist()} and len(ids) > 10
    np.testing.assert_allclose([token["a"] for token in found["tokens"]], p[ids], rtol=1e-4)
    np.testing.assert_allclose([token["b"] for token in found["tokens"]], q[ids], rtol=1e-4)
    assert (np.diff((p + q)[ids]) <= 0).all()
    assert found["tokens"][0]["text"] == CharTokenizer.train(TEXT).decode(ids[:1])
    assert [token["probability"] for token in found["a"]["best"]] == pytest.approx(np.sort(p)[::-1][:10], rel=1e-4)


def test_a_gpt_and_a_recurrent_network_with_the_same_tokens(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "gpt", latest=False), recurrent_run(tmp_path / "lstm")])
    found = both(subjects, "fox")
    p, q = (probabilities_of(subjects, name, "fox") for name in subjects.names)
    assert found["alike"] and found["a_to_b"] == pytest.approx((p * np.log(p / q)).sum(), rel=1e-4)


def test_models_with_different_tokens(tmp_path: Path, monkeypatch: Any) -> None:
    import explored

    gpt_run(tmp_path / "gpt", latest=False)
    monkeypatch.setattr(explored, "TEXT", TEXT.replace("q", "Q"))
    recurrent_run(tmp_path / "lstm")
    subjects = Subjects([tmp_path / "gpt", tmp_path / "lstm"])
    found = both(subjects, "fox")
    assert not found["alike"] and found["tokens"] is None and found["a_to_b"] is None
    assert len(found["a"]["best"]) == len(found["b"]["best"]) == 10


def test_the_next_token_of_translations_and_the_masked_one(tmp_path: Path) -> None:
    subjects = Subjects([translation_run(tmp_path / "a"), translation_run(tmp_path / "b", "attention")])
    found = both(subjects, "do", "the lazy")
    assert found["alike"] and found["a_to_b"] > 0 and len(found["tokens"]) >= 10
    subjects = Subjects([masked_run(tmp_path / "masked")])
    names = ("best", "best")
    assert both(subjects, "the [MASK] dog", names=names)["a_to_b"] == 0.0
    with pytest.raises(UserError, match="there is no mask in the text"):
        both(subjects, "the dog", names=names)
