"""The questions about embeddings and positions."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import RUNS, gpt_run

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.explore.views import embeddings as embeddings_module
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subject, Subjects
from tinyformer.models.positions import RotaryPositions, sinusoidal
from tinyformer.word_vectors.components import principal_components


class Opened:
    """A run that is explored."""

    def __init__(self, path: Path):
        self.subjects = Subjects([path])
        self.name = self.subjects.names[0]

    @property
    def subject(self) -> Subject:
        return self.subjects.get(self.name)

    def ask(self, name: str, **asked: Any) -> Any:
        answer = ask(self.subjects, name, {"model": self.name, **asked})
        return json.loads(json.dumps(answer, allow_nan=False))

    def part(self, table: str, first: int, count: int, first_column: int, columns: int) -> np.ndarray:
        asked = {"table": table, "first": first, "count": count, "first_column": first_column, "columns": columns}
        return np.array(self.ask("positions", **asked)["values"])


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Opened]:
    path = tmp_path_factory.mktemp("runs")
    return {kind: Opened(make(path / kind)) for kind, make in RUNS.items()}


def weights_of(run: Opened, kind: str, source: bool) -> np.ndarray:
    """The embeddings, found by their names in the state."""
    side = "source" if source else "target"
    name = {
        "transformer": f"{side}_embedding.tokens.weight",
        "context": f"{side}_embedding.weight",
        "attention": f"{side}_embedding.weight",
        "masked": "bert.token_embedding.weight",
    }
    return run.subject.model.state_dict()[name.get(kind, "token_embedding.weight")].numpy()


@pytest.mark.parametrize("source", [False, True])
@pytest.mark.parametrize("kind", list(RUNS))
def test_the_map_is_that_of_the_principal_components(opened: dict[str, Opened], kind: str, source: bool) -> None:
    run = opened[kind]
    if source and run.subject.kind != "translation":
        with pytest.raises(UserError, match="no source"):
            run.ask("embeddings", source=True)
        return
    found = run.ask("embeddings", source=source)
    points, explained = principal_components(weights_of(run, kind, source), 2)
    coordinates = np.frombuffer(base64.b64decode(found["coordinates"]), "<f4").reshape(-1, 2)
    assert coordinates.tolist() == points.astype(np.float32).tolist()
    assert found["explained"] == explained.tolist()
    assert found["texts"] == run.subject.texts(range(len(points)))
    assert found["width"] == weights_of(run, kind, source).shape[1]


def test_the_map_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Opened(gpt_run(tmp_path))
    calls = []
    monkeypatch.setattr(embeddings_module, "principal_components", lambda *a: calls.append(1) or principal_components(*a))
    assert run.ask("embeddings") == run.ask("embeddings")
    assert calls == [1]
    other = Opened(tmp_path)
    other.ask("embeddings")
    assert calls == [1, 1]


@pytest.mark.parametrize("kind", ["recurrent", "context", "attention"])
def test_a_recurrent_network_has_no_positions(opened: dict[str, Opened], kind: str) -> None:
    assert opened[kind].ask("position_tables")["tables"] == []
    with pytest.raises(UserError, match="no such table"):
        opened[kind].part("positions", 0, 1, 0, 1)


def test_learned_positions(opened: dict[str, Opened]) -> None:
    for kind, name in (("gpt", "position_embedding.weight"), ("masked", "bert.position_embedding.weight")):
        run = opened[kind]
        weight = run.subject.model.state_dict()[name].numpy()
        (table,) = run.ask("position_tables")["tables"]
        assert (table["kind"], table["rows"], table["columns"]) == ("learned", *weight.shape)
        assert table["largest"] == pytest.approx(abs(weight).max())
        assert run.part("positions", 5, 4, 3, 6) == pytest.approx(weight[5:9, 3:9])


def test_sinusoidal_positions(opened: dict[str, Opened], tmp_path: Path) -> None:
    (table,) = opened["transformer"].ask("position_tables")["tables"]
    assert (table["kind"], table["columns"], table["largest"]) == ("sinusoidal", 16, 1.0)
    expected = sinusoidal(300, 16).numpy()
    assert opened["transformer"].part("positions", 290, 10, 2, 5) == pytest.approx(expected[290:, 2:7])
    run = Opened(gpt_run(tmp_path, positions="sinusoidal"))
    assert run.part("positions", 0, 32, 0, 16) == pytest.approx(expected[:32])


def test_rotary_positions(tmp_path: Path) -> None:
    run = Opened(gpt_run(tmp_path, positions="rotary"))
    (table,) = run.ask("position_tables")["tables"]
    assert (table["kind"], table["rows"], table["columns"]) == ("rotary", 32, 4)
    angles = np.arange(32)[:, None] * RotaryPositions(8).frequencies
    assert run.part("positions", 0, 32, 0, 4) == pytest.approx(np.cos(angles), abs=1e-6)
    assert run.part("positions", 30, 2, 1, 2) == pytest.approx(np.cos(angles)[30:, 1:3], abs=1e-6)


@pytest.mark.parametrize("part", [(0, 33, 0, 1), (32, 1, 0, 1), (-1, 1, 0, 1), (0, 1, 0, 17), (0, 0, 0, 1), (0, 1, -1, 1)])
def test_parts_that_are_not_there_are_refused(opened: dict[str, Opened], part: tuple[int, int, int, int]) -> None:
    with pytest.raises(UserError):
        opened["gpt"].part("positions", *part)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    run = Opened(gpt_run(tmp_path))
    model: Any = run.subject.model
    model.token_embedding.weight.assign(tt.full(model.token_embedding.weight.shape, float("nan")))
    model.position_embedding.weight.assign(tt.full(model.position_embedding.weight.shape, float("inf")))
    for name in ("embeddings", "position_tables"):
        with pytest.raises(UserError, match="NaN or infinite"):
            run.ask(name)
