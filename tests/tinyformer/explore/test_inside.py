"""The questions of the view "inside": their numbers are the library's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import RUNS, gpt_run, recurrent_run, translation_run

import tinytensor as tt
from tinyformer import token_losses
from tinyformer.common.errors import UserError
from tinyformer.explore.views import inside as inside_module, reading as reading_module
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.attribution import pass_over
from tinyformer.models.recording import residual_streams

TEXTS = {"transformer": "the fox", "context": "the fox", "attention": "the fox", "masked": "the [MASK] fox jump ##s over"}


class Opened:
    """A run that is explored, with a passage in it."""

    def __init__(self, path: Path, text: str, source: str = ""):
        self.subjects = Subjects([path])
        self.name = self.subjects.names[0]
        self.subject = self.subjects.get(self.name)
        self.model = self.subject.model
        self.ids = self.subject.encode(text)
        self.source = self.subject.encode(source, source=True) if source else []
        self.passage = {"model": self.name, "ids": self.ids, "source": self.source}

    def ask(self, name: str, **asked: Any) -> Any:
        """The answer about the passage, as the page gets it."""
        answer = ask(self.subjects, name, {"passage": self.passage, **asked})
        return json.loads(json.dumps(answer, allow_nan=False))

    @property
    def inputs(self) -> list[tt.Tensor]:
        return [tt.tensor([ids], dtype=int) for ids in (self.source, self.ids) if ids]

    def streams(self) -> dict[str, list[np.ndarray]]:
        return {name: [x.numpy()[0] for x in stack] for name, stack in residual_streams(self.model, *self.inputs).items()}

    def logits(self) -> np.ndarray:
        """The model's own logits (length, vocab_size), without those of forbidden tokens."""
        with tt.no_grad():
            found = self.model(*self.inputs)
        logits = (found[0] if isinstance(found, tuple) else found).numpy()[0].astype(np.float64)
        logits[:, list(self.subject.forbidden)] = -np.inf
        return logits


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def open_run(kind: str, path: Path) -> Opened:
    source = "lazy dog" if kind in ("transformer", "context", "attention") else ""
    return Opened(RUNS[kind](path / kind), TEXTS.get(kind, "The quick fox"), source)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opened]:
    path = tmp_path_factory.mktemp("runs")
    return {kind: open_run(kind, path) for kind in RUNS}


# ------------------------------------------------------------------------------------------------------- residual streams


@pytest.mark.parametrize("kind", ["gpt", "transformer", "masked"])
def test_norms_are_those_of_the_residual_streams(opened: dict[str, Opened], kind: str) -> None:
    run = opened[kind]
    found = run.ask("inside")
    streams = run.streams()
    assert [stack["name"] for stack in found["stacks"]] == list(streams)
    for stack, rows in zip(found["stacks"], streams.values()):
        expected = np.array([[np.linalg.norm(vector.astype(float)) for vector in row] for row in rows])
        assert stack["rows"] == ["embeddings", "layer 1", "layer 2"]
        assert stack["tokens"] == expected.shape[1]
        np.testing.assert_allclose(stack["means"], expected.mean(1), rtol=1e-6)
        assert (stack["smallest"], stack["largest"]) == pytest.approx((expected.min(), expected.max()))
        part = run.ask("norms", stack=stack["name"], first=1, count=3)["norms"]
        np.testing.assert_allclose(part, expected[:, 1:4], rtol=1e-6)


def test_the_streams_of_an_encoder_decoder_are_over_its_own_tokens(opened: dict[str, Opened]) -> None:
    run = opened["transformer"]
    assert {s["name"]: s["tokens"] for s in run.ask("inside")["stacks"]} == {
        "encoder": len(run.source),
        "decoder": len(run.ids),
    }


@pytest.mark.parametrize("kind", ["recurrent", "context", "attention"])
def test_a_recurrent_network_has_no_residual_stream(opened: dict[str, Opened], kind: str) -> None:
    run = opened[kind]
    assert run.ask("inside")["stacks"] == []
    with pytest.raises(UserError, match="has no 'hidden'"):
        run.ask("norms", stack="hidden", first=0, count=1)


