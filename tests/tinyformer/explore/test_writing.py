"""What the explorer says about writing, against the library's own functions."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import math
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored import gpt_run, masked_run, recurrent_run, translation_run

import tinytensor as tt
from tinyformer.common.errors import UserError
from tinyformer.decoding.filling import fill_masks
from tinyformer.decoding.generation import generate, language_decoder, sample, translation_decoder
from tinyformer.decoding.sampling import Sampling
from tinyformer.explore.serving.server import ExplorerServer
from tinyformer.explore.views import writing
from tinyformer.explore.views.passages import Passage
from tinyformer.explore.views.questions import ask
from tinyformer.explore.views.subjects import Subjects
from tinyformer.explore.views.writing import Fill, Next, Remembered, Write, distribution, fill, next_token, write

RUNS = {"gpt": gpt_run, "recurrent": recurrent_run, "translation": translation_run, "masked": masked_run}
SAMPLINGS = [Sampling(), Sampling(0.5, top_k=5), Sampling(1.5, top_p=0.7), Sampling(0)]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subjects]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: Subjects([make(folder / name)]) for name, make in RUNS.items()}


def the(subjects: Subjects, text: str, source: str = "") -> Passage:
    """The passage of a text."""
    subject = subjects.get("best")
    return Passage("best", subject.encode(text), subject.encode(source, True) if source else [])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", ["gpt", "recurrent"])
def test_the_next_token_is_as_likely_as_sampling_says(every: Any, name: str, sampling: Sampling) -> None:
    subjects = every[name]
    passage = the(subjects, "the fox")
    found = next_token(subjects, Next(passage, sampling, chosen=3))
    subject = subjects.get("best")
    logits = language_decoder(subject.model).next_logits([passage.ids])[0]
    expected = sampling.probabilities(logits)
    order = [int(i) for i in np.argsort(-expected, kind="stable")[:10] if expected[i] > 0]
    assert [(one["id"], one["text"]) for one in found["best"]] == list(zip(order, subject.texts(order)))
    assert [one["probability"] for one in found["best"]] == pytest.approx(expected[order])
    assert found["probability"] == pytest.approx(expected[3])
    assert found["possible"] == (expected > 0).sum()
    assert found["entropy"] == pytest.approx(-sum(p * math.log(p) for p in expected if p > 0))


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_text_is_the_one_that_generate_gives(every: Any, sampling: Sampling) -> None:
    subjects = every["gpt"]
    passage, model = the(subjects, "the fox"), subjects.get("best").model
    found = list(write(subjects, Write(passage, 12, sampling)))
    asked = dataclasses.replace(sampling, seed=writing.SEED)
    assert [one["id"] for one in found] == list(generate(model, passage.ids, 12, asked))
    for i, one in enumerate(found):  # what is said of each token is what is said when it is asked for later
        ids = passage.ids + [before["id"] for before in found[:i]]
        again = next_token(subjects, Next(Passage("best", ids), sampling, one["id"]))
        assert one["probability"] == pytest.approx(again["probability"], rel=1e-4)
        assert one["entropy"] == pytest.approx(again["entropy"], rel=1e-4, abs=1e-9)


def test_a_translation_continues_from_its_start(every: Any) -> None:
    subjects = every["translation"]
    passage, subject = the(subjects, "", "fox"), subjects.get("best")
    assert passage.ids == list(subject.start)
    found = [one["id"] for one in write(subjects, Write(passage, 30))]
    decoder = translation_decoder(subject.model, [passage.source], 31)
    expected = sample(decoder, [passage.ids], 30, Sampling(), subject.ends, subject.forbidden)
    assert found == [int(ids[0]) for ids in expected]
    assert not set(found) & set(subject.forbidden)


def test_forbidden_tokens_are_impossible(every: Any) -> None:
    subject = dataclasses.replace(every["translation"].get("best"), forbidden=(1, 2))
    found = distribution(subject, np.zeros(subject.num_tokens, np.float32), Sampling(), subject.forbidden[0])
    assert found["probability"] == 0
    assert found["possible"] == subject.num_tokens - len(subject.forbidden)
    assert not {one["id"] for one in found["best"]} & set(subject.forbidden)


def test_a_mask_is_filled_as_fill_masks_fills_it(every: Any) -> None:
    subjects = every["masked"]
    subject, text = subjects.get("best"), "the [MASK] jump over [MASK]"
    passage = the(subjects, text)
    places = [place for place, i in enumerate(passage.ids) if i == subject.mask]
    expected = fill_masks(subject.model, subject.tokenizer, text, 10)
    assert len(places) == 2
    for place, row in zip(places, expected):
        found = fill(subjects, Fill(passage, place))
        assert [one["text"] for one in found["best"]] == [token for token, _ in row]
        assert [one["probability"] for one in found["best"]] == pytest.approx([p for _, p in row], rel=1e-5)
    colder = fill(subjects, Fill(passage, places[0], Sampling(0.3, top_k=4)))
    assert colder["possible"] == len(colder["best"]) == 4
    assert colder["best"][0]["probability"] > expected[0][0][1]


@pytest.mark.parametrize(
    ("name", "question", "asked", "said"),
    [
        ("gpt", "fill", {"place": 0}, "this model fills in no masks"),
        ("masked", "fill", {"place": 99}, "there is no position 99 in a text of 4 tokens"),
        ("masked", "fill", {"place": -1}, "there is no position -1 in a text of 4 tokens"),
        ("masked", "next_token", {}, "this model does not write: it fills in masks"),
        ("gpt", "next_token", {"chosen": 10_000}, "chosen must be the id of a token, from 0 to"),
        ("gpt", "next_token", {"sampling": {"temperature": -1}}, "temperature must be 0"),
        ("gpt", "write", {"length": 5001}, "length must be from 0 to 5000, got 5001"),
    ],
)
def test_what_cannot_be_asked(every: Any, name: str, question: str, asked: dict[str, Any], said: str) -> None:
    passage = the(every[name], "fox fox" if name == "masked" else "fox")
    with pytest.raises(UserError, match=said):
        ask(every[name], question, {"passage": vars(passage), **asked})


def test_a_text_longer_than_a_bert_reads(every: Any) -> None:
    passage = the(every["masked"], "fox " * 30)
    with pytest.raises(UserError, match="the sentence has 30 tokens, more than the 22 that this model reads"):
        fill(every["masked"], Fill(passage, 1))


def test_another_temperature_needs_no_model(every: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = every["gpt"]
    passage = the(subjects, "a dog")
    next_token(subjects, Next(passage))
    monkeypatch.setattr(type(subjects.get("best")), "decoder", None)
    assert next_token(subjects, Next(passage, Sampling(top_k=1)))["possible"] == 1


def test_only_the_newest_places_are_remembered(every: Any) -> None:
    model, remembered = every["gpt"].get("best").model, Remembered()
    computed: list[int] = []

    def compute(place: int) -> int:
        computed.append(place)
        return place

    for place in (0, 1, 2, 0, *range(3, writing.MOST_REMEMBERED + 1), 0, 1):
        assert remembered.logits(model, place, partial(compute, place)) == place
    assert computed == [*range(writing.MOST_REMEMBERED + 1), 1]  # 0 was used again, 1 was not
    assert len(remembered.of_models[model]) == writing.MOST_REMEMBERED


def test_the_likeliest_of_a_large_vocabulary(every: Any) -> None:
    class Large:
        forbidden = ()

        def texts(self, ids: list[int]) -> list[str]:
            assert len(ids) <= writing.BEST  # texts of all would take long
            return [str(i) for i in ids]

    subject: Any = Large()
    logits = np.random.default_rng(0).normal(size=50_257).astype(np.float32)
    logits[7_000:7_020] = 9.0  # equally likely: those with the smaller ids are first
    found = distribution(subject, logits, Sampling())
    assert [one["id"] for one in found["best"]] == list(range(7_000, 7_010))
    assert found["possible"] == 50_257
    kept = distribution(subject, logits, Sampling(top_k=12))
    assert kept["possible"] == 12
    assert kept["best"][0]["probability"] == pytest.approx(1 / 12)
    assert kept["entropy"] == pytest.approx(math.log(12))


def serve(subjects: Subjects) -> ExplorerServer:
    """A server that runs in a thread."""
    started = ExplorerServer(subjects)
    threading.Thread(target=started.serve_forever, kwargs={"poll_interval": 0.01}).start()
    return started


def post(server: ExplorerServer, passage: Passage, length: int, seed: int) -> tuple[Any, Any]:
    """Ask for a text. Returns the connection and the response, whose lines come as they are written."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    asked = {"passage": vars(passage), "length": length, "sampling": {"seed": seed}}
    connection.request("POST", f"/{server.token}/ask/write", json.dumps(asked), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def test_two_pages_write_in_parallel(every: Any) -> None:
    subjects = every["gpt"]
    passage, model = the(subjects, "the"), subjects.get("best").model
    server = serve(subjects)
    try:
        both = [post(server, passage, 60, seed) for seed in (1, 2)]  # both have begun before the first is read
        found = [[json.loads(line)["id"] for line in response] for _, response in both]
        for connection, _ in both:
            connection.close()
    finally:
        server.shutdown()
        server.server_close()
    assert found == [list(generate(model, passage.ids, 60, Sampling(seed=seed))) for seed in (1, 2)]


def test_writing_ends_when_the_page_goes_away(every: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def watched(*given: Any) -> Iterator[Any]:
        try:
            yield from sample(*given)
        finally:
            ended.set()

    monkeypatch.setattr(writing, "sample", watched)
    server = serve(every["recurrent"])
    try:
        connection, response = post(server, the(every["recurrent"], "the"), 5_000, 1)
        response.readline()
        response.close()
        connection.close()
        assert ended.wait(10)
    finally:
        server.shutdown()
        server.server_close()


def test_a_diverged_model_is_reported_after_its_tokens(every: Any) -> None:
    subjects = every["recurrent"]
    steps = write(subjects, Write(the(subjects, "the"), 5))
    next(steps)
    subject = subjects.get("best")
    kept = subject.model.state_dict()
    try:
        for parameter in subject.model.parameters():
            parameter.assign(parameter * tt.tensor(math.nan, dtype=parameter.dtype))
        with pytest.raises(UserError, match="NaN: its training diverged"):
            next(steps)
    finally:
        subject.model.load_state_dict(kept)


def test_an_encoder_decoder_writes_no_more_than_it_has_positions_for(tmp_path: Path) -> None:
    subjects = Subjects([translation_run(tmp_path / "run", positions="learned", max_length=42)])
    passage = the(subjects, "", "fox")
    lengths = {len(list(write(subjects, Write(passage, 200, Sampling(50, seed=seed))))) for seed in range(30)}
    assert max(lengths) == 41  # so many tokens are at most in a translation: 40 and the end
    longer = {"passage": {**vars(passage), "ids": passage.ids * 43}}
    for name in ("next_token", "inside", "attention"):
        with pytest.raises(UserError, match="at most 42 tokens at once, not 43"):
            ask(subjects, name, longer)


def test_a_small_model_writes_with_one_thread_of_blas(every: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a text that is given up on gives the other threads back."""
    inside: list[str] = []

    @contextlib.contextmanager
    def one_blas_thread() -> Iterator[None]:
        inside.append("in")
        try:
            yield
        finally:
            inside.append("out")

    monkeypatch.setattr(writing, "one_blas_thread", one_blas_thread)
    lines = write(every["gpt"], Write(the(every["gpt"], "the fox"), 5))
    next(lines)
    assert inside == ["in"]
    lines.close()  # type: ignore[attr-defined]
    assert inside == ["in", "out"]
    monkeypatch.setattr(writing, "SMALL", 0)
    list(write(every["gpt"], Write(the(every["gpt"], "the fox"), 5)))
    assert inside == ["in", "out"]
