"""Neurons: the reported activations are the model's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import RUNS, TEXT, gpt_run

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.data import reading
from tinyformer.explore.views import neurons
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.activations import ACTIVATIONS
from tinyformer.training.run_folder import RunFolder

DATA = (TEXT.replace("\n", " ") + "\n") * 30


def asked(subjects: Subjects, name: str, **fields: Any) -> Any:
    return json.loads(json.dumps(ask(subjects, name, fields), allow_nan=False))


def lines(subjects: Subjects, **fields: Any) -> list[Any]:
    return [json.loads(json.dumps(line, allow_nan=False)) for line in ask(subjects, "neuron_examples", fields)]


def hidden(model: Any, ids: list[int], layer: int) -> np.ndarray:
    """The units of a layer (length, units), computed from the stream that its network reads."""
    read: list[Any] = []
    network = model.blocks[layer].feed_forward
    with tt.nn.recording_outputs(model) as recorded, tt.no_grad():
        model(tt.tensor([ids]))
    read = recorded[f"blocks.{layer}.feed_forward_norm"]
    activation = ACTIVATIONS[network.activation].function
    with tt.no_grad():
        x = read[0]
        found = activation(network.up(x)) if network.gate is None else activation(network.gate(x), network.up(x))
    return found.numpy()[0]


@pytest.mark.parametrize("settings", [{}, {"activation": "swiglu", "norm": "rms"}])
def test_the_most_active_neurons_of_a_token(tmp_path: Path, settings: dict[str, Any]) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False, **settings)])
    model = subjects.get("best").model
    ids = subjects.get("best").encode("The quick fox")
    found = asked(subjects, "neurons", passage={"model": "best", "ids": ids}, place=4)
    active = [hidden(model, ids, layer)[4] for layer in (0, 1)]
    assert found["units"] == [len(x) for x in active]
    written = {
        (i, j): abs(x) * np.linalg.norm(model.blocks[i].feed_forward.down.weight.numpy()[:, j])
        for i, layer in enumerate(active)
        for j, x in enumerate(layer)
    }
    order = sorted(written, key=lambda place: -written[place])[:10]
    assert [(one["layer"], one["unit"]) for one in found["best"]] == order
    assert [one["activation"] for one in found["best"]] == pytest.approx([active[i][j] for i, j in order], rel=1e-4)


@pytest.mark.parametrize("settings", [{"bias": True}, {"norm": "rms", "tie_output": False}])
def test_the_nearest_tokens_are_those_whose_logits_it_moves(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Adding to the last stream what the neuron writes moves the logits by the values, where the norm's scale stays."""
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False, **settings)])
    subject = subjects.get("best")
    model = subject.model
    model.norm.weight.assign(model.norm.weight + tt.tensor(np.linspace(-0.3, 0.5, 16).astype(np.float32)))
    found = asked(subjects, "neuron_tokens", model="best", layer=1, unit=5)
    written = model.blocks[1].feed_forward.down.weight.numpy()[:, 5].astype(float)
    if settings.get("norm") != "rms":
        written = written - written.mean()
    moved = model.output_weight().numpy().astype(float) @ (written * model.norm.weight.numpy())
    moved -= moved.mean()
    order = np.argsort(-moved)
    assert [one["id"] for one in found["raised"]] == order[:10].tolist()
    assert [one["id"] for one in found["lowered"]] == order[::-1][:10].tolist()
    assert [one["value"] for one in found["raised"]] == pytest.approx(moved[order[:10]].tolist(), abs=1e-5)
    assert [one["text"] for one in found["lowered"]] == subject.texts(order[::-1][:10].tolist())
    assert found["why"] is None


def with_data(path: Path, text: str = DATA) -> Subjects:
    """A run that says which text it was trained on."""
    gpt_run(path / "run", latest=False)
    (path / "my.txt").write_text(text, encoding="utf-8")
    folder = RunFolder(path / "run")
    settings = folder.read_settings()
    settings["data"] = {"path": "../my.txt", "name": "my.txt", "sha256": reading.fingerprint(text), "field": ""}
    settings["started_in"] = "."
    folder.settings.write_text(json.dumps(settings), encoding="utf-8")
    return Subjects([path / "run"])


