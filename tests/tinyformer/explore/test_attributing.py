"""Who wrote this token: the shares of a logit are what the parts add to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import RUNS, gpt_run

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.explore.views import reading
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.attention import recording_attention
from tinyformer.models.attribution import logit_shares, pass_over, sub_layers
from tinyformer.models.evaluating import evaluating
from tinytensor.nn.hooks import hooked

SHAPES: dict[str, dict[str, Any]] = {
    "learned": {},
    "biases": {"bias": True, "norm_eps": 0.1},
    "llama": {"norm": "rms", "positions": "rotary", "tie_output": False, "activation": "swiglu", "num_key_value_heads": 1},
    "sinusoidal": {"positions": "sinusoidal", "bias": True, "query_key_norm": True},
    "wide heads": {"d_head": 24, "query_key_value_bias": True},
    "window": {"positions": "rotary", "sliding_window": 5},
}


class Opened:
    """A GPT that is explored, and a passage."""

    def __init__(self, path: Path, text: str = "The quick fox", **settings: Any):
        self.subjects = Subjects([gpt_run(path, latest=False, **settings)])
        self.subject = self.subjects.get("best")
        self.model = self.subject.model
        for parameter in self.model.parameters():  # norms and biases that do something
            parameter.assign(parameter + 0.1 * tt.random.normal(parameter.shape))
        self.ids = self.subject.encode(text)

    def ask(self, place: int, **asked: Any) -> Any:
        passage = {"model": "best", "ids": self.ids}
        return json.loads(json.dumps(ask(self.subjects, "attribution", {"passage": passage, "place": place, **asked})))

    def logits(self) -> np.ndarray:
        with tt.no_grad(), evaluating(self.model):
            return self.model(tt.tensor([self.ids[-32:]])).numpy()[0].astype(np.float64)


@pytest.fixture(params=SHAPES)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    return Opened(tmp_path / "run", **SHAPES[request.param])


def test_the_shares_sum_to_the_models_own_logit(opened: Opened) -> None:
    logits = opened.logits()
    for place in (0, 5, len(opened.ids) - 1):
        found = opened.ask(place, token=7)
        assert found["sum"] == pytest.approx(logits[place, 7], abs=1e-4)
        assert found["logit"] == pytest.approx(logits[place, 7], abs=1e-5)
        assert found["sum"] == pytest.approx(sum(parts_of(found)), abs=1e-9)
        assert abs(found["rest"]) < 1e-5
        both = opened.ask(place, token=7, other="x")
        x = int(opened.subject.encode("x")[0])
        assert both["other"]["id"] == x and both["token"]["id"] == 7
        assert both["sum"] == pytest.approx(logits[place, 7] - logits[place, x], abs=1e-4)
        assert both["logit"] == pytest.approx(logits[place, 7] - logits[place, x], abs=1e-5)


def parts_of(found: Any) -> list[float]:
    """All shares, in order."""
    layers = [share for layer in found["layers"] for share in (*layer["heads"], layer["feed_forward"])]
    return [found["embedding"], found["position"] or 0.0, *layers, found["biases"], found["rest"]]


def test_a_share_is_what_is_missing_without_its_part(opened: Opened) -> None:
    """Taken out of the last stream, with the norm's scale as it was, a part takes its share of the logit with it."""
    model, ids = opened.model, tt.tensor([opened.ids])
    mixed: list[tt.Tensor] = []
    block = model.blocks[0]
    layer = block.attention.output
    with hooked([(block.attention, "heads", lambda module, inputs, heads: mixed.append(heads))]), tt.no_grad():
        model(ids)
    place, head, token = 6, 1, 3
    width = block.attention.d_head
    of_head = slice(head * width, (head + 1) * width)
    part = mixed[0].numpy()[0, place, of_head].astype(float) @ layer.weight.numpy()[:, of_head].T.astype(float)
    streams: list[tt.Tensor] = []
    with hooked([(model.norm, "forward", lambda module, inputs, output: streams.append(inputs[0]))]), tt.no_grad():
        model(ids)
    stream = streams[0].numpy()[0, place].astype(float)
    centred = stream - stream.mean() if model.config.norm == "layer" else stream
    scale = np.sqrt((centred**2).mean() + model.config.norm_eps)
    row = model.output_weight().numpy()[token].astype(float) * model.norm.weight.numpy()
    expected = ((part - part.mean() if model.config.norm == "layer" else part) / scale) @ row
    assert opened.ask(place, token=token)["layers"][0]["heads"][head] == pytest.approx(expected, abs=1e-5)


