"""A model's heads are named by their attention weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import RUNS, gpt_run

import tinytensor as tt
from tinyformer.explore.views import attending, naming
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.attention import recording_attention
from tinyformer.models.named_heads import KINDS, head_scores, names_of, repeated_tokens

NAMES = [kind.name for kind in KINDS]


def asked(subjects: Subjects, name: str, **fields: Any) -> Any:
    return json.loads(json.dumps(ask(subjects, name, fields), allow_nan=False))


def as_told(scores: Any) -> list[list[Any]]:
    return [[None if np.isnan(score) else pytest.approx(score, abs=1e-5) for score in of_head] for of_head in scores]


def test_names_are_those_of_random_tokens_after_the_start(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False)])
    subject = subjects.get("best")
    found = asked(subjects, "head_names", model="best")
    usual = [i for i in range(subject.tokenizer.vocab_size) if i != subject.start[0]]
    ids = np.concatenate([np.full((4, 1), subject.start[0]), repeated_tokens(usual, 31, 4)], 1)
    assert found["texts"] == 4 and found["tokens"] == ids.shape[1] == 31
    with recording_attention(subject.model) as recorded:
        subject.model(tt.tensor(ids))
    assert [layer["name"] for layer in found["layers"]] == list(recorded)
    for layer in found["layers"]:
        scores, distances = head_scores(recorded[layer["name"]][0].numpy(), ids, causal=True)
        assert [head["scores"] for head in layer["heads"]] == as_told(scores)
        assert [head["names"] for head in layer["heads"]] == [names_of(of_head) for of_head in scores]
        assert [head["distance"] for head in layer["heads"]] == distances.tolist()
    assert [kind["name"] for kind in found["kinds"]] == NAMES
    assert found["kinds"][0]["lens_name"] == "induction_head" and found["kinds"][0]["threshold"] == 0.4


def test_a_previous_token_head_is_named(tmp_path: Path) -> None:
    """Rotary positions alone: queries and keys that are the same for all tokens, turned so that one place before is best."""
    settings = {"positions": "rotary", "num_heads": 1, "d_model": 8, "num_layers": 1, "query_key_value_bias": True}
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False, **settings)])
    attention = subjects.get("best").model.blocks[0].attention
    weight, bias = np.zeros(attention.query_key_value.weight.shape), np.zeros(attention.query_key_value.bias.shape)
    half = attention.d_head // 2
    query, key = np.zeros(8), np.zeros(8)
    key[0] = 60.0
    query[0], query[half] = 60.0 * np.cos(1.0), -60.0 * np.sin(1.0)
    bias[:8], bias[8:16] = query, key
    attention.query_key_value.weight.assign(tt.tensor(weight.astype(np.float32)))
    for sign in (1, -1):  # whichever way the library turns
        bias[half] = sign * query[half]
        attention.query_key_value.bias.assign(tt.tensor(bias.astype(np.float32)))
        head = asked_again(subjects)["layers"][0]["heads"][0]
        if "previous token" in head["names"]:
            assert head["names"] == ["previous token", "positional"] and head["distance"] == 1
            return
    raise AssertionError(head)


def asked_again(subjects: Subjects) -> Any:
    naming._kept._entries.clear()
    return asked(subjects, "head_names", model="best")


@pytest.mark.parametrize("kind", ["gpt", "masked", "transformer"])
def test_scores_of_a_text_are_those_of_its_weights(tmp_path: Path, kind: str) -> None:
    subjects = Subjects([RUNS[kind](tmp_path / "run")])
    subject = subjects.get(subjects.names[0])
    ids, source = [4, 5, 6, 4, 5, 7], ([5, 6, 5, 8] if kind == "transformer" else [])
    passage = {"model": subjects.names[0], "ids": ids, "source": source}
    found = asked(subjects, "text_scores", passage=passage)
    with recording_attention(subject.model) as recorded:
        subject.model(*(tt.tensor([x]) for x in (source, ids) if x))
    names = [name for name in recorded if "cross" not in name]
    assert [layer["name"] for layer in found["layers"]] == names
    for layer in found["layers"]:
        is_source = layer["name"].startswith("encoder") and kind == "transformer"
        causal = kind == "gpt" or layer["name"].startswith("decoder")
        scores, _ = head_scores(recorded[layer["name"]][0].numpy(), [source if is_source else ids], causal)
        assert [head["scores"] for head in layer["heads"]] == as_told(scores)
        assert (layer["heads"][0]["scores"][NAMES.index("induction")] is None) == (not causal)


def test_a_long_text_is_scored_layer_by_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = Subjects([RUNS["gpt"](tmp_path / "run")])
    passage = {"model": "best", "ids": [4, 5, 6, 4, 5, 7]}
    first = asked(subjects, "text_scores", passage=passage)
    monkeypatch.setattr(attending, "MOST_KEPT", 10)
    attending._kept._entries.clear()
    assert asked(subjects, "text_scores", passage=passage) == first


@pytest.mark.parametrize("kind", RUNS)
def test_every_kind_of_model_is_answered(tmp_path: Path, kind: str) -> None:
    subjects = Subjects([RUNS[kind](tmp_path / "run")])
    found = asked(subjects, "head_names", model=subjects.names[0])
    expected = {"gpt": 2, "masked": 2, "transformer": 4}.get(kind, 0)
    assert len(found["layers"]) == expected
    if kind == "masked":
        assert found["layers"][0]["heads"][0]["scores"][NAMES.index("induction")] is None


def test_a_model_without_room_for_a_repetition_has_no_names(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False, block_size=4)])
    found = asked(subjects, "head_names", model="best")
    assert found["layers"] == [] and found["tokens"] == 0
