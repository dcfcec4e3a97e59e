"""The picture of a whole model: its maps and shares are the library's values."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import RUNS, gpt_run

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.models.recording import residual_streams

TEXT = "the lazy fox"


def asked(subjects: Subjects, text: str = TEXT, source: str = "", **more: Any) -> dict[str, Any]:
    subject = subjects.get("best")
    passage = {"model": "best", "ids": subject.encode(text), "source": subject.encode(source, source=True) if source else []}
    return {"passage": passage, **more}


def cells(drawn: dict[str, Any]) -> Any:
    return np.frombuffer(base64.b64decode(drawn["cells"]), np.int8).reshape(drawn["height"], drawn["width"])


def test_maps_of_the_stream_are_its_values(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run")])
    model, question = subjects.get("best").model, asked(subjects)
    answer: Any = ask(subjects, "picture", question)
    streams = residual_streams(model, tt.tensor([question["passage"]["ids"]]))["blocks"]
    (stack,) = answer["stacks"]
    assert len(stack["maps"]) == len(streams) == 3
    for drawn, stream in zip(stack["maps"], streams):
        values = stream.numpy()[0]
        np.testing.assert_array_equal(cells(drawn), np.rint(127 * values / abs(values).max()))


def test_a_large_map_keeps_the_largest_value_of_each_patch(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run", d_model=96, block_size=128)])
    text = "the lazy fox " * 7
    model, question = subjects.get("best").model, asked(subjects, text)
    drawn = cells(ask(subjects, "picture", question)["stacks"][0]["maps"][1])  # type: ignore[index, call-overload]
    values = residual_streams(model, tt.tensor([question["passage"]["ids"]]))["blocks"][1].numpy()[0]
    assert drawn.shape == (64, 48)
    starts = [i * len(values) // 64 for i in range(65)]
    patch = values[starts[5] : starts[6], 20:22].ravel()
    largest = patch[abs(patch).argmax()]
    assert drawn[5, 10] == np.rint(127 * largest / abs(values).max())


def test_shares_and_predictions_are_those_of_their_questions(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run")])
    question = asked(subjects, place=4)
    answer: Any = ask(subjects, "picture", question)
    shares: Any = ask(subjects, "attribution", question)
    assert answer["shares"]["token"] == shares["token"]["id"] == answer["best"][0]["id"]
    assert answer["shares"]["heads"] == [layer["heads"] for layer in shares["layers"]]
    assert answer["shares"]["feed_forward"] == [layer["feed_forward"] for layer in shares["layers"]]
    next_token: Any = ask(subjects, "next_token", {"passage": {**question["passage"], "ids": question["passage"]["ids"][:5]}})
    assert [one["id"] for one in answer["best"]] == [one["id"] for one in next_token["best"]]
    other = ask(subjects, "picture", {**question, "token": 3})["shares"]  # type: ignore[index, call-overload]
    assert other["token"] == 3 and other["heads"] != answer["shares"]["heads"]


@pytest.mark.parametrize("name", RUNS)
def test_each_kind_of_model_has_a_picture(tmp_path: Path, name: str) -> None:
    subjects = Subjects([RUNS[name](tmp_path / name)])
    text, source = ("the [MASK] fox", "") if name == "masked" else (TEXT, TEXT if name not in ("gpt", "recurrent") else "")
    answer: Any = ask(subjects, "picture", asked(subjects, text, source))
    names = {"gpt": ["blocks"], "recurrent": ["hidden"], "masked": ["encoder"], "transformer": ["encoder", "decoder"]}
    assert [stack["name"] for stack in answer["stacks"]] == names.get(name, ["encoder.hidden", "decoder.hidden"])
    assert answer["place"] == (2 if name == "masked" else answer["count"] - 1)
    assert answer["best"][0]["probability"] > 0
    assert (answer["shares"] is not None) == (name == "gpt")
    for wrong in ({"place": answer["count"]}, {"place": -1}):
        with pytest.raises(UserError, match=r"the number of tokens|not among the tokens"):
            ask(subjects, "picture", asked(subjects, text, source, **wrong))


def test_tokens_are_named_by_their_ids(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run")])
    subject = subjects.get("best")
    answer: Any = ask(subjects, "tokens", {"model": "best"})
    assert len(answer["texts"]) == subject.num_tokens
    assert [answer["texts"][i] for i in subject.encode(TEXT)] == list(TEXT)
