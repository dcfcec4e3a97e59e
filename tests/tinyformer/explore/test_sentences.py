"""The question about sentences: their map, and which are nearest to each."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import gpt_run, sentence_folder

from tinyformer import UserError, sentence_encoder
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.word_vectors.components import principal_components

WORDS = ["the", "fox", "dog", "jumps", "over", "lazy", "quick"]
SENTENCES = [f"the {a} {b}" for a in WORDS for b in WORDS][:40]  # more than are computed at once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sentence_folder(tmp_path_factory.mktemp("models") / "sentences")


@pytest.fixture(scope="module")
def subjects(folder: Path) -> Subjects:
    return Subjects([folder])


def answer(subjects: Subjects, *sentences: str) -> Any:
    return json.loads(
        json.dumps(ask(subjects, "sentences", {"model": subjects.names[0], "sentences": list(sentences)}), allow_nan=False)
    )


def test_the_nearest_are_those_of_the_encoder(subjects: Subjects, folder: Path) -> None:
    found = answer(subjects, *SENTENCES)
    vectors = sentence_encoder(folder).encode(SENTENCES).astype(float)
    cosines = vectors @ vectors.T
    assert len(found["nearest"]) == len(SENTENCES) == 40
    for i, nearest in enumerate(found["nearest"]):
        places, values = [one["sentence"] for one in nearest], [one["cosine"] for one in nearest]
        others = np.delete(cosines[i], i)
        np.testing.assert_allclose(values, np.sort(others)[::-1][:5], atol=1e-6)
        np.testing.assert_allclose(values, cosines[i, places], atol=1e-6)
        assert i not in places
    points, explained = principal_components(vectors, 2)
    told = np.frombuffer(base64.b64decode(found["coordinates"]), "<f4").reshape(-1, 2)
    np.testing.assert_allclose(told, points, atol=1e-5)
    np.testing.assert_allclose(found["explained"], explained, atol=1e-6)
    assert found["width"] == 8


@pytest.mark.parametrize("sentences", [["the fox"], ["the fox", "the fox"], ["", "fox"]])
def test_few_sentences(subjects: Subjects, sentences: list[str]) -> None:
    found = answer(subjects, *sentences)
    assert [[one["sentence"] for one in nearest] for nearest in found["nearest"]] == (
        [[]] if len(sentences) == 1 else [[1], [0]]
    )


def test_not_a_valid_question(subjects: Subjects, folder: Path, tmp_path: Path) -> None:
    for count, told in ((0, "0"), (201, "201")):
        with pytest.raises(UserError, match=f"the map shows 1 to 200 sentences, not {told}"):
            answer(subjects, *["fox"] * count)
    with pytest.raises(UserError, match=r"this is no model of sentences: its folder has no modules\.json"):
        answer(Subjects([gpt_run(tmp_path / "gpt")]), "fox")
    assert subjects.get(subjects.names[0]).facts()["sentences"] is True


def test_modules_that_cannot_be_used_leave_the_model_open(tmp_path: Path) -> None:
    folder = sentence_folder(tmp_path / "odd")
    (folder / "modules.json").write_text('[{"path": "", "type": "SpladePooling"}]')
    subjects = Subjects([folder])
    assert subjects.get("pretrained").kind == "encoder"
    with pytest.raises(UserError, match=r"modules\.json must list Transformer and Pooling, .*, got SpladePooling"):
        answer(subjects, "fox")
