"""Questions about attention: the numbers are those of recording_attention, and memory stays bounded."""

from __future__ import annotations

import base64
import gc
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import RUNS, gpt_run

import tinytensor as tt
from tinyformer import attention_rollout, recording_attention
from tinyformer.common.errors import UserError
from tinyformer.explore.views import attending
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.blocks import Block
from tinyformer.training.checkpoints import save_checkpoint

SOURCE = "The lazy dog"


@pytest.mark.parametrize(
    ("kind", "text", "special", "of_source"),
    [
        ("masked", "the [MASK] fox", [0, 4], []),
        ("masked", "the [PAD] fox", [0, 2, 4], []),
        ("gpt", "the\n", [], []),
        ("recurrent", "the", [], []),
        ("transformer", "the", [0], [3]),
        ("attention", "the", [0], [3]),
    ],
)
def test_which_tokens_stand_for_no_text(
    subjects: dict[str, Subjects], kind: str, text: str, special: list[int], of_source: list[int]
) -> None:
    mine = subjects[kind]
    found = ask(mine, "attention", {"passage": passage(mine, text, "fox" if of_source else "")})
    assert (found["special"], found["source_special"]) == (special, of_source)


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subjects]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: Subjects([make(folder / name)]) for name, make in RUNS.items()}


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> attending.Kept:
    """Nothing is kept from another test."""
    mine = attending.Kept(attending.MOST_KEPT)
    monkeypatch.setattr(attending, "_kept", mine)
    return mine


def passage(subjects: Subjects, text: str = "the quick fox", source: str = "") -> dict[str, Any]:
    model = subjects.names[0]
    ids = ask(subjects, "encode", {"model": model, "text": text})["ids"]
    read = ask(subjects, "encode", {"model": model, "text": source, "source": True})["ids"] if source else []
    return {"model": model, "ids": ids, "source": read}


def rows(
    subjects: Subjects, about: dict[str, Any], layer: str, head: int | str, first: int = 0, count: int = 99, **keys: int
) -> Any:
    asked = {"passage": about, "layer": layer, "head": head, "first": first, "count": count, **keys}
    return np.array(ask(subjects, "attention_rows", asked)["weights"])


def recorded(subjects: Subjects, about: dict[str, Any]) -> dict[str, Any]:
    """The library's own weights (batch, heads, queries, keys) by layer."""
    model = subjects.get(about["model"]).model
    texts = [about["source"], about["ids"]] if about["source"] else [about["ids"]]
    with recording_attention(model) as found:
        model(*(tt.tensor([text]) for text in texts))
    return {name: tt.concatenate(calls, -2) for name, calls in found.items()}


