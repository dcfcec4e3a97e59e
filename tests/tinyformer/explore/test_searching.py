"""The explorer's question about beam search: its tree and texts are those of the library."""

from __future__ import annotations

import math
import threading
from pathlib import Path
from typing import Any

import pytest
from explored import gpt_run, masked_run, recurrent_run, translation_run

from tinyformer.common.errors import UserError
from tinyformer.decoding.beam_search import beam_search
from tinyformer.explore.views.questions import ask as ask_any
from tinyformer.explore.views.searching import follow
from tinyformer.explore.views.subjects import Subjects


def ask(subjects: Subjects, name: str, asked: Any) -> Any:
    """Return a response. Some come in parts."""
    return ask_any(subjects, name, asked)


def searched(subjects: Subjects, text: str, source: str = "", **settings: Any) -> tuple[list[Any], dict[str, Any]]:
    """The nodes, from node 1 on, and the last line of an answer."""
    subject = subjects.get("best")
    passage = {"model": "best", "ids": subject.encode(text), "source": subject.encode(source, True) if source else []}
    lines = list(ask(subjects, "search", {"passage": passage, **settings}))
    return [node for line in lines for node in line.get("nodes", ())], dict(lines[-1])


def check_tree(nodes: list[Any], found: dict[str, Any]) -> None:
    """The path of each text spells it, and its last node has its score."""
    for hypothesis in (*found["hypotheses"], found["greedy"]):
        first, *path = hypothesis["nodes"]
        ends = [] if hypothesis["end"] is None else [hypothesis["end"]]
        assert first == 0 and [nodes[i - 1]["id"] for i in path] == hypothesis["ids"] + ends
        assert [nodes[i - 1]["parent"] for i in path] == hypothesis["nodes"][:-1]
        assert [nodes[i - 1]["step"] for i in path] == list(range(1, len(path) + 1))
        assert nodes[path[-1] - 1]["score"] == pytest.approx(hypothesis["score"], rel=1e-5)
        assert nodes[path[-1] - 1]["log_probability"] == pytest.approx(hypothesis["log_probability"], rel=1e-5)
        assert hypothesis["probability"] == math.exp(hypothesis["log_probability"])


@pytest.mark.parametrize("make", [gpt_run, recurrent_run])
@pytest.mark.parametrize("beam", [1, 4])
def test_a_language_model_is_searched_as_by_beam_search(tmp_path: Path, make: Any, beam: int) -> None:
    subjects = Subjects([make(tmp_path / "run")])
    nodes, found = searched(subjects, "the fox", beam=beam, length=6, n_best=beam)
    subject = subjects.get("best")
    for width, hypotheses in ((beam, found["hypotheses"]), (1, [found["greedy"]])):
        prompt = subject.encode("the fox")
        (expected,) = beam_search(subject.decoder(20), [prompt], None, width, max_tokens=6, n_best=width)
        assert [(h["ids"], h["score"]) for h in hypotheses] == [(list(h.ids), h.score) for h in expected]
        assert [h["text"] for h in hypotheses] == [subject.tokenizer.decode(h.ids) for h in expected]
    check_tree(nodes, found)


@pytest.mark.parametrize("architecture", ["transformer", "attention"])
def test_a_translation_is_that_of_the_translator(tmp_path: Path, architecture: str) -> None:
    subjects = Subjects([translation_run(tmp_path / "run", architecture)])
    nodes, found = searched(subjects, "", "the fox", beam=3, length=200, n_best=3)
    translator = subjects.get("best").translator
    assert translator is not None
    for width, hypotheses in ((3, found["hypotheses"]), (1, [found["greedy"]])):
        (expected,) = translator.search(["the fox"], width, width)
        assert [(h["ids"], h["end"], h["score"]) for h in hypotheses] == [(list(h.ids), h.end, h.score) for h in expected]
        assert [h["text"] for h in hypotheses] == [translator.text(h) for h in expected]
    check_tree(nodes, found)


def test_no_more_is_searched_than_the_model_writes(tmp_path: Path) -> None:
    subjects = Subjects([translation_run(tmp_path / "run")])
    passage = {"model": "best", "ids": [1], "source": subjects.get("best").encode("fox", True)}
    assert next(ask(subjects, "search", {"passage": passage, "beam": 1, "length": 200}))["length"] == 41
    full = {**passage, "ids": [1] * 42}
    with pytest.raises(UserError, match="writes only shorter ones"):
        list(ask(subjects, "search", {"passage": full, "beam": 1, "length": 1}))


@pytest.mark.parametrize("wrong", [{"beam": 0}, {"beam": 17}, {"length": 0}, {"length": 201}, {"n_best": 3}])
def test_a_search_is_bounded(tmp_path: Path, wrong: dict[str, int]) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run")])
    with pytest.raises(UserError, match=next(iter(wrong))):
        searched(subjects, "fox", "", **{"beam": 2, "length": 2, "n_best": 1, **wrong})


def test_a_model_that_fills_in_is_not_searched(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not write"):
        searched(Subjects([masked_run(tmp_path / "run")]), "fox", beam=1, length=1)


def test_others_use_the_models_between_two_steps_of_a_search(tmp_path: Path) -> None:
    subjects = Subjects([gpt_run(tmp_path / "run")])
    passage = {"model": "best", "ids": [1, 2], "source": []}
    steps = ask(subjects, "search", {"passage": passage, "beam": 2, "length": 50})
    assert [next(steps).get("step") for _ in range(3)] == [None, 1, 2]
    other = threading.Thread(target=subjects.lock.acquire, daemon=True)
    other.start()
    other.join(5)
    assert not other.is_alive()


def test_an_abandoned_computation_ends() -> None:
    told, ended = [], threading.Event()

    def work(tell: Any) -> None:
        try:
            for i in range(1000):
                told.append(i)
                tell(i)
        finally:
            ended.set()

    steps: Any = follow(work)
    assert [next(steps), next(steps)] == [0, 1]
    steps.close()
    assert ended.wait(5) and told == [0, 1]


def test_what_a_computation_raises_its_follower_raises() -> None:
    def work(tell: Any) -> None:
        tell(1)
        raise UserError("too much")

    steps: Any = follow(work)
    assert next(steps) == 1
    with pytest.raises(UserError, match="too much"):
        next(steps)
    assert list(follow(lambda tell: 7)) == [7]