@pytest.mark.parametrize("smallest", [False, True])
def test_the_tokens_of_the_runs_validation_text_that_excite_a_neuron(tmp_path: Path, smallest: bool) -> None:
    subjects = with_data(tmp_path)
    subject = subjects.get("best")
    found = lines(subjects, passage={"model": "best", "ids": [1, 2]}, layer=1, unit=7, smallest=smallest)
    text = DATA[int(len(DATA) * 0.9) :]
    ids = subject.encode(text)
    values = np.concatenate([hidden(subject.model, ids[i : i + 32], 1)[:, 7] for i in range(0, len(ids), 32)])
    order = np.argsort(values if smallest else -values, kind="stable")[:10]
    last = found[-1]
    assert last["text"] == "my.txt" and last["done"] == last["tokens"] == len(ids)
    assert [one["value"] for one in last["best"]] == pytest.approx(values[order].tolist(), rel=1e-4)
    first = last["best"][0]
    place = next(p for p in order.tolist() if values[p] == pytest.approx(first["value"], rel=1e-5))
    shown = "".join([*first["before"], first["token"], *first["after"]])
    assert shown in text and first["token"] in {text[p] for p in order.tolist() if abs(values[p] - values[place]) < 1e-4}
    assert len(first["before"]) <= 16 and len(first["after"]) <= 8


def test_a_search_continues_in_parts_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = with_data(tmp_path, DATA * 10)
    whole = lines(subjects, passage={"model": "best", "ids": [1]}, layer=0, unit=1)
    assert [line["done"] for line in whole][:2] == [256, 512] and whole[-1]["done"] == whole[-1]["tokens"]
    values = [line["best"][0]["value"] for line in whole]
    assert values == sorted(values)
    monkeypatch.setattr(neurons, "MOST_SECONDS", 0.0)
    assert len(lines(subjects, passage={"model": "best", "ids": [1]}, layer=0, unit=1)) == 1
    monkeypatch.setattr(neurons, "MOST_TOKENS", 100)
    assert lines(subjects, passage={"model": "best", "ids": [1]}, layer=0, unit=1)[0]["tokens"] == 100


@pytest.mark.parametrize("gone", ["no data", "changed", "removed", "large"])
def test_without_the_runs_text_that_of_the_passage_is_searched(
    tmp_path: Path, gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False)]) if gone == "no data" else with_data(tmp_path)
    if gone == "changed":
        (tmp_path / "my.txt").write_text(DATA + "!", encoding="utf-8")
    if gone == "removed":
        (tmp_path / "my.txt").unlink()
    if gone == "large":
        monkeypatch.setattr(neurons, "LARGEST_TEXT", 100)
    ids = subjects.get("best").encode("The quick fox")
    (line,) = lines(subjects, passage={"model": "best", "ids": ids}, layer=1, unit=7)
    values = hidden(subjects.get("best").model, ids, 1)[:, 7]
    assert line["text"] is None and line["tokens"] == len(ids)
    assert line["best"][0]["value"] == pytest.approx(values.max(), rel=1e-4)
    assert line["best"][0]["token"] == "The quick fox"[values.argmax()]


def test_a_bert_has_neurons_but_no_nearest_tokens(tmp_path: Path) -> None:
    subjects = Subjects([RUNS["masked"](tmp_path / "run")])
    passage = {"model": "best", "ids": subjects.get("best").encode("the fox jump ##s over the dog .")}
    found = asked(subjects, "neurons", passage=passage, place=1)
    assert found["units"] == [32, 32] and len(found["best"]) == 10
    told = asked(subjects, "neuron_tokens", model="best", layer=0, unit=1)
    assert told["raised"] is None and "one more layer" in told["why"]
    (line,) = lines(subjects, passage=passage, layer=0, unit=1)
    assert line["tokens"] == len(passage["ids"]) - 2  # [CLS] and [SEP] stand around each window anyway
    top = asked(subjects, "neurons", passage=passage, place=1)["best"][0]
    value = top["activation"]
    (line,) = lines(subjects, passage=passage, layer=top["layer"], unit=top["unit"], smallest=value < 0)
    assert any(one["value"] == pytest.approx(value, rel=1e-4) and one["token"] == "the" for one in line["best"])


@pytest.mark.parametrize(("kind", "why"), [("recurrent", "no feed-forward"), ("transformer", "not of an encoder-decoder")])
def test_others_say_why_they_have_none(tmp_path: Path, kind: str, why: str) -> None:
    subjects = Subjects([RUNS[kind](tmp_path / "run")])
    source = [1] if kind == "transformer" else []
    with pytest.raises(UserError, match=why):
        ask(subjects, "neurons", {"passage": {"model": "best", "ids": [1, 2], "source": source}, "place": 0})


@pytest.mark.parametrize(("layer", "unit", "message"), [(2, 0, "layers"), (0, 64, "neurons"), (-1, 0, "layers")])
def test_a_neuron_that_is_not_there_is_refused(tmp_path: Path, layer: int, unit: int, message: str) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run", latest=False)])
    with pytest.raises(UserError, match=message):
        ask(subjects, "neuron_tokens", {"model": "best", "layer": layer, "unit": unit})
    with pytest.raises(UserError, match=message):
        lines(subjects, passage={"model": "best", "ids": [1]}, layer=layer, unit=unit)