@pytest.mark.parametrize("most", [attending.MOST_KEPT, 0])
@pytest.mark.parametrize("name", ["gpt", "transformer", "attention", "masked"])
def test_the_numbers_are_those_of_recording_attention(
    subjects: dict[str, Subjects], name: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only one layer's may be kept at a time."""
    monkeypatch.setattr(attending, "MOST_KEPT", most)
    monkeypatch.setattr(attending, "_kept", attending.Kept(most))
    mine = subjects[name]
    about = passage(mine, "the fox jumps over", SOURCE if name in ("transformer", "attention") else "")
    answer = ask(mine, "attention", {"passage": about})
    expected = recorded(mine, about)
    assert [layer["name"] for layer in answer["layers"]] == list(expected)
    for layer in answer["layers"]:
        weights = expected[layer["name"]][0].numpy()
        assert layer["heads"] == len(weights) == len(layer["maps"])
        for head in range(layer["heads"]):
            np.testing.assert_array_equal(rows(mine, about, layer["name"], head), weights[head])
        part = rows(mine, about, layer["name"], "mean", first=1, count=2, first_key=1, keys=3)
        np.testing.assert_allclose(part, weights.mean(0)[1:3, 1:4], rtol=1e-6)
    stacks = {}
    for layer in answer["layers"]:
        if layer["kind"] == "self":
            stacks.setdefault(layer["keys"], []).append(layer["name"])
    for names in stacks.values():
        for one, through in zip(names, attention_rollout([expected[each] for each in names])):
            np.testing.assert_allclose(rows(mine, about, one, "rollout"), through[0].numpy(), rtol=1e-5, atol=1e-7)


def test_the_layers_list_queries_and_keys(subjects: dict[str, Subjects]) -> None:
    def told(name: str, source: str = "") -> list[tuple[Any, ...]]:
        answer = ask(subjects[name], "attention", {"passage": passage(subjects[name], "the fox", source)})
        return [(x["kind"], x["queries"], x["keys"], x["causal"], x["heads"]) for x in answer["layers"]]

    assert told("gpt") == [("self", "text", "text", True, 2)] * 2
    assert told("masked") == [("self", "text", "text", False, 2)] * 2
    cross = ("cross", "target", "source", False, 2)
    encoder, decoder = ("self", "source", "source", False, 2), ("self", "target", "target", True, 2)
    assert told("transformer", SOURCE) == [encoder, encoder, decoder, cross, decoder, cross]
    assert told("attention", SOURCE) == [(*cross[:-1], 1)]
    assert told("recurrent") == []
    assert told("context", SOURCE) == []


def test_later_tokens_have_exactly_no_weight(subjects: dict[str, Subjects]) -> None:
    about = passage(subjects["gpt"])
    for head in (0, "mean", "rollout"):
        weights = rows(subjects["gpt"], about, "blocks.1.attention", head)
        assert not np.triu(weights, 1).any()
        np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)


def test_a_small_map_shows_the_largest_weight_of_each_patch(subjects: dict[str, Subjects]) -> None:
    mine = subjects["transformer"]
    about = passage(mine, "the quick", "the quick brown fox jumps over the lazy")
    queries, keys = len(about["ids"]), len(about["source"])
    assert queries < attending.SIDE < keys
    (layer,) = (
        x for x in ask(mine, "attention", {"passage": about})["layers"] if x["name"] == "decoder.blocks.1.cross_attention"
    )
    assert (layer["rows"], layer["columns"]) == (queries, attending.SIDE)
    shown = np.frombuffer(base64.b64decode(layer["maps"][1]), np.uint8).reshape(queries, attending.SIDE)
    weights = recorded(mine, about)[layer["name"]][0, 1].numpy()
    edges = [i * keys // attending.SIDE for i in range(attending.SIDE + 1)]
    expected = np.stack([weights[:, a:b].max(1) for a, b in zip(edges, edges[1:])], 1)
    np.testing.assert_array_equal(shown, np.rint(255 * expected))


def test_a_gpt_sees_the_last_tokens(subjects: dict[str, Subjects]) -> None:
    mine = subjects["gpt"]
    about = passage(mine, "the quick brown fox jumps over the lazy dog")
    answer = ask(mine, "attention", {"passage": about})
    assert answer["first"] == len(about["ids"]) - 32 > 0
    seen = recorded(mine, {**about, "ids": about["ids"][-32:]})["blocks.0.attention"]
    np.testing.assert_array_equal(rows(mine, about, "blocks.0.attention", 1), seen[0, 1].numpy())


@pytest.mark.parametrize("name", ["masked", "transformer"])
def test_other_models_refuse_longer_texts(subjects: dict[str, Subjects], name: str) -> None:
    mine = subjects[name]
    about = passage(mine, "the " * 60, SOURCE if name == "transformer" else "")
    longest = mine.get("best").longest
    with pytest.raises(UserError, match=f"tokens, more than the {longest} that this model reads"):
        ask(mine, "attention", {"passage": about})


def test_padding_is_reported(subjects: dict[str, Subjects]) -> None:
    mine = subjects["masked"]
    about = passage(mine, "the [PAD] fox")
    assert ask(mine, "attention", {"passage": about})["unseen"] == [2]
    assert not rows(mine, about, "bert.encoder.blocks.0.attention", 0)[:, 2].any()
    assert ask(subjects["gpt"], "attention", {"passage": passage(subjects["gpt"])})["unseen"] == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"layer": "blocks.7.attention"}, "no attention layer"),
        ({"head": 2}, "head must be from 0 to 1"),
        ({"head": -1}, "head must be from 0 to 1"),
        ({"head": "median"}, '"mean" or "rollout"'),
        ({"first": 13}, "of 13 queries and"),
        ({"first": -1}, "at least 0"),
        ({"count": 0}, "at least 1"),
        ({"first_key": 13}, "13 keys"),
        ({"keys": 0}, "at least 1"),
    ],
)
def test_what_is_not_there_is_refused(subjects: dict[str, Subjects], wrong: dict[str, Any], message: str) -> None:
    asked = {"layer": "blocks.0.attention", "head": 0, "first": 0, "count": 1, **wrong}
    with pytest.raises(UserError, match=message):
        ask(subjects["gpt"], "attention_rows", {"passage": passage(subjects["gpt"]), **asked})