def test_the_likeliest_token_is_shown_without_another(tmp_path: Path) -> None:
    run = Opened(tmp_path / "run", "The quick brown fox jumps over the lazy dog.")  # longer than the block of 32
    logits = run.logits()
    found = run.ask(4)
    odds = np.exp(logits[4]) / np.exp(logits[4]).sum()
    order = np.argsort(-odds)[:10].tolist()
    assert [one["id"] for one in found["best"]] == order and found["token"]["id"] == order[0]
    assert found["best"][2]["probability"] == pytest.approx(odds[order[2]], rel=1e-5)
    assert found["best"][2]["text"] == run.subject.texts([order[2]])[0]
    assert found["next"]["id"] == run.ids[-32:][5] and run.ask(31)["next"] is None
    assert [layer["name"] for layer in found["layers"]] == ["blocks.0.attention", "blocks.1.attention"]
    assert found["position"] is not None and not found["rounded"]


def test_a_place_alone_is_what_a_whole_pass_computes(opened: Opened) -> None:
    whole = pass_over(opened.model, opened.ids)
    for place in (0, 7, len(opened.ids) - 1):
        found = opened.ask(place, token=7)
        shares = logit_shares(opened.model, sub_layers(opened.model, whole, place), 7)
        heads = [layer["heads"] for layer in found["layers"]]
        np.testing.assert_allclose(heads, shares.heads, rtol=1e-5, atol=1e-5)
        expected = [shares.embedding, shares.position or 0.0, shares.biases, *shares.feed_forward]
        networks = [layer["feed_forward"] for layer in found["layers"]]
        np.testing.assert_allclose(
            [found["embedding"], found["position"] or 0.0, found["biases"], *networks], expected, rtol=1e-5, atol=1e-5
        )


def test_the_views_of_a_text_share_one_pass(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Any] = []
    monkeypatch.setattr(reading, "pass_over", lambda *asked: passes.append(asked) or pass_over(*asked))
    about = {"passage": {"model": "best", "ids": opened.ids}}
    with recording_attention(opened.model) as recorded:
        opened.model(tt.tensor([opened.ids]))
    for name, (weights,) in recorded.items():
        shown = {"layer": name, "head": 1, "first": 0, "count": len(opened.ids)}
        found: Any = ask(opened.subjects, "attention_rows", {**about, **shown})
        np.testing.assert_allclose(found["weights"], weights.numpy()[0, 1], atol=1e-6)
    for name, more in (
        ("attention", {}),
        ("inside", {}),
        ("text_scores", {}),
        ("neurons", {"place": 3}),
        ("attribution", {"place": 3}),
    ):
        ask(opened.subjects, name, {**about, **more})
    assert len(passes) == 1


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_quantized_weights_round_and_say_so(tmp_path: Path, dtype: str) -> None:
    run = Opened(tmp_path / "run")
    tt.nn.quantize_(run.model, dtype)
    found = run.ask(5, token=3)
    assert found["rounded"]
    assert found["sum"] == pytest.approx(found["logit"], abs=0.2)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("recurrent", "through gates"),
        ("attention", "through gates"),
        ("transformer", "after each sub-layer"),
        ("masked", "one more layer"),
    ],
)
def test_where_a_logit_is_no_sum_the_model_says_why(tmp_path: Path, kind: str, why: str) -> None:
    subjects = Subjects([RUNS[kind](tmp_path / "run")])
    name = subjects.names[0]
    source = [1, 2] if subjects.get(name).kind == "translation" else []
    passage = {"model": name, "ids": [1, 2, 3], "source": source}
    inside: Any = ask(subjects, "inside", {"passage": passage})
    assert why in inside["no_shares"] and inside["no_shares"].endswith(".")
    with pytest.raises(UserError, match=why):
        ask(subjects, "attribution", {"passage": passage, "place": 0})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"place": 13}, "are not among the tokens"),
        ({"place": -1}, "are not among the tokens"),
        ({"place": 0, "token": 10_000}, "no token 10000"),
        ({"place": 0, "token": -1}, "no token -1"),
        ({"place": 0, "token": ""}, "it is empty"),
    ],
)
def test_what_is_not_there_is_refused(tmp_path: Path, asked: dict[str, Any], message: str) -> None:
    run = Opened(tmp_path / "run")
    with pytest.raises(UserError, match=message):
        run.ask(**asked)