# --------------------------------------------------------------------------------------------------------------- the lens


@pytest.mark.parametrize("kind", ["gpt", "recurrent", "transformer", "masked"])
def test_the_last_row_of_the_lens_is_the_models_own_prediction(opened: dict[str, Opened], kind: str) -> None:
    run = opened[kind]
    rows = run.ask("inside")["lens"]
    count = len(run.ids)
    found = run.ask("lens", first=0, count=count)
    expected = softmax(run.logits())
    assert len(rows) == len(found["ids"]) == len(found["texts"])
    assert found["ids"][-1] == expected.argmax(-1).tolist()
    np.testing.assert_allclose(found["probabilities"][-1], expected.max(-1), rtol=1e-5)
    assert found["texts"][-1] == run.subject.texts(found["ids"][-1])
    assert found["probabilities"][0] != pytest.approx(found["probabilities"][-1])


@pytest.mark.parametrize("kind", ["gpt", "transformer"])
def test_an_earlier_row_is_what_the_output_layer_makes_of_that_stream(opened: dict[str, Opened], kind: str) -> None:
    run = opened[kind]
    stream = list(run.streams().values())[-1][1]
    with tt.no_grad():
        logits = run.model.logits_of(tt.tensor(stream)).numpy().astype(np.float64)
    logits[:, list(run.subject.forbidden)] = -np.inf
    expected = softmax(logits)
    np.testing.assert_allclose(run.ask("lens", first=2, count=3)["probabilities"][1], expected.max(-1)[2:5], rtol=1e-5)
    best = run.ask("lens_cell", row=1, place=4)["best"]
    order = np.argsort(-expected[4], kind="stable")[:10].tolist()
    assert [token["id"] for token in best] == order
    np.testing.assert_allclose([token["probability"] for token in best], expected[4][order], rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt", "recurrent", "transformer"])
def test_the_last_cell_is_what_the_view_write_shows(opened: dict[str, Opened], kind: str) -> None:
    run = opened[kind]
    rows = run.ask("inside")["lens"]
    cell, written = run.ask("lens_cell", row=len(rows) - 1, place=len(run.ids) - 1), run.ask("next_token")
    assert [token["id"] for token in cell["best"]] == [token["id"] for token in written["best"]]
    assert cell["entropy"] == pytest.approx(written["entropy"], rel=1e-5)


@pytest.mark.parametrize("kind", ["context", "attention"])
def test_a_network_that_needs_more_than_a_layer_has_no_lens(opened: dict[str, Opened], kind: str) -> None:
    run = opened[kind]
    assert run.ask("inside")["lens"] is None
    for name, asked in (("lens", {"first": 0, "count": 1}), ("lens_cell", {"row": 0, "place": 0})):
        with pytest.raises(UserError, match="makes no predictions"):
            run.ask(name, **asked)


# ---------------------------------------------------------------------------------------------------- entropies and losses


@pytest.mark.parametrize("kind", [kind for kind in RUNS if kind != "masked"])
def test_entropies_and_losses(opened: dict[str, Opened], kind: str) -> None:
    run = opened[kind]
    found = run.ask("entropies", first=0, count=len(run.ids))
    logits = run.logits()
    p = softmax(logits)
    entropies = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(-1)
    np.testing.assert_allclose(found["entropies"], entropies, rtol=1e-4)
    targets = run.ids[1:]
    assert len(found["losses"]) == len(run.ids)
    assert [loss is None for loss in found["losses"]] == [False] * len(targets) + [True]
    if not run.subject.forbidden:
        np.testing.assert_allclose(found["losses"][: len(targets)], -np.log(p[np.arange(len(targets)), targets]), rtol=1e-4)
    later = run.ask("entropies", first=1, count=2)
    assert later["entropies"] == pytest.approx(found["entropies"][1:3], rel=1e-5)
    assert later["losses"] == pytest.approx(found["losses"][1:3], rel=1e-5)


@pytest.mark.parametrize("at_once", [1, 17, 2048])
def test_a_bert_reports_tokens_beyond_its_context(
    opened: dict[str, Opened], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside_module, "HIDDEN_AT_ONCE", at_once)
    run = opened["masked"]
    found = run.ask("entropies", first=0, count=len(run.ids))
    mask = run.subject.mask
    for place, i in enumerate(run.ids):
        if place in (0, len(run.ids) - 1):  # [CLS] and [SEP]
            assert found["entropies"][place] is found["losses"][place] is None
            continue
        hidden = [*run.ids[:place], mask, *run.ids[place + 1 :]]
        with tt.no_grad():
            p = softmax(run.model(tt.tensor([hidden])).numpy()[0, place].astype(np.float64))
        assert found["entropies"][place] == pytest.approx(-(p * np.log(p)).sum(), rel=1e-4)
        assert found["losses"][place] == (None if i == mask else pytest.approx(-np.log(p[i]), rel=1e-4))
    assert run.ask("entropies", first=2, count=3)["entropies"] == pytest.approx(found["entropies"][2:5], rel=1e-5)
    all_losses = token_losses(run.model, run.ids, mask=mask)
    expected = [loss for loss, i in zip(all_losses[1:-1], run.ids[1:-1]) if i != mask]
    assert [loss for loss in found["losses"] if loss is not None] == pytest.approx(expected, rel=1e-5)


def test_losses_are_those_of_the_models_loss(opened: dict[str, Opened]) -> None:
    for kind in ("gpt", "recurrent"):
        run = opened[kind]
        losses = run.ask("entropies", first=0, count=len(run.ids) - 1)["losses"]
        with tt.no_grad():
            mean = run.model.loss(tt.tensor([run.ids[:-1]]), tt.tensor([run.ids[1:]])).item()
        assert np.mean(losses) == pytest.approx(mean, rel=1e-5)


# ------------------------------------------------------------------------------------------------------- recurrent states


def test_states_are_those_after_each_token(opened: dict[str, Opened]) -> None:
    run = opened["recurrent"]
    kinds = {kind["name"]: kind for kind in run.ask("inside")["states"]}
    assert {name: (kind["layers"], kind["units"], kind["tokens"]) for name, kind in kinds.items()} == {
        "hidden": (2, 12, len(run.ids)),
        "cell": (2, 12, len(run.ids)),
    }
    state = None
    for place, i in enumerate(run.ids):
        with tt.no_grad():
            _, state = run.model.step(tt.tensor([[i]]), state)
        for kind, (name, told) in enumerate(kinds.items()):
            for layer in range(2):
                asked = {"kind": name, "layer": layer, "first": place, "count": 1, "first_unit": 3, "units": 5}
                values = run.ask("hidden_states", **asked)["values"]
                expected = state.hidden[kind].numpy()[layer, 0]
                np.testing.assert_allclose(np.array(values)[:, 0], expected[3:8], rtol=1e-4, atol=1e-6)
                assert told["largest"][layer] >= abs(expected).max() - 1e-6


@pytest.mark.parametrize(("kind", "directions"), [("context", 1), ("attention", 2)])
def test_states_of_both_sides_of_an_encoder_decoder(opened: dict[str, Opened], kind: str, directions: int) -> None:
    run = opened[kind]
    states = {state["name"]: state for state in run.ask("inside")["states"]}
    assert list(states) == ["encoder.hidden", "encoder.cell", "decoder.hidden", "decoder.cell"]
    encoder, decoder = states["encoder.hidden"], states["decoder.hidden"]
    assert (encoder["tokens"], encoder["directions"], encoder["units"]) == (len(run.source), directions, 12 * directions)
    assert (decoder["tokens"], decoder["directions"], decoder["units"]) == (len(run.ids), 1, 12)
    with tt.no_grad():
        first = run.model.encode(run.inputs[0])
        _, last = run.model.step(run.inputs[1], first)
    asked = {"layer": 0, "first": len(run.ids) - 1, "count": 1, "first_unit": 0, "units": 12}
    for i, name in enumerate(("decoder.hidden", "decoder.cell")):
        values = run.ask("hidden_states", kind=name, **asked)["values"]
        np.testing.assert_allclose(np.array(values)[:, 0], last.hidden[i].numpy()[0, 0], rtol=1e-4, atol=1e-6)


def test_a_transformer_has_no_states(opened: dict[str, Opened]) -> None:
    run = opened["gpt"]
    assert run.ask("inside")["states"] == []
    with pytest.raises(UserError, match="has no state 'blocks'"):
        run.ask("hidden_states", kind="blocks", layer=0, first=0, count=1, first_unit=0, units=1)


# ------------------------------------------------------------------------------------------------------------- long texts


def test_a_gpt_is_shown_the_last_tokens_that_it_can_read(tmp_path: Path) -> None:
    run = Opened(gpt_run(tmp_path, block_size=8), "The quick brown fox")
    found = run.ask("inside")
    assert (found["first"], found["count"]) == (len(run.ids) - 8, 8)
    short = Opened(tmp_path, "The quick brown fox"[-8:])
    assert run.ask("lens", first=0, count=8) == short.ask("lens", first=0, count=8)


def test_a_recurrent_network_remembers_what_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Opened(recurrent_run(tmp_path), "The quick brown fox")
    whole = run.ask("entropies", first=9, count=10)
    again = Opened(tmp_path, "The quick brown fox")
    monkeypatch.setattr(reading_module, "LONGEST", 10)
    assert again.ask("inside")["first"] == 9
    cut = again.ask("entropies", first=0, count=10)
    assert cut["entropies"] == pytest.approx(whole["entropies"], rel=1e-4)
    assert cut["losses"][:-1] == pytest.approx(whole["losses"][:-1], rel=1e-4)


@pytest.mark.parametrize("architecture", ["transformer", "attention"])
def test_an_encoder_decoder_refuses_what_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: str
) -> None:
    run = Opened(translation_run(tmp_path, architecture), "the fox", "lazy dog")
    monkeypatch.setattr(reading_module, "LONGEST", 7)
    with pytest.raises(UserError, match="at most 7 tokens at once, not"):
        run.ask("inside")


