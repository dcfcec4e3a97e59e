"""The requests of the view "What if": their responses equal the predictions of a model with edited weights."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import RUNS, gpt_run

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.attention import recording_attention
from tinyformer.models.blocks import Block
from tinyformer.models.intervening import BlockOutput, HeadOff, NetworkOff, intervening, recording_means
from tinyformer.models.recording import recording_outputs

TEXTS = {"transformer": "the fox", "context": "the fox", "attention": "the fox", "masked": "the [MASK] fox jump ##s over"}
BLOCKS = {"gpt": "blocks.1", "transformer": "decoder.blocks.1", "masked": "bert.encoder.blocks.1"}


class Opened:
    """A run that is explored, with a passage in it."""

    def __init__(self, path: Path, text: str, source: str = ""):
        self.subjects = Subjects([path])
        self.name = self.subjects.names[0]
        self.subject = self.subjects.get(self.name)
        self.model = self.subject.model
        self.source = self.subject.encode(source, source=True) if source else []
        self.passage = self.of(text)
        self.ids = self.passage["ids"]

    def of(self, text: str) -> dict[str, Any]:
        return {"model": self.name, "ids": self.subject.encode(text), "source": self.source}

    def ask(self, name: str, **asked: Any) -> Any:
        answer = ask(self.subjects, name, asked)
        return json.loads(json.dumps(answer if isinstance(answer, dict) else list(answer), allow_nan=False))

    def logits(self, model: Any = None, ids: list[int] | None = None) -> np.ndarray:
        with tt.no_grad():
            inputs = [tt.tensor([text]) for text in (self.source, ids or self.ids) if text]
            return (model or self.model)(*inputs).numpy()[0].astype(float)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        row = logits[self.ids.index(self.subject.mask) if self.subject.kind == "masked" else -1].copy()
        row[list(self.subject.forbidden)] = -np.inf
        weights = np.exp(row - row.max())
        return weights / weights.sum()

    def loss(self, logits: np.ndarray) -> float:
        targets = self.ids[1:]
        rows = logits[:-1] - logits[:-1].max(-1, keepdims=True)
        logs = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        return float(-logs[np.arange(len(targets)), targets].mean())


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opened]:
    path = tmp_path_factory.mktemp("runs")
    translates = ("transformer", "context", "attention")
    return {
        kind: Opened(make(path / kind), TEXTS.get(kind, "The quick fox"), "lazy dog" if kind in translates else "")
        for kind, make in RUNS.items()
    }


def without_head(run: Opened, layer: str, head: int) -> Any:
    """Return a copy of the model with the columns of a head set to zero."""
    other = copy.deepcopy(run.model)
    attention = other.get_submodule(layer)
    weight = attention.output.weight.numpy().copy()
    weight[:, head * attention.d_head : (head + 1) * attention.d_head] = 0
    attention.output.weight.assign(tt.tensor(weight))
    return other


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_head_is_switched_off(opened: dict[str, Opened], kind: str) -> None:
    run, layer = opened[kind], f"{BLOCKS[kind]}.attention"
    found = run.ask("ablated", passage=run.passage, off=[{"kind": "head", "name": layer, "index": 1}])
    clean, changed = run.logits(), run.logits(without_head(run, layer, 1))
    before, after = run.probabilities(clean), run.probabilities(changed)
    order = np.argsort(-abs(after - before), kind="stable")[:10]
    np.testing.assert_allclose([abs(t["after"] - t["before"]) for t in found["tokens"]], abs(after - before)[order], atol=1e-5)
    for token in found["tokens"]:
        assert token["text"] == run.subject.texts([token["id"]])[0]
        assert (token["before"], token["after"]) == pytest.approx((before[token["id"]], after[token["id"]]), abs=1e-5)
    some = before > 0
    assert found["divergence"] == pytest.approx((before[some] * np.log(before[some] / after[some])).sum(), rel=1e-3)
    if kind == "masked":
        assert found["loss_before"] is found["loss_after"] is None
        assert found["place"] == run.ids.index(run.subject.mask)
    else:
        assert found["loss_before"] == pytest.approx(run.loss(clean), rel=1e-4)
        assert found["loss_after"] == pytest.approx(run.loss(changed), rel=1e-4)
        assert found["place"] == len(run.ids) - 1


def test_with_nothing_off_the_likeliest_tokens_are_shown(opened: dict[str, Opened]) -> None:
    run = opened["gpt"]
    found = run.ask("ablated", passage=run.passage)
    p = run.probabilities(run.logits())
    assert [token["before"] for token in found["tokens"]] == pytest.approx(np.sort(p)[::-1][:10].tolist(), abs=1e-6)
    assert all(token["before"] == token["after"] for token in found["tokens"]) and found["divergence"] == 0
    assert found["loss_before"] == found["loss_after"]


@pytest.mark.parametrize(
    "off",
    [
        {"kind": "network", "name": "blocks.0.feed_forward", "by": "mean"},
        {"kind": "neuron", "name": "blocks.0.feed_forward", "index": 5},
        {"kind": "block", "name": "blocks.1", "by": "mean"},
        {"kind": "choice", "name": "blocks.0.attention", "index": 1},
    ],
)
def test_each_kind_of_part_changes_the_prediction(opened: dict[str, Opened], off: dict[str, Any]) -> None:
    run = opened["gpt"]
    one = run.ask("ablated", passage=run.passage, off=[off])
    assert one["divergence"] > 0
    again = run.ask("ablated", passage=run.passage, off=[off, off])  # twice off is off
    if off["kind"] != "choice":
        assert again["divergence"] == pytest.approx(one["divergence"], rel=1e-3)
    assert run.ask("ablated", passage=run.passage)["divergence"] == 0  # the model is as it was


def test_the_ranking_has_every_head_and_network(opened: dict[str, Opened]) -> None:
    run = opened["gpt"]
    first, *rest = run.ask("ranking", passage=run.passage)
    assert first == {"parts": 6, "measure": "loss", "loss": pytest.approx(run.loss(run.logits()), rel=1e-4)}
    assert [(line["kind"], line["name"], line["index"]) for line in rest] == [
        part
        for i in range(2)
        for part in [*(("head", f"blocks.{i}.attention", h) for h in range(2)), ("network", f"blocks.{i}.feed_forward", 0)]
    ]
    inputs = tt.tensor([run.ids])
    with tt.no_grad(), recording_means(run.model) as means:
        run.model(inputs)
    for line in rest:
        for by in ("zero", "mean"):
            part = HeadOff(line["name"], line["index"], by) if line["kind"] == "head" else NetworkOff(line["name"], by)
            with intervening(run.model, [part], means):
                expected = run.loss(run.logits())
            assert line[by] + first["loss"] == pytest.approx(expected, abs=1e-4)


def test_the_ranking_of_a_bert_is_by_its_masks_prediction(opened: dict[str, Opened]) -> None:
    run = opened["masked"]
    first, *rest = run.ask("ranking", passage=run.passage)
    assert (first["measure"], first["loss"], len(rest)) == ("divergence", None, first["parts"])
    head = next(line for line in rest if line["kind"] == "head")
    before, after = run.probabilities(run.logits()), run.probabilities(run.logits(without_head(run, head["name"], 0)))
    some = before > 0
    assert head["zero"] == pytest.approx((before[some] * np.log(before[some] / after[some])).sum(), rel=1e-2)


def test_an_encoder_decoder_has_three_kinds_of_layers(opened: dict[str, Opened]) -> None:
    run = opened["transformer"]
    found = run.ask("blocks", model=run.name)
    assert found["why"] is None
    told = [(block["stack"], [layer["kind"] for layer in block["attention"]]) for block in found["blocks"]]
    assert told == [("encoder", ["self"])] * 2 + [("decoder", ["self", "cross"])] * 2
    *_, lines = [run.ask("ranking", passage=run.passage)]
    assert len(lines) == 1 + 2 * (2 + 1) + 2 * (2 + 2 + 1)


def test_a_row_of_attention_is_edited(opened: dict[str, Opened]) -> None:
    run = opened["gpt"]
    with recording_attention(run.model) as recorded:
        run.logits()
    asked = {"passage": run.passage, "layer": "blocks.0.attention", "head": 1, "query": len(run.ids) - 1}
    own = recorded["blocks.0.attention"][0].numpy()[0, 1, -1].tolist()
    assert run.ask("edited", **asked, weights=own)["divergence"] == pytest.approx(0, abs=1e-5)
    value = np.eye(len(run.ids))[2].tolist()
    found = run.ask("edited", **asked, weights=value)
    assert found["divergence"] > 1e-6
    off = [{"kind": "head", "name": "blocks.0.attention", "index": 1}]  # then it does not matter where the head looks
    both = run.ask("edited", **asked, weights=value, off=off)
    assert both["divergence"] == pytest.approx(run.ask("ablated", passage=run.passage, off=off)["divergence"], rel=1e-3)


@pytest.mark.parametrize("kind", BLOCKS)
def test_two_prompts_are_patched(opened: dict[str, Opened], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyformer.explore.views.patching.AT_ONCE", 40)  # so that it takes several passes
    run = opened[kind]
    text = {"gpt": "The quiet box", "transformer": "the dog", "masked": "the [MASK] dog jump ##s over"}[kind]
    b = run.of(text if kind != "gpt" else "The lazyy dog")
    first, *rest = run.ask("patched", a=run.passage, b=b)
    of_a, of_b = run.logits(), run.logits(ids=b["ids"])
    place = run.ids.index(run.subject.mask) if kind == "masked" else len(run.ids) - 1
    token, against = first["token"], first["against"]

    def measured(logits: np.ndarray) -> float:
        return float(logits[place, token] - logits[place, against])

    likeliest = run.probabilities(of_b).argmax(), run.probabilities(of_a).argmax()
    change = run.probabilities(of_b) - run.probabilities(of_a)
    assert (token, against) == (likeliest if likeliest[0] != likeliest[1] else (change.argmax(), change.argmin()))
    assert first["a"] < first["b"]  # so that it can move
    assert (first["a"], first["b"]) == pytest.approx((measured(of_a), measured(of_b)), abs=1e-4)
    values = np.full((len(first["blocks"]), len(run.ids)), np.nan)
    for line in rest:
        values[line["block"], line["first"] : line["first"] + len(line["values"])] = line["values"]
    with recording_outputs(run.model, Block) as recorded:
        run.logits(ids=b["ids"])
    for i, name in enumerate(first["blocks"]):
        for j in range(len(run.ids)):
            with intervening(run.model, [BlockOutput(name, [j], recorded[name][0][:, j])]):
                assert values[i, j] == pytest.approx(measured(run.logits()), abs=1e-3)
    assert values[-1, place] == pytest.approx(first["b"], abs=1e-4)  # the last block at the last token is all of B


def test_what_is_measured_may_be_chosen(opened: dict[str, Opened]) -> None:
    run = opened["gpt"]
    b = run.of("The lazyy dog")
    first, *rest = run.ask("patched", a=run.passage, b=b, token=3)
    assert (first["token"], first["against"]) == (3, None)
    assert (first["a"], first["b"]) == pytest.approx(
        (run.probabilities(run.logits())[3], run.probabilities(run.logits(ids=b["ids"]))[3]), abs=1e-6
    )
    assert sum(len(line["values"]) for line in rest) == 2 * len(run.ids)
    found = run.ask("patched", a=run.passage, b=b, token=3, against=4)[0]
    logits = run.logits()[-1]
    assert found["a"] == pytest.approx(logits[3] - logits[4], abs=1e-4)


@pytest.mark.parametrize("kind", ["recurrent", "context", "attention"])
def test_a_recurrent_network_has_nothing_to_switch_off(opened: dict[str, Opened], kind: str) -> None:
    run = opened[kind]
    found = run.ask("blocks", model=run.name)
    assert found["blocks"] == [] and found["why"].startswith("This model is a recurrent network")
    for name, asked in [("ablated", {"passage": run.passage}), ("ranking", {"passage": run.passage})]:
        with pytest.raises(UserError, match="recurrent network"):
            run.ask(name, **asked)
    with pytest.raises(UserError, match="recurrent network"):
        run.ask("patched", a=run.passage, b=run.passage)


def test_what_cannot_be_is_refused(opened: dict[str, Opened]) -> None:
    run, bert = opened["gpt"], opened["masked"]
    with pytest.raises(UserError, match="kind must be head, choice, network, neuron or block, got 'layer'"):
        run.ask("ablated", passage=run.passage, off=[{"kind": "layer", "name": "blocks.0"}])
    with pytest.raises(UserError, match="head must be from 0 to 1, got 7"):
        run.ask("ablated", passage=run.passage, off=[{"kind": "head", "name": "blocks.0.attention", "index": 7}])
    with pytest.raises(UserError, match="there is no mask in the text"):
        bert.ask("ablated", passage=bert.of("the fox"))
    with pytest.raises(UserError, match="13 tokens and 4 tokens: change one"):
        run.ask("patched", a=run.passage, b=run.of("The "))
    with pytest.raises(UserError, match="against needs a token"):
        run.ask("patched", a=run.passage, b=run.passage, against=1)
    with pytest.raises(UserError, match="token must be the id of a token, from 0 to"):
        run.ask("patched", a=run.passage, b=run.passage, token=10_000)
    with pytest.raises(UserError, match="the first masks of both prompts must be at the same place"):
        bert.ask("patched", a=bert.passage, b=bert.of("[MASK] the fox jump ##s over"))


def test_only_what_the_model_reads_counts(tmp_path: Path) -> None:
    run = Opened(gpt_run(tmp_path, block_size=8), "The quick brown fox")
    short = run.of("The quick brown fox"[-8:])
    off = [{"kind": "head", "name": "blocks.0.attention", "index": 0}]
    long, last = (run.ask("ablated", passage=passage, off=off) for passage in (run.passage, short))
    assert long | {"place": 7} == last and long["place"] == 18
    with pytest.raises(UserError, match="at most 8 tokens"):
        run.ask("patched", a=run.passage, b=run.passage)