def test_a_rollout_needs_one_text(subjects: dict[str, Subjects]) -> None:
    with pytest.raises(UserError, match="rollout is for layers of self-attention"):
        rows(subjects["attention"], passage(subjects["attention"], "the", SOURCE), "cross_attention", "rollout")


def test_the_size_of_a_response_is_limited(subjects: dict[str, Subjects], monkeypatch: pytest.MonkeyPatch) -> None:
    about = passage(subjects["gpt"])
    monkeypatch.setattr(attending, "MOST_NUMBERS", 30)
    assert rows(subjects["gpt"], about, "blocks.0.attention", 0, count=10, keys=3).shape == (10, 3)
    with pytest.raises(UserError, match="more than 30 numbers"):
        rows(subjects["gpt"], about, "blocks.0.attention", 0, count=11, keys=3)


def test_a_layer_of_too_many_bytes_is_refused(subjects: dict[str, Subjects], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attending, "LARGEST", 2 * 13 * 13 * 4)
    ask(subjects["gpt"], "attention", {"passage": passage(subjects["gpt"])})
    with pytest.raises(UserError, match="shorten the text"):
        ask(subjects["gpt"], "attention", {"passage": passage(subjects["gpt"], "the quick fox.")})


@pytest.mark.parametrize("name", ["gpt", "masked"])
def test_one_pass_answers_all_questions_about_a_passage(subjects: dict[str, Subjects], kept: attending.Kept, name: str) -> None:
    passes: list[int] = []
    mine, each = subjects[name], 2 if name == "gpt" else 1  # a GPT's block runs once more, alone, for its weights
    block: Any = next(module for module in mine.get("best").model.modules() if isinstance(module, Block))
    about = passage(mine, "lazy fox over the dog")
    with block.register_forward_hook(lambda *shown: passes.append(1)):
        for _ in range(2):
            for layer in ask(mine, "attention", {"passage": about})["layers"]:
                for head in (0, 1, "mean", "rollout"):
                    rows(mine, about, layer["name"], head)
        assert len(passes) == each
        rows(mine, passage(mine, "another fox"), layer["name"], 0)
    assert len(passes) == 2 * each
    assert kept.num_bytes < 64 * 2**10


def test_changed_weights_are_another_model(tmp_path: Path) -> None:
    path = gpt_run(tmp_path / "run")
    mine = Subjects([path])
    about = passage(mine)
    before = rows(mine, about, "blocks.0.attention", 0)
    old = weakref.ref(mine.get("best").model)
    state = {name: tensor * 2 for name, tensor in mine.get("best").model.state_dict().items()}
    save_checkpoint(path / "best.safetensors", {"model": state}, {"kind": "best", "step": 1})
    after = rows(mine, about, "blocks.0.attention", 0)
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, recorded(mine, about)["blocks.0.attention"][0, 0].numpy())
    gc.collect()
    assert old() is None  # the cache does not keep it alive


def test_weights_that_are_no_numbers_are_not_shown_as_zeros(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "gpt")])
    weight = subjects.get("best").model.token_embedding.weight
    weight.assign(weight * np.nan)
    with pytest.raises(UserError, match="NaN or infinite"):
        ask(subjects, "attention", {"passage": passage(subjects)})