def test_a_passage_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Opened(gpt_run(tmp_path), "The quick fox")
    calls = []
    monkeypatch.setattr(reading_module, "pass_over", lambda *a: calls.append(1) or pass_over(*a))
    run.ask("inside")
    run.ask("lens", first=0, count=4)
    run.ask("norms", stack="blocks", first=0, count=4)
    run.ask("entropies", first=0, count=4)
    assert calls == [1]
    run.passage["ids"] = run.ids[:-1]
    run.ask("inside")
    assert calls == [1, 1]


# ---------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("norms", {"stack": "blocks", "first": 0, "count": 0}),
        ("norms", {"stack": "blocks", "first": -1, "count": 1}),
        ("norms", {"stack": "blocks", "first": 13, "count": 1}),
        ("norms", {"stack": "decoder", "first": 0, "count": 1}),
        ("lens", {"first": 10, "count": 4}),
        ("lens", {"first": 0, "count": 129}),
        ("lens_cell", {"row": 3, "place": 0}),
        ("lens_cell", {"row": -1, "place": 0}),
        ("lens_cell", {"row": 0, "place": 13}),
        ("entropies", {"first": 0, "count": 14}),
        ("entropies", {"first": 0, "count": "1"}),
    ],
)
def test_parts_that_are_not_there_are_refused(opened: dict[str, Opened], name: str, asked: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        opened["gpt"].ask(name, **asked)


def test_a_model_whose_training_diverged_is_refused(tmp_path: Path) -> None:
    run = Opened(gpt_run(tmp_path), "The quick fox")
    run.model.blocks[0].feed_forward.down.weight.assign(run.model.blocks[0].feed_forward.down.weight * float("nan"))
    with pytest.raises(UserError, match="NaN or infinite"):
        run.ask("inside")
